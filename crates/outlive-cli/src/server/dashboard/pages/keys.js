// @ts-check
// Keys: who holds each lock, limit, unique key or rate, and who waits for it.
import { link } from "../model/route.js";
import { store } from "../net/store.js";
import { badge, empty, runLink, since, took } from "../view/parts.js";
import { h } from "../view/view.js";

/** Keys with their holders and waiters. @param {any[]} runs @returns {{name: string, limit: number, hold: string, holders: any[], waiters: any[]}[]} */
export function byKey(runs) {
  const keys = new Map();
  for (const run of runs) {
    for (const { name, limit, hold } of run.keys ?? []) {
      if (!keys.has(name)) keys.set(name, { name, limit, hold, holders: [], waiters: [] });
      const key = keys.get(name);
      key.limit = Math.min(key.limit, limit);
      const holds = run.state === "running" || (hold === "active" && ["pending", "suspended"].includes(run.state));
      if (holds) key.holders.push(run);
      else if (run.state === "pending") key.waiters.push(run);
    }
  }
  return [...keys.values()].sort((a, b) => b.waiters.length - a.waiters.length || (a.name < b.name ? -1 : 1));
}

const KINDS = { running: "held while it runs", active: "unique until it has ended", start: "rate of starts" };

/** @param {import("./all.js").Frame} frame */
export function keysPage({ route }) {
  let wanted = route.query.get("name");
  return {
    title: () => "Keys",
    route: (/** @type {any} */ next) => {
      wanted = next.query.get("name");
      return true;
    },
    draw: () => {
      const now = Date.now();
      const all = byKey(store.all());
      const keys = wanted ? all.filter((key) => key.name === wanted) : all;
      return [
        h("div", { class: "heading" }, h("h1", null, "Keys"), wanted ? h("a", { class: "chip", href: link(["keys"]) }, `${wanted} ×`) : h("span", { class: "quiet" }, "Locks, limits, unique keys and rates of runs in flight")),
        keys.length ? h("div", { class: "keylist" }, keys.map((key) => h("section", { key: key.name, class: "panel", "aria-label": `Key ${key.name}` },
          h("div", { class: "panel-head" }, h("h2", null, key.name), h("span", { class: "quiet" }, `${KINDS[key.hold] ?? ""}${key.limit > 1 ? `, at most ${key.limit}` : ""}`), h("span", { class: `slots ${key.holders.length >= key.limit ? "full" : ""}` }, `${key.holders.length} of ${key.limit} held`)),
          h("div", { class: "flow" },
            h("div", null, h("h3", null, "Held by"), key.holders.length ? h("ul", { class: "cards compact" }, key.holders.map((run) => h("li", { key: run.id }, h("div", { class: "line" }, badge(run), runLink(run), h("span", { class: "quiet num" }, took(run, now)))))) : h("p", { class: "quiet" }, "free")),
            h("div", null, h("h3", null, `Waiting (${key.waiters.length})`), key.waiters.length ? h("ul", { class: "cards compact" }, key.waiters.slice(0, 20).map((run) => h("li", { key: run.id }, h("div", { class: "line" }, badge(run), runLink(run), h("span", { class: "quiet num" }, since(run.created_at, now)))))) : h("p", { class: "quiet" }, "no run"))))))
          : empty(store.loaded ? "No run in flight has a key." : "Loading…", "`outlive run --lock db -- COMMAND` holds a lock while it runs."),
      ];
    },
  };
}
