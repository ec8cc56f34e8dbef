// @ts-check
// What the attempt of a run used: processor, memory, storage and processes, as plots over time.
import { clock, duration, size } from "../model/text.js";
import { plot } from "../view/charts.js";
import { empty, panel } from "../view/parts.js";
import { h } from "../view/view.js";

/** A rate per second from sums; null for the first, of which none is known. @param {number[]} times @param {number[]} sums */
export function rates(times, sums) {
  return sums.map((sum, i) => (i === 0 || times[i] <= times[i - 1] ? null : Math.max(0, ((sum - sums[i - 1]) * 1000) / (times[i] - times[i - 1]))));
}

/** @param {any} run @param {boolean} utc @param {boolean} hasPoints whether the points were asked for */
export function usageTab(run, utc, hasPoints) {
  if (run.cpu_ms === null || run.cpu_ms === undefined) return empty("Nothing was measured of it.", "Usage is sampled while a run is executed.");
  const points = run.usage_points ?? [];
  const began = Date.parse(run.started_at ?? run.created_at);
  const times = points.map((/** @type {number[]} */ point) => began + point[0]);
  const column = (/** @type {number} */ index) => points.map((/** @type {number[]} */ point) => point[index]);
  const at = (/** @type {number} */ time) => clock(time, utc);
  const cores = rates(times, column(1)).map((rate) => (rate === null ? null : rate / 1000));
  return [
    h("div", { class: "tiles" }, fact("CPU time", duration(run.cpu_ms)), fact("Memory now", run.memory_bytes ? size(run.memory_bytes) : "–"), fact("Memory at its peak", run.peak_memory_bytes ? size(run.peak_memory_bytes) : "–"), fact("Processes", run.processes ?? "–"), fact("Read", size(run.read_bytes ?? 0)), fact("Written", size(run.written_bytes ?? 0))),
    points.length > 1 ? h("div", { class: "plots" },
      panel("Memory", null, h("div", { class: "chart-box" }, plot({ name: "Memory over time", times, lines: [{ name: "memory", look: "", values: column(2) }], format: size, isSize: true, at }))),
      panel("CPU", h("span", { class: "quiet" }, "cores"), h("div", { class: "chart-box" }, plot({ name: "Cores over time", times, lines: [{ name: "cores", look: "good", values: cores }], format: (value) => value.toFixed(2), at }))),
      panel("Storage", h("span", { class: "quiet" }, "per second"), h("div", { class: "chart-box" }, plot({ name: "Storage over time", times, lines: [{ name: "read", look: "", values: rates(times, column(3)) }, { name: "written", look: "warn", values: rates(times, column(4)) }], format: size, isSize: true, at }))),
      panel("Processes", null, h("div", { class: "chart-box" }, plot({ name: "Processes over time", times, lines: [{ name: "processes", look: "good", values: column(5) }], format: String, at })))) : hasPoints ? h("p", { class: "quiet" }, "There are too few samples for a plot yet.") : h("p", { class: "loading" }, "Loading…"),
  ];
}

/** @param {string} name @param {any} value */
function fact(name, value) {
  return h("div", { class: "tile", key: name }, h("span", { class: "value" }, value), h("span", null, name));
}
