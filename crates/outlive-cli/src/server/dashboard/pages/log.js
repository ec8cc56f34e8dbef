// @ts-check
// The log of an attempt: any number of lines, of which only those in sight are in the document; search, errors, links to lines.
import { ERRORS, columns, matches, nextOf, pattern } from "../model/lines.js";
import { link } from "../model/route.js";
import { clock, count, size } from "../model/text.js";
import { Output } from "../net/output.js";
import { choose, settings } from "../net/settings.js";
import { toast } from "../view/dialogs.js";
import { button } from "../view/parts.js";
import { h } from "../view/view.js";
import { Virtual } from "../view/virtual.js";

const ROW = 20;
/** How long to wait for another letter before a search begins, in milliseconds. */
const PAUSE = 120;
/** The most columns of a line that are drawn without wrapping. */
const WIDEST = 4000;

export class Log {
  /**
   * @param {{run: string, attempt: number, bytes: number|null, line: number|null, until: number|null, stream: string, redraw: () => void, replace: (hash: string) => void, query: URLSearchParams}} of
   */
  constructor(of) {
    this.of = of;
    this.following = of.line === null;
    /** Where the list was at its last scroll. */
    this.scrolledTo = 0;
    this.stream = of.stream;
    this.text = of.query.get("find") ?? "";
    /** @type {number[]} */
    this.found = [];
    this.searched = 0;
    this.at = -1;
    /** The line that a link names, from 1. */
    this.marked = of.line;
    this.until = of.until;
    this.timer = 0;
    /** The lines that the filter leaves, or null for all. @type {number[]|null} */
    this.kept = null;
    this.filtered = 0;
    this.columns = 0;
    /** The time zone in which the lines in sight were drawn. */
    this.utc = settings.utc;
    /** Where each line begins where lines are wrapped; it has room for more. @type {Float64Array|null} */
    this.tops = null;
    /** In how many columns lines were laid out, and how many of them stay as they are. */
    this.laidOut = { across: 0, settled: 0 };
    this.list = new Virtual({ row: ROW, name: "Output", look: "log", draw: (index) => this.row(index), scrolled: (byPerson) => this.scrolled(byPerson), resized: () => this.resized() });
    Object.assign(this.list.place, { tabIndex: 0 });
    this.list.place.setAttribute("role", "region");
    this.list.place.setAttribute("aria-label", "Output");
    this.output = new Output(of.run, of.attempt, of.bytes, (moved) => this.grew(moved));
    this.pending = of.line !== null;
  }

  leave() {
    clearTimeout(this.timer);
    this.output.leave();
    this.list.leave();
  }

  /** A line of the list is a line of the output. @param {number} index */
  line(index) {
    return this.kept ? this.kept[index] : index;
  }

  /** Where a line of the output is in the list; -1 where the filter left it out. @param {number} line */
  index(line) {
    if (!this.kept) return line;
    const at = nextOf(this.kept, line - 1, false);
    return this.kept[at] === line ? at : -1;
  }

  /** @param {number} moved */
  grew(moved) {
    if (moved < 0) return this.of.redraw();
    const first = this.list.first();
    if (moved > 0) {
      this.kept = null;
      this.filtered = this.searched = 0;
      this.found = [];
      this.tops = null;
    }
    this.refresh();
    if (this.pending && this.output.whole) {
      this.pending = false;
      this.show(this.marked - 1, "center");
    } else if (this.following) this.list.toEnd();
    else if (moved > 0) this.list.show(Math.min(this.list.count - 1, first + moved), "start");
    else this.list.draw();
    this.of.redraw();
  }

  /** Takes new lines into the filter, the search and the layout. */
  refresh() {
    const { lines } = this.output;
    if (this.stream) {
      const wanted = this.stream === "err" ? 1 : 0;
      this.kept ??= [];
      for (let line = this.filtered; line < lines.length; line++) if (lines.streams[line] === wanted || lines.streams[line] === 2) this.kept.push(line);
      this.filtered = lines.length;
    } else this.kept = null;
    if (this.text) this.search(false);
    this.layout();
  }

