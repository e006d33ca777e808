// The conversation: sending, streaming, stopping, editing, regenerating.

import { stream } from "./api.js";
import { byId, copyButton, element } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { samplingFields, settings, withKey } from "./settings.js";

const prompt = byId("prompt");
const scroll = byId("scroll");
const notice = byId("notice");

let turns = []; // {role, content, flags, reasoning, note, node, body}
let running = null; // the AbortController of the answer being streamed

// --- turns ---

function addTurn(role, content) {
  const turn = { role, content, flags: "", reasoning: "", note: "" };
  turn.body = element("div", { className: "body" });
  turn.thought = element("details", { className: "thought", hidden: true });
  turn.thought.append(element("summary", { textContent: "Reasoning" }), element("p"));
  turn.thought.addEventListener("toggle", () => draw(turn));
  turn.foot = element("div", { className: "foot" });
  turn.node = element("li", { className: `turn ${role}` }, turn.thought, turn.body, turn.foot);
  turn.node.setAttribute("aria-label", role === "user" ? "You" : "The model");
  turns.push(turn);
  byId("messages").append(turn.node);
  byId("empty").hidden = true;
  draw(turn);
  drawFoot(turn);
  return turn;
}

function draw(turn) {
  if (turn.role === "user") {
    turn.body.textContent = turn.content;
    return;
  }
  renderMarkdown(turn.body, turn.content, turn.flags);
  turn.thought.hidden = !turn.reasoning;
  const thinking = running !== null && turn === turns.at(-1) && !turn.content;
  turn.thought.firstElementChild.textContent = thinking ? "Thinking…" : "Reasoning";
  if (turn.thought.open) turn.thought.lastElementChild.textContent = turn.reasoning; // closed, nobody reads it yet
}

function drawFoot(turn) {
  const tools = element(
    "span",
    { className: "tools" },
    copyButton(() => turn.content, "Copy this message"),
  );
  if (turn.role === "user") tools.append(action("Edit", "Edit this message and ask again", () => edit(turn)));
  else tools.append(action("Regenerate", "Answer again", () => regenerate(turn)));
  turn.foot.replaceChildren(tools, element("span", { className: "note", textContent: turn.note }));
}

function action(text, label, act) {
  const button = element("button", { type: "button", className: "quiet", textContent: text, title: label });
  button.addEventListener("click", act);
  return button;
}

// The conversation survives a reload of the tab, and nothing longer.
const KEPT = "surefoot.conversation";

function keep() {
  const kept = turns.map(({ role, content, flags, reasoning, note }) => ({ role, content, flags, reasoning, note }));
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(kept));
  } catch {
    sessionStorage.removeItem(KEPT); // too long to keep; the page goes on with it
  }
}

function restore() {
  for (const kept of JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")) {
    const turn = Object.assign(addTurn(kept.role, kept.content), kept);
    draw(turn);
    drawFoot(turn);
  }
  scroll.scrollTop = scroll.scrollHeight;
}

// What the model is sent. Neighbours of one role become one message (a question whose answer failed, then the next):
// many templates want the roles to alternate.
function conversation(system) {
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const { role, content } of turns) {
    if (!content) continue;
    const last = messages.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return messages;
}

function dropFrom(turn) {
  const at = turns.indexOf(turn);
  for (const gone of turns.slice(at)) gone.node.remove();
  turns = turns.slice(0, at);
}

// --- what the reader does ---

function submit() {
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  grow(prompt);
  addTurn("user", text);
  answer();
}

export function stop() {
  running?.abort();
}

function newChat() {
  stop();
  turns.forEach((turn) => turn.node.remove());
  turns = [];
  keep();
  hideNotice();
  byId("empty").hidden = false;
  prompt.focus();
}

async function regenerate(turn) {
  await stopped();
  dropFrom(turn);
  answer();
}

function edit(turn) {
  const field = element("textarea", {
    value: turn.content,
    className: "edit",
    rows: 1,
    "aria-label": "Edit the message",
  });
  const done = () => {
    form.replaceWith(turn.body);
    turn.foot.hidden = false;
  };
  const cancel = () => {
    done();
    turn.foot.querySelector("button:last-of-type").focus();
  };
  const save = async () => {
    const text = field.value.trim();
    if (!text) return;
    await stopped();
    done();
    const later = turns[turns.indexOf(turn) + 1];
    if (later) dropFrom(later);
    turn.content = text;
    draw(turn);
    answer();
    prompt.focus();
  };
  const buttons = element("div", { className: "buttons" });
  buttons.append(
    action("Cancel", "Leave the message as it was", cancel),
    element("button", { type: "submit", className: "primary", textContent: "Ask again" }),
  );
  const form = element("form", { className: "editing" }, field, buttons);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    save();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      cancel();
    } else if (sends(event)) {
      event.preventDefault();
      save();
    }
  });
  field.addEventListener("input", () => grow(field));
  turn.body.replaceWith(form);
  turn.foot.hidden = true;
  grow(field);
  field.focus();
}

// --- the answer ---

let ended = Promise.resolve(); // of the last answer

async function stopped() {
  stop();
  await ended;
}

function answer() {
  ended = receive();
}

