// @ts-check
// Insights: how long runs of each kind take, how often they fail, and how many there are over time. A click leads to the runs.
import { link } from "../model/route.js";
import { clock, duration, moment } from "../model/text.js";
import { call } from "../net/net.js";
import { settings } from "../net/settings.js";
import { bars, chartWidth, spark } from "../view/charts.js";
import { empty, panel } from "../view/parts.js";
import { h } from "../view/view.js";
import { loaded, onState } from "./loaded.js";

/** How long to wait until runs are counted again, in milliseconds: each count reads many. */
const COUNTED = 5000;
const SPANS = [["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["", "all time"]];
const ORDERS = { kind: (/** @type {any} */ k) => k.kind, runs: (/** @type {any} */ k) => -k.runs, failed: (/** @type {any} */ k) => -(k.failure_rate ?? -1), dead: (/** @type {any} */ k) => -(k.death_rate ?? -1), p50: (/** @type {any} */ k) => -(k.p50_ms ?? -1), p95: (/** @type {any} */ k) => -(k.p95_ms ?? -1), p99: (/** @type {any} */ k) => -(k.p99_ms ?? -1) };

/** @param {import("./all.js").Frame} frame */
export function insightsPage({ route, redraw, replace, go }) {
  let [since, sort] = [route.query.get("since") ?? "7d", route.query.get("sort") ?? "p95"];
  const load = () => call("stats", { ...(since ? { since } : {}), limit: 200 });
  const kept = loaded(load, redraw, COUNTED);
  const choose = (/** @type {any} */ changed) => {
    ({ since, sort } = { since, sort, ...changed });
    replace(link(["insights"], { since, sort }));
    if ("since" in changed) kept.again();
    redraw();
  };
  return {
    title: () => "Insights",
    leave: kept.leave,
    changed: onState(kept.soon),
    again: kept.again,
    ticks: () => false,
    draw: () => [
      h("div", { class: "heading" }, h("h1", null, "Insights"),
        h("div", { class: "segments", role: "group", "aria-label": "Time" }, SPANS.map(([value, text]) => h("button", { key: text, type: "button", "aria-pressed": since === value ? "true" : "false", onclick: () => choose({ since: value }) }, text))),
        h("button", { type: "button", class: "small", onclick: kept.again }, "Refresh")),
      kept.problem ? empty(kept.problem) : kept.answer ? content(kept.answer, since, sort, choose, go) : h("p", { class: "loading" }, "Loading…"),
    ],
  };
}

/** @param {any} answer @param {string} since @param {string} sort @param {(changed: any) => void} choose @param {(hash: string) => void} go */
function content(answer, since, sort, choose, go) {
  const by = ORDERS[sort] ?? ORDERS.p95;
  const kinds = answer.kinds.slice().sort((/** @type {any} */ a, /** @type {any} */ b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0));
  if (!kinds.length) return empty("No runs within this time.", "Statistics come from the index of the server's home.");
  const sum = (/** @type {string} */ field) => kinds.reduce((/** @type {number} */ all, /** @type {any} */ kind) => all + kind[field], 0);
  const total = Array.from({ length: kinds[0].throughput.length }, (_, i) => kinds.reduce((/** @type {number} */ all, /** @type {any} */ kind) => all + (kind.throughput[i] ?? 0), 0));
  const began = answer.since ? Date.parse(answer.since) : Date.parse(answer.until) - answer.part_ms * total.length;
  const at = (/** @type {number} */ i) => began + i * answer.part_ms;
  const short = (/** @type {number} */ i) => (answer.part_ms * total.length > 2 * 864e5 ? moment(at(i), settings.utc).slice(5, 10) : clock(at(i), settings.utc).slice(0, 5));
  const percent = (/** @type {number|null} */ rate) => (rate === null ? "–" : `${(rate * 100).toFixed(1)}%`);
  const time = (/** @type {number|null} */ ms) => (ms === null ? "–" : duration(ms));
  const slowest = Math.max(1, ...kinds.map((/** @type {any} */ kind) => kind.p99_ms ?? 0));
  // Names begin with the first, numbers with the greatest.
  const [order, arrow] = sort === "kind" ? ["ascending", " ↑"] : ["descending", " ↓"];
  const head = (/** @type {string} */ name, /** @type {string} */ text, look = "num") => h("th", { scope: "col", class: look, key: name, "aria-sort": sort === name ? order : null }, h("button", { type: "button", class: "plain", onclick: () => choose({ sort: name }) }, text, sort === name ? arrow : ""));
  return [
    h("div", { class: "tiles" }, fact("Runs", sum("runs").toLocaleString("en")), fact("Ended", sum("ended").toLocaleString("en")), fact("Failed", percent(sum("ended") ? sum("failed") / sum("ended") : null)), fact("Died", percent(sum("ended") ? sum("dead") / sum("ended") : null))),
    panel("Throughput", h("span", { class: "quiet" }, `a bar is ${duration(answer.part_ms)}`), h("div", { class: "chart-box" }, bars({ name: "Runs over time", width: chartWidth(), height: 150, values: total, label: (i) => `${moment(at(i), settings.utc)}: ${total[i]} runs`, axis: short,
      click: (i) => go(link(["runs"], { since: new Date(at(i)).toISOString(), until: new Date(at(i + 1)).toISOString() })) }))),
    panel("Kinds", h("span", { class: "quiet" }, "a row leads to its runs"), h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Kinds" }, h("table", { class: "insights" },
      h("thead", null, h("tr", null, head("kind", "Kind", ""), head("runs", "Runs"), head("failed", "Failed"), head("dead", "Died"), head("p50", "p50"), head("p95", "p95"), head("p99", "p99"), h("th", { scope: "col" }, "Durations"), h("th", { scope: "col" }, "Over time"))),
      h("tbody", null, kinds.map((/** @type {any} */ kind) => h("tr", { key: kind.kind },
        h("td", null, h("a", { href: link(["runs"], { kind: kind.kind, since }) }, kind.kind || "(none)")), h("td", { class: "num" }, kind.runs.toLocaleString("en")),
        h("td", { class: "num" }, kind.failed ? h("a", { href: link(["runs"], { kind: kind.kind, view: "failed", since }) }, percent(kind.failure_rate)) : percent(kind.failure_rate)), h("td", { class: "num" }, percent(kind.death_rate)),
        h("td", { class: "num" }, time(kind.p50_ms)), h("td", { class: "num" }, time(kind.p95_ms)), h("td", { class: "num" }, time(kind.p99_ms)),
        h("td", null, quantiles(kind, slowest)), h("td", null, spark(kind.throughput, `${kind.runs} runs over time`)))))))),
    answer.next ? h("p", { class: "quiet" }, "There are more kinds; `outlive stats` pages through all of them.") : null,
  ];
}

