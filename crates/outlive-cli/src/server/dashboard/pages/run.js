// @ts-check
// One run: how it stands and why, with its next step; then its log, steps, timeline, usage, details, comparison and JSON.
import { link } from "../model/route.js";
import { ending, needsAttention, title, tone, word } from "../model/run.js";
import { commandLine, size } from "../model/text.js";
import { call } from "../net/net.js";
import { settings } from "../net/settings.js";
import { store } from "../net/store.js";
import { failed } from "../view/dialogs.js";
import { badge, button, copy, empty, progress, reasonOf, short, since, time, took } from "../view/parts.js";
import { h } from "../view/view.js";
import { act, buttons, copyCommand, copyLink, mayChange, offers, rerunChanged } from "./actions.js";
import { compareTab } from "./compare.js";
import { Log } from "./log.js";
import { stepsTab } from "./steps.js";
import { timelineTab } from "./timeline.js";
import { usageTab } from "./usage.js";

const TABS = [["log", "Log"], ["steps", "Steps"], ["timeline", "Timeline"], ["usage", "Usage"], ["details", "Details"], ["diff", "Diff"], ["json", "JSON"]];
/** How long changes are collected before the server is asked what else is known of the run, in milliseconds. */
const PAUSE = 1000;
/** How many of its last lines on stderr explain an end. */
const LAST_WORDS = 6;

/** @param {import("./all.js").Frame} frame */
export function runPage(frame) {
  return new RunPage(frame);
}