async function receive() {
  hideNotice();
  const { system, tint } = settings();
  const body = {
    ...samplingFields(),
    messages: conversation(system),
    stream: true,
    stream_options: { include_usage: true },
    return_token_ids: true,
    logprobs: tint, // names each token, so that the tint can end where the last one begins
    speculation: { report: true },
  };
  const turn = addTurn("assistant", "");
  const tally = { started: performance.now(), first: null, last: null, tokens: 0, finish: null, report: null };
  busy(new AbortController());
  turn.node.classList.add("streaming");
  turn.node.scrollIntoView({ block: "end" });
  let due = false;
  const show = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      following(() => draw(turn));
    });
  };
  try {
    const { signal } = running;
    await withKey("api", async () => {
      for await (const chunk of stream("v1/chat/completions", body, signal)) {
        take(turn, tally, chunk);
        show();
      }
    });
    turn.note = summary(tally);
  } catch (failure) {
    turn.note = failure.name === "AbortError" ? `Stopped. ${summary(tally)}` : summary(tally);
    if (failure.name !== "AbortError") explain(failure, turn);
  } finally {
    busy(null);
    turn.node.classList.remove("streaming");
    following(() => {
      draw(turn);
      drawFoot(turn);
    });
    keep();
  }
  byId("said").textContent = turn.content ? `The model answered: ${turn.content}` : "";
}

function take(turn, tally, chunk) {
  const choice = chunk.choices[0];
  if (chunk.usage) tally.tokens = chunk.usage.completion_tokens;
  if (!choice) return;
  const tokens = choice.token_ids ?? [];
  if (tokens.length) {
    tally.first ??= performance.now();
    tally.last = performance.now();
    tally.tokens += tokens.length;
  }
  const text = choice.delta.content ?? "";
  turn.content += text;
  turn.flags += tintOf(text, tokens.length, choice.logprobs?.content?.at(-1)?.token);
  turn.reasoning += choice.delta.reasoning_content ?? "";
  tally.finish ??= choice.finish_reason;
  tally.report ??= choice.speculation ?? null;
  // Several steps can come in one piece, whose tokens then look like one step's. The count knows better.
  if (tally.report?.accepted_tokens === 0) turn.flags = "0".repeat(turn.content.length);
}

// A '1' per character of an accepted draft. A step emits the drafts that the model confirmed and then one token of its
// own, so the last of several is not a draft; if it is not in the text (the end of the answer), all the text is.
function tintOf(text, tokens, last) {
  if (tokens < 2) return "0".repeat(text.length);
  const own = last && text.endsWith(last) ? last.length : 0;
  return "1".repeat(text.length - own) + "0".repeat(own);
}

function summary({ started, first, last, tokens, finish, report }) {
  if (first === null) return "";
  const words = [`${tokens} tokens`];
  if (tokens > 1 && last > first) words.push(`${((tokens - 1) / ((last - first) / 1000)).toFixed(1)} per second`);
  words.push(`first after ${((first - started) / 1000).toFixed(2)} s`);
  if (report?.accepted_tokens) words.push(`${report.accepted_tokens} of ${report.verified_tokens} drafted accepted`);
  else if (report) words.push("no drafts accepted");
  if (finish === "length") words.push("ended at the token limit");
  return words.join(" · ");
}

// --- errors in words ---

function explain(failure, turn) {
  if (!turn.content && !turn.reasoning) dropFrom(turn);
  const again = element("button", { type: "button", textContent: "Try again" });
  again.addEventListener("click", () => {
    if (turns.includes(turn)) dropFrom(turn);
    answer();
  });
  notice.replaceChildren(element("p", { textContent: failure.message }), again);
  notice.hidden = false;
  if (failure.retryAfter) countdown(again, failure.retryAfter);
  notice.scrollIntoView({ block: "nearest" });
}

function countdown(button, seconds) {
  button.disabled = seconds > 0;
  button.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
  if (seconds > 0) setTimeout(countdown, 1000, button, seconds - 1);
}

function hideNotice() {
  notice.hidden = true;
  notice.replaceChildren();
}

// --- the frame around it ---

function busy(controller) {
  running = controller;
  byId("send").hidden = controller !== null;
  byId("stop").hidden = controller === null;
  byId("messages").setAttribute("aria-busy", String(controller !== null));
  document.dispatchEvent(new Event("answering"));
}

// Keeps the end in sight for a reader who is at the end, and leaves alone one who has scrolled up.
function following(change) {
  const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  change();
  if (atEnd) scroll.scrollTop = scroll.scrollHeight;
}

function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

export function startChat(suggestions) {
  restore();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("keydown", (event) => {
    if (!sends(event)) return;
    event.preventDefault();
    submit();
  });
  prompt.addEventListener("input", () => grow(prompt));
  byId("stop").addEventListener("click", () => {
    stop();
    prompt.focus();
  });
  byId("new-chat").addEventListener("click", newChat);
  for (const text of suggestions) {
    const ask = () => {
      prompt.value = text;
      submit();
    };
    byId("suggestions").append(action(text, "Ask this", ask));
  }
}

export function showTint(on) {
  byId("messages").classList.toggle("tinted", on);
}
