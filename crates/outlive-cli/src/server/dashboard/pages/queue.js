// @ts-check
// The queue: what is executed next, why each run waits and for what, and the chain of runs that wait for each other.
import { link } from "../model/route.js";
import { layout } from "../model/graph.js";
import { title } from "../model/run.js";
import { call } from "../net/net.js";
import { store } from "../net/store.js";
import { graph } from "../view/graph.js";
import { badge, button, empty, panel, progress, reasonOf, runLink, short, since, table, took } from "../view/parts.js";
import { h } from "../view/view.js";
import { act } from "./actions.js";
import { loaded, onState } from "./loaded.js";

/** How many runs the graph has at most. */
const PLACED = 80;

/** @param {import("./all.js").Frame} frame */
export function queuePage({ redraw }) {
  const kept = loaded(() => call("queue list", { limit: 500 }), redraw);
  // What a run that is executed reports comes with the event itself.
  const place = (/** @type {any} */ run) => [run.state, run.reason, run.priority, run.not_before, run.can].join(" ");
  // Heartbeats change nothing here.
  const offered = () => (store.workers ?? []).map((worker) => [worker.id, worker.health, worker.slots].join(" ")).join(", ");
  let before = store.workers && offered();
  const workers = () => {
    const isOther = before !== null && before !== offered();
    before = offered();
    if (isOther) kept.soon();
  };
  return { title: () => "Queue", draw: () => draw(kept, redraw), changed: onState(kept.soon, place), again: kept.again, workers, leave: kept.leave };
}

/** @param {any} kept @param {() => void} redraw */
function draw(kept, redraw) {
  if (kept.problem) return [h("h1", null, "Queue"), empty(kept.problem)];
  if (!kept.answer) return [h("h1", null, "Queue"), h("p", { class: "loading" }, "Loading…")];
  const { waiting, entries, next } = kept.answer;
  const running = kept.answer.running.map((/** @type {any} */ run) => store.current.get(run.id) ?? run);
  const now = Date.now();
  const byId = new Map([...running, ...waiting, ...store.all()].map((run) => [run.id, run]));
  const slots = (store.workers ?? []).reduce((sum, worker) => sum + (worker.health === "alive" ? worker.slots : 0), 0);
  return [
    h("div", { class: "heading" }, h("h1", null, "Queue"), h("span", { class: "quiet" }, `${running.length} running, ${waiting.length}${next ? "+" : ""} waiting${store.workers ? `, ${slots} slots` : ""}`)),
    running.length ? table("Running", ["Run", "State", "Time", "Progress"], running.map((/** @type {any} */ run) => h("tr", { key: run.id }, h("td", null, runLink(run)), h("td", null, badge(run)), h("td", { class: "num" }, took(run, now)), h("td", null, progress(run, now)))), "queue stack") : null,
    dependencies(waiting, byId),
    h("h2", { class: "above" }, "Waiting"),
    waiting.length ? table("Queue", [{ text: "#", class: "num" }, "Run", "Waits because", { text: "Priority", class: "num" }, "Made", ""], waiting.map((/** @type {any} */ run, /** @type {number} */ index) => h("tr", { key: run.id },
      h("td", { class: "num quiet" }, index + 1), h("td", null, runLink(run)), h("td", { class: "whole" }, reason(run, byId, now)), h("td", { class: "num", "data-name": "priority" }, run.priority), h("td", null, since(run.created_at, now)),
      h("td", { class: "acts" }, store.may("cancel") ? button("Cancel", async () => (await act("cancel", [run])) && (kept.again(), redraw()), { class: "small", "aria-label": `Cancel ${title(run)}` }) : null))), "queue stack")
      : empty("Nothing waits.", "`outlive queue add -- COMMAND` adds a run."),
    entries.length ? [h("h2", { class: "above" }, "Entries of all repositories"), table("Entries of all repositories", ["About", "State", { text: "Priority", class: "num" }, "Waits because", "Repository"], entries.map((/** @type {any} */ entry) => h("tr", { key: entry.id },
      h("td", null, ["app", "workflow", "run"].filter((what) => entry[what]).map((what) => `${what} ${entry[what]}`).join(", "), entry.note ? h("div", { class: "quiet" }, entry.note) : null), h("td", null, badge(entry)), h("td", { class: "num", "data-name": "priority" }, entry.priority),
      h("td", { class: "whole" }, entry.reason ? reasonOf(entry.reason) : (entry.state === "pending" ? "waits for an executor" : "")), h("td", { class: "whole" }, h("code", null, entry.repo ?? "")))), "queue stack")] : null,
    next ? h("p", { class: "quiet" }, "There are more; `outlive queue list` pages through all of them.") : null,
  ];
}

/** Which run waits for which. @param {any[]} waiting @param {Map<string, any>} byId */
function dependencies(waiting, byId) {
  const placed = layout(waiting, PLACED);
  if (!placed.edges.length) return null;
  return panel("Dependencies", placed.left ? h("span", { class: "quiet" }, `${placed.left} more are not drawn`) : null, graph(placed, byId, "Which run waits for which"));
}

/** Why a run waits, with links to what it waits for. @param {any} run @param {Map<string, any>} byId @param {number} now */
export function reason(run, byId, now) {
  const parts = [h("span", { key: "text" }, run.reason ? reasonOf(run.reason) : "waits for a worker")];
  for (const id of run.waits_for) if (!(run.reason ?? "").includes(id)) parts.push(h("a", { key: id, class: "chip", href: link(["run", id]) }, byId.has(id) ? title(byId.get(id)) : short(id)));
  for (const key of run.keys ?? []) if ((run.reason ?? "").includes(`\`${key.name}\``)) parts.push(h("a", { key: `k${key.name}`, class: "chip", href: link(["keys"], { name: key.name }) }, `key ${key.name}`));
  if (run.not_before && Date.parse(run.not_before) > now) parts.push(h("span", { key: "at", class: "quiet" }, since(run.not_before, now)));
  return h("span", { class: "waits" }, parts);
}
