/** The incidents, for whoever may see them. */

import { getJson } from "./api.js";
import { $, element } from "./elements.js";
import { duration, when } from "./words.js";

export async function begin() {
  $("incidents").addEventListener("toggle", refresh);
  try {
    $("incidents").hidden = !draw(await getJson("v1/incidents?limit=20"));
  } catch {
    // Another key's matter, or a service without incidents.
  }
}

export async function refresh() {
  try {
    const list = await getJson("v1/incidents?limit=20");
    $("incidents").hidden = !list.data.length;
    draw(list);
  } catch {
    // What was shown stays.
  }
}

function draw(list) {
  $("incident-list").replaceChildren(
    ...list.data.map((each) => {
      const back = each.ready_again_seconds;
      // The decision often begins with the cause, which is told already.
      const decision = each.decision_reason.replace(each.cause, "").replace(/^[.\s]+/, "");
      const after = back == null ? "" : ` Ready again after ${duration(back)}.`;
      return element(
        "li",
        {},
        element("p", {}, each.cause),
        element("p", { className: "soft" }, `${when(each.at)} · ${each.engine} · ${each.phase} · ${each.exit}`),
        element("p", { className: "soft" }, `${decision}${after}`),
      );
    }),
  );
  return list.data.length;
}
