/** How the engines are, in one sentence, and nothing when all is well. */

import { getJson } from "./api.js";
import { $ } from "./elements.js";
import { duration } from "./words.js";

const PILLS = {
  ready: ["good", "Ready"],
  busy: ["good", "Working"],
  degraded: ["warn", "Degraded"],
  waiting: ["warn", "Getting ready"],
  bad: ["bad", "Not available"],
};
const AT_WORK = {
  starting: "The engine is being started",
  loading: "The engine is loading the model",
  warming: "The engine is warming up",
  blocked: "The engine waits",
  restarting: "The engine ended and is being started again",
};

let shown = { pill: "bad", tone: "", sentence: () => "" };
let away = null;
let at = Date.now();

/** Read the engines; the list, or an empty one where this key may not see them. */
export async function refresh() {
  try {
    const { data } = await getJson("v1/engines");
    at = Date.now();
    away = null;
    shown = judge(data);
    return data;
  } catch (error) {
    if (error.status === 403) {
      // A key that may not look at engines is no fault of theirs.
      away = null;
      shown = { pill: "ready", tone: "", sentence: () => "" };
    } else {
      heard(error);
    }
    return [];
  } finally {
    draw();
  }
}

/** A request failed, or one succeeded: null. */
export function heard(error) {
  if (error && error.status !== 0 && error.status < 500) return;
  away = error;
  draw();
}

export function judge(engines) {
  const alive = engines.filter((engine) => engine.state !== "stopped");
  const serving = alive.filter((engine) => engine.serving);
  // One that works on a fallback is busy, and says why it is on one.
  const reduced = serving.find((engine) => engine.state === "degraded" || (engine.state === "busy" && engine.detail));
  if (serving.length) {
    const busy = serving.every((engine) => engine.state === "busy");
    const one = alive.length > serving.length ? alive.find((engine) => !engine.serving) : null;
    if (reduced) return fixed("degraded", "warn", whole("The engine serves on a fallback", reduced.detail));
    if (one) {
      const count = `${serving.length} of ${alive.length} engines`;
      return fixed(busy ? "busy" : "ready", "", whole(`${count} can make videos at present`, one.detail));
    }
    return fixed(busy ? "busy" : "ready", "", "");
  }
  const working = alive.find((engine) => AT_WORK[engine.state] && engine.silent_seconds < 60);
  if (working) {
    const phase = working.phase && working.phase !== working.state ? `, ${working.phase.replaceAll("_", " ")}` : "";
    return {
      pill: "waiting",
      tone: "warn",
      sentence: () => {
        const seconds = working.phase_seconds + (Date.now() - at) / 1000;
        return whole(`${AT_WORK[working.state]}${phase}, for ${duration(seconds)} so far`, working.detail) + KEPT;
      },
    };
  }
  const failed = alive.find((engine) => engine.state === "failed");
  if (failed) return fixed("bad", "bad", whole("The engine has failed", failed.detail) + KEPT);
  if (alive.length) return fixed("bad", "bad", `The engine has not been heard of for ${duration(alive[0].silent_seconds)}.${KEPT}`);
  return fixed("bad", "bad", `No engine is running.${KEPT}`);
}

const KEPT = " Jobs wait and are kept.";
const fixed = (pill, tone, sentence) => ({ pill, tone, sentence: () => sentence });
const whole = (what, why) => (why ? `${what}: ${why.replace(/\.$/, "")}.` : `${what}.`);

export function draw() {
  const { pill, tone, sentence } = away
    ? { pill: "bad", tone: "bad", sentence: () => awaySentence(away) }
    : shown;
  const [colour, word] = PILLS[pill];
  $("engine").dataset.tone = colour;
  write($("engine").firstElementChild, away ? (away.status ? "Not available" : "Offline") : word);
  const text = sentence();
  $("banner").dataset.tone = tone;
  $("banner").hidden = !text;
  // Seconds that go up are not read out.
  $("banner").setAttribute("aria-live", pill === "waiting" ? "off" : "polite");
  write($("banner").firstElementChild, text);
}

function awaySentence(error) {
  if (error.code === "database_unavailable")
    return "The database is away: nothing can be accepted or looked up right now. Accepted jobs are kept. Trying again.";
  return error.message;
}

function write(where, text) {
  if (where.textContent !== text) where.textContent = text;
}
