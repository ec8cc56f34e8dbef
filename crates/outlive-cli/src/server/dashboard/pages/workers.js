// @ts-check
// Workers: the processes that own runs, with their slots, kinds, versions and health.
import { link } from "../model/route.js";
import { duration } from "../model/text.js";
import { store } from "../net/store.js";
import { empty, label, runLink, short, since, table } from "../view/parts.js";
import { h } from "../view/view.js";

/** @param {import("./all.js").Frame} frame */
export function workersPage({ redraw }) {
  let problem = "";
  const load = () => store.loadWorkers().catch((error) => {
    problem = error.message;
    redraw();
  });
  load();
  return { title: () => "Workers", again: load, ticks: () => (store.workers ?? []).some((worker) => worker.health === "alive"), draw: () => draw(problem) };
}

/** @param {string} problem */
function draw(problem) {
  if (problem && !store.workers) return [h("h1", null, "Workers"), empty(problem)];
  if (!store.workers) return [h("h1", null, "Workers"), h("p", { class: "loading" }, "Loading…")];
  const alive = store.workers.filter((worker) => worker.health === "alive").length;
  const now = Date.now();
  const row = (/** @type {any} */ worker) => {
    const owned = store.all().filter((run) => run.owner === worker.id);
    return h("tr", { key: worker.id },
      h("td", null, label(worker.health)), h("td", null, worker.host), h("td", { class: "num", "data-name": "pid" }, worker.pid), h("td", { "data-name": "slots" }, slots(worker)), h("td", null, worker.kinds.join(", ") || (worker.slots ? "any kind" : "its own run")),
      h("td", { class: "whole" }, owned.slice(0, 3).map((run) => h("div", { key: run.id, class: "clip" }, runLink(run))), owned.length > 3 ? h("a", { href: link(["runs"], { status: "running" }) }, `${owned.length - 3} more`) : null, !owned.length && worker.runs ? `${worker.runs}` : null),
      h("td", null, worker.health === "alive" ? [since(worker.last_beat_at, now), h("div", { class: "quiet" }, `every ${duration(worker.beat_ms)}`)] : `silent for ${duration(worker.silent_ms)}`), h("td", { "data-name": "version" }, worker.version ?? ""), h("td", null, h("code", { title: worker.id }, short(worker.id))));
  };
  return [
    h("div", { class: "heading" }, h("h1", null, "Workers"), h("span", { class: "quiet" }, `${alive} of ${store.workers.length} alive`)),
    store.workers.length ? table("Workers", ["Health", "Host", { text: "Pid", class: "num" }, "Slots", "Kinds", "Runs", "Heartbeat", "Version", "Worker"], store.workers.map(row), "workers stack") : empty("No workers.", "Every process that owns a run is one; `outlive work` executes the queue."),
  ];
}

/** @param {any} worker */
function slots(worker) {
  if (!worker.slots) return h("span", { class: "quiet" }, "none");
  const used = Math.min(worker.runs, worker.slots);
  return h("span", { class: "slotbar", title: `${used} of ${worker.slots} used` }, Array.from({ length: Math.min(16, worker.slots) }, (_, i) => h("i", { key: i, class: i < used ? "used" : "" })), h("span", { class: "num" }, `${used}/${worker.slots}`));
}
