// The steps of a run: a tree for each attempt, with a bar for when each of them ran.

import { badge, duration, el, svg, tone } from "/assets/dom.js";

/** The steps, each behind the one that it is inside of, with how deep that is. */
export function tree(steps) {
  const ids = new Set(steps.map((step) => step.id));
  const inside = new Map();
  for (const step of steps) {
    const parent = ids.has(step.parent) ? step.parent : null;
    if (!inside.has(parent)) inside.set(parent, []);
    inside.get(parent).push(step);
  }
  const rows = [];
  const left = [];
  const enter = (id, depth) => {
    for (const step of (inside.get(id) ?? []).reverse()) left.push({ step, depth });
    inside.delete(id);
  };
  enter(null, 0);
  for (let row; (row = left.pop()); ) {
    rows.push(row);
    enter(row.step.id, row.depth + 1);
  }
  // Records that say to be inside each other are somebody's mistake, and shown all the same.
  for (const lost of inside.values()) rows.push(...lost.map((step) => ({ step, depth: 0 })));
  return rows;
}

/** A table of all attempts, the last first: each has a timeline of its own. */
export function showSteps(run) {
  if (!run.steps.length) return [];
  const attempts = [...new Set(run.steps.map((step) => step.attempt))].sort((a, b) => b - a);
  const bodies = attempts.map((attempt) => body(attempt, run.steps.filter((step) => step.attempt === attempt)));
  const head = ["Step", "State", "Time", "Timeline"].map((name) => el("th", { scope: "col" }, name));
  const table = el("table", { class: "steps" }, el("thead", {}, el("tr", {}, head)), bodies);
  return [el("h2", {}, "Steps"), el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Steps" }, table)];
}

function body(attempt, steps) {
  const began = (step) => Date.parse(step.started_at ?? step.ended_at ?? new Date().toISOString());
  const ended = (step) => Date.parse(step.ended_at ?? new Date().toISOString());
  const from = steps.map(began).reduce((a, b) => Math.min(a, b));
  const span = Math.max(1, steps.map(ended).reduce((a, b) => Math.max(a, b)) - from);
  const names = new Map(steps.map((step) => [step.id, step.name]));
  const rows = tree(steps).map(({ step, depth }) => {
    const scale = (at) => ((at - from) / span) * 100;
    const [start, end] = [scale(began(step)), scale(ended(step))];
    const width = Math.max(0.8, end - start);
    const bar = svg("rect", { x: Math.min(start, 100 - width), y: 1, width, height: 8, class: `fill-${tone(step)}` });
    const when = `began after ${duration(began(step) - from)}, took ${duration(step.duration_ms ?? 0)}`;
    const line = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", height: 14, role: "img", "aria-label": when }, bar);
    const link = el("a", { href: `#/run/${step.id}` }, step.name ?? step.id);
    const place = el("td", { "data-depth": depth }, depth ? el("span", { class: "branch", "aria-hidden": "true" }, "└ ") : null, link,
      names.has(step.parent) ? el("span", { class: "skip" }, ` inside ${names.get(step.parent)}`) : null);
    // Deeper ones would leave no room for their names.
    place.style.paddingInlineStart = `${Math.min(depth, 12) * 1.1}rem`;
    return el("tr", {}, place,
      el("td", {}, step.replays ? el("span", { class: "quiet" }, "replayed") : badge(step)),
      el("td", { class: "num" }, step.replays ? "" : duration(step.duration_ms)),
      el("td", { class: "line" }, line));
  });
  const told = `Attempt ${attempt}: ${steps.length} ${steps.length === 1 ? "step" : "steps"} in ${duration(span)}`;
  return el("tbody", {}, el("tr", {}, el("th", { scope: "rowgroup", colspan: 4, class: "group" }, told)), rows);
}
