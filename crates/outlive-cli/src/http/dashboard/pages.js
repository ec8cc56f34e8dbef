// The queue, the workers, and charts of what became of runs.

import { call } from "/assets/app.js";
import { badge, duration, el, svg, title, tone } from "/assets/dom.js";

function table(name, heads, rows) {
  const head = heads.map((text) => el("th", { scope: "col" }, text));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** A page that is drawn anew when something has changed, and now and then. */
async function kept(draw) {
  await draw();
  let waiting = false;
  const again = async () => {
    if (waiting) return;
    waiting = true;
    await draw().catch(() => {});
    waiting = false;
  };
  const clock = setInterval(again, 5000);
  return { leave: () => clearInterval(clock), change: again };
}

export function showQueue(main) {
  return kept(async () => {
    const queue = await call("queue list");
    const row = (run) => el("tr", {},
      el("td", {}, el("a", { href: `#/run/${run.id}` }, title(run))),
      el("td", {}, badge(run)),
      el("td", { class: "num" }, String(run.priority)),
      el("td", {}, run.reason ?? (run.state === "pending" ? "waits for a worker" : "")));
    const all = [...queue.running, ...queue.waiting];
    const more = queue.next ? [el("p", { class: "note" }, `The first ${all.length}; \`outlive queue list\` has more.`)] : [];
    main.replaceChildren(el("h1", {}, "Queue"), all.length
      ? table("Queue", ["Run", "State", "Priority", "Waits for"], all.map(row))
      : el("p", { class: "note" }, "Nothing is queued. `outlive queue add -- COMMAND` adds something."), ...more);
  });
}

export function showWorkers(main) {
  return kept(async () => {
    const { workers } = await call("workers");
    const tones = { alive: "good", late: "doubt", silent: "bad" };
    const row = (worker) => el("tr", {},
      el("td", {}, el("code", {}, worker.id)),
      el("td", {}, worker.host),
      el("td", { class: "num" }, String(worker.pid)),
      el("td", {}, el("span", { class: `badge ${tones[worker.health] ?? "quiet"}` }, worker.health)),
      el("td", { class: "num" }, String(worker.runs)),
      el("td", { class: "num" }, `${duration(worker.silent_ms)} ago`));
    main.replaceChildren(el("h1", {}, "Workers"), workers.length
      ? table("Workers", ["Worker", "Host", "Pid", "Health", "Runs", "Last beat"], workers.map(row))
      : el("p", { class: "note" }, "No workers. Every process that owns a run is one."));
  });
}

export function showCharts(main, runs) {
  return kept(async () => {
    const all = [...runs.known.values()];
    main.replaceChildren(
      el("h1", {}, "Charts"),
      el("h2", {}, "Runs by state, by when they were made"), ...overTime(all),
      el("h2", {}, "How long runs took"), bars(durations(all)),
      el("h2", {}, "Deaths and failures by cause"), bars(causes(all)));
  });
}

const TONES = [["good", "running or succeeded"], ["wait", "waiting"], ["doubt", "in doubt or interrupted"], ["bad", "failed or dead"], ["quiet", "cancelled"]];

function overTime(all) {
  const BARS = 40;
  if (!all.length) return [el("p", { class: "note" }, "No runs yet.")];
  const times = all.map((run) => Date.parse(run.created_at));
  const from = times.reduce((a, b) => Math.min(a, b));
  const span = Math.max(1, times.reduce((a, b) => Math.max(a, b)) - from + 1);
  const columns = Array.from({ length: BARS }, () => ({}));
  all.forEach((run, index) => {
    const column = columns[Math.floor(((times[index] - from) / span) * BARS)];
    column[tone(run)] = (column[tone(run)] ?? 0) + 1;
  });
  const most = Math.max(...columns.map((column) => Object.values(column).reduce((a, b) => a + b, 0)), 1);
  const drawing = svg("svg", { viewBox: "0 0 400 110", preserveAspectRatio: "none", height: 160, role: "img", "aria-label": `${all.length} runs over time; at most ${most} at once` });
  columns.forEach((column, index) => {
    let y = 110;
    for (const [name] of TONES) {
      const height = ((column[name] ?? 0) / most) * 105;
      y -= height;
      if (height) drawing.append(svg("rect", { x: index * 10 + 1, y, width: 8, height, class: `fill-${name}` }));
    }
  });
  const ends = [from, from + span].map((at) => el("span", {}, new Date(at).toLocaleString()));
  return [drawing, el("div", { class: "ends" }, ends), el("ul", { class: "legend" }, TONES.map(([name, text]) => el("li", {}, el("span", { class: `badge ${name}` }, text))))];
}

function durations(all) {
  const ends = [[1e3, "below 1 s"], [1e4, "1 to 10 s"], [6e4, "10 s to 1 min"], [6e5, "1 to 10 min"], [36e5, "10 min to 1 h"], [864e5, "1 h to 1 d"], [Infinity, "longer"]];
  const ended = all.filter((run) => run.ended_at && run.duration_ms !== null);
  return ends.map(([end, name], index) => [name, ended.filter((run) => run.duration_ms < end && run.duration_ms >= (ends[index - 1]?.[0] ?? 0)).length, "good"]);
}

function causes(all) {
  const counts = new Map();
  for (const run of all.filter((run) => ["dead", "failed", "interrupted"].includes(run.state))) {
    const cause = run.error_type ?? run.reason?.split(/[:;,]/)[0].replace(/\d+/g, "N") ?? run.state;
    counts.set(cause, (counts.get(cause) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([name, count]) => [name, count, "bad"]);
}

function bars(rows) {
  const most = Math.max(1, ...rows.map(([, count]) => count));
  if (!rows.some(([, count]) => count)) return el("p", { class: "note" }, "None so far.");
  const one = ([name, count, colour]) => {
    const bar = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", height: 14, "aria-hidden": "true" },
      svg("rect", { x: 0, y: 0, width: (count / most) * 100, height: 8, class: `fill-${colour}` }));
    return el("tr", {}, el("td", {}, name), el("td", { class: "num" }, String(count)), el("td", {}, bar));
  };
  return table("Counts", ["What", "Runs", "Share"], rows.map(one));
}
