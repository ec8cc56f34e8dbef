// One run: how it stands and why, its attempts and steps, what it writes, and what can be done about it.

import { Ansi } from "/assets/ansi.js";
import { call, confirm, operations, runs, toast } from "/assets/app.js";
import { badge, duration, elapsed, el, moment, progress, title } from "/assets/dom.js";
import { table } from "/assets/pages.js";
import { showSteps } from "/assets/steps.js";

const LINES = 5000;

export async function showRun(main, id) {
  const state = { id, attempt: null, source: null };
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
    leave: () => state.source?.close(),
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
  const ended = !["pending", "running", "suspended"].includes(run.state);
  const offers = [
    ["cancel", "Cancel", !ended, "It is asked to stop, and killed if it does not.", "danger"],
    ["resume", "Resume", ["dead", "interrupted", "failed"].includes(run.state), "The same run goes on with its next attempt.", "primary"],
    ["rerun", "Rerun", ended, "A new run with the same spec is made, linked to this one.", ""],
    ["archive", "Archive", ended && !run.archived, "It is hidden from lists. Nothing is deleted.", ""],
    ["unarchive", "Unarchive", run.archived, "It is listed again.", ""],
  ];
  return offers
    .filter(([operation, , fits]) => fits && operations.has(operation))
    .map(([operation, name, , text, look]) =>
      el("button", { type: "button", class: look, "data-action": operation, onclick: async () => {
        if (!(await confirm(`${name} ${title(run)}?`, text))) return;
        try {
          const fields = operation === "rerun" ? { run: run.id } : { runs: [run.id] };
          if (operation === "cancel") fields.reason = "from the dashboard";
          if (operation === "resume" && run.state === "failed") fields.failed = true;
          const answer = await call(operation, fields);
          toast(`${name}: done`);
          const made = operation === "rerun" ? answer.id : null;
          if (made) location.hash = `#/run/${made}`;
          runs.change([await refresh()]);
        } catch (error) {
          toast(error.hint ? `${error.message}; ${error.hint}` : error.message);
        }
      } }, name));
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

/** Shows what an attempt has written, and goes on while it writes. */
function follow(state, log, attempt) {
  state.source?.close();
  log.replaceChildren();
  const colours = { out: new Ansi(), err: new Ansi() };
  const source = new EventSource(`/v1/follow?run=${encodeURIComponent(state.id)}&attempt=${attempt}&lines=${LINES}`);
  state.source = source;
  state.told.textContent = "following";
  source.addEventListener("page", (event) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    for (const piece of JSON.parse(event.data).pieces) {
      const nodes = piece.text !== null ? colours[piece.stream].nodes(piece.text)
        : [piece.left_out !== null ? `[${piece.left_out} bytes are left out]\n` : "[bytes that are no text]\n"];
      log.append(piece.stream === "err" ? el("span", { class: "err" }, nodes) : el("span", {}, nodes));
    }
    while (log.childNodes.length > LINES) log.firstChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  });
  const done = (text) => {
    source.close();
    state.told.textContent = text;
  };
  source.addEventListener("end", () => done(log.childNodes.length ? "ended" : "nothing was kept of what it wrote"));
  source.addEventListener("failed", (event) => done(JSON.parse(event.data).error.message));
}
