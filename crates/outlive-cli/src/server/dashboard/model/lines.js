// @ts-check
// The lines of an attempt's output. Each stream has its own open line, so that stdout never continues a line of stderr.
import { PLAIN, hasEscapes, overwrite, parts, strip } from "./ansi.js";

/** The longest line. What follows begins another: a line without an end must not make every later piece slower. */
export const LONGEST = 16_384;
const FIRST_ROOM = 1024;

/** @typedef {{at: string, stream: string, text: string|null, base64: string|null, left_out: number|null}} Piece */

export class Lines {
  constructor() {
    /** What each line shows, without control sequences. @type {string[]} */
    this.texts = [];
    /** Lines that have control sequences, with them. @type {Map<number, string>} */
    this.raw = new Map();
    /** The style in which a line begins, where that is not plain. @type {Map<number, import("./ansi.js").Style>} */
    this.styles = new Map();
    this.times = new Float64Array(FIRST_ROOM);
    /** 0 for stdout, 1 for stderr, 2 for a remark of the page. */
    this.streams = new Uint8Array(FIRST_ROOM);
    this.open = [null, null].map(() => ({ line: -1, text: "", style: PLAIN }));
    /** The longest line in columns, as far as characters tell. */
    this.widest = 0;
  }

  get length() {
    return this.texts.length;
  }

  /** How many of the first lines stay as they are: each stream may still write to its open line. */
  get settled() {
    return Math.min(this.length, ...this.open.map(({ line }) => (line < 0 ? this.length : line)));
  }

  /** Appends pieces as `output` answers them. @param {Piece[]} pieces */
  add(pieces) {
    for (const piece of pieces) {
      const stream = piece.stream === "err" ? 1 : 0;
      const at = Date.parse(piece.at);
      if (piece.text !== null) this.write(stream, at, piece.text);
      else if (piece.left_out !== null) this.remark(at, `${piece.left_out} bytes are not stored`);
      else this.remark(at, `${Math.floor((piece.base64?.length ?? 0) * 0.75)} bytes that are no text`);
    }
  }

  /** @param {number} at @param {string} text */
  remark(at, text) {
    this.open.forEach((open) => (open.line = -1));
    this.push(2, at, `[${text}]`);
  }

  /** @param {number} stream @param {number} at @param {string} text */
  write(stream, at, text) {
    const open = this.open[stream];
    let from = 0;
    while (from < text.length) {
      const end = text.indexOf("\n", from);
      const piece = text.slice(from, end < 0 ? text.length : end);
      from = end < 0 ? text.length : end + 1;
      this.extend(open, stream, at, piece);
      if (end >= 0) this.close(open, stream, at);
    }
  }

  /** @param {{line: number, text: string, style: import("./ansi.js").Style}} open @param {number} stream @param {number} at @param {string} piece */
  extend(open, stream, at, piece) {
    for (let rest = piece; rest; ) {
      if (open.line < 0) this.begin(open, stream, at);
      const room = LONGEST - open.text.length;
      const whole = open.text + rest.slice(0, room);
      rest = rest.slice(room);
      // A return or a sequence that the next piece may continue stays as it is: in \r\n a return overwrites nothing.
      const [tail] = /(?:\r|\x1b(?:\[[0-9;:?]*)?)?$/.exec(whole) ?? [""];
      open.text = overwrite(whole.slice(0, whole.length - tail.length)) + tail;
      this.set(open.line, open.text);
      if (open.text.length >= LONGEST) this.close(open, stream, at);
    }
  }

  /** @param {{line: number, text: string, style: import("./ansi.js").Style}} open @param {number} stream @param {number} at */
  begin(open, stream, at) {
    open.line = this.push(stream, at, "");
    open.text = "";
    if (open.style !== PLAIN) this.styles.set(open.line, open.style);
  }

  /** @param {{line: number, text: string, style: import("./ansi.js").Style}} open @param {number} stream @param {number} at */
  close(open, stream, at) {
    if (open.line < 0) this.begin(open, stream, at);
    if (hasEscapes(open.text)) {
      const { style } = parts(open.text, open.style);
      open.style = Object.keys(PLAIN).every((name) => style[name] === PLAIN[name]) ? PLAIN : style;
    }
    open.line = -1;
    open.text = "";
  }

  /** @param {number} stream @param {number} at @param {string} text */
  push(stream, at, text) {
    const line = this.texts.push(text) - 1;
    if (line >= this.times.length) {
      const [times, streams] = [new Float64Array(line * 2), new Uint8Array(line * 2)];
      times.set(this.times);
      streams.set(this.streams);
      [this.times, this.streams] = [times, streams];
    }
    this.times[line] = at;
    this.streams[line] = stream;
    this.widest = Math.max(this.widest, text.length);
    return line;
  }

  /** @param {number} line @param {string} text */
  set(line, text) {
    if (hasEscapes(text)) this.raw.set(line, text);
    else this.raw.delete(line);
    this.texts[line] = strip(text);
    this.widest = Math.max(this.widest, this.texts[line].length);
  }

  /** The parts of a line with their styles. @param {number} line */
  parts(line) {
    return parts(this.raw.get(line) ?? this.texts[line], this.styles.get(line) ?? PLAIN).parts;
  }
}

/** What looks like a report of an error. */
export const ERRORS = /\b(?:error|errors|fatal|failed|failure|panic|panicked|exception|traceback|critical|segfault|killed)\b|^E\s/i;

/**
 * A pattern for a search: between slashes a regular expression, otherwise a text, in any case unless it has capital letters.
 * Null where it is not valid.
 * @param {string} text
 * @returns {RegExp|null}
 */
export function pattern(text) {
  const [, source, flags] = /^\/(.+)\/(i?)$/.exec(text) ?? [];
  try {
    if (source) return new RegExp(source, flags);
    return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), /[A-Z]/.test(text) ? "" : "i");
  } catch {
    return null;
  }
}

/**
 * The lines from `from` on that match.
 * @param {string[]} texts @param {RegExp} wanted @param {number} from
 * @returns {number[]}
 */
export function matches(texts, wanted, from = 0) {
  const found = [];
  for (let line = from; line < texts.length; line++) if (wanted.test(texts[line])) found.push(line);
  return found;
}

/** The first of ascending numbers that is above `line`, or the last below it; wraps around. @param {number[]} sorted @param {number} line @param {boolean} back */
export function nextOf(sorted, line, back) {
  if (!sorted.length) return -1;
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (back ? sorted[middle] < line : sorted[middle] <= line) low = middle + 1;
    else high = middle;
  }
  return back ? (low ? low - 1 : sorted.length - 1) : low < sorted.length ? low : 0;
}

/** How many columns a text takes in a fixed-width font. @param {string} text */
export function columns(text) {
  if (/^[\x00-\x7f]*$/.test(text) && !text.includes("\t")) return text.length;
  let wide = 0;
  for (const c of text) {
    const code = c.codePointAt(0);
    if (code === 9) wide += 8 - (wide % 8);
    else wide += (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3) || (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) || code >= 0x1f300 ? 2 : 1;
  }
  return wide;
}
