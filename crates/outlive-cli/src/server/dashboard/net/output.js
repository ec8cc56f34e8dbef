// @ts-check
// The output of an attempt as lines: its end at once, then all of it, then what is written while it runs.
import { Lines } from "../model/lines.js";
import { call } from "./net.js";
import { store } from "./store.js";

/** The most bytes of one answer. */
const PAGE = 1 << 20;
/** How many lines are read first, so that a long log is in sight at once. */
const TAIL = 2000;
/** A longer log is read as a whole only when that is asked for, in bytes. */
const WHOLE = 128 << 20;
/** How long to wait, in milliseconds, where the server does not tell of growth: twice as long after each empty answer. */
const SHORTEST = 500;
const LONGEST = 15_000;

export class Output {
  /** @param {string} run @param {number} attempt @param {number|null} bytes how long it is, where that is known @param {(moved: number) => void} changed is called after lines were added, with how many were put in front */
  constructor(run, attempt, bytes, changed) {
    this.run = run;
    this.attempt = attempt;
    this.bytes = bytes;
    this.changed = changed;
    this.lines = new Lines();
    /** All lines from the first on are here, so they have numbers. */
    this.whole = false;
    this.ended = false;
    this.problem = "";
    this.cursor = null;
    this.over = false;
    /** How many bytes of the beginning were read, while the rest is. */
    this.read = 0;
    this.reading = false;
    /** A page is being asked for: another would be the same. Until the first is here, no other is. */
    this.busy = true;
    this.wanted = false;
    this.pause = SHORTEST;
    this.timer = 0;
    this.begin();
  }

  leave() {
    this.over = true;
    clearTimeout(this.timer);
  }

  /** @param {Record<string, any>} fields */
  ask(fields) {
    return call("output", { run: this.run, attempt: this.attempt, limit: PAGE, ...fields });
  }

  async begin() {
    try {
      const isShort = this.bytes !== null && this.bytes <= PAGE;
      const page = await this.ask(isShort ? {} : { lines: TAIL });
      if (this.over) return;
      this.whole = isShort;
      this.busy = false;
      this.take(page);
      if (!isShort) {
        await this.follow();
        if (this.bytes === null || this.bytes <= WHOLE) await this.readWhole();
      }
      await this.follow();
    } catch (error) {
      this.fail(error);
    }
  }

  /** @param {any} error */
  fail(error) {
    this.problem = error.message;
    this.reading = this.busy = false;
    this.changed(0);
  }

  /** @param {any} page */
  take(page) {
    this.lines.add(page.pieces);
    this.cursor = page.next;
    this.ended = page.ended && page.pieces.length === 0;
    this.changed(0);
  }

  /** Reads all of it from the beginning and puts that in the place of its end. */
  async readWhole() {
    if (this.whole || this.reading) return;
    this.reading = true;
    const lines = new Lines();
    let [cursor, page] = [null, null];
    try {
      do {
        page = await this.ask(cursor === null ? {} : { cursor });
        if (this.over) return;
        lines.add(page.pieces);
        this.read = page.next.split(".").reduce((/** @type {number} */ sum, /** @type {string} */ part) => sum + Number(part), 0);
        const isEnd = page.next === cursor || page.pieces.length === 0;
        cursor = page.next;
        if (isEnd) break;
        this.changed(-1);
      } while (!this.over);
    } catch (error) {
      return this.fail(error);
    }
    const moved = lines.length - this.lines.length;
    Object.assign(this, { lines, cursor, whole: true, reading: false });
    this.changed(Math.max(0, moved));
    this.follow();
  }

  /** Reads what was written since. */
  async follow() {
    if (this.busy) {
      this.wanted = true;
      return;
    }
    this.busy = true;
    clearTimeout(this.timer);
    try {
      let isEmpty = false;
      while (!this.over && !isEmpty) {
        const lines = this.lines;
        this.wanted = false;
        const page = await this.ask({ cursor: this.cursor });
        if (this.over || lines !== this.lines) continue;
        isEmpty = page.pieces.length === 0;
        this.problem = "";
        this.pause = isEmpty ? Math.min(LONGEST, this.pause * 2) : SHORTEST;
        if (!isEmpty || page.ended) this.take(page);
      }
    } catch (error) {
      this.problem = /** @type {Error} */ (error).message;
      this.changed(0);
    }
    this.busy = false;
    if (this.wanted && !this.over) return this.follow();
    // A server whose stream of changes is here tells of growth, and is not asked for it.
    if (!this.ended && !this.over && store.link !== "live") this.timer = /** @type {any} */ (setTimeout(() => document.hidden || this.follow(), this.pause));
  }

  /** The server says that something was written, or that the run changed. */
  grown() {
    if (!this.ended && !this.over) this.follow();
  }
}
