// @ts-check
// What the page knows of the server: who is signed in, whether changes arrive, and the runs that are in flight or need attention.
import { ATTENTION, isInFlight, needsAttention } from "../model/run.js";
import { call } from "./net.js";

/** The most runs of one answer that are kept; the Runs page lists the rest. */
const MOST = 1000;
/** For how long failures are shown on the overview, and runs that have ended need attention, in milliseconds. */
const DAY = 86_400_000;
const WEEK = 7 * DAY;

class Store extends EventTarget {
  constructor() {
    super();
    /** @type {import("./net.js").Session|null} */
    this.session = null;
    /** `connecting`, `live`, `offline` or `signed out`. */
    this.link = "connecting";
    /** Runs in flight, and those that need attention, by id. @type {Map<string, import("../model/run.js").Run>} */
    this.current = new Map();
    /** Runs that failed within a day, by id. @type {Map<string, import("../model/run.js").Run>} */
    this.failures = new Map();
    /** @type {any[]|null} */
    this.workers = null;
    this.loaded = false;
    this.loading = 0;
    /** Runs that changed since the last load was begun; null while nothing loads. @type {import("../model/run.js").Run[]|null} */
    this.meanwhile = null;
    /** Of which runs there are more than are kept. */
    this.more = { waiting: false, running: false, attention: false };
  }

  /** Whether the role of this person allows an operation. @param {string} operation */
  may(operation) {
    return this.session?.operations.includes(operation) ?? false;
  }

  /** Loads everything anew: at the beginning, and after the stream was cut. */
  async load() {
    const turn = ++this.loading;
    this.meanwhile = [];
    const [[now, running, attention], failed] = await Promise.all([
      this.ask(),
      call("ps", { all: true, status: ["failed"], since: "24h", unarchived: true, limit: MOST }),
    ]).catch((error) => {
      if (turn === this.loading) this.meanwhile = null;
      throw error;
    });
    if (turn !== this.loading) return;
    // The answer may be older than what was heard while it was on its way.
    const meanwhile = this.meanwhile;
    this.meanwhile = null;
    const recent = attention.runs.filter((/** @type {any} */ run) => !run.ended_at || Date.now() - Date.parse(run.ended_at) < WEEK);
    this.current = new Map([...now.runs, ...running.runs, ...recent].map((/** @type {any} */ run) => [run.id, run]));
    this.failures = new Map(failed.runs.map((/** @type {any} */ run) => [run.id, run]));
    this.more = { waiting: now.next !== null, running: running.next !== null, attention: attention.next !== null };
    this.loaded = true;
    const known = (/** @type {string} */ id) => this.current.get(id) ?? this.failures.get(id);
    this.change(meanwhile.filter((run) => !(known(run.id)?.updated_at > run.updated_at)));
  }

  /** Asks for what is in flight or needs attention; for either by itself where the newest are not all, so that a queue hides neither. */
  async ask() {
    const now = await call("ps", { limit: MOST });
    if (now.next === null) return [now, { runs: [], next: null }, { runs: [], next: null }];
    return Promise.all([now, call("ps", { status: ["running", "suspended"], limit: MOST }), call("ps", { status: ATTENTION, limit: MOST })]);
  }

  /** Takes in runs that changed. @param {import("../model/run.js").Run[]} runs */
  change(runs) {
    this.meanwhile?.push(...runs);
    for (const run of runs.filter((one) => !one.step_of)) {
      if (isInFlight(run) || needsAttention(run)) this.current.set(run.id, run);
      else this.current.delete(run.id);
      if (run.state === "failed" && !run.archived && Date.now() - Date.parse(run.ended_at ?? run.updated_at) < DAY) this.failures.set(run.id, run);
      else this.failures.delete(run.id);
    }
    this.changed(runs);
  }

  /** @param {import("../model/run.js").Run[]} runs */
  changed(runs) {
    this.dispatchEvent(new CustomEvent("runs", { detail: runs }));
  }

  /** Runs in flight or in need of attention, the newest first. */
  all() {
    return [...this.current.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  }

  async loadWorkers() {
    this.workers = (await call("workers")).workers;
    this.dispatchEvent(new Event("workers"));
  }
}

export const store = new Store();
