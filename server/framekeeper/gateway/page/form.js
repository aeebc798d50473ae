/** The form: what the models admit as choices, and each fault beside its field. */

import { getJson, send } from "./api.js";
import { $, element } from "./elements.js";
import * as picture from "./picture.js";
import { duration } from "./words.js";

/** Where a fault of a field is shown, when not under its own name. */
const SHOWN_AT = { seconds: "num_frames", width: "size", height: "size", fps: "num_frames" };
const MULTIPLE = 16;
let models = new Map();
let queue = new Map();
let built = "";

/** @param {(video: object) => void} accepted is given each job that was accepted */
export function begin(accepted) {
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = read();
    if (!fields.prompt.trim()) return fault("prompt", "Write what the video should show.");
    if (picture.problem()) return fault("input_reference", picture.problem());
    if (await submit(fields, accepted)) $("prompt").select();
  });
  $("form").addEventListener("input", (event) => {
    clearFault(event.target.name);
    outlook();
  });
  picture.begin(fault, likeThePicture);
  $("model").addEventListener("change", () => build(true));
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  });
}

/** Read what can be made, from the models or, of an older service, from its engines. */
export async function load(engines) {
  const [list, lines] = await Promise.all([getJson("v1/models"), getJson("v1/queue").catch(() => ({ models: [] }))]);
  queue = new Map(lines.models.map((each) => [each.model, each]));
  models = new Map(
    list.data.map((model) => {
      const engine = engines.find((each) => each.model === model.id);
      return [model.id, { ...model, limits: model.limits ?? engine?.admits, defaults: model.defaults ?? engine?.defaults }];
    }),
  );
  const selected = $("model").value;
  if ([...models.keys()].join() !== [...$("model").options].map((option) => option.value).join()) {
    $("model").replaceChildren(...[...models.keys()].map((id) => element("option", { value: id }, id)));
    if (models.has(selected)) $("model").value = selected;
  }
  $("model-field").hidden = models.size < 2;
  build();
}

/** Choose the size whose proportions are nearest to the picture's: the rest of it is cut off. */
function likeThePicture(width, height) {
  const off = ({ value }) => {
    const [across, down] = value.split("x").map(Number);
    return Math.abs(Math.log((across * height) / (down * width)));
  };
  const sizes = [...document.getElementsByName("size")];
  // Of those that are equally near the one that stands first.
  const best = sizes.reduce((a, b) => (off(b) < off(a) - 0.01 ? b : a), sizes[0]);
  if (best) best.checked = true;
}

const model = () => models.get($("model").value) ?? {};

function build(again = false) {
  const { id, limits, defaults, sizes, input_reference: image = "none" } = model();
  const now = JSON.stringify([id, limits, defaults, sizes, image]);
  if (!limits || !defaults || (now === built && !again)) return outlook();
  const keep = built ? read() : {};
  built = now;
  choices("sizes", "size", sizeChoices(limits, defaults, sizes), keep.size ?? defaults.size, sizeLabel);
  const fps = defaults.fps;
  const frames = frameChoices(limits.num_frames, defaults.num_frames, fps);
  // 81 frames at 16 a second are 5 seconds to everybody but the model.
  const seconds = (count) => {
    const exact = count / fps;
    return `${exact >= 1 && Math.abs(exact - Math.round(exact)) * fps <= 2 ? Math.round(exact) : Number(exact.toPrecision(2))} s`;
  };
  choices("lengths", "num_frames", frames, String(keep.num_frames ?? defaults.num_frames), seconds);
  $("num_inference_steps").max = limits.steps ?? limits.num_inference_steps;
  $("num_inference_steps").placeholder = defaults.num_inference_steps;
  $("guidance_scale").placeholder = defaults.guidance_scale;
  picture.allow(image);
  outlook();
}

function choices(where, name, values, chosen, label) {
  if (!values.map(String).includes(String(chosen))) chosen = values[0];
  $(where).replaceChildren(
    ...values.map((value) => {
      const input = element("input", { type: "radio", name, value, checked: String(value) === String(chosen) });
      return element("label", {}, input, element("span", {}, ...[label(value)].flat()));
    }),
  );
}

function sizeLabel(size) {
  const [width, height] = size.split("x").map(Number);
  const shape = element("i", { ariaHidden: "true" });
  const scale = 16 / Math.max(width, height);
  shape.style.width = `${width * scale}px`;
  shape.style.height = `${height * scale}px`;
  return [shape, `${width} × ${height}`];
}

/** The suggested sizes; without any the default, the largest, upright, square and a small one. */
function sizeChoices(limits, defaults, sizes) {
  if (sizes?.length) return sizes.map(([width, height]) => `${width}x${height}`);
  const [width, height] = limits.size.split("x").map(Number);
  const round = (side) => Math.max(MULTIPLE, Math.floor(side / MULTIPLE) * MULTIPLE);
  const square = round(Math.sqrt(width * height));
  const all = [defaults.size, `${width}x${height}`, `${height}x${width}`, `${square}x${square}`];
  return [...new Set([...all, `${round(width / 2)}x${round(height / 2)}`])];
}

