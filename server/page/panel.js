// The live panel: what the server does, from /metrics (open to all) and /admin/speculation (admin key), and the policy.

import { call, keys, parseMetrics } from "./api.js";
import { drawCost, drawPositions, drawSpeed, priceAt } from "./charts.js";
import { byId, element } from "./dom.js";
import { withKey } from "./settings.js";

const MINUTE = 60_000; // milliseconds
const STEADY = 5_000; // that the speed in figures is taken over
const [BUSY_MS, IDLE_MS] = [1000, 3000]; // between two samples
const MOST_DRAFTED = 16; // the cost curve is drawn up to here

let history = []; // {at, families}
let view = null; // the last answer of /admin/speculation
let refused = null; // why there is none

// --- reading ---

const sum = (families, name, labels = {}) =>
  (families[`surefoot_${name}`] ?? [])
    .filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value))
    .reduce((total, sample) => total + sample.value, 0);

// The sample that is `ms` older than the newest, or the oldest.
const before = (ms) => history.find((sample) => sample.at >= history.at(-1).at - ms - 100);

const since = (ms, name, labels) => sum(history.at(-1).families, name, labels) - sum(before(ms).families, name, labels);

const speed = (then, now) => {
  const tokens = sum(now.families, "generation_tokens_total") - sum(then.families, "generation_tokens_total");
  return now === then ? 0 : tokens / ((now.at - then.at) / 1000);
};

// A share over the last minute if anything happened in it, else since the start.
function share(part, whole) {
  const recent = since(MINUTE, whole);
  const latest = history.at(-1).families;
  const [parts, of] = recent > 0 ? [since(MINUTE, part), recent] : [sum(latest, part), sum(latest, whole)];
  return { value: of > 0 ? parts / of : null, note: recent > 0 ? "last minute" : "since start" };
}

async function sample() {
  const families = parseMetrics(await (await call("metrics")).text());
  const total = "generation_tokens_total";
  if (history.length && sum(families, total) < sum(history.at(-1).families, total)) history = []; // it was restarted
  const now = performance.now();
  history = [...history.filter(({ at }) => at > now - MINUTE - IDLE_MS), { at: now, families }];
}

async function sampleGovernor() {
  if (refused && refused.key === keys.get("admin")) return; // asking again with the same key would fill the log
  try {
    view = await (await call("admin/speculation")).json();
    refused = null;
  } catch (failure) {
    if (failure.status !== 401 && failure.status !== 403) throw failure;
    view = null;
    refused = { failure, key: keys.get("admin") };
  }
}

// --- showing ---

