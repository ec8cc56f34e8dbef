// One run: how it stands and why, its attempts and steps, what it writes, and what can be done about it.

import { Ansi } from "/assets/ansi.js";
import { call, confirm, operations, runs, toast } from "/assets/app.js";
import { badge, duration, elapsed, el, moment, progress, title } from "/assets/dom.js";
import { table } from "/assets/pages.js";
import { showSteps } from "/assets/steps.js";

/** The most lines of output that a page holds. */
const LINES = 5000;
/** How long to wait, in milliseconds, before asking again for what a run writes. */
const SHORTEST_PAUSE = 200;
const LONGEST_PAUSE = 2000;

export async function showRun(main, id) {
  const state = { id, attempt: null, stop: null };
  const place = el("div");
  const log = el("pre", { class: "log", tabindex: 0, role: "region", "aria-label": "Output" });
  const attempts = el("select", { "aria-label": "Attempt", onchange: (event) => follow(state, log, Number(event.target.value)) });
  const told = el("span", { class: "count", role: "status" });
  state.told = told;
  const behind = el("div");
  main.replaceChildren(place, el("h2", {}, "Output"), el("div", { class: "tools" }, attempts, told), log, behind);
  const refresh = async () => {
    const [run, story] = await Promise.all([call("show", { run: id }), call("why", { run: id })]);
    const focused = document.activeElement?.dataset?.action;
    place.replaceChildren(...about(run, refresh));
    behind.replaceChildren(el("h2", {}, "Story"), tell(story));
    if (focused) place.querySelector(`[data-action="${focused}"]`)?.focus();
    const last = Number(attempts.lastElementChild?.value ?? 0);
    for (let attempt = last + 1; attempt <= run.attempt; attempt++) {
      attempts.append(el("option", { value: attempt }, `attempt ${attempt}`));
    }
    if (run.attempt > last && run.attempt > 0) {
      attempts.value = String(run.attempt);
      follow(state, log, run.attempt);
    }
    return run;
  };
  await refresh();
  return {
    leave: () => state.stop?.(),
    change: (changed) => {
      if (changed.some((run) => run.id === id || run.step_of === id)) refresh().catch((error) => toast(error.message));
    },
  };
}

function long(run) {
  const command = run.command.join(" ");
  return command.length > 300 || command.split("\n").length > 6;
}

function about(run, refresh) {
  const facts = [
    ["id", el("code", {}, run.id)],
    ["step of", run.step_of && el("a", { href: `#/run/${run.step_of}` }, run.step_of)],
    ["inside", run.step_parent && el("a", { href: `#/run/${run.step_parent}` }, run.step_parent)],
    // One that is long has a bar to scroll it with, which keys must come to.
    ["command", run.command && el("code", long(run) ? { tabindex: 0, role: "region", "aria-label": "Command" } : {}, run.command.join(" "))],
    ["in", run.cwd && el("code", {}, run.cwd)],
    ["reason", run.reason],
    ["attempt", `${run.attempt} (epoch ${run.epoch})`],
    ["progress", run.progress_done !== null && el("span", {}, progress(run), " ", run.progress_message ?? "")],
    ["labels", Object.entries(run.labels).map(([key, value]) => `${key}=${value}`).join(" ")],
    ["owner", run.owner_pid && `pid ${run.owner_pid} on ${run.owner_host}`],
    ["last beat", moment(run.last_beat_at)],
    ["made", `${moment(run.created_at)} by ${run.created_by}`],
    ["started", moment(run.started_at)],
    ["ended", moment(run.ended_at)],
    ["took", elapsed(run)],
    ["exit", run.exit_code !== null ? `code ${run.exit_code}` : run.signal !== null ? `signal ${run.signal}` : null],
    ["error", run.error_message],
    ["artifacts", run.artifacts.join(", ")],
  ];
  const shown = facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  return [
    el("div", { class: "title" }, el("h1", {}, title(run)), badge(run), run.archived ? el("span", { class: "quiet" }, "archived") : null),
    el("div", { class: "actions" }, actions(run, refresh)),
    el("dl", {}, shown),
    ...showSteps(run),
  ];
}

