// @ts-check
// The steps of a run as a Gantt chart: each below the step inside which it was made, with its time as a bar.
import { link } from "../model/route.js";
import { tone, word } from "../model/run.js";
import { duration } from "../model/text.js";
import { badge, empty, table } from "../view/parts.js";
import { h } from "../view/view.js";

/** The steps of an attempt in the order of the tree, each with its depth. @param {any[]} steps @returns {{step: any, depth: number}[]} */
export function tree(steps) {
  const ids = new Set(steps.map((step) => step.id));
  const inside = new Map();
  for (const step of steps) {
    const parent = ids.has(step.parent) ? step.parent : null;
    inside.set(parent, [...(inside.get(parent) ?? []), step]);
  }
  const found = [];
  const walk = (/** @type {string|null} */ parent, /** @type {number} */ depth) => {
    for (const step of inside.get(parent) ?? []) {
      found.push({ step, depth });
      walk(step.id, depth + 1);
    }
  };
  walk(null, 0);
  return found;
}

/** @param {any} run */
export function stepsTab(run) {
  if (!run.steps.length) return empty("It has no steps.", "`outlive step NAME -- COMMAND` inside the run makes one.");
  const attempts = [...new Set(run.steps.map((/** @type {any} */ step) => step.attempt))].sort((a, b) => Number(b) - Number(a));
  return attempts.map((attempt) => chart(run.steps.filter((/** @type {any} */ step) => step.attempt === attempt), Number(attempt), attempts.length > 1));
}

/** @param {any[]} steps @param {number} attempt @param {boolean} isOne */
function chart(steps, attempt, isOne) {
  const now = Date.now();
  const from = Math.min(...steps.map((step) => (step.started_at ? Date.parse(step.started_at) : now)));
  const ends = steps.map((step) => (step.ended_at ? Date.parse(step.ended_at) : step.started_at ? now : from));
  const span = Math.max(1, Math.max(...ends) - from);
  const rows = tree(steps).map(({ step, depth }) => {
    const began = step.started_at ? Date.parse(step.started_at) : from;
    const ended = step.ended_at ? Date.parse(step.ended_at) : step.started_at ? now : began;
    const bar = { left: `${((began - from) / span) * 100}%`, width: `max(2px, ${((ended - began) / span) * 100}%)` };
    return h("tr", { key: step.id },
      h("td", { class: "step", "data-depth": depth, style: { "padding-left": `${12 + depth * 18}px` } }, h("a", { href: link(["run", step.id]) }, step.name ?? step.id)),
      h("td", null, badge(step)), h("td", { class: "num" }, step.replays ? "" : duration(step.duration_ms ?? ended - began)),
      h("td", { class: "gantt" }, h("div", { class: "track" }, h("span", { class: `span ${tone(word(step))}`, style: bar, title: `+${duration(began - from)} to +${duration(ended - from)}` }))));
  });
  return h("section", { key: attempt }, isOne ? h("h2", null, `Attempt ${attempt}`) : null,
    table(`Steps of attempt ${attempt}`, ["Step", "State", { text: "Took", class: "num" }, { text: `0 to ${duration(span)}`, class: "gantt" }], rows, "steps"));
}
