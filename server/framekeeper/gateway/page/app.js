/** The page's beginning: everything is put together here. */

import { forgetKey, key, onKeyNeeded, send } from "./api.js";
import * as banner from "./banner.js";
import { $, announce } from "./elements.js";
import * as form from "./form.js";
import * as incidents from "./incidents.js";
import * as jobs from "./jobs.js";
import * as player from "./player.js";

const ENGINES_MS = 2000;

onKeyNeeded(
  (message) =>
    new Promise((resolve) => {
      $("key").value = "";
      $("key-error").textContent = message;
      $("key-dialog").showModal();
      $("key-form").addEventListener(
        "submit",
        () => {
          $("forget-key").hidden = false;
          resolve($("key").value.trim());
        },
        { once: true },
      );
    }),
);
// Without a key there is nothing behind the dialog.
$("key-dialog").addEventListener("cancel", (event) => event.preventDefault());

$("forget-key").addEventListener("click", () => {
  forgetKey();
  location.reload();
});
$("forget-key").hidden = !key();

function accepted(video) {
  jobs.show(video);
  jobs.refresh();
  announce("Accepted");
  if (window.innerWidth < 960) $(video.id)?.scrollIntoView({ block: "center" });
}

/** Do it, and tell beside the form when it fails. */
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.status === 0) banner.heard(error);
    form.fault(null, error.message);
    announce(error.message);
  }
}

const actions = {
  watch: (video) =>
    player.watch(video, [
      { name: "Download", run: () => actions.download(video) },
      { name: "Reuse", run: () => ($("player").close(), actions.reuse(video)) },
      { name: "Delete", run: () => ($("player").close(), actions.delete(video)) },
    ]),
  download: (video) => attempt(() => player.download(video)),
  reuse: (video) => form.fill(video),
  retry: (video) => {
    const picture = form.pictureOf(video);
    if (video.has_input_reference && !picture) return form.fillAgain(video);
    return form.submit({ ...fieldsOf(video), ...(picture && { input_reference: picture }) }, accepted);
  },
  cancel: (video) => attempt(async () => jobs.show(await send("POST", `v1/videos/${video.id}/cancel`))),
  delete: (video) =>
    attempt(async () => {
      if (!(await confirmed(video))) return;
      await send("DELETE", `v1/videos/${video.id}`);
      jobs.remove(video.id);
      announce("Deleted");
    }),
};

/** The same again, seed included: what was not given then is given by name now. */
function fieldsOf(video) {
  const names =
    "model prompt negative_prompt size num_frames fps num_inference_steps guidance_scale guidance_scale_2 boundary_ratio flow_shift seed priority";
  return Object.fromEntries(names.split(" ").map((name) => [name, video[name]]).filter(([, value]) => value != null));
}

function confirmed(video) {
  $("confirm-text").textContent = video.prompt.slice(0, 160);
  const dialog = $("confirm");
  dialog.returnValue = "keep";
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "delete"), { once: true }),
  );
}

async function engines() {
  const list = await banner.refresh();
  try {
    await form.load(list);
  } catch (error) {
    banner.heard(error);
  }
  setTimeout(engines, document.hidden ? 5 * ENGINES_MS : ENGINES_MS);
}

form.begin(accepted);
player.begin();
jobs.begin(actions, banner.heard);
incidents.begin();
setInterval(incidents.refresh, 30000);
setInterval(banner.draw, 1000);
engines();