  layout() {
    const { lines } = this.output;
    const total = this.kept ? this.kept.length : lines.length;
    if (!settings.log.wrap) {
      this.tops = null;
      this.list.resize(total);
      this.list.space.style.minWidth = `${Math.min(WIDEST, lines.widest) + 16}ch`;
      return;
    }
    this.list.space.style.minWidth = "";
    const across = this.across();
    // Lines that were laid out stay so, but for those that were open.
    const done = this.tops && across === this.laidOut.across && total >= this.laidOut.settled ? this.laidOut.settled : 0;
    let tops = this.tops && done ? this.tops : new Float64Array(total + 1);
    if (tops.length <= total) {
      tops = new Float64Array(2 * total);
      tops.set(/** @type {Float64Array} */ (this.tops).subarray(0, done + 1));
    }
    for (let index = done; index < total; index++) tops[index + 1] = tops[index] + ROW * Math.max(1, Math.ceil(columns(lines.texts[this.line(index)]) / across));
    let settled = total;
    while (settled > 0 && this.line(settled - 1) >= lines.settled) settled--;
    this.laidOut = { across, settled };
    this.tops = tops;
    this.list.resize(total, tops);
  }

  /** In another window lines wrap elsewhere, and the end is at another height. */
  resized() {
    this.layout();
    if (this.following) this.list.toEnd();
    else this.list.draw();
  }

  /** How many characters fit in a line. */
  across() {
    const probe = document.createElement("span");
    probe.className = "log-probe";
    probe.textContent = "0".repeat(100);
    this.list.place.append(probe);
    const wide = probe.getBoundingClientRect().width / 100 || 8;
    probe.remove();
    const beside = this.gutter() * wide + 24;
    return Math.max(10, Math.floor((this.list.place.clientWidth - beside) / wide));
  }

  /** How many characters the line numbers and times take. */
  gutter() {
    return String(this.output.lines.length).length + 2 + (settings.log.times ? 14 : 0);
  }

  /** @param {number} index */
  row(index) {
    const line = this.line(index);
    const { lines, whole } = this.output;
    const stream = lines.streams[line];
    const number = line + 1;
    const isMarked = whole && this.marked !== null && number >= this.marked && number <= (this.until ?? this.marked);
    const isFound = this.found.length > 0 && this.found[this.at] === line;
    const look = ["line", stream === 1 ? "err" : stream === 2 ? "remark" : "", isMarked ? "marked" : "", isFound ? "found" : "", settings.log.wrap ? "wrap" : ""].filter(Boolean).join(" ");
    const height = this.tops ? { height: `${this.tops[index + 1] - this.tops[index]}px` } : {};
    return h("div", { key: line, class: look, style: height },
      h("a", { class: "no", href: whole ? this.address(number) : null, tabindex: -1, style: { "min-width": `calc(${String(lines.length).length}ch + 12px)` }, onclick: (/** @type {MouseEvent} */ event) => this.mark(event, number) }, whole ? number : "·"),
      settings.log.times ? h("span", { class: "at" }, clock(lines.times[line], settings.utc, true)) : null,
      h("span", { class: "text" }, this.parts(line)));
  }

  /** @param {number} line */
  parts(line) {
    const wanted = this.text ? pattern(this.text) : null;
    let drawn = 0;
    return this.output.lines.parts(line).map(({ text, style }) => {
      const room = settings.log.wrap ? text.length : Math.max(0, WIDEST - drawn);
      drawn += text.length;
      const shown = text.length > room ? `${text.slice(0, room)}…` : text;
      const inside = wanted ? highlight(shown, wanted) : shown;
      const [fg, bg] = style.reverse ? [style.bg ?? "back", style.fg ?? "front"] : [style.fg, style.bg];
      const look = [style.bold && "b", style.dim && "d", style.italic && "i", style.underline && "u", style.strike && "s", style.overline && "o", named("f", fg), named("k", bg)].filter(Boolean).join(" ");
      const colours = { ...(typeof fg === "string" && fg.startsWith("rgb") ? { color: fg } : {}), ...(typeof bg === "string" && bg.startsWith("rgb") ? { "background-color": bg } : {}) };
      return look || colours.color || colours["background-color"] ? h("span", { class: look, style: colours }, inside) : inside;
    });
  }

  /** @param {number} number */
  address(number) {
    return link(["run", this.of.run, "log"], this.of.query, `L${number}`);
  }

  /** @param {MouseEvent} event @param {number} number */
  mark(event, number) {
    event.preventDefault();
    if (!this.output.whole) return;
    const isRange = event.shiftKey && this.marked !== null && this.marked < number;
    [this.marked, this.until] = isRange ? [this.marked, number] : [number, null];
    this.of.replace(link(["run", this.of.run, "log"], this.of.query, isRange ? `L${this.marked}-L${number}` : `L${number}`));
    this.list.draw();
  }