class RunPage {
  /** @param {import("./all.js").Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = frame.route.id;
    this.current = frame.route;
    /** @type {any} */
    this.run = null;
    /** @type {any} */
    this.story = null;
    /** Its last lines on stderr, where it did not end well. @type {string} */
    this.words = "";
    /** The state and attempt whose last lines were asked for. */
    this.worded = "";
    this.asking = false;
    this.problem = null;
    /** @type {Log|null} */
    this.log = null;
    this.full = true;
    this.turn = 0;
    this.timer = 0;
    /** The run was asked for with its usage over time. */
    this.points = false;
    /** @type {any} */
    this.compared = null;
    this.refresh();
  }

  get tab() {
    return TABS.some(([name]) => name === this.current.tab) ? this.current.tab : "log";
  }

  title() {
    return this.run ? `${title(this.run)} ${word(this.run)}` : "Run";
  }

  icon() {
    return this.run ? tone(word(this.run)) : "";
  }

  leave() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.closeLog();
  }

  closeLog() {
    this.log?.leave();
    this.log = null;
  }

  /** @param {import("../model/route.js").Route} route */
  route(route) {
    const before = this.current;
    this.current = route;
    if (before.tab !== route.tab && this.tab === "usage") this.refresh();
    const isOther = before.query.get("attempt") !== route.query.get("attempt");
    if (this.log && (this.tab !== "log" || isOther || before.line !== route.line)) this.closeLog();
    return true;
  }

  ticks() {
    return this.run?.state === "running";
  }

  again() {
    this.refresh();
    this.log?.output.grown();
  }

  /** @param {any[]} runs */
  changed(runs) {
    if (!this.run?.id) return;
    const now = runs.findLast((run) => run.id === this.run.id);
    if (!now && !runs.some((run) => run.step_of === this.run.id)) return;
    const place = (/** @type {any} */ run) => [run.state, run.health, run.attempt, run.reason, run.archived, run.can].join(" ");
    const isOther = now && place(now) !== place(this.run);
    // The event has all but what only `show` tells; whether it is trusted is not looked at for it.
    if (now) this.run = { ...this.run, ...now, trusted: this.run.trusted };
    if (isOther) this.refresh();
    else this.soon();
    this.log?.output.grown();
  }

  /** Asks what else is known of the run, at most once in a while. */
  soon() {
    if (this.timer) return;
    this.timer = /** @type {any} */ (setTimeout(() => {
      this.timer = 0;
      this.refresh(false);
    }, PAUSE));
  }

  /** @param {Record<string, any>} sizes */
  output(sizes) {
    if (this.run && sizes[this.run.id]) this.log?.output.grown();
  }

  /** @param {boolean} [whole] its events too, which are others only when it stands otherwise */
  async refresh(whole = true) {
    // What is asked for as a whole is not overtaken by less.
    if (!whole && this.asking) return;
    const turn = ++this.turn;
    this.asking = true;
    try {
      const points = this.tab === "usage" && this.isMeasured();
      const [run, story] = await Promise.all([call("show", { run: this.id, ...(points ? { points } : {}) }), whole ? call("why", { run: this.id }) : this.story]);
      if (turn !== this.turn) return;
      const isFirst = !this.run;
      Object.assign(this, { run, story, points, problem: null, asking: false });
      if (run.id && this.worded !== `${run.state} ${run.attempt}`) this.lastWords(run);
      // Whether there are points to ask for is known only now.
      if (isFirst && this.tab === "usage" && this.isMeasured()) this.refresh();
    } catch (error) {
      if (turn !== this.turn) return;
      this.asking = false;
      if (this.run) failed(error);
      else this.problem = error;
    }
    this.frame.redraw();
  }

  /** Whether something is known of what it used. */
  isMeasured() {
    return (this.run?.cpu_ms ?? null) !== null;
  }

  /** @param {any} run */
  async lastWords(run) {
    this.worded = `${run.state} ${run.attempt}`;
    if (!["failed", "dead", "interrupted"].includes(run.state) || !run.attempt) return;
    const ask = (/** @type {Record<string, any>} */ more) => call("output", { run: run.id, lines: LAST_WORDS, text: true, ...more }).then((page) => (page.text ?? "").trimEnd(), () => "");
    this.words = (await ask({ stderr: true })) || (await ask({}));
    this.frame.redraw();
  }

  draw() {
    if (this.problem) return empty(this.problem.message, this.problem.hint ?? "");
    if (!this.run) return h("p", { class: "loading" }, "Loading…");
    const run = this.run;
    if (!run.id || !run.can) return [h("h1", null, short(this.id)), h("pre", { class: "json", tabindex: 0 }, JSON.stringify(run, null, 2))];
    const tabs = TABS.filter(([name]) => (name !== "steps" || run.steps.length) && (name !== "usage" || (run.cpu_ms ?? null) !== null));
    return h("div", { class: "runpage" }, this.header(run), this.why(run),
      h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the run" }, tabs.map(([name, text]) => h("a", { key: name, role: "tab", id: `tab-${name}`, href: link(["run", this.id, name]), "aria-selected": name === this.tab ? "true" : "false", "aria-controls": "part" }, text, name === "steps" ? h("span", { class: "count" }, run.steps.length) : null)),
        this.tab === "log" && run.attempt > 1 ? this.attempts(run) : null),
      h("div", { class: `part part-${this.tab}`, id: "part", role: "tabpanel", "aria-labelledby": `tab-${this.tab}`, key: this.tab }, this.part(run)));
  }

  /** @param {any} run */
  header(run) {
    const now = Date.now();
    const facts = [
      took(run, now) ? `${run.state === "running" ? "for" : "took"} ${took(run, now)}` : "",
      ending(run),
      run.attempt > 1 ? `attempt ${run.attempt}` : "",
      run.host ?? "",
      run.peak_memory_bytes ? `${size(run.memory_bytes ?? run.peak_memory_bytes)} of memory` : "",
    ].filter(Boolean);
    return h("header", { class: "title" },
      h("div", { class: "line" }, h("h1", { title: title(run) }, title(run)), badge(run), run.archived ? h("span", { class: "quiet" }, "archived") : null, run.copied ? h("span", { class: "quiet" }, "copied") : null),
      h("div", { class: "facts" }, facts.map((fact, i) => h("span", { key: i }, fact)), since(run.started_at ?? run.created_at, now), run.state === "running" ? progress(run, now) : null, run.progress_message ? h("span", { class: "clip" }, run.progress_message) : null),
      h("div", { class: "actions" }, buttons(run, (operation, answers) => this.did(operation, answers)).filter((one) => one.key !== this.nextStep(run)?.operation),
        run.command && run.cpu_ms !== undefined && mayChange() && !run.step_of ? button("Rerun with changes…", () => rerunChanged(run, (id) => this.frame.go(link(["run", id]))), { "data-action": "change" }) : null,
        h("a", { class: "button", href: link(["run", this.id, "diff"]), "data-action": "compare" }, "Compare"),
        run.command ? button("Copy as command", () => copyCommand(run), { class: "plain" }) : null,
        button("Copy link", () => copyLink(), { class: "plain" })));
  }

  /** Whether a banner says why it stands as it does. @param {any} run */
  isTold(run) {
    const isWell = ["running", "succeeded"].includes(run.state) && !needsAttention(run);
    return !isWell && Boolean(run.reason || this.words || run.state === "failed");
  }

  /** What an operator would do next, as the banner offers it. @param {any} run */
  nextStep(run) {
    return this.isTold(run) && run.state !== "cancelled" ? offers(run).find(({ operation }) => ["resume", "unpark", "unpause", "reap", "rerun"].includes(operation)) : null;
  }

  /** Does the next step of the banner. @param {string} operation */
  async next(operation) {
    const answers = await act(operation, [this.run]);
    if (answers) this.did(operation, answers);
  }

  /** @param {string} operation @param {any[]} answers */
  did(operation, answers) {
    if (operation === "rerun" && answers[0]?.id) this.frame.go(link(["run", answers[0].id]));
    else this.refresh();
  }

  /** Why it stands as it does, what proves it, and what can be done next. @param {any} run */
  why(run) {
    if (!this.isTold(run)) return null;
    const look = { bad: "bad", warn: "warn" }[tone(word(run))] ?? "wait";
    const evidence = this.story?.evidence ?? [...(this.story?.events ?? [])].reverse().find((/** @type {any} */ event) => event.evidence)?.evidence;
    const next = this.nextStep(run);
    const waits = run.waits_for ?? [];
    return h("section", { class: `why ${look}`, "aria-label": "Why" },
      h("p", { class: "reason" }, h("strong", null, `${word(run)}: `), run.reason ? reasonOf(run.reason) : (run.error_message ?? ending(run))),
      run.error_message && run.error_message !== run.reason ? h("p", null, run.error_message) : null,
      evidence ? h("p", { class: "quiet" }, `evidence: ${evidenceText(evidence)}`) : null,
      run.leftover_pids.length ? h("p", null, `alive: ${run.leftover_pids.map((/** @type {number} */ pid, /** @type {number} */ i) => `${pid} (${run.leftover_names[i]})`).join(", ")}`) : null,
      waits.some((/** @type {string} */ id) => !run.reason?.includes(id)) ? h("p", null, "waits for ", waits.map((/** @type {string} */ id) => h("a", { key: id, class: "chip", href: link(["run", id]) }, store.current.has(id) ? title(store.current.get(id)) : short(id)))) : null,
      this.words ? h("pre", { class: "words", tabindex: 0, role: "region", "aria-label": "Last lines" }, this.words) : null,
      next ? h("p", { class: "next" }, h("button", { type: "button", class: "primary", "data-next": next.operation, onclick: () => this.next(next.operation) }, next.name), h("span", { class: "quiet" }, next.text)) : null);
  }

  /** @param {any} run */
  attempts(run) {
    const chosen = this.current.query.get("attempt") ?? String(run.attempt);
    return h("select", { class: "attempts", "aria-label": "Attempt", value: chosen, onchange: (/** @type {any} */ event) => this.frame.go(link(["run", this.id, "log"], { attempt: event.target.value })) },
      Array.from({ length: run.attempt }, (_, i) => run.attempt - i).map((attempt) => h("option", { key: attempt, value: String(attempt) }, `attempt ${attempt}`)));
  }

  /** @param {any} run */
  part(run) {
    const parts = { log: () => this.drawLog(run), steps: () => stepsTab(run), timeline: () => timelineTab(this.story, settings.utc), usage: () => usageTab(run, settings.utc, this.points), details: () => details(run), diff: () => compareTab(this, run), json: () => json(run) };
    return parts[this.tab]();
  }

  /** @param {any} run */
  drawLog(run) {
    if (!run.attempt) return empty("It has not started yet.", run.reason ?? "");
    const { query } = this.current;
    const attempt = Number(query.get("attempt") ?? run.attempt);
    if (this.log && this.log.of.attempt !== attempt) this.closeLog();
    if (!this.log) {
      const files = run.logs.filter((/** @type {any} */ log) => log.attempt === attempt);
      const bytes = files.length ? files.reduce((/** @type {number} */ sum, /** @type {any} */ log) => sum + log.bytes, 0) : null;
      const hasEnded = run.ended_at !== null || attempt < run.attempt;
      this.log = new Log({ run: run.id, attempt, bytes: hasEnded || (bytes ?? 0) > 1 << 20 ? bytes : Math.min(bytes ?? 0, 1 << 20), line: this.current.line, until: this.current.until, stream: query.get("stream") ?? "", query,
        redraw: this.frame.redraw, replace: (hash) => this.frame.replace(hash) });
    }
    return this.log.draw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    return this.tab === "log" && this.log ? this.log.key(event) : false;
  }
}

