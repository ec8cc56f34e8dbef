// @ts-check
// Schedules: what repeats, in words, its next 24 hours on a line, and what can be done about it.
import { describe } from "../model/cron.js";
import { title } from "../model/run.js";
import { clock, count } from "../model/text.js";
import { call } from "../net/net.js";
import { settings } from "../net/settings.js";
import { store } from "../net/store.js";
import { failed, toast } from "../view/dialogs.js";
import { badge, button, empty, runLink, short, since, table, time } from "../view/parts.js";
import { h } from "../view/view.js";
import { act } from "./actions.js";

const DAY = 86_400_000;

/** @param {import("./all.js").Frame} frame */
export function schedulesPage({ redraw }) {
  return { title: () => "Schedules", draw: () => draw(redraw) };
}

/** @param {() => void} redraw */
function draw(redraw) {
  if (!store.loaded) return [h("h1", null, "Schedules"), h("p", { class: "loading" }, "Loading…")];
  const now = Date.now();
  const runs = store.all().filter((run) => run.schedule || (run.state === "pending" && run.not_before && Date.parse(run.not_before) > now));
  const due = (/** @type {any} */ run) => (run.not_before ? Date.parse(run.not_before) : Infinity);
  runs.sort((a, b) => due(a) - due(b));
  return [
    h("div", { class: "heading" }, h("h1", null, "Schedules"), h("span", { class: "quiet" }, `${runs.length} scheduled`)),
    runs.length ? table("Schedules", ["Run", "State", "Repeats", "Next", "Next 24 hours", ""], runs.map((run) => h("tr", { key: run.id },
      h("td", null, runLink(run)), h("td", null, badge(run)), h("td", { class: "whole" }, run.schedule ? [describe(run.schedule), h("div", { class: "quiet" }, h("code", null, run.schedule))] : "once"),
      h("td", { class: "whole" }, run.not_before ? [since(run.not_before, now), h("div", { class: "quiet" }, time(run.not_before, now))] : isPaused(run) ? h("span", { class: "quiet" }, run.reason) : "now"), h("td", { class: "whole" }, line(run, now)),
      h("td", { class: "acts" }, store.may("rerun") ? button("Run now", () => runNow(run, redraw), { class: "small", "aria-label": `Run now: ${title(run)}` }) : null,
        ["pause", "unpause"].filter((one) => run.can.includes(one) && store.may(one)).map((one) => button(one === "pause" ? "Pause" : "Unpause", async () => (await act(one, [run])) && redraw(), { key: one, class: "small", "aria-label": `${one === "pause" ? "Pause" : "Unpause"} ${title(run)}` })),
        run.can.includes("cancel") && store.may("cancel") ? button("Cancel", async () => (await act("cancel", [run])) && redraw(), { class: "small", "aria-label": `Cancel ${title(run)}` }) : null))), "schedules stack")
      : empty("Nothing is scheduled.", "`outlive queue add --cron '0 3 * * *' -- COMMAND` repeats a command by the calendar, `--every 1h` at equal distances."),
  ];
}

/** @param {any} run */
function isPaused(run) {
  return run.can.includes("unpause");
}

/** Makes a run of the same command that does not wait for its time. */
async function runNow(run, redraw) {
  try {
    const made = await call("rerun", { run: run.id, force: true, reason: "run now, from the dashboard" });
    toast(`Run now: ${title(run)} as ${short(String(made.id))}`);
  } catch (error) {
    failed(error);
  }
  redraw();
}

/** A day as a line with a mark for each time. @param {any} run @param {number} now */
function line(run, now) {
  // The server said what comes within a day when the run changed last; its next time is known whenever that is.
  const times = isPaused(run) ? [] : [...new Set([run.not_before, ...run.upcoming])];
  const shown = times.map((/** @type {string|null} */ at) => Date.parse(at ?? "")).filter((/** @type {number} */ at) => at >= now && at < now + DAY);
  const none = isPaused(run) ? "paused" : "not within 24 hours";
  const names = shown.slice(0, 12).map((/** @type {number} */ at) => clock(at, settings.utc).slice(0, 5)).join(", ");
  return h("svg", { class: "day", viewBox: "0 0 240 18", role: "img", "aria-label": shown.length ? `${count(shown.length, "time")}: ${names}` : none }, h("title", null, names || none),
    h("line", { class: "grid-line", x1: 0, x2: 240, y1: 9, y2: 9 }), [0, 6, 12, 18].map((hour) => h("line", { key: `h${hour}`, class: "grid-line", x1: hour * 10, x2: hour * 10, y1: 5, y2: 13 })),
    shown.map((/** @type {number} */ at) => h("rect", { key: at, class: "accent", x: ((at - now) / DAY) * 238, y: 3, width: 2, height: 12 })));
}
