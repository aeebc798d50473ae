/** The API: requests with a key where one is needed, errors in OpenAI's shape, events. */

const KEY = "framekeeper-key";
let askForKey = async (_message) => "";

/** The key of this tab; null where the service asks for none. */
export const key = () => sessionStorage.getItem(KEY);
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** @param {(message: string) => Promise<string>} ask asks the person for a key */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** An answer that is no success, or no answer at all (status 0). */
export class ApiError extends Error {
  constructor(status, code, message, param = null) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

let asking = null;

/**
 * One request; after a 401 the person is asked for a key, once for all requests that wait.
 * @returns {Promise<Response>} a success. Throws ApiError.
 */
export async function request(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers);
    const used = key();
    if (used) headers.set("Authorization", `Bearer ${used}`);
    let answer;
    try {
      answer = await fetch(path, { ...options, headers, credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "unreachable", "The service does not answer. Trying again.");
    }
    if (answer.ok) return answer;
    const error = await failure(answer);
    if (answer.status !== 401 || options.keyless) throw error;
    if (key() === used) {
      forgetKey();
      asking ??= askForKey(used ? error.message : "").finally(() => (asking = null));
      sessionStorage.setItem(KEY, await asking);
    }
  }
}

export const getJson = async (path, options) => (await request(path, options)).json();

export const send = async (method, path, body, headers = {}) => {
  const json = body && !(body instanceof FormData || body instanceof Blob);
  return (
    await request(path, {
      method,
      body: json ? JSON.stringify(body) : body,
      headers: json ? { "Content-Type": "application/json", ...headers } : headers,
    })
  ).json();
};

async function failure(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(answer.status, error.code, error.message, error.param);
  } catch {
    return new ApiError(answer.status, "", `The service answered ${answer.status} ${answer.statusText}.`);
  }
}

/**
 * The events of a server-sent stream, as objects of event and data. Not EventSource: that sends no key.
 * Ends when the stream does.
 */
export async function* events(path, signal) {
  const answer = await request(path, { headers: { Accept: "text/event-stream" }, signal });
  if (!(answer.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
    throw new ApiError(404, "no_events", "This service sends no events.");
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const found = { event: "message", data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) found.event = line.slice(6).trim();
        if (line.startsWith("data:")) found.data += line.slice(5).trim();
      }
      if (found.data || found.event === "end") yield found;
    }
  }
}

/** Where a video's file is; with a key it is fetched first, so that no address holds the key. */
export async function contentUrl(id, variant = "video") {
  const path = `v1/videos/${id}/content${variant === "video" ? "" : `?variant=${variant}`}`;
  if (!key()) return path;
  return URL.createObjectURL(await (await request(path)).blob());
}
