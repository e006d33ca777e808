// Markdown into elements: the part of CommonMark that models write, and tables. Builds text nodes only. Pictures become
// links, since the page loads nothing from elsewhere. Each character knows where in the source it came from, so that
// accepted drafts can be tinted under whatever formatting covers them.

import { copyButton, element } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 12; // a thousand '>' in a row must not exhaust the stack
const MAX_SPAN = 4000; // characters between two marks: a text of nothing but marks must not take quadratic time

// Shows `source` in `container`. `flags` has a '1' for every tinted character. Blocks that did not change since the last
// call keep their elements, so that a growing answer costs what its last block costs, and a selection in it survives.
export function renderMarkdown(container, source, flags) {
  const blocks = split(lines(source), 0);
  const known = container.blocks ?? [];
  blocks.forEach((block, index) => {
    const last = block.lines[block.lines.length - 1];
    const [start, end] = [block.lines[0].at, last.at + last.text.length];
    block.key = `${block.kind}${block.closed}${source.slice(start, end)}\u0000${flags.slice(start, end)}\u0000${start}`;
    if (known[index]?.key === block.key) return;
    const made = build(block, flags, 0);
    if (container.children[index]) container.children[index].replaceWith(made);
    else container.append(made);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
  container.blocks = blocks;
}

function lines(source) {
  const found = [];
  let at = 0;
  for (const text of source.split("\n")) {
    found.push({ text: text.replace(/\t/g, " "), at }); // one for one: positions must stay
    at += text.length + 1;
  }
  return found;
}

const cut = (line, count) => ({ text: line.text.slice(count), at: line.at + count });
const blank = (line) => line.text.trim() === "";
const indent = (line) => line.text.length - line.text.trimStart().length;

// --- blocks ---

function split(input, depth) {
  const blocks = [];
  for (let i = 0; i < input.length;) {
    const line = input[i];
    let end = i + 1;
    if (blank(line)) {
      i = end;
      continue;
    }
    const fence = FENCE.exec(line.text);
    let block;
    if (fence) {
      while (end < input.length && !closes(input[end].text, fence[1])) end++;
      block = {
        kind: "code",
        language: fence[2],
        body: input.slice(i + 1, end),
        closed: end < input.length,
        drop: indent(line),
      };
      end = Math.min(end + 1, input.length);
    } else if (HEADING.test(line.text)) {
      block = { kind: "heading" };
    } else if (RULE.test(line.text)) {
      block = { kind: "rule" };
    } else if (QUOTE.test(line.text) && depth < MAX_DEPTH) {
      while (
        end < input.length &&
        !blank(input[end]) &&
        (QUOTE.test(input[end].text) || !startsBlock(input[end].text, false))
      )
        end++;
      block = { kind: "quote" };
    } else if (ITEM.test(line.text) && depth < MAX_DEPTH) {
      end = endOfList(input, i);
      block = { kind: "list" };
    } else if (line.text.includes("|") && TABLE_RULE.test(input[end]?.text ?? "") && input[end].text.includes("-")) {
      while (end < input.length && !blank(input[end]) && input[end].text.includes("|")) end++;
      block = { kind: "table" };
    } else {
      while (end < input.length && !blank(input[end]) && !startsBlock(input[end].text, true)) end++;
      block = { kind: "paragraph" };
    }
    blocks.push({ closed: true, ...block, lines: input.slice(i, end) });
    i = end;
  }
  return blocks;
}

function closes(text, opening) {
  const trimmed = text.trim();
  return trimmed.length >= opening.length && trimmed.replaceAll(opening[0], "") === "";
}

function startsBlock(text, quotes) {
  return FENCE.test(text) || HEADING.test(text) || RULE.test(text) || ITEM.test(text) || (quotes && QUOTE.test(text));
}

function endOfList(input, start) {
  const ordered = /\d/.test(ITEM.exec(input[start].text)[2]);
  let end = start + 1;
  for (; end < input.length; end++) {
    const line = input[end];
    const item = ITEM.exec(line.text);
    if (item && !RULE.test(line.text) && /\d/.test(item[2]) === ordered) continue;
    if (indent(line) >= 2 && !blank(line)) continue;
    if (blank(line)) {
      const next = input.slice(end).find((later) => !blank(later));
      if (next && (indent(next) >= 2 || (ITEM.test(next.text) && /\d/.test(ITEM.exec(next.text)[2]) === ordered)))
        continue;
      break;
    }
    if (blank(input[end - 1]) || startsBlock(line.text, true)) break; // else a paragraph that goes on without indent
  }
  return end;
}

function build(block, flags, depth) {
  switch (block.kind) {
    case "code":
      return code(block, flags);
    case "heading": {
      const level = HEADING.exec(block.lines[0].text)[1].length;
      const made = element(`h${Math.min(level + 2, 6)}`);
      const from = block.lines[0].text.indexOf("#") + level;
      return inline(made, [cut(block.lines[0], from + block.lines[0].text.slice(from).match(/^\s*/)[0].length)], flags);
    }
    case "rule":
      return element("hr");
    case "quote": {
      const inner = block.lines.map((line) => cut(line, QUOTE.exec(line.text)?.[0].length ?? 0));
      return element("blockquote", {}, ...split(inner, depth + 1).map((part) => build(part, flags, depth + 1)));
    }
    case "list":
      return list(block.lines, flags, depth);
    case "table":
      return table(block.lines, flags);
    default:
      return inline(
        element("p"),
        block.lines.map((line) => cut(line, indent(line))),
        flags,
      );
  }
}

function code(block, flags) {
  const body = block.body.map((line) => cut(line, Math.min(block.drop, indent(line))));
  const shown = element("code");
  body.forEach((line, index) => {
    emit(shown, line.text, (offset) => line.at + offset, 0, line.text.length, flags);
    if (index + 1 < body.length) shown.append("\n");
  });
  const text = body.map((line) => line.text).join("\n");
  const head = element("div", { className: "code-head" }, element("span", { textContent: block.language || "text" }));
  head.append(copyButton(() => text, "Copy this code"));
  return element("div", { className: "code" }, head, element("pre", { tabIndex: 0 }, shown));
}

function list(input, flags, depth) {
  const first = ITEM.exec(input[0].text);
  const made = element(/\d/.test(first[2]) ? "ol" : "ul");
  if (made.tagName === "OL") made.start = Number.parseInt(first[2], 10);
  let item = null;
  const items = [];
  for (const line of input) {
    const found = ITEM.exec(line.text);
    if (found && (!item || indent(line) < item.width)) {
      item = { width: found[0].length, lines: [cut(line, found[0].length)] };
      items.push(item);
    } else {
      item.lines.push(cut(line, Math.min(indent(line), item.width)));
    }
  }
  for (const { lines: own } of items) {
    const parts = split(own, depth + 1);
    const tight = parts.filter((part) => part.kind === "paragraph").length < 2;
    const entry = element("li");
    for (const part of parts) {
      if (tight && part.kind === "paragraph") inline(entry, part.lines, flags);
      else entry.append(build(part, flags, depth + 1));
    }
    made.append(entry);
  }
  return made;
}

function table(input, flags) {
  const align = cells(input[1]).map(({ text }) => (/^:-+:$/.test(text) ? "center" : /-:$/.test(text) ? "right" : ""));
  const row = (line, tag) => {
    const made = element("tr");
    cells(line).forEach((cell, index) =>
      made.append(inline(element(tag, { className: align[index] ?? "" }), [cell], flags)),
    );
    return made;
  };
  const body = element("tbody", {}, ...input.slice(2).map((line) => row(line, "td")));
  const whole = element("table", {}, element("thead", {}, row(input[0], "th")), body);
  return element("div", { className: "table", tabIndex: 0 }, whole);
}

function cells(line) {
  const found = [];
  let from = 0;
  for (let i = 0; i <= line.text.length; i++) {
    if (i < line.text.length && (line.text[i] !== "|" || line.text[i - 1] === "\\")) continue;
    const text = line.text.slice(from, i);
    const lead = text.length - text.trimStart().length;
    if (text.trim() || (from > 0 && i < line.text.length)) found.push({ text: text.trim(), at: line.at + from + lead });
    from = i + 1;
  }
  return found;
}

// --- inside a block ---

// `pieces` are the block's lines; they are joined by line breaks, and `where` leads from the joined text to the source.
function inline(parent, pieces, flags) {
  const text = pieces.map((piece) => piece.text).join("\n");
  const origin = [];
  for (const piece of pieces) for (let i = 0; i <= piece.text.length; i++) origin.push(piece.at + i);
  spans(parent, text, 0, text.length, { where: (offset) => origin[offset], flags, depth: 0 });
  return parent;
}

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

function spans(parent, text, start, end, context) {
  let plain = start;
  const flush = (upto) => emit(parent, text, context.where, plain, upto, context.flags);
  for (let i = start; i < end;) {
    const found = context.depth < MAX_DEPTH ? spanAt(text, i, start, end) : null;
    if (!found) {
      i++;
      continue;
    }
    flush(i);
    if (found.node) {
      parent.append(found.node);
      const inner = { ...context, depth: context.depth + 1 };
      if (found.raw) emit(found.node, text, context.where, found.from, found.to, context.flags);
      else if (found.to > found.from) spans(found.node, text, found.from, found.to, inner);
    }
    plain = found.node ? found.next : found.from;
    i = found.next;
  }
  flush(end);
}

// The span that begins at i, if one does: its element, what it covers, and where the text goes on.
function spanAt(text, i, start, end) {
  const char = text[i];
  if (char === "\\" && i + 1 < end && /[!-/:-@[-`{-~]/.test(text[i + 1]))
    return { node: null, from: i + 1, next: i + 2 };
  if (char === "`") {
    const ticks = /^`+/.exec(text.slice(i, end))[0];
    const close = endOfTicks(text, i + ticks.length, end, ticks.length);
    if (close < 0) return { node: null, from: i, next: i + ticks.length };
    return { node: element("code"), raw: true, from: i + ticks.length, to: close, next: close + ticks.length };
  }
  if (char === "[" || (char === "!" && text[i + 1] === "[")) return linkAt(text, i, end);
  if (char === "h" && (i === start || /[\s(<]/.test(text[i - 1]))) return addressAt(text, i, end);
  if (char === "\n" && text.slice(start, i).endsWith("  ")) return { node: element("br"), from: i, to: i, next: i + 1 };
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, i) || i + mark.length >= end || /\s/.test(text[i + mark.length])) continue;
    if (mark[0] === "_" && i > start && /\w/.test(text[i - 1])) continue; // snake_case
    const close = closing(text, i + mark.length, end, mark);
    if (close > 0) return { node: element(tag), from: i + mark.length, to: close, next: close + mark.length };
  }
  return null;
}

function endOfTicks(text, from, end, count) {
  for (let i = from; i < end;) {
    if (text[i] !== "`") {
      i++;
      continue;
    }
    let upto = i;
    while (upto < end && text[upto] === "`") upto++;
    if (upto - i === count) return i;
    i = upto;
  }
  return -1;
}

function closing(text, from, blockEnd, mark) {
  const end = Math.min(blockEnd, from + MAX_SPAN);
  for (let i = text.indexOf(mark, from + 1); i > 0 && i + mark.length <= end; i = text.indexOf(mark, i + 1)) {
    if (/\s/.test(text[i - 1]) || text[i - 1] === "\\") continue;
    if (mark.length === 1 && ((i + 1 < end && text[i + 1] === mark) || text[i - 1] === mark)) continue; // part of a strong mark
    if (mark[0] === "_" && /\w/.test(text[i + mark.length] ?? "")) continue;
    return mark.length === 2 && text[i + 2] === mark[0] && text[i + 3] !== mark[0] ? i + 1 : i; // ***both***
  }
  return -1;
}

function linkAt(text, i, end) {
  const found = /^!?\[([^\]\n]*)\]\((?:<([^>\n]*)>|([^\s()]*(?:\([^\s()]*\)[^\s()]*)*))(?:\s+"[^"\n]*")?\)/.exec(
    text.slice(i, end),
  );
  if (!found) return null;
  const from = i + found[0].indexOf("[") + 1;
  const node = anchor(found[2] ?? found[3]);
  return node && { node, from, to: from + found[1].length, next: i + found[0].length };
}

function addressAt(text, i, end) {
  const found = /^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_]/.exec(text.slice(i, end));
  const node = found && anchor(found[0]);
  return node && { node, raw: true, from: i, to: i + found[0].length, next: i + found[0].length };
}

function anchor(address) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return null; // javascript: and data: stay text
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
}

function emit(parent, text, where, start, end, flags) {
  for (let i = start; i < end;) {
    const tinted = flags[where(i)] === "1";
    let upto = i + 1;
    while (upto < end && (flags[where(upto)] === "1") === tinted) upto++;
    const piece = text.slice(i, upto);
    parent.append(tinted ? element("span", { className: "draft", textContent: piece }) : piece);
    i = upto;
  }
}
