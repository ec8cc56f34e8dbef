// @ts-check
// Runs over time as stacked bars, of which a part is chosen by dragging: a time range for a list.
import { tone } from "../model/run.js";
import { clock, count, moment } from "../model/text.js";
import { h } from "./view.js";

const [WIDE, HIGH] = [1000, 44];
/** From the bottom up: what went wrong is compared most easily where all bars begin. */
const TONES = ["bad", "warn", "good", "busy", "wait", "quiet"];

/** @typedef {{since: string, until: string, part_ms: number, over_time: {state: string, runs: number[]}[]}} Counted */

export class Histogram {
  /** @param {{redraw: () => void, choose: (since: number, until: number|null) => void}} frame */
  constructor({ redraw, choose }) {
    this.redraw = redraw;
    this.choose = choose;
    /** The parts between which a person drags. @type {[number, number]|null} */
    this.drag = null;
    this.over = -1;
  }

  /** @param {Counted} counted @param {{since: number, until: number}|null} chosen @param {boolean} utc */
  draw(counted, chosen, utc) {
    const began = Date.parse(counted.since);
    const parts = Math.max(1, ...counted.over_time.map((series) => series.runs.length));
    const at = (/** @type {number} */ part) => began + part * counted.part_ms;
    const layers = TONES.map((name) => Array.from({ length: parts }, (_, i) => counted.over_time.reduce((sum, series) => sum + (tone(series.state) === name ? series.runs[i] ?? 0 : 0), 0)));
    const totals = Array.from({ length: parts }, (_, i) => layers.reduce((sum, layer) => sum + layer[i], 0));
    const share = (/** @type {number} */ time) => Math.min(1, Math.max(0, (time - began) / (at(parts) - began)));
    const [from, to] = this.drag ? [Math.min(...this.drag), Math.max(...this.drag) + 1].map((part) => part / parts) : chosen ? [share(chosen.since), share(chosen.until)] : [0, 0];
    const isLong = counted.part_ms * parts > 2 * 864e5;
    const shown = (/** @type {number} */ time) => (isLong ? moment(time, utc).slice(5, 16) : clock(time, utc).slice(0, 5));
    const part = (/** @type {PointerEvent} */ event) => {
      const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
      return Math.min(parts - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * parts)));
    };
    return h("div", { class: "histogram", role: "group", "aria-label": "Runs over time" },
      h("div", { class: "brush",
        onpointerdown: (/** @type {PointerEvent} */ event) => {
          if (event.button) return;
          /** @type {Element} */ (event.currentTarget).setPointerCapture(event.pointerId);
          this.drag = [part(event), part(event)];
          event.preventDefault();
          this.redraw();
        },
        onpointermove: (/** @type {PointerEvent} */ event) => {
          const now = part(event);
          if (now === this.over && (!this.drag || this.drag[1] === now)) return;
          this.over = now;
          if (this.drag) this.drag[1] = now;
          this.redraw();
        },
        onpointerup: () => {
          if (!this.drag) return;
          const [first, last] = [Math.min(...this.drag), Math.max(...this.drag)];
          this.drag = null;
          // What reaches the present has no end.
          this.choose(at(first), last === parts - 1 ? null : at(last + 1));
        },
        onpointercancel: () => ((this.drag = null), this.redraw()),
        onpointerleave: () => ((this.over = -1), this.redraw()) },
      h("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" }, layers.map((layer, i) => h("path", { key: TONES[i], class: `fill ${TONES[i]}`, d: bars(layer, layers.slice(0, i), Math.max(1, ...totals)) })),
        to > from ? h("rect", { class: "chosen", x: from * WIDE, width: Math.max(2, (to - from) * WIDE), y: 0, height: HIGH }) : null)),
      h("div", { class: "ends" }, h("span", null, shown(began)), h("span", { class: "said" }, this.over >= 0 && this.over < parts ? `${shown(at(this.over))}: ${count(totals[this.over], "run")}${layers[0][this.over] ? `, ${layers[0][this.over]} failed or died` : ""}` : "drag to choose a time"), h("span", null, shown(at(parts)))));
  }
}

/** The bars of a layer as one path. @param {number[]} layer @param {number[][]} below @param {number} most */
function bars(layer, below, most) {
  const wide = WIDE / layer.length;
  const gap = Math.min(2, wide / 5);
  return layer.map((value, i) => {
    if (!value) return "";
    const base = below.reduce((sum, other) => sum + other[i], 0);
    const [bottom, height] = [HIGH - (base / most) * HIGH, Math.max(1.5, (value / most) * HIGH)];
    return `M${(i * wide + gap / 2).toFixed(1)} ${bottom.toFixed(1)}v${(-height).toFixed(1)}h${(wide - gap).toFixed(1)}v${height.toFixed(1)}z`;
  }).join("");
}
