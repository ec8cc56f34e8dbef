// @ts-check
// Keys: which runs hold each lock, limit, unique key or rate, and which wait for it, as the operation `keys` answers.
import { link } from "../model/route.js";
import { duration } from "../model/text.js";
import { call } from "../net/net.js";
import { badge, empty, runLink, since } from "../view/parts.js";
import { h } from "../view/view.js";
import { loaded, onState } from "./loaded.js";

/** How many waiting runs of a key are named. */
const NAMED = 20;
const KINDS = { lock: "lock, held while a run runs", limit: "limit of runs at a time", unique: "unique until the run has ended" };

/** @param {import("./all.js").Frame} frame */
export function keysPage({ route, redraw }) {
  let wanted = route.query.get("name");
  const kept = loaded(() => call("keys"), redraw);
  return {
    title: () => "Keys",
    changed: onState(kept.soon),
    again: kept.again,
    leave: kept.leave,
    ticks: () => false,
    route: (/** @type {any} */ next) => {
      wanted = next.query.get("name");
      return true;
    },
    draw: () => [
      h("div", { class: "heading" }, h("h1", null, "Keys"), wanted ? h("a", { class: "chip", href: link(["keys"]) }, `${wanted} ×`) : h("span", { class: "quiet" }, "Locks, limits, unique keys and rates of runs in flight")),
      kept.problem ? empty(kept.problem) : kept.answer ? list(kept.answer, wanted) : h("p", { class: "loading" }, "Loading…"),
    ],
  };
}

/** @param {any} answer @param {string|null} wanted */
function list(answer, wanted) {
  const now = Date.now();
  const keys = answer.keys.filter((/** @type {any} */ key) => !wanted || key.name === wanted);
  if (!keys.length) return empty("No run in flight has a key.", "`outlive run --lock db -- COMMAND` holds a lock while it runs.");
  // What holds up the most comes first.
  keys.sort((/** @type {any} */ a, /** @type {any} */ b) => b.waiters.length - a.waiters.length || (a.name < b.name ? -1 : 1));
  return [
    h("div", { class: "keylist" }, keys.map((/** @type {any} */ key) => panel(key, now))),
    answer.complete ? null : h("p", { class: "quiet" }, "There are more runs; the first 20,000 were looked at."),
  ];
}

/** @param {any} key @param {number} now */
function panel(key, now) {
  const isRate = key.kind === "rate";
  const kind = isRate ? `rate: ${key.limit} starts in ${duration(key.per_ms)}` : KINDS[key.kind];
  return h("section", { key: `${key.kind} ${key.name}`, class: "panel", "aria-label": `Key ${key.name}` },
    h("div", { class: "panel-head" }, h("h2", null, key.name), h("span", { class: "quiet" }, kind), isRate ? null : h("span", { class: `slots ${key.free ? "" : "full"}` }, `${key.holders.length} of ${key.limit} held`)),
    h("div", { class: "flow" },
      h("div", null, h("h3", null, "Held by"), key.holders.length ? runs(key.holders, now) : h("p", { class: "quiet" }, isRate ? "a rate is not held" : "free")),
      h("div", null, h("h3", null, `Waiting (${key.waiters.length})`), key.waiters.length ? runs(key.waiters.slice(0, NAMED), now) : h("p", { class: "quiet" }, "no run"))));
}

/** @param {any[]} of @param {number} now */
function runs(of, now) {
  return h("ul", { class: "cards compact" }, of.map((run) => h("li", { key: run.id }, h("div", { class: "line" }, badge(run), runLink(run), h("span", { class: "quiet num" }, since(run.created_at, now))))));
}