/** Numbers of frames 4k+1: the default, the most, and whole seconds between. */
function frameChoices(most, usual, fps) {
  const whole = [1, 2, 3, 4, 5, 8, 10].map((seconds) => Math.round((seconds * fps - 1) / 4) * 4 + 1);
  const largest = Math.floor((most - 1) / 4) * 4 + 1;
  const all = [...new Set([usual, largest, ...whole])].filter((count) => count > 1 && count <= largest);
  return all.sort((a, b) => a - b);
}

/** The fields as the API takes them; what was left empty is left out. */
export function read() {
  const fields = {};
  for (const [name, value] of new FormData($("form"))) {
    if (value instanceof File ? value.size : value !== "") fields[name] = value;
  }
  for (const name of ["num_frames", "num_inference_steps", "guidance_scale"]) {
    if (name in fields) fields[name] = Number(fields[name]);
  }
  // As text: numbers beyond 2^53 would be rounded.
  fields.prompt ??= "";
  if (!picture.chosen()) delete fields.input_reference;
  return fields;
}

/** Fill in the settings of an earlier video. */
export function fill(video) {
  $("prompt").value = video.prompt;
  if (models.has(video.model)) $("model").value = video.model;
  build();
  const { defaults = {} } = model();
  for (const name of ["negative_prompt", "num_inference_steps", "guidance_scale"]) {
    $(name).value = video[name] != null && video[name] !== defaults[name] ? video[name] : "";
  }
  $("seed").value = "";
  for (const [name, value] of [["size", video.size], ["num_frames", video.num_frames]]) {
    const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
    if (input) input.checked = true;
  }
  if ($("negative_prompt").value || $("num_inference_steps").value || $("guidance_scale").value) $("more").open = true;
  clearFaults();
  outlook();
  $("prompt").focus();
  $("prompt").scrollIntoView({ block: "nearest" });
}

/** The pictures of the jobs that this tab submitted: the service keeps none once a video is done. */
const pictures = new Map();
export const pictureOf = (video) => pictures.get(video.id);

/** As `fill` and with its seed; its picture is not kept once a video is done, so it has to be given again. */
export function fillAgain(video) {
  fill(video);
  $("seed").value = video.seed;
  if (!picture.chosen()) fault("input_reference", "Choose the picture again: it was kept only while the video was made.");
}

let sent = { body: "", key: "" };

/** Submit; true when the job was accepted. The same again after a lost answer makes no second job. */
export async function submit(fields, accepted) {
  clearFaults();
  const image = fields.input_reference;
  const seed = typeof fields.seed === "string" && /^[0-9]+$/.test(fields.seed);
  const named = image && [image.name, image.size, image.lastModified];
  let body = JSON.stringify({ ...fields, input_reference: named });
  // Digits as they stand, for a number beyond 2^53.
  if (seed) body = body.replace(`"seed":"${fields.seed}"`, `"seed":${fields.seed.replace(/^0+(?=.)/, "")}`);
  if (sent.body !== body) sent = { body, key: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
  const headers = { "Idempotency-Key": sent.key };
  $("submit").disabled = true;
  try {
    const form = new FormData();
    if (image) for (const [name, value] of Object.entries(fields)) form.append(name, value);
    else headers["Content-Type"] = "application/json";
    const video = await send("POST", "v1/videos", image ? form : new Blob([body]), headers);
    if (image) pictures.set(video.id, image);
    accepted(video);
    sent = { body: "", key: "" };
    return true;
  } catch (error) {
    fault(error.param, error.message);
    return false;
  } finally {
    $("submit").disabled = false;
  }
}

export function fault(param, message) {
  const name = SHOWN_AT[param] ?? param;
  const place = name && $(`${name}-error`);
  if (!place) {
    $("form-error").textContent = message;
    return;
  }
  place.textContent = message;
  const inputs = document.getElementsByName(name);
  inputs.forEach((input) => input.setAttribute("aria-invalid", "true"));
  if (place.closest("details")) place.closest("details").open = true;
  ([...inputs].find((input) => input.checked) ?? inputs[0])?.focus();
}

function clearFault(name) {
  document.getElementsByName(name).forEach((input) => input.removeAttribute("aria-invalid"));
  if ($(`${name}-error`)) $(`${name}-error`).textContent = "";
  $("form-error").textContent = "";
}

function clearFaults() {
  const names = new Set([...$("form").elements].map((input) => input.name).filter(Boolean));
  names.forEach(clearFault);
}

/** What a job with the defaults takes, and how long the line is. */
function outlook() {
  const { id, seconds_per_job: seconds } = model();
  const waiting = queue.get(id);
  const parts = [];
  if (seconds) parts.push(`Usually ${duration(seconds)}`);
  if (waiting?.waiting) parts.push(`${waiting.waiting} waiting${waiting.seconds ? `, about ${duration(waiting.seconds)}` : ""}`);
  $("outlook").textContent = parts.join(" · ");
}
