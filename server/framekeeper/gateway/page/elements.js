/** Building the page's elements. Text is always text, never HTML. */

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [property, value] of Object.entries(properties)) {
    if (property in made) made[property] = value;
    else made.setAttribute(property, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

let spoken = 0;
let pending;

/** Tell a screen reader, at most every few seconds: the newest sentence wins. */
export function announce(sentence) {
  clearTimeout(pending);
  const wait = Math.max(50, spoken + 4000 - Date.now());
  pending = setTimeout(() => {
    spoken = Date.now();
    $("announce").textContent = sentence;
  }, wait);
}
