// The server, as the page sees it: keys, requests, server-sent events, the metrics text, and errors in words.

export const keys = {
  get: (name) => sessionStorage.getItem(`surefoot.key.${name}`) ?? "",
  set(name, value) {
    if (value) sessionStorage.setItem(`surefoot.key.${name}`, value);
    else sessionStorage.removeItem(`surefoot.key.${name}`);
  },
};

// What went wrong, in words for the reader. `status` 0: no answer came.
export class Failure extends Error {
  constructor(status, text, { code = null, retryAfter = null } = {}) {
    super(text);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  get wantsKey() {
    return this.status === 401 || (this.status === 403 && this.code !== "admin_disabled");
  }
}

const GONE = "The server does not answer. It may have been stopped, or the network is down.";

// A request with the key that its route needs: every path under admin/ takes the admin key, the others the API key.
export async function call(path, { method = "GET", body = null, signal = null } = {}) {
  const key = keys.get(path.startsWith("admin/") ? "admin" : "api");
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== null) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === null ? null : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, GONE);
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

async function failureOf(response) {
  const { error = {} } = await response.json().catch(() => ({}));
  const retryAfter = Number.parseInt(response.headers.get("Retry-After"), 10) || null;
  return described(response.status, error, retryAfter);
}

function described(status, error, retryAfter = null) {
  const said = error.message ?? `The server answered with status ${status}`;
  let text = said;
  if (status === 429) text = `The server has no room at the moment. ${said}.`;
  else if (status === 503) text = `The server takes no new requests. ${said}.`;
  else if (error.code === "context_length_exceeded")
    text = `The conversation no longer fits into the model's context. ${said}. Start a new chat, shorten a message, or ask for fewer tokens.`;
  else if (status >= 500) text = `The server failed to answer. ${said}.`;
  return new Failure(status, text.replace(/\.\.$/, "."), { code: error.code ?? null, retryAfter });
}

// The chunks of a streamed completion. Throws a Failure for an error event, and when the stream breaks off.
export async function* stream(path, body, signal) {
  const response = await call(path, { method: "POST", body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) throw new Failure(0, "The connection broke off in the middle of the answer.");
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.match(/^data: (.*)$/m)?.[1];
      if (data === "[DONE]") return;
      if (data === undefined) continue; // a comment that keeps the connection open
      const parsed = JSON.parse(data);
      if (parsed.error) throw described(500, parsed.error);
      yield parsed;
    }
  }
}

// The samples of GET /metrics: {name: [{labels, value}]}.
export function parseMetrics(text) {
  const families = {};
  for (const line of text.split("\n")) {
    const found = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found || found[1].endsWith("_bucket")) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    (families[found[1]] ??= []).push({ labels, value: Number(found[3]) });
  }
  return families;
}
