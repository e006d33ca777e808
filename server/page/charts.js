// Small drawings in SVG. Colours come from the style sheet by class; every drawing has its content as text too.

import { svg } from "./dom.js";

const WIDTH = 300;

function canvas(height, label, ...parts) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }, ...parts);
}

const text = (x, y, content, anchor = "start", kind = "tick") =>
  svg("text", { x, y, "text-anchor": anchor, class: kind }, content);
const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// A minute of a rate: [age as a share of the minute, value], the newest at the right end.
export function drawSpeed(samples) {
  const [height, base] = [64, 60];
  const top = Math.max(1, ...samples.map(([, value]) => value));
  const points = samples.map(([age, value]) => [Math.max(0, WIDTH * (1 - age)), base - (value / top) * 46]);
  const parts = [svg("line", { x1: 0, x2: WIDTH, y1: base, y2: base, class: "axis" })];
  if (points.length > 1) {
    const area = `${path(points)}L${WIDTH} ${base}L${points[0][0]} ${base}Z`;
    parts.push(svg("path", { d: area, class: "area" }), svg("path", { d: path(points), class: "line" }));
  }
  parts.push(text(0, 9, `${top < 10 ? top.toFixed(1) : Math.round(top)}`));
  return canvas(height, `Tokens per second during the last minute, at most ${top.toFixed(1)}`, ...parts);
}

// What a step costs by the number of drafted tokens, in plain steps, and how many tokens it is expected to give. Where the
// second curve is above the first, drafting pays; the best ratio is marked.
export function drawCost({ prices, expected, best, window }) {
  const [height, left, right, top, base] = [174, 26, 8, 10, 142];
  const lastX = prices.at(-1)[0];
  const lastY = Math.max(...prices.map(([, price]) => price), ...expected.map(([, tokens]) => tokens));
  const x = (count) => left + (count / lastX) * (WIDTH - left - right);
  const y = (value) => base - (value / lastY) * (base - top);
  const place = (curve) => curve.map(([count, value]) => [x(count), y(value)]);
  const parts = [svg("line", { x1: left, x2: WIDTH - right, y1: base, y2: base, class: "axis" })];
  for (const value of ticks(lastY)) {
    parts.push(
      svg("line", { x1: left, x2: WIDTH - right, y1: y(value), y2: y(value), class: "grid" }),
      text(left - 5, y(value) + 3, value, "end"),
    );
  }
  for (const count of ticks(lastX)) parts.push(text(x(count), base + 13, count, "middle"));
  parts.push(text((left + WIDTH) / 2, base + 25, "drafted tokens in a step", "middle"));
  if (expected.length) {
    const gain = expected.filter(([count, tokens]) => tokens >= priceAt(prices, count));
    if (gain.length > 1) {
      const below = gain.map(([count]) => [count, priceAt(prices, count)]).reverse();
      parts.push(svg("path", { d: `${path(place([...gain, ...below]))}Z`, class: "gain" }));
    }
    parts.push(svg("path", { d: path(place(expected)), class: "line expected" }));
  }
  parts.push(svg("path", { d: path(place(prices)), class: "line price" }));
  if (window > 0 && window <= lastX)
    parts.push(svg("line", { x1: x(window), x2: x(window), y1: top, y2: base, class: "now" }));
  if (best) parts.push(svg("circle", { cx: x(best[0]), cy: y(best[1]), r: 4, class: "best" }));
  return canvas(height, "Cost of a step and the tokens expected from it, by drafted tokens", ...parts);
}

export function priceAt(prices, count) {
  const after = prices.findIndex(([known]) => known >= count);
  if (after <= 0) return prices.at(after)[1];
  const [[x0, y0], [x1, y1]] = [prices[after - 1], prices[after]];
  return y0 + ((y1 - y0) * (count - x0)) / (x1 - x0);
}

function ticks(last) {
  const step = [1, 2, 5, 10, 20].find((size) => last / size <= 5) ?? 50;
  return Array.from({ length: Math.floor(last / step) + 1 }, (_, index) => index * step);
}

// A bar per position of the draft: the share of verified drafts that were accepted up to there.
export function drawPositions(shares) {
  const [height, base] = [84, 66];
  const slots = Math.max(shares.length, 4);
  const wide = Math.min(WIDTH / slots, 38);
  const parts = [svg("line", { x1: 0, x2: WIDTH, y1: base, y2: base, class: "axis" })];
  shares.forEach((share, index) => {
    const tall = Math.max(1, share * 52);
    parts.push(
      svg("rect", { x: index * wide + 2, y: base - tall, width: wide - 4, height: tall, rx: 2, class: "bar" }),
    );
    if (wide > 24) parts.push(text((index + 0.5) * wide, base - tall - 3, `${Math.round(share * 100)}%`, "middle"));
    if (wide > 12) parts.push(text((index + 0.5) * wide, base + 13, index + 1, "middle"));
  });
  return canvas(
    height,
    `Accepted by position: ${shares.map((share) => `${Math.round(share * 100)} %`).join(", ")}`,
    ...parts,
  );
}
