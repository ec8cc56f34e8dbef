// @ts-check
// Charts as SVG: bars and lines with axes, values on hover, and a click that leads to what a bar stands for.
import { h } from "./view.js";

/** How wide a chart is drawn, so that its text stays readable in a narrow window. */
export function chartWidth() {
  return Math.max(320, Math.min(900, innerWidth - 90));
}

/** How wide one of the plots of a run is drawn: two fit beside each other in a wide window. */
function plotWidth() {
  const room = innerWidth - (innerWidth > 1000 ? 260 : innerWidth > 600 ? 116 : 60);
  return Math.max(300, room > 856 ? room / 2 - 44 : room - 28);
}

/** Round steps for an axis, the last of them at least `most`; of sizes in the unit that they are shown in. @param {number} most @param {number} [wanted] @param {boolean} [isSize] */
export function ticks(most, wanted = 4, isSize = false) {
  if (!(most > 0)) return [0];
  const unit = isSize ? 1024 ** Math.max(0, Math.floor(Math.log2(most / wanted) / 10)) : 1;
  const rough = most / wanted / unit;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough);
  const found = [0];
  while (found.at(-1) < most - step / 1e6) found.push(found.length * step);
  return found;
}

/**
 * @param {{name: string, width?: number, height?: number, values: number[], label: (index: number) => string, format?: (value: number) => string,
 *   axis?: (index: number) => string, look?: (index: number) => string, click?: (index: number) => void, stacked?: number[][], looks?: string[]}} of
 */
export function bars(of) {
  const { width = 640, height = 140, values, format = String } = of;
  const [left, bottom, top] = [44, 20, 8];
  const most = Math.max(1, ...values);
  const steps = ticks(most, 3).filter((value) => Number.isInteger(value));
  const highest = Math.max(most, steps.at(-1));
  const y = (/** @type {number} */ value) => top + (height - top - bottom) * (1 - value / highest);
  const wide = (width - left) / values.length;
  const parts = steps.map((value) => h("g", { key: `t${value}` },
    h("line", { class: "grid-line", x1: left, x2: width, y1: y(value), y2: y(value) }), h("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value))));
  const every = Math.max(1, Math.ceil(values.length / Math.max(2, Math.floor(width / 90))));
  let marked = "";
  values.forEach((value, index) => {
    const x = left + index * wide;
    // Two bars of one day have one mark.
    const mark = of.axis && index % every === 0 ? of.axis(index) : "";
    const isNew = mark !== "" && mark !== marked;
    marked = mark || marked;
    const stack = of.stacked?.[index] ?? [value];
    let below = 0;
    const shapes = stack.map((part, i) => {
      const from = below;
      below += part;
      return part ? h("rect", { class: of.looks?.[i] ?? of.look?.(index) ?? "accent", x: x + 1, width: Math.max(1, wide - 2), y: y(below), height: Math.max(1, y(from) - y(below)), rx: 1 }) : null;
    });
    parts.push(h("g", { key: index, class: of.click ? "hit" : "", onclick: of.click ? () => of.click(index) : null },
      h("title", null, of.label(index)), h("rect", { class: "hover", x, width: wide, y: top, height: height - top - bottom }), shapes,
      isNew ? h("text", { class: "tick", x: x + 2, y: height - 5 }, mark) : null));
  });
  return h("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": of.name }, parts);
}

/** A line without axes, for a table. @param {number[]} values @param {string} name @param {string} [look] */
export function spark(values, name, look = "accent") {
  const most = Math.max(1, ...values);
  const wide = 96 / Math.max(1, values.length);
  return h("svg", { class: "spark", viewBox: "0 0 96 20", role: "img", "aria-label": name },
    values.map((value, index) => (value ? h("rect", { key: index, class: look, x: index * wide, width: Math.max(1, wide - 1), y: 20 - Math.max(1, (value / most) * 20), height: Math.max(1, (value / most) * 20) }) : null)));
}

/**
 * Lines over time with an axis, each value on hover.
 * @param {{name: string, width?: number, height?: number, times: number[], lines: {name: string, look: string, values: (number|null)[]}[], format: (value: number) => string, at: (time: number) => string, isSize?: boolean}} of
 */
export function plot(of) {
  const { width = plotWidth(), height = 160, times, lines, format, at } = of;
  const [left, bottom, top] = [64, 20, 8];
  const most = Math.max(1e-9, ...lines.flatMap((line) => line.values.map((value) => value ?? 0)));
  const steps = ticks(most, 3, of.isSize);
  const highest = Math.max(most, steps.at(-1));
  const [from, to] = [times[0] ?? 0, times.at(-1) ?? 1];
  const x = (/** @type {number} */ time) => left + (width - left - 4) * (to > from ? (time - from) / (to - from) : 0);
  const y = (/** @type {number} */ value) => top + (height - top - bottom) * (1 - value / highest);
  const path = (/** @type {(number|null)[]} */ values) => values.map((value, i) => (value === null ? "" : `${i && values[i - 1] !== null ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`)).join("");
  const wide = (width - left) / Math.max(1, times.length);
  return h("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": of.name },
    steps.map((value) => h("g", { key: `t${value}` }, h("line", { class: "grid-line", x1: left, x2: width, y1: y(value), y2: y(value) }), h("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)))),
    [0, 0.5, 1].map((share) => h("text", { key: `x${share}`, class: "tick", x: left + (width - left - 4) * share, y: height - 5, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, at(from + (to - from) * share))),
    lines.map((line) => h("path", { key: line.name, class: `line ${line.look}`, d: path(line.values) })),
    times.map((time, i) => h("g", { key: `h${i}` }, h("title", null, `${at(time)}  ${lines.map((line) => `${line.name} ${line.values[i] === null ? "–" : format(line.values[i])}`).join("  ")}`),
      h("rect", { class: "hover", x: x(time) - wide / 2, width: wide, y: top, height: height - top - bottom }))));
}