  /** @param {boolean} byPerson */
  scrolled(byPerson) {
    const top = this.list.place.scrollTop;
    const isUp = top < this.scrolledTo - 1;
    this.scrolledTo = top;
    if (!byPerson) return;
    const before = this.following;
    // Lines that came meanwhile put the end further away; only a way up leaves it.
    this.following = this.list.atEnd() || (this.following && !isUp);
    if (this.following !== before) this.of.redraw();
    if (this.list.first() === 0 && !this.output.whole && !this.output.reading) this.output.readWhole();
  }

  /** @param {number} line @param {"start"|"center"|"nearest"} [where] */
  show(line, where = "center") {
    const index = this.index(Math.min(line, this.output.lines.length - 1));
    this.following = false;
    if (index >= 0) this.list.show(index, where);
  }

  /** Searches what was not searched yet. @param {boolean} anew */
  search(anew) {
    if (anew) {
      this.found = [];
      this.searched = 0;
      this.at = -1;
    }
    const wanted = this.text ? pattern(this.text) : null;
    const { lines } = this.output;
    if (!wanted) return;
    const from = this.searched;
    while (this.found.length && this.found[this.found.length - 1] >= from) this.found.pop();
    for (const line of matches(lines.texts, wanted, from)) this.found.push(line);
    // A line that is open may grow, and is searched again.
    this.searched = lines.settled;
  }

  /** @param {string} text */
  find(text) {
    this.text = text;
    clearTimeout(this.timer);
    this.timer = /** @type {any} */ (setTimeout(() => this.seek(), PAUSE));
  }

  /** Searches for the text that was typed, and shows its first match. */
  seek() {
    clearTimeout(this.timer);
    this.timer = 0;
    const { text } = this;
    if (text && !this.output.whole) this.output.readWhole();
    this.search(true);
    const query = this.of.query;
    if (text) query.set("find", text);
    else query.delete("find");
    this.of.replace(link(["run", this.of.run, "log"], query, this.marked ? `L${this.marked}` : ""));
    if (this.found.length) this.step(false, this.line(this.list.first()) - 1);
    this.list.draw();
    this.of.redraw();
  }

  /** To the next match, or the one before. @param {boolean} back @param {number} [from] */
  step(back, from) {
    if (!this.found.length) return;
    this.at = nextOf(this.found, from ?? (this.at >= 0 ? this.found[this.at] : this.line(this.list.first())), back);
    this.show(this.found[this.at]);
    this.list.draw();
    this.of.redraw();
  }

  /** To the next line that reports an error. @param {boolean} back */
  error(back) {
    const { lines } = this.output;
    const here = this.marked !== null ? this.marked - 1 : this.line(this.list.first()) - 1;
    const errors = matches(lines.texts, ERRORS);
    if (!errors.length) return toast("No line looks like an error");
    const line = errors[nextOf(errors, here, back)];
    this.marked = line + 1;
    this.until = null;
    if (this.output.whole) this.of.replace(link(["run", this.of.run, "log"], this.of.query, `L${line + 1}`));
    this.show(line);
    this.list.draw();
    this.of.redraw();
  }

  /** @param {Partial<typeof settings.log>} changed */
  option(changed) {
    const line = this.line(this.list.first());
    choose({ log: { ...settings.log, ...changed } });
    this.layout();
    if (this.following) this.list.toEnd();
    else this.show(line, "start");
    this.list.draw();
    this.of.redraw();
  }

  /** @param {string} stream */
  only(stream) {
    Object.assign(this, { stream, kept: null, filtered: 0, tops: null });
    if (stream) this.of.query.set("stream", stream);
    else this.of.query.delete("stream");
    this.of.replace(link(["run", this.of.run, "log"], this.of.query));
    this.refresh();
    this.list.draw();
    if (this.following) this.list.toEnd();
    this.of.redraw();
  }

  follow() {
    // What was typed just before is found first: it would lead away from the end.
    if (this.timer) this.seek();
    this.following = true;
    this.list.toEnd();
    this.of.redraw();
  }