const percent = (value) => (value === null ? "–" : `${Math.round(value * 100)} %`);
const short = (value) => (value >= 100 ? Math.round(value).toLocaleString() : value.toFixed(1));
const millis = (seconds) => `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;

function figure(name, value, note = "") {
  return element(
    "div",
    {},
    element("dt", { textContent: name }),
    element("dd", { textContent: value }),
    element("small", { textContent: note }),
  );
}

function show() {
  const { families } = history.at(-1);
  const rate = speed(before(STEADY), history.at(-1));
  const cache = share("prefix_cache_hit_tokens_total", "prefix_cache_query_tokens_total");
  const accepted = share("spec_accepted_tokens_total", "spec_draft_tokens_total");
  byId("figures").replaceChildren(
    figure("Tokens per second", short(rate), `${sum(families, "generation_tokens_total").toLocaleString()} in all`),
    figure("Running", String(sum(families, "requests_running")), `${sum(families, "requests_waiting")} waiting`),
    figure("Prefix cache", percent(cache.value), `of prompt tokens, ${cache.note}`),
    figure("Acceptance", percent(accepted.value), `of drafted tokens, ${accepted.note}`),
  );
  byId("speed").textContent = rate > 0 ? `${short(rate)} tok/s` : "";
  const now = history.at(-1).at;
  const rates = history.slice(1).map((sample, index) => [(now - sample.at) / MINUTE, speed(history[index], sample)]);
  byId("speed-chart").replaceChildren(drawSpeed(rates));
  byId("governor-state").textContent = governorState(families);
  showPositions(families);
  showAdmin();
}

const KINDS = {
  verify: "Speculating: drafts are being verified",
  parked: "Parked: drafting would not pay now, so it costs nothing",
  no_draft: "Ready: nothing to draft from in this text",
  plain: "Plain decoding: no request is armed",
};

function governorState(families) {
  const kinds = Object.keys(KINDS).map((kind) => [since(STEADY, "spec_steps_total", { kind }), kind]);
  const [steps, kind] = kinds.reduce((most, next) => (next[0] > most[0] ? next : most));
  const words = [steps ? KINDS[kind] : "Idle"];
  const window = sum(families, "governor_window");
  if (steps && kind === "verify") words[0] += `, ${window} in the last step`;
  const [plain, spec] = [
    sum(families, "governor_plain_seconds_per_token"),
    sum(families, "governor_spec_seconds_per_token"),
  ];
  if (plain && spec) words.push(`${millis(plain)} per token plain, ${millis(spec)} speculating`);
  return `${words.join(". ")}.`;
}

function showPositions(families) {
  const verified = sum(families, "spec_steps_total", { kind: "verify" });
  const counts = (families.surefoot_spec_accepted_per_position_total ?? []).toSorted(
    (a, b) => a.labels.position - b.labels.position,
  );
  const shares = verified ? counts.map(({ value }) => Math.min(1, value / verified)).slice(0, MOST_DRAFTED) : [];
  byId("position-chart").hidden = !shares.length;
  if (shares.length) byId("position-chart").replaceChildren(drawPositions(shares));
  const caption = `Share of ${verified.toLocaleString()} verifying steps since the start that accepted a draft up to this position.`;
  byId("position-caption").textContent = shares.length ? caption : "No draft has been verified yet.";
}

function showAdmin() {
  byId("admin-open").hidden = view === null;
  byId("admin-locked").hidden = refused === null;
  if (refused) {
    const { failure } = refused;
    byId("admin-unlock").hidden = !failure.wantsKey;
    byId("admin-locked-text").textContent = failure.wantsKey
      ? "The governor and the policy need the admin key."
      : `${failure.message}.`;
  }
  if (!view) return;
  byId("governor-name").textContent = view.policy.enabled
    ? `governor ${view.policy.governor}, ${view.algorithms.join(" and ") || "no algorithm"}`
    : "off";
  fillPolicy(view.policy);
  showCost(view.governor);
}

// --- the cost curve ---

function showCost(governor) {
  const priced = Object.entries(governor.cost?.prices ?? {}).map(([count, price]) => [Number(count), price]);
  byId("cost-chart").hidden = priced.length < 2;
  if (priced.length < 2) {
    byId("cost-caption").textContent = `The '${governor.name}' governor keeps no cost curve; 'cost' measures one.`;
    return;
  }
  priced.sort((a, b) => a[0] - b[0]);
  const prices = priced
    .filter(([count]) => count < MOST_DRAFTED)
    .concat([[MOST_DRAFTED, priceAt(priced, MOST_DRAFTED)]]);
  const chance = meanAcceptance(governor.acceptance ?? {});
  const expected =
    chance === null ? [] : Array.from({ length: MOST_DRAFTED + 1 }, (_, count) => [count, tokensFrom(chance, count)]);
  const gains = expected.map(([count, tokens]) => [count, tokens, tokens / priceAt(prices, count)]);
  const best = gains.reduce((most, next) => (most && most[2] >= next[2] ? most : next), null);
  const window = history.length ? sum(history.at(-1).families, "governor_window") : 0;
  byId("cost-chart").replaceChildren(drawCost({ prices, expected, best: best && best[0] > 0 ? best : null, window }));
  byId("cost-caption").replaceChildren(...costCaption(chance, best, governor.cost.unit_seconds, window));
}

function costCaption(chance, best, unit, window) {
  const key = (kind, words) => [element("span", { className: `key ${kind}` }), `${words} `];
  const parts = key("price", `cost of a step, 1 = plain${unit ? ` (${millis(unit)})` : ""};`);
  if (chance === null) return [...parts, "no draft has been scored yet."];
  parts.push(...key("expected", `tokens expected at ${percent(chance)} acceptance each.`));
  parts.push(
    best[0]
      ? `Best on average: ${best[0]} drafted, ${best[2].toFixed(2)} × plain speed. `
      : "On average drafting does not pay. ",
  );
  parts.push("Each step is decided on its own draft", window ? `; dashed: the last one drafted ${window}.` : ".");
  return parts;
}

// The chance of a drafted token after accepted ones, over all grades of drafts, each counted as often as it was tried.
function meanAcceptance(acceptance) {
  const entries = Object.values(acceptance).flat();
  const trials = entries.reduce((total, entry) => total + entry.trials, 0);
  return trials > 0 ? entries.reduce((total, entry) => total + entry.trials * entry.acceptance, 0) / trials : null;
}

// 1 + p + p² + ... : the accepted run, and the token that a step gives in any case.
function tokensFrom(chance, count) {
  let [total, run] = [1, 1];
  for (let i = 0; i < count; i++) total += run *= chance;
  return total;
}

// --- the policy ---

const form = byId("policy");
let shown = null; // the generation that the form shows

function fillPolicy(policy) {
  if (shown === policy.generation || (form.contains(document.activeElement) && shown !== null)) return;
  shown = policy.generation;
  for (const field of form.elements) {
    const value = policy[field.name];
    if (field.type === "checkbox") field.checked = value;
    else if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value))
      field.add(new Option(value));
    if (field.type !== "checkbox") field.value = value ?? "";
  }
}

async function change(field) {
  const answer = byId("policy-answer");
  if (!field.checkValidity()) {
    answer.textContent = field.validationMessage;
    return;
  }
  const number = field.value === "" ? null : Number(field.value);
  const value = field.type === "checkbox" ? field.checked : field.type === "number" ? number : field.value;
  try {
    view = await (
      await withKey("admin", () => call("admin/speculation", { method: "PATCH", body: { [field.name]: value } }))
    ).json();
    refused = null;
    const reasons = Object.entries(view.not_effective).map(([name, reason]) =>
      element("li", { textContent: `${name}: ${reason}` }),
    );
    answer.replaceChildren(
      `In force (change ${view.policy.generation}).${reasons.length ? " Without effect here:" : ""}`,
    );
    if (reasons.length) answer.append(element("ul", {}, ...reasons));
    if (view.declined)
      answer.append(
        element("p", {
          textContent: `Declined: ${typeof view.declined === "string" ? view.declined : JSON.stringify(view.declined)}`,
        }),
      );
  } catch (failure) {
    answer.textContent = `Nothing was changed. ${failure.message}`;
  }
  shown = null;
  if (view) fillPolicy(view.policy);
}

// --- the clock ---

async function tick() {
  try {
    await sample();
    await sampleGovernor();
    byId("stale").hidden = true;
    show();
  } catch (failure) {
    byId("stale").textContent = failure.message;
    byId("stale").hidden = false;
    byId("speed").textContent = "";
    byId("side").classList.add("old");
    return;
  }
  byId("side").classList.remove("old");
}

export function startPanel() {
  form.addEventListener("change", (event) => change(event.target));
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("admin-unlock").addEventListener("click", async () => {
    await withKey("admin", () => call("admin/speculation")).catch(() => null);
    tick();
  });
  document.addEventListener("answering", loop); // an answer began or ended: look now
  loop();
}

let timer = 0;

async function loop() {
  clearTimeout(timer);
  if (document.visibilityState === "visible") await tick();
  clearTimeout(timer); // of another call that went on while this one waited
  timer = setTimeout(loop, active() ? BUSY_MS : IDLE_MS);
}

function active() {
  if (!history.length) return false;
  const { families } = history.at(-1);
  const waiting = sum(families, "requests_running") + sum(families, "requests_waiting");
  return waiting > 0 || since(STEADY, "generation_tokens_total") > 0;
}
