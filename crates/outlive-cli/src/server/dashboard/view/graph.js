// @ts-check
// A graph of runs as SVG: each is a box with its state that leads to its page, and lines lead to what waits for it.
import { link } from "../model/route.js";
import { title, tone, word } from "../model/run.js";
import { short } from "./parts.js";
import { h } from "./view.js";

const [WIDE, HIGH, ACROSS, DOWN, EDGE] = [168, 30, 56, 12, 4];
/** How many letters of a name fit into a box. */
const LETTERS = 19;

/** @param {import("../model/graph.js").Layout} layout @param {Map<string, any>} byId @param {string} name */
export function graph(layout, byId, name) {
  const x = (/** @type {number} */ column) => EDGE + column * (WIDE + ACROSS);
  const y = (/** @type {number} */ row) => EDGE + row * (HIGH + DOWN);
  const [width, height] = [x(layout.columns) - ACROSS + EDGE, y(layout.rows) - DOWN + EDGE];
  const at = new Map(layout.places.map((place) => [place.id, place]));
  return h("div", { class: "graph", tabindex: 0, role: "region", "aria-label": name },
    h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": name },
      layout.edges.map(([from, to]) => {
        const [a, b] = [at.get(from), at.get(to)];
        const [x1, y1, x2, y2] = [x(a.column) + WIDE, y(a.row) + HIGH / 2, x(b.column), y(b.row) + HIGH / 2];
        return h("path", { key: `${from} ${to}`, class: "edge", d: `M${x1} ${y1}C${x1 + ACROSS / 2} ${y1} ${x2 - ACROSS / 2} ${y2} ${x2} ${y2}` });
      }),
      layout.places.map((place) => box(place, byId.get(place.id), x(place.column), y(place.row)))));
}

/** @param {import("../model/graph.js").Place} place @param {any} run @param {number} x @param {number} y */
function box(place, run, x, y) {
  const name = run ? title(run) : short(place.id);
  const state = run ? word(run) : "ended";
  return h("a", { key: place.id, href: link(["run", place.id]), class: `node ${run ? tone(state) : "quiet"}`, "aria-label": `${name}, ${state}` }, h("title", null, `${name}: ${state}`),
    h("rect", { x, y, width: WIDE, height: HIGH, rx: 7 }), h("circle", { cx: x + 14, cy: y + HIGH / 2, r: 4 }),
    h("text", { x: x + 26, y: y + HIGH / 2 + 4 }, name.length > LETTERS ? `${name.slice(0, LETTERS - 1)}…` : name));
}