/** @param {any} evidence */
function evidenceText(evidence) {
  if (typeof evidence === "string") return evidence.replaceAll("_", " ");
  return Object.entries(evidence).map(([name, value]) => (typeof value === "object" && value !== null ? `${name.replaceAll("_", " ")} (${evidenceText(value)})` : `${name.replaceAll("_", " ")} ${value}`)).join(", ");
}

/** @param {any} run */
function details(run) {
  const now = Date.now();
  const code = (/** @type {string|null} */ text) => (text ? h("code", null, text) : null);
  const toRun = (/** @type {string|null} */ id) => (id ? h("a", { href: link(["run", id]) }, id) : null);
  const facts = [
    ["Command", run.command ? h("code", { class: "block", tabindex: 0, role: "region", "aria-label": "Command" }, commandLine(run.command)) : null], ["Directory", code(run.cwd)], ["Id", code(run.id)], ["Kind", h("a", { href: link(["runs"], { kind: run.kind }) }, run.kind)],
    ["Labels", Object.entries(run.labels).map(([key, value]) => h("a", { key, class: "chip", href: link(["runs"], { label: `${key}=${value}` }) }, `${key}=${value}`))],
    ["Schedule", run.schedule], ["Keys", (run.keys ?? []).map((/** @type {any} */ key) => h("a", { key: key.name, class: "chip", href: link(["keys"], { name: key.name }) }, key.limit > 1 ? `${key.name} (${key.limit})` : key.name))],
    ["Attempt", `${run.attempt} (epoch ${run.epoch})`], ["Priority", run.priority ? String(run.priority) : null], ["Step of", toRun(run.step_of)], ["Inside", toRun(run.step_parent)],
    ["Owner", run.owner_pid ? `pid ${run.owner_pid} on ${run.owner_host}` : null], ["Last beat", since(run.last_beat_at, now)], ["Lease until", time(run.lease_until, now)],
    ["Made", [time(run.created_at, now), ` by ${run.created_by}`]], ["Started", time(run.started_at, now)], ["Ended", time(run.ended_at, now)], ["Took", run.started_at ? took(run, now) : null],
    ["Exit", ending(run)], ["Error", run.error_message], ["Not before", time(run.not_before, now)], ["Cancel", run.cancel_requested_at ? [time(run.cancel_requested_at, now), ` by ${run.cancel_requested_by}`] : null],
    ["URL", code(run.url)], ["Checkpoint", run.checkpoint_bytes ? size(run.checkpoint_bytes) : null], ["Input", run.input ? h("pre", { class: "json" }, JSON.stringify(run.input, null, 2)) : null],
    ["Result", run.result !== null && run.result !== undefined ? h("pre", { class: "json" }, JSON.stringify(run.result, null, 2)) : null], ["Artifacts", run.artifacts.map((/** @type {string} */ artifact) => h("code", { key: artifact, class: "block" }, artifact))],
    ["Logs", run.logs.map((/** @type {any} */ log) => h("div", { key: log.path }, code(log.path), ` ${size(log.bytes)}, attempt ${log.attempt}`))], ["Trusted", run.trusted === false ? "no: `outlive trust` allows it to be executed" : null],
  ];
  return h("dl", { class: "details" }, facts.filter(([, value]) => value && (!Array.isArray(value) || value.length)).map(([name, value]) => h("div", { key: /** @type {string} */ (name) }, h("dt", null, name), h("dd", null, value))));
}

/** @param {any} run */
function json(run) {
  const text = JSON.stringify(run, null, 2);
  return [button("Copy", () => copy(text), { class: "small" }), h("pre", { class: "json", tabindex: 0, role: "region", "aria-label": "JSON" }, text)];
}