function actions(run, refresh) {
  const offers = [
    ["cancel", "Cancel", "It is asked to stop, and killed if it does not.", "danger"],
    ["resume", "Resume", "The same run continues with its next attempt.", "primary"],
    ["rerun", "Rerun", "A new run with the same spec is made, linked to this one.", ""],
    ["archive", "Archive", "It is hidden from lists. Nothing is deleted.", ""],
    ["unarchive", "Unarchive", "It is listed again.", ""],
  ];
  return offers
    .filter(([operation]) => run.can.includes(operation) && operations.has(operation))
    .map(([operation, name, text, look]) =>
      el("button", { type: "button", class: look, "data-action": operation, onclick: async () => {
        if (!(await confirm(`${name} ${title(run)}?`, text))) return;
        try {
          const fields = operation === "rerun" ? { run: run.id } : { runs: [run.id] };
          if (operation === "cancel") fields.reason = "from the dashboard";
          if (operation === "resume" && run.state === "failed") fields.failed = true;
          const answer = await call(operation, fields);
          toast(`${name}: ${became(operation, answer)}`);
          const made = operation === "rerun" ? answer.id : null;
          if (made) location.hash = `#/run/${made}`;
          runs.change([await refresh()]);
        } catch (error) {
          toast(error.hint ? `${error.message}; ${error.hint}` : error.message);
        }
      } }, name));
}

/** What became of a request. A run that is asked to stop has not stopped yet. */
function became(operation, answer) {
  const [run] = operation === "cancel" ? answer.runs : [];
  if (!run || run.outcome === "cancelled") return "done";
  return run.outcome === "cancel_requested" ? `requested${run.note ?? ""}` : `it is ${run.state}`;
}

function tell(story) {
  const began = story.events.length ? Date.parse(story.events[0].at) : 0;
  // What a run reports again and again is told once, with its last time.
  const told = [];
  for (const event of story.events) {
    const last = told.at(-1);
    if (event.action === "report" && last?.event.action === "report") Object.assign(last, { event, times: last.times + 1 });
    else told.push({ event, times: 1 });
  }
  const rows = told.map(({ event, times }) =>
    el("tr", {},
      el("td", { class: "num" }, `+${duration(Date.parse(event.at) - began)}`),
      el("td", {}, times > 1 ? `${event.action} ×${times}` : event.action),
      el("td", {}, event.from && event.from !== event.to ? `${event.from} → ${event.to}` : event.to),
      el("td", { class: "num" }, `${event.attempt}`),
      el("td", {}, `${event.by.user}@${event.by.host}`),
      el("td", {}, event.reason ?? "")));
  return table("Story", ["When", "What", "State", "Attempt", "Who", "Why"], rows, "story");
}

/** Shows what an attempt has written, and goes on while it writes. Asks again and again: a stream would keep a connection. */
async function follow(state, log, attempt) {
  state.stop?.();
  let over = false;
  state.stop = () => (over = true);
  log.replaceChildren();
  const colours = { out: new Ansi(), err: new Ansi() };
  const kept = { parts: [], lines: 0 };
  state.told.textContent = "following";
  let after = null;
  let pause = SHORTEST_PAUSE;
  while (!over) {
    const page = await call("output", { run: state.id, attempt, ...(after === null ? { lines: LINES } : { after }) }).catch((error) => error);
    if (over) return;
    if (page instanceof Error) {
      state.told.textContent = page.message;
      return;
    }
    after = page.next;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    for (const piece of page.pieces) append(log, kept, colours, piece);
    if (atEnd) log.scrollTop = log.scrollHeight;
    if (page.ended && page.pieces.length === 0) {
      state.told.textContent = log.childNodes.length ? "ended" : "nothing was kept of what it wrote";
      return;
    }
    pause = page.pieces.length > 0 ? SHORTEST_PAUSE : Math.min(pause * 2, LONGEST_PAUSE);
    await new Promise((done) => setTimeout(done, pause));
    if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
  }
}

/** Appends a piece of output and drops the oldest beyond the last lines: a page cannot hold all that a run may write. */
function append(log, kept, colours, piece) {
  let text = piece.text;
  if (text === null) text = piece.left_out !== null ? `[${piece.left_out} bytes are left out]\n` : "[bytes that are no text]\n";
  const lines = text.split("\n");
  if (lines.length > LINES) text = lines.slice(-LINES).join("\n");
  const node = el("span", piece.stream === "err" ? { class: "err" } : {}, colours[piece.stream === "err" ? "err" : "out"].nodes(text));
  log.append(node);
  const count = Math.min(lines.length, LINES);
  kept.parts.push({ node, count });
  kept.lines += count;
  while (kept.parts.length > 1 && kept.lines - kept.parts[0].count >= LINES) {
    const oldest = kept.parts.shift();
    kept.lines -= oldest.count;
    oldest.node.remove();
  }
}
