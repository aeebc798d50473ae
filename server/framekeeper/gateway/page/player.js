/** Watching one video, and taking it away. */

import { contentUrl, key, request } from "./api.js";
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

/** Save the file under a name that says what it is; a link to it would get the service's own name. */
export async function download(video) {
  const url = URL.createObjectURL(await (await request(`v1/videos/${video.id}/content`)).blob());
  const name = video.prompt.slice(0, 40).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  const link = element("a", { href: url, download: `${name || video.id}.mp4` });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}
