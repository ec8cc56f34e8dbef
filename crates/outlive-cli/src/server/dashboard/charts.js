// Charts of what became of runs: how many stand how over time, how long they took, and what ended them early.

import { duration, el, moment, svg } from "/assets/dom.js";
import { kept, table } from "/assets/pages.js";

const STATES = ["succeeded", "running", "pending", "suspended", "cancelled", "interrupted", "failed", "dead"];
const SPANS = { "all time": Infinity, "30 days": 30 * 864e5, "7 days": 7 * 864e5, "24 hours": 864e5, "1 hour": 36e5 };
const COLUMNS = 40;

export async function showCharts(main, runs) {
  let span = "all time";
  const place = el("div");
  const which = el("select", { "aria-label": "Runs made within", onchange: (event) => { span = event.target.value; draw(); } },
    Object.keys(SPANS).map((name) => el("option", { value: name }, name)));
  const draw = async () => {
    const since = Date.now() - SPANS[span];
    const all = [...runs.known.values()].filter((run) => Date.parse(run.created_at) >= since);
    const ended = (state) => all.filter((run) => run.state === state);
    const chart = (name, ...nodes) => el("section", { "aria-label": name }, el("h2", {}, name), nodes);
    place.replaceChildren(
      chart("Runs by state, by when they were made", ...overTime(all)),
      chart("How long runs took", ...durations(all)),
      chart("Deaths by cause", bars("Deaths", causes(ended("dead")), "dead")),
      chart("Failures by cause", bars("Failures", causes(ended("failed")), "failed")),
      chart("Interruptions by cause", bars("Interruptions", causes(ended("interrupted")), "interrupted")));
  };
  main.replaceChildren(el("h1", {}, "Charts"), el("div", { class: "tools" }, which, runs.older()), place);
  return kept(draw);
}

function overTime(all) {
  if (!all.length) return [el("p", { class: "note" }, "No runs.")];
  const times = all.map((run) => Date.parse(run.created_at));
  const from = times.reduce((a, b) => Math.min(a, b));
  const span = Math.max(1, times.reduce((a, b) => Math.max(a, b)) - from + 1);
  const columns = Array.from({ length: COLUMNS }, () => ({}));
  const totals = {};
  all.forEach((run, index) => {
    const column = columns[Math.floor(((times[index] - from) / span) * COLUMNS)];
    column[run.state] = (column[run.state] ?? 0) + 1;
    totals[run.state] = (totals[run.state] ?? 0) + 1;
  });
  const most = Math.max(...columns.map((column) => Object.values(column).reduce((a, b) => a + b, 0)));
  const states = STATES.filter((state) => totals[state]);
  const told = states.map((state) => `${totals[state]} ${state}`).join(", ");
  const drawing = svg("svg", { viewBox: "0 0 400 100", preserveAspectRatio: "none", height: 180, role: "img", "aria-label": `${all.length} runs over time: ${told}` });
  columns.forEach((column, index) => {
    let y = 100;
    const at = (place) => moment(new Date(from + (span * place) / COLUMNS).toISOString());
    for (const state of states) {
      const height = ((column[state] ?? 0) / most) * 100;
      if (!height) continue;
      y -= height;
      const name = svg("title", {}, `${column[state]} ${state}, ${at(index)} to ${at(index + 1)}`);
      drawing.append(svg("rect", { x: index * 10 + 1, y, width: 8, height, class: `state-${state}`, "data-state": state }, name));
    }
  });
  const legend = states.map((state) => el("li", {}, el("span", { class: `swatch state-${state}`, "aria-hidden": "true" }), `${state} ${totals[state]}`));
  const ends = [from, from + span].map((at) => el("span", {}, new Date(at).toLocaleString()));
  return [
    el("div", { class: "plot" }, el("div", { class: "scale", "aria-hidden": "true" }, el("span", {}, String(most)), el("span", {}, "0")), drawing),
    el("div", { class: "ends" }, ends),
    el("ul", { class: "legend" }, legend),
  ];
}

function durations(all) {
  const ends = [[1e3, "below 1 s"], [1e4, "1 to 10 s"], [6e4, "10 s to 1 min"], [6e5, "1 to 10 min"], [36e5, "10 min to 1 h"], [864e5, "1 h to 1 d"], [Infinity, "longer"]];
  const took = all.filter((run) => run.ended_at && run.duration_ms !== null).map((run) => run.duration_ms).sort((a, b) => a - b);
  const count = (from, to) => took.filter((ms) => ms >= from && ms < to).length;
  const rows = ends.map(([end, name], index) => [name, count(ends[index - 1]?.[0] ?? 0, end)]);
  // The least that so many hundredths of all do not exceed.
  const percentile = (percent) => duration(took[Math.ceil((took.length * percent) / 100) - 1]);
  const told = took.length ? [el("p", { class: "note" }, `Half took ${percentile(50)} at most, 95 of 100 took ${percentile(95)} at most.`)] : [];
  return [bars("Durations", rows, "running"), ...told];
}

function causes(all) {
  const counts = new Map();
  for (const run of all) {
    const cause = run.error_type ?? run.reason?.split(/[:;,]/)[0].replace(/\d+/g, "N") ?? run.state;
    counts.set(cause, (counts.get(cause) ?? 0) + 1);
  }
  const rows = [...counts].sort((a, b) => b[1] - a[1]);
  const others = rows.slice(12).reduce((sum, [, count]) => sum + count, 0);
  return others ? [...rows.slice(0, 12), [`${rows.length - 12} other causes`, others]] : rows;
}

function bars(name, rows, state) {
  if (!rows.some(([, count]) => count)) return el("p", { class: "note" }, "None so far.");
  const most = Math.max(...rows.map(([, count]) => count));
  const one = ([what, count]) => {
    const bar = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", height: 14, "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, width: (count / most) * 100, height: 8, class: `state-${state}` }));
    return el("tr", {}, el("td", {}, what), el("td", { class: "num" }, String(count)), el("td", { class: "line" }, bar));
  };
  return table(name, ["What", "Runs", "Share"], rows.map(one));
}
