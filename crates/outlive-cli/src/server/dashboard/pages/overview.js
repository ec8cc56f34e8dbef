// @ts-check
// The overview: what needs attention with its next step, what runs, what comes next, and what failed within a day.
import { describe } from "../model/cron.js";
import { link } from "../model/route.js";
import { needsAttention } from "../model/run.js";
import { clock, size } from "../model/text.js";
import { call } from "../net/net.js";
import { settings } from "../net/settings.js";
import { store } from "../net/store.js";
import { bars, chartWidth } from "../view/charts.js";
import { badge, empty, panel, progress, reasonOf, runLink, since, took } from "../view/parts.js";
import { h } from "../view/view.js";
import { act, offers } from "./actions.js";
import { loaded, onState } from "./loaded.js";

/** How many of each are shown; the rest is a click away. */
const SHOWN = 8;
const HOUR = 3_600_000;
/** How long to wait until runs are counted again, in milliseconds. */
const COUNTED = 5000;

/** @param {import("./all.js").Frame} frame */
export function overviewPage({ go, redraw }) {
  // Only where there are more runs than are kept.
  const counts = loaded(async () => (store.more.waiting ? call("facets", { since: "1h", parts: 1 }) : null), redraw, COUNTED);
  return { title: () => "Overview", draw: () => draw(counts.answer, go, redraw), changed: onState(counts.soon), again: counts.again, leave: counts.leave };
}

/** @param {any} counts how many runs there are in each state, where that is counted @param {(hash: string) => void} go @param {() => void} redraw */
function draw(counts, go, redraw) {
  if (!store.loaded) return h("p", { class: "loading" }, "Loading…");
  const now = Date.now();
  const runs = store.all();
  const attention = runs.filter(needsAttention);
  const running = runs.filter((run) => run.state === "running" && !needsAttention(run));
  const waiting = runs.filter((run) => run.state === "pending");
  const counted = (/** @type {string} */ state) => counts?.states.find((/** @type {any} */ facet) => facet.value === state)?.runs ?? 0;
  const pending = Math.max(waiting.length, store.more.waiting ? counted("pending") : 0);
  const next = waiting.filter((run) => run.not_before && Date.parse(run.not_before) > now).sort((a, b) => (a.not_before < b.not_before ? -1 : 1));
  const failures = [...store.failures.values()].sort((a, b) => ((a.ended_at ?? "") < (b.ended_at ?? "") ? 1 : -1));
  return [
    h("h1", null, "Overview"),
    h("div", { class: "tiles" },
      tile("Needs attention", many(attention.length, store.more.attention), attention.length ? "bad" : "good", link(["runs"], { view: "attention" })),
      tile("Running", many(running.length, store.more.running), running.length ? "busy" : "quiet", link(["runs"], { status: "running" })),
      tile("Waiting", many(pending, store.more.waiting && !counts), "quiet", link(["queue"])),
      tile("Failed in 24 h", many(store.failures.size, false), store.failures.size ? "bad" : "good", link(["runs"], { view: "failed", since: "24h" }))),
    panel("Needs attention", more(attention, link(["runs"], { view: "attention" })), attention.length
      ? h("ul", { class: "cards" }, attention.slice(0, SHOWN).map((run) => attentionRow(run, now, redraw)))
      : empty("Nothing needs attention.", "Dead, interrupted, orphaned, stalled and parked runs appear here.")),
    h("div", { class: "columns" },
      panel("Running", more(running, link(["runs"], { status: "running" })), running.length
        ? h("ul", { class: "cards" }, running.slice(0, SHOWN).map((run) => h("li", { key: run.id }, h("div", { class: "line" }, runLink(run), h("span", { class: "num quiet" }, took(run, now))),
          h("div", { class: "line" }, progress(run, now) ?? h("span", { class: "quiet" }, run.progress_message ?? "no progress reported"), usage(run)),
          run.progress_message && run.progress_total ? h("div", { class: "quiet clip" }, run.progress_message) : null)))
        : empty("Nothing is running.", "`outlive run -- COMMAND` starts a run.")),
      panel("Next scheduled", more(next, link(["schedules"])), next.length
        ? h("ul", { class: "cards" }, next.slice(0, SHOWN).map((run) => h("li", { key: run.id }, h("div", { class: "line" }, runLink(run), h("span", { class: "num" }, since(run.not_before, now))),
          run.schedule ? h("div", { class: "quiet" }, describe(run.schedule)) : null)))
        : empty("Nothing is scheduled.", "`outlive queue add --cron '0 3 * * *' -- COMMAND` repeats a command."))),
    panel("Failures in 24 hours", more(failures, link(["runs"], { view: "failed", since: "24h" })), failureTrend(failures, now, go),
      failures.length
        ? h("ul", { class: "cards" }, failures.slice(0, SHOWN).map((run) => h("li", { key: run.id }, h("div", { class: "line" }, badge(run), runLink(run), h("span", { class: "quiet clip grow" }, run.reason ?? ""), h("span", { class: "num quiet" }, since(run.ended_at, now)))))
        ) : empty("No run has failed.")),
  ];
}

