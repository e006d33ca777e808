// Puts the page together: panels, keys of the keyboard, start.

import { showTint, startChat, stop } from "./chat.js";
import { byId } from "./dom.js";
import { startPanel } from "./panel.js";
import { showModel, startSettings } from "./settings.js";

const SUGGESTIONS = [
  "Write a Python function that merges two sorted lists, with a test.",
  "Explain what a prefix cache does, in five sentences.",
  "List the planets with their distance from the sun as a table.",
];

const side = byId("side");
const narrow = window.matchMedia("(max-width: 62rem)");
const openers = { server: byId("show-server"), settings: byId("show-settings") };
let opener = null;

function select(name) {
  for (const other of ["server", "settings"]) {
    const chosen = other === name;
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(`pane-${other}`).hidden = !chosen;
  }
}

function open(name) {
  const shown = document.body.dataset.side === name;
  if (shown) return close();
  document.body.dataset.side = name;
  select(name);
  for (const [other, button] of Object.entries(openers)) button.setAttribute("aria-expanded", String(other === name));
  opener = openers[name];
  if (narrow.matches) byId(`tab-${name}`).focus();
}

function close() {
  document.body.dataset.side = "none";
  for (const button of Object.values(openers)) button.setAttribute("aria-expanded", "false");
  opener?.focus();
}

function startSide() {
  for (const [name, button] of Object.entries(openers)) button.addEventListener("click", () => open(name));
  const tabs = ["server", "settings"];
  for (const name of tabs) {
    byId(`tab-${name}`).addEventListener("click", () => document.body.dataset.side === name || open(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = tabs.find((tab) => tab !== name);
      open(other);
      byId(`tab-${other}`).focus();
    });
  }
  byId("close-side").addEventListener("click", close);
  if (narrow.matches) document.body.dataset.side = "none";
  else open("server");
}

// Esc stops an answer wherever the focus is; without one it closes the panel on a narrow screen.
function startKeyboard() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || byId("key-dialog").open) return;
    if (!byId("stop").hidden) stop();
    else if (narrow.matches && side.contains(document.activeElement)) close();
  });
}

startSettings(({ tint }) => showTint(tint));
startSide();
startKeyboard();
startChat(SUGGESTIONS);
startPanel();
showModel().catch((failure) => {
  byId("model").textContent = failure.status ? "model unknown" : "no server";
  byId("model").title = failure.message;
});
