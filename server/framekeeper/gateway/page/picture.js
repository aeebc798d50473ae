/** The picture that a video may start from: chosen or dropped, shown, checked before it is sent, taken back. */

import { $, announce } from "./elements.js";
import { bytes } from "./words.js";

const KINDS = ["image/png", "image/jpeg", "image/webp"];
const MOST_BYTES = 10 * 1024 * 1024;
let mode = "none";
let changed = () => {};

/** @param {(width: number, height: number) => void} shown is told the size of a picture that was chosen */
export function begin(fault, shown) {
  const input = $("image");
  changed = () => {
    const { files: [file] } = input;
    URL.revokeObjectURL($("image-preview").src);
    $("image-chosen").hidden = !file;
    if (!file) return $("image-preview").removeAttribute("src");
    $("image-preview").src = URL.createObjectURL(file);
    $("image-name").textContent = `${file.name}, ${bytes(file.size)}`;
    const wrong = problem();
    if (wrong) fault("input_reference", wrong);
    else announce(`Picture chosen: ${file.name}`);
  };
  input.addEventListener("change", () => changed());
  $("image-preview").addEventListener("load", ({ target }) => shown(target.naturalWidth, target.naturalHeight));
  $("image-remove").addEventListener("click", () => {
    remove();
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.focus();
  });
  for (const name of ["dragover", "drop"]) {
    $("form").addEventListener(name, (event) => {
      if (mode === "none" || !event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      if (name === "dragover") return;
      input.files = event.dataTransfer.files;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      input.dispatchEvent(new Event("change"));
    });
  }
}

/** @param {string} wanted none, optional or required, as the chosen model has it */
export function allow(wanted) {
  mode = wanted;
  $("image-field").hidden = mode === "none";
  $("image").required = mode === "required";
  $("image-hint").textContent = mode === "required" ? "(this model needs one)" : "(if you have one)";
}

/** The file to send, or null. */
export const chosen = () => (mode === "none" ? null : ($("image").files[0] ?? null));

export function remove() {
  $("image").value = "";
  changed();
}

/** Why what is chosen cannot be sent, in a sentence; empty when it can. */
export function problem() {
  const file = chosen();
  if (!file) return mode === "required" ? "Choose a picture: this model makes videos from one." : "";
  if ($("image").files.length > 1) return "Choose one picture only.";
  if (!KINDS.includes(file.type)) return "Choose a PNG, JPEG or WebP picture.";
  if (file.size > MOST_BYTES) return `This file has ${bytes(file.size)}; choose one of at most 10 MB.`;
  return "";
}