/** A number of runs, of which there may be more. @param {number} n @param {boolean} isCut */
function many(n, isCut) {
  return `${n.toLocaleString("en")}${isCut ? "+" : ""}`;
}

/** @param {string} name @param {string} n @param {string} look @param {string} href */
function tile(name, n, look, href) {
  return h("a", { class: `tile ${look}`, href, key: name }, h("span", { class: "value" }, n), h("span", null, name));
}

/** @param {any[]} runs @param {string} href */
function more(runs, href) {
  return runs.length > SHOWN ? h("a", { href, class: "quiet" }, `all ${runs.length}`) : null;
}

/** A run that needs attention, with its reason and one click to its next step. */
function attentionRow(run, now, redraw) {
  const steps = offers(run).filter(({ operation }) => operation !== "rerun" || !run.can.includes("resume"));
  return h("li", { key: run.id, class: "attention" },
    h("div", { class: "line" }, badge(run), runLink(run), h("span", { class: "quiet num" }, since(run.ended_at ?? run.last_beat_at ?? run.updated_at, now)), h("span", { class: "gap" }),
      steps.slice(0, 3).map(({ operation, name, look, text }) => h("button", { key: operation, type: "button", class: look, title: text, "data-action": operation,
        onclick: async () => (await act(operation, [run])) && redraw() }, name))),
    run.reason ? h("div", { class: "quiet reason" }, reasonOf(run.reason)) : null);
}

/** The memory of a run, where it is known. */
export function usage(run) {
  return run.memory_bytes ? h("span", { class: "num quiet", title: "memory" }, size(run.memory_bytes)) : null;
}

/** Failures by hour; a bar leads to them. */
function failureTrend(failures, now, go) {
  const first = Math.floor(now / HOUR) * HOUR - 23 * HOUR;
  const hours = Array(24).fill(0);
  for (const run of failures) {
    const hour = Math.floor((Date.parse(run.ended_at ?? run.updated_at) - first) / HOUR);
    if (hour >= 0 && hour < 24) hours[hour]++;
  }
  const at = (/** @type {number} */ hour) => new Date(first + hour * HOUR);
  const shown = (/** @type {number} */ hour) => clock(at(hour).getTime(), settings.utc).slice(0, 5);
  return h("div", { class: "chart-box" }, bars({ name: "Failures by hour", width: chartWidth(), height: 110, values: hours, look: () => "bad", label: (hour) => `${shown(hour)}: ${hours[hour]} failed`, axis: shown,
    click: (hour) => go(link(["runs"], { view: "failed", since: at(hour).toISOString(), until: at(hour + 1).toISOString() })) }));
}
