/** Watching one video, and taking it away. */

import { contentUrl, key } from "./api.js";
import { $, element } from "./elements.js";
import { facts } from "./words.js";

let current = null;

export function begin() {
  const player = $("player");
  player.addEventListener("close", () => {
    current = null;
    stop();
  });
  // A click beside the dialog closes it.
  player.addEventListener("click", (event) => event.target === player && player.close());
}

/** @param {{name: string, run: () => void}[]} actions the buttons below the video */
export async function watch(video, actions) {
  current = video.id;
  $("player-title").textContent = video.prompt;
  $("player-facts").textContent = facts(video);
  $("player-actions").replaceChildren(
    ...actions.map(({ name, run }) => {
      const button = element("button", { type: "button" }, name);
      button.addEventListener("click", run);
      return button;
    }),
  );
  $("video").setAttribute("aria-label", video.prompt.slice(0, 120));
  $("video-wait").textContent = key() ? "Loading" : "";
  $("player").showModal();
  try {
    const url = await contentUrl(video.id);
    if (current !== video.id) return;
    $("video").src = url;
    $("video-wait").textContent = "";
    $("video").play().catch(() => {});
  } catch (error) {
    $("video-wait").textContent = error.message;
  }
}

function stop() {
  const { src } = $("video");
  $("video").removeAttribute("src");
  $("video").load();
  if (src.startsWith("blob:")) URL.revokeObjectURL(src);
}

export async function download(video) {
  const url = await contentUrl(video.id);
  const link = element("a", { href: url, download: `${video.prompt.slice(0, 40).replace(/[^\p{L}\p{N}]+/gu, "-") || video.id}.mp4` });
  document.body.append(link);
  link.click();
  link.remove();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 60000);
}