  /** Has the browser save what was written, byte for byte; the page has it as a terminal would show it. */
  download() {
    const anchor = document.createElement("a");
    anchor.href = `/v1/raw?${new URLSearchParams({ run: this.of.run, attempt: String(this.of.attempt) })}`;
    anchor.download = `${this.of.run}-${this.of.attempt}.log`;
    anchor.click();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const keys = { n: () => this.step(false), N: () => this.step(true), e: () => this.error(false), E: () => this.error(true), f: () => this.follow(), w: () => this.option({ wrap: !settings.log.wrap }), t: () => this.option({ times: !settings.log.times }),
      j: () => this.by(1), k: () => this.by(-1), G: () => this.follow(), Home: () => this.show(0, "start"), End: () => this.follow() };
    if (!keys[event.key]) return false;
    keys[event.key]();
    return true;
  }

  /** @param {number} lines */
  by(lines) {
    this.list.scroll(this.list.place.scrollTop + lines * ROW * 3);
    this.following = this.list.atEnd();
  }

  status() {
    const { output } = this;
    if (output.problem) return h("span", { class: "warning", role: "alert" }, output.problem);
    if (output.reading) return `reading the beginning: ${size(output.read)}${output.bytes ? ` of ${size(output.bytes)}` : ""}`;
    const lines = count(output.lines.length, "line");
    if (!output.lines.length) return output.ended ? "nothing was written, or nothing of it was kept" : "nothing written yet";
    return output.whole ? lines : `the last ${lines}`;
  }

  draw() {
    const { output } = this;
    if (this.utc !== settings.utc) {
      this.utc = settings.utc;
      queueMicrotask(() => this.list.draw());
    }
    const of = this.text ? (pattern(this.text) ? (this.timer ? "" : this.found.length ? `${this.at + 1} of ${this.found.length.toLocaleString("en")}` : "no match") : "not a pattern") : "";
    return h("div", { class: "logbox" },
      h("div", { class: "tools", role: "toolbar", "aria-label": "Log" },
        h("input", { type: "search", placeholder: "Find, or /regular expression/", "aria-label": "Find in log", value: this.text, oninput: (/** @type {any} */ event) => this.find(event.target.value),
          onkeydown: (/** @type {KeyboardEvent} */ event) => {
            if (event.key === "Enter" && this.timer) this.seek();
            else if (event.key === "Enter") this.step(event.shiftKey);
            else if (event.key === "Escape") { /** @type {HTMLInputElement} */ (event.target).blur(); this.list.place.focus({ preventScroll: true }); }
            else return;
            event.preventDefault();
          } }),
        h("span", { class: "matches", role: "status" }, of),
        this.found.length ? [button("Previous", () => this.step(true), { class: "small", title: "N" }), button("Next", () => this.step(false), { class: "small", title: "n" })] : null,
        button("Next error", () => this.error(false), { class: "small", title: "e" }),
        h("div", { class: "segments", role: "group", "aria-label": "Stream" }, [["", "both"], ["out", "stdout"], ["err", "stderr"]].map(([value, text]) => h("button", { key: text, type: "button", "aria-pressed": this.stream === value ? "true" : "false", onclick: () => this.only(value) }, text))),
        h("button", { type: "button", class: "small", "aria-pressed": settings.log.wrap ? "true" : "false", onclick: () => this.option({ wrap: !settings.log.wrap }) }, "Wrap"),
        h("button", { type: "button", class: "small", "aria-pressed": settings.log.times ? "true" : "false", onclick: () => this.option({ times: !settings.log.times }) }, "Times"),
        !output.whole && !output.reading && output.lines.length ? button("Load earlier", () => output.readWhole(), { class: "small" }) : null,
        button("Download", () => this.download(), { class: "small" }),
        h("button", { type: "button", class: "small follow", "aria-pressed": this.following ? "true" : "false", onclick: () => this.follow() }, output.ended ? "End" : "Follow"),
        h("span", { class: "quiet", role: "status" }, this.status())),
      this.list.place);
  }
}

/** @param {string} prefix @param {number|string|null} colour */
function named(prefix, colour) {
  return typeof colour === "number" ? `${prefix}${colour}` : colour === "back" || colour === "front" ? `${prefix}-${colour}` : "";
}

/** A text with its matches marked. @param {string} text @param {RegExp} wanted */
function highlight(text, wanted) {
  const all = new RegExp(wanted.source, `${wanted.flags}g`);
  const shown = [];
  let at = 0;
  for (const match of text.matchAll(all)) {
    if (!match[0]) break;
    shown.push(text.slice(at, match.index), h("mark", null, match[0]));
    at = match.index + match[0].length;
  }
  shown.push(text.slice(at));
  return shown;
}
