// What the reader chose: sampling and the system prompt (kept on this device), colours, keys (kept in this tab).

import { call, keys } from "./api.js";
import { byId } from "./dom.js";

const STORED = "surefoot.settings";
const DEFAULTS = { tint: true };
const THEMES = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

const form = byId("settings");

function stored() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

function show(values) {
  for (const field of form.elements) {
    if (field.type === "checkbox") field.checked = Boolean(values[field.name]);
    else field.value = values[field.name] ?? "";
  }
}

function read() {
  const values = {};
  for (const field of form.elements) {
    if (field.type === "checkbox") values[field.name] = field.checked;
    else if (field.value !== "" && field.checkValidity()) values[field.name] = field.value;
  }
  return values;
}

export const settings = () => read();

// The request's sampling fields: only what was set, so that the server's own defaults hold otherwise.
export function samplingFields() {
  const { system: _, tint: __, ...fields } = read();
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, Number(value)]));
}

// Calls `onChange` with the settings after each change.
export function startSettings(onChange) {
  show(stored());
  const changed = () => {
    localStorage.setItem(STORED, JSON.stringify(read()));
    onChange(read());
  };
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("reset-settings").addEventListener("click", () => {
    show(DEFAULTS);
    changed();
  });
  onChange(read());
  startKeys();
  startTheme();
}

function startTheme() {
  const button = byId("theme");
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    const [sign, words] = THEMES[theme];
    button.textContent = sign;
    button.setAttribute("aria-label", `Colours: ${words}`);
    button.title = `Colours: ${words}`;
  };
  const kept = localStorage.getItem("surefoot.theme");
  apply(kept in THEMES ? kept : "system");
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
    localStorage.setItem("surefoot.theme", next);
    apply(next);
  });
}

// --- keys ---

const KEY_WORDS = {
  api: ["API key", "This server answers only with an API key."],
  admin: ["Admin key", "Changing how the server works needs its admin key."],
};

function startKeys() {
  const fields = byId("keys");
  const fill = () => {
    for (const name of ["api", "admin"]) fields.elements[name].value = keys.get(name);
  };
  fill();
  document.addEventListener("keyschange", fill);
  fields.addEventListener("submit", (event) => event.preventDefault());
  fields.addEventListener("change", (event) => {
    keys.set(event.target.name, event.target.value.trim());
    document.dispatchEvent(new Event("keyschange"));
  });
}

// Asks for a key; true once one was given. One question at a time.
let asking = null;

export function askKey(name, failure) {
  asking ??= ask(name, failure).finally(() => (asking = null));
  return asking;
}

async function ask(name, failure) {
  const dialog = byId("key-dialog");
  const field = byId("key-value");
  const [title, why] = KEY_WORDS[name];
  byId("key-title").textContent = title;
  byId("key-label").textContent = title;
  byId("key-why").textContent = keys.get(name) && failure ? `${failure.message}.` : why;
  field.value = "";
  return new Promise((resolve) => {
    const end = (given) => {
      dialog.close();
      byId("key-form").removeEventListener("submit", submitted);
      byId("key-cancel").removeEventListener("click", cancelled);
      dialog.removeEventListener("cancel", cancelled);
      resolve(given);
    };
    const cancelled = (event) => {
      event.preventDefault();
      event.stopPropagation();
      end(false);
    };
    const submitted = (event) => {
      event.preventDefault();
      keys.set(name, field.value.trim());
      document.dispatchEvent(new Event("keyschange"));
      end(true);
    };
    byId("key-form").addEventListener("submit", submitted);
    byId("key-cancel").addEventListener("click", cancelled);
    dialog.addEventListener("cancel", cancelled);
    dialog.showModal();
    field.focus();
  });
}

// `action`, again after asking as often as the server refuses the key. Rethrows when the reader gives up.
export async function withKey(name, action) {
  for (;;) {
    try {
      return await action();
    } catch (failure) {
      if (!failure.wantsKey || !(await askKey(name, failure))) throw failure;
    }
  }
}

export async function showModel() {
  const { data } = await (await withKey("api", () => call("v1/models"))).json();
  byId("model").textContent = data[0].id;
  byId("model").title = `${data[0].id}, context ${data[0].max_model_len.toLocaleString()} tokens`;
  document.title = `${data[0].id} · Surefoot`;
}
