/** The gallery: the newest jobs, brought up to date by events, and by polling where there are none. */

import { ApiError, events, getJson } from "./api.js";
import { Card } from "./card.js";
import { $, announce } from "./elements.js";
import { active, STATES } from "./words.js";

const PAGE = 24;
/** Streams open at a time: a browser has six connections to a host, and the others are polled. */
const STREAMS = 3;
const POLL_MS = 2000;

/** @type {Map<string, Card>} */
const cards = new Map();
const streams = new Map();
let noEvents = false;
let actions = {};
let told = () => {};
/** Why the list could not be read at the last look; empty when it could. */
let unread = "";

/** @param {object} what the buttons do; `heard(error)` is told how each look at the service went */
export function begin(buttons, heard) {
  actions = buttons;
  told = heard;
  $("older").addEventListener("click", older);
  setInterval(() => cards.forEach((card) => card.tick()), 1000);
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
  poll();
}

export const newest = () => [...cards.values()].map((card) => card.video);

export function forget() {
  streams.forEach((stream) => stream.abort());
  streams.clear();
  cards.forEach((card) => card.root.remove());
  cards.clear();
}

async function poll() {
  await refresh();
  setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
}

export async function refresh() {
  try {
    const page = await getJson(`v1/videos?limit=${PAGE}`);
    const last = page.data.at(-1);
    // What lies within this page and is not in it was deleted elsewhere.
    const there = new Set(page.data.map((video) => video.id));
    for (const [id, card] of cards) {
      const within = !page.has_more || (last && id >= last.id);
      if (within && !there.has(id)) remove(id, card.fresh > Date.now() - 3000);
    }
    page.data.forEach((video) => show(video));
    if (cards.size <= PAGE) $("older").hidden = !page.has_more;
    unread = "";
    settle();
    told(null);
  } catch (error) {
    unread = error.message;
    tellEmpty();
    // A key without the scope to list: its own jobs of this tab are followed all the same.
    if (error.status === 403) settle();
    told(error);
  }
}

async function older() {
  const last = [...cards.keys()].sort()[0];
  $("older").disabled = true;
  try {
    const page = await getJson(`v1/videos?limit=${PAGE}&after=${last}`);
    page.data.forEach((video) => show(video));
    $("older").hidden = !page.has_more;
    page.data[0] && $(page.data[0].id)?.querySelector("button")?.focus();
  } catch (error) {
    told(error);
  } finally {
    $("older").disabled = false;
  }
}

/** Enter a job, or bring it up to date. */
export function show(video) {
  const card = cards.get(video.id);
  if (!card) {
    const made = new Card(video, actions);
    made.fresh = Date.now();
    cards.set(video.id, made);
    // Ids begin with the time, so their order is that of the jobs.
    const next = [...$("cards").children].find((each) => each.id < video.id);
    $("cards").insertBefore(made.root, next ?? null);
  } else {
    tell(card.video, video);
    card.update({ ...card.video, ...video });
  }
}

export function remove(id, young = false) {
  const card = cards.get(id);
  if (!card || young) return;
  const held = card.root.contains(document.activeElement);
  const neighbour = card.root.nextElementSibling ?? card.root.previousElementSibling;
  streams.get(id)?.abort();
  card.root.remove();
  cards.delete(id);
  if (held) (neighbour?.querySelector("button") ?? $("gallery")).focus();
  settle();
}

function settle() {
  tellEmpty();
  follow();
}

function tellEmpty() {
  $("empty").hidden = cards.size > 0;
  $("empty").textContent = unread
    ? `Your videos cannot be shown now. ${unread}`
    : "Nothing here yet. Your videos will appear here, newest first.";
}

function tell(before, now) {
  const name = `“${(now.prompt ?? before.prompt).slice(0, 40)}”`;
  if (before.status !== now.status) {
    const why = now.status === "failed" ? `: ${now.error?.message ?? ""}` : "";
    announce(`${name}: ${STATES[now.status] ?? now.status}${why}`);
  } else if (now.status === "in_progress" && Math.floor(now.progress / 25) > Math.floor(before.progress / 25)) {
    announce(`${name}: ${now.progress} percent`);
  }
}

/** Open streams for the jobs that are nearest to their end. */
function follow() {
  if (noEvents) return;
  const rank = (video) => (video.status === "in_progress" ? -1 : (video.place ?? 1e6));
  const foremost = newest()
    .filter(active)
    .sort((a, b) => rank(a) - rank(b) || (a.id < b.id ? -1 : 1))
    .slice(0, STREAMS);
  const wanted = new Set(foremost.map((video) => video.id));
  for (const [id, stream] of streams) if (!wanted.has(id)) stream.abort();
  for (const id of wanted) if (!streams.has(id)) watch(id);
}

async function watch(id) {
  const stream = new AbortController();
  streams.set(id, stream);
  let ended = false;
  try {
    for await (const { event, data } of events(`v1/videos/${id}/events`, stream.signal)) {
      if (event === "end") {
        ended = true;
        break;
      }
      if (cards.has(id)) show(JSON.parse(data));
    }
  } catch (error) {
    // A service without events is polled; a lost stream is opened again at the next poll.
    if (error instanceof ApiError && error.status === 404 && error.code !== "video_not_found") noEvents = true;
  } finally {
    stream.abort();
    // Not at once: a stream that ends too early shall not be asked for without end.
    setTimeout(() => streams.get(id) === stream && streams.delete(id), ended ? 0 : POLL_MS / 2);
    if (ended) refresh();
  }
}
