/** One video in the gallery. Its elements stay, so that the focus stays, and are brought up to date. */

import { contentUrl } from "./api.js";
import { element } from "./elements.js";
import { active, duration, length, line, STATES, when } from "./words.js";

export class Card {
  /** @param {Record<string, (video: object) => void>} actions what the buttons do, by name */
  constructor(video, actions) {
    this.actions = actions;
    this.prompt = element("h3", { className: "prompt" });
    this.state = element("p", { className: "soft state" });
    this.buttons = element("div", { className: "actions" });
    this.frame = element("div", { className: "frame" });
    const text = element("div", { className: "text" }, this.prompt, this.state, this.buttons);
    this.root = element("li", { className: "card" }, this.frame, text);
    this.update(video);
  }

  update(video) {
    const before = this.video;
    this.video = video;
    this.received = Date.now();
    if (before?.status !== video.status) this.build(video);
    this.prompt.textContent = this.prompt.title = video.prompt;
    this.state.textContent = this.sentence(video);
    this.tick();
  }

  build(video) {
    const focused = this.root.contains(document.activeElement);
    this.root.dataset.status = video.status;
    this.root.id = video.id;
    const shape = video.status === "completed" ? "button" : "div";
    const frame = element(shape, { className: "frame" });
    if (active(video)) {
      this.what = element("b");
      this.left = element("span");
      this.bar = element("progress", { max: 100, "aria-label": `Progress of ${video.prompt.slice(0, 60)}` });
      frame.append(element("div", { className: "making" }, this.what, this.bar, this.left));
    } else if (video.status === "completed") {
      frame.type = "button";
      frame.setAttribute("aria-label", `Watch ${video.prompt.slice(0, 80)}`);
      frame.addEventListener("click", () => this.actions.watch(this.video));
      this.picture(frame, video);
    } else {
      frame.textContent = STATES[video.status] ?? video.status;
    }
    this.frame.replaceWith(frame);
    this.frame = frame;
    const names = active(video)
      ? ["cancel"]
      : video.status === "completed"
        ? ["download", "reuse", "delete"]
        : ["retry", "reuse", "delete"];
    this.buttons.replaceChildren(...names.map((name) => this.button(name, video)));
    if (focused) (shape === "button" ? frame : this.buttons.firstChild)?.focus({ preventScroll: true });
  }

  button(name, video) {
    const label = { cancel: "Cancel", download: "Download", reuse: "Reuse", delete: "Delete", retry: "Retry" }[name];
    const made = element("button", { type: "button" }, label);
    made.setAttribute("aria-label", `${label}: ${video.prompt.slice(0, 60)}`);
    made.addEventListener("click", () => this.actions[name](this.video));
    return made;
  }

  picture(frame, video) {
    const image = element("img", { alt: "", loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => image.remove());
    const show = async () => {
      try {
        image.src = await contentUrl(video.id, "thumbnail");
        if (image.src.startsWith("blob:")) image.addEventListener("load", () => URL.revokeObjectURL(image.src));
      } catch {
        image.remove();
      }
    };
    frame.append(image);
    show();
  }

  sentence(video) {
    if (video.status === "failed") return video.error?.message ?? "It failed.";
    if (video.status === "expired") return "Its file was removed. Retry makes it again.";
    if (video.waiting_reason) return video.waiting_reason;
    const size = `${video.size?.replace("x", " × ")} · ${length(video)}`;
    return video.created_at ? `${size} · ${when(video.created_at)}` : size;
  }

  /** The clockwork of a running job: time left goes down between two events. */
  tick() {
    const video = this.video;
    if (!active(video)) return;
    const making = video.status === "in_progress";
    const stopping = video.cancel_requested;
    const again = video.attempt > 1 ? ` (attempt ${video.attempt})` : "";
    const steps = video.step ? `Step ${video.step} of ${video.steps}` : "Starting";
    const phase = video.step && video.step === video.steps ? "Finishing the video" : steps;
    this.what.textContent = stopping ? "Stopping" : making ? phase + again : line(video);
    if (making) this.bar.value = video.progress;
    this.bar.hidden = !making;
    const left = video.estimated_seconds == null ? this.guess(video) : video.estimated_seconds - (Date.now() - this.received) / 1000;
    this.left.textContent = stopping || left == null ? "" : left > 0 ? `about ${duration(left)} left` : "any moment now";
  }

  /** Seconds left by the pace of the steps seen here, where the service does not know. */
  guess(video) {
    if (video.status !== "in_progress" || !video.step) return null;
    if (this.pace?.attempt !== video.attempt) this.pace = { attempt: video.attempt, step: video.step, at: Date.now() };
    const done = video.step - this.pace.step;
    if (done < 2) return null;
    this.pace.each = done === this.pace.done ? this.pace.each : (Date.now() - this.pace.at) / 1000 / done;
    this.pace.done = done;
    return this.pace.each * (video.steps - video.step);
  }
}