/** @param {string} name @param {string} value */
function fact(name, value) {
  return h("div", { class: "tile", key: name }, h("span", { class: "value" }, value), h("span", null, name));
}

/** p50 to p99 as a bar, p95 marked, on a common scale. @param {any} kind @param {number} slowest */
function quantiles(kind, slowest) {
  if (kind.p50_ms === null) return null;
  const x = (/** @type {number} */ ms) => (Math.log1p(ms) / Math.log1p(slowest)) * 118;
  return h("svg", { class: "quantiles", viewBox: "0 0 120 14", role: "img", "aria-label": `p50 ${duration(kind.p50_ms)}, p95 ${duration(kind.p95_ms)}, p99 ${duration(kind.p99_ms)}` },
    h("title", null, `p50 ${duration(kind.p50_ms)}  p95 ${duration(kind.p95_ms)}  p99 ${duration(kind.p99_ms)}`),
    h("line", { class: "grid-line", x1: 0, x2: 120, y1: 7, y2: 7 }), h("rect", { class: "accent soft", x: x(kind.p50_ms), width: Math.max(2, x(kind.p99_ms) - x(kind.p50_ms)), y: 4, height: 6, rx: 2 }),
    h("rect", { class: "accent", x: x(kind.p50_ms), width: 2, y: 1, height: 12 }), h("rect", { class: "accent", x: x(kind.p95_ms), width: 2, y: 3, height: 8 }));
}
