// @ts-check
// Terminal output as styled text: SGR attributes are kept, carriage returns overwrite, every other control sequence is dropped.
//
// Each function reads its input once from left to right, so that a line of any length costs no more than its length.
import { HIDDEN } from "./text.js";

/** @typedef {{bold: boolean, dim: boolean, italic: boolean, underline: boolean, strike: boolean, overline: boolean, reverse: boolean, fg: number|string|null, bg: number|string|null}} Style */

/** @type {Style} */
export const PLAIN = Object.freeze({ bold: false, dim: false, italic: false, underline: false, strike: false, overline: false, reverse: false, fg: null, bg: null });

/** Control sequences: SGR with its codes as the first group, other CSI, OSC and further strings, single escapes. */
const SEQUENCE = /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?/g;

/** The text without characters that hide. Plots keep their columns by the blank of Braille, which is shown as a space. @param {string} text */
function seen(text) {
  return text.replace(HIDDEN, (c) => (c === "\u2800" ? " " : ""));
}

/** @param {string} text */
export function hasEscapes(text) {
  return text.includes("\x1b");
}

/** The text without any control sequence or invisible character. @param {string} text */
export function strip(text) {
  const without = hasEscapes(text) ? text.replace(SEQUENCE, "") : text;
  return seen(without);
}

/**
 * The parts of a line, each with its style, and the style behind it.
 * @param {string} text
 * @param {Style} style
 * @returns {{parts: {text: string, style: Style}[], style: Style}}
 */
export function parts(text, style) {
  const found = [];
  const push = (/** @type {string} */ piece) => {
    const shown = seen(piece);
    if (shown) found.push({ text: shown, style });
  };
  let at = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    push(text.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] !== undefined) style = after(style, match[1]);
  }
  push(text.slice(at));
  return { parts: found, style };
}

const SWITCHES = {
  1: { bold: true }, 2: { dim: true }, 3: { italic: true }, 4: { underline: true }, 7: { reverse: true }, 9: { strike: true }, 21: { underline: true },
  22: { bold: false, dim: false }, 23: { italic: false }, 24: { underline: false }, 27: { reverse: false }, 29: { strike: false },
  39: { fg: null }, 49: { bg: null }, 53: { overline: true }, 55: { overline: false },
};

/** The style behind an SGR sequence with these codes. @param {Style} style @param {string} codes @returns {Style} */
export function after(style, codes) {
  const numbers = codes.split(/[;:]/).map((code) => Number(code || 0));
  let next = { ...style };
  for (let i = 0; i < numbers.length; i++) {
    const code = numbers[i];
    if (code === 0) next = { ...PLAIN };
    else if (SWITCHES[code]) Object.assign(next, SWITCHES[code]);
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 38 || code === 48) {
      const isTrue = numbers[i + 1] === 2;
      const colour = isTrue ? rgb(numbers.slice(i + 2, i + 5)) : palette(numbers[i + 2]);
      if (numbers[i + 1] === 5 || isTrue) next[code === 38 ? "fg" : "bg"] = colour;
      i += isTrue ? 4 : 2;
    }
  }
  return next;
}

/** @param {number[]} levels */
function rgb(levels) {
  return `rgb(${[0, 1, 2].map((i) => Math.min(255, levels[i] || 0)).join(" ")})`;
}

/** One of the 256 colours: a number below 16, which the theme decides, or the colour itself. @param {number} [n] */
function palette(n = 0) {
  if (n < 16) return n;
  if (n >= 232) return rgb(Array(3).fill(8 + (n - 232) * 10));
  const level = (/** @type {number} */ part) => (part ? 55 + part * 40 : 0);
  const index = n - 16;
  return rgb([level(Math.floor(index / 36)), level(Math.floor(index / 6) % 6), level(index % 6)]);
}

/**
 * A line as a terminal shows it after carriage returns, backspaces and "erase in line": what was overwritten is gone. SGR
 * sequences stay in front of the cells that they apply to.
 * @param {string} line
 */
export function overwrite(line) {
  if (!/[\r\b]|\x1b\[[0-9;]*[KGC]/.test(line)) return line;
  /** @type {string[]} */
  let cells = [];
  /** The SGR sequences in effect for each cell. @type {string[]} */
  let looks = [];
  let [column, look] = [0, ""];
  const put = (/** @type {string} */ text) => {
    for (const c of text) {
      if (c === "\r") column = 0;
      else if (c === "\b") column = Math.max(0, column - 1);
      else if (c === "\t" || c >= " ") {
        while (cells.length < column) (cells.push(" "), looks.push(""));
        [cells[column], looks[column]] = [c, look];
        column++;
      }
    }
  };
  let at = 0;
  for (const match of line.matchAll(SEQUENCE)) {
    put(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] !== undefined) look = /^(0?|0;.*)$/.test(match[1]) ? (match[1].replace(/^0?;?/, "") ? match[0] : "") : look.length < 200 ? look + match[0] : match[0];
    else ({ column, cells, looks } = move(match[0], column, cells, looks));
  }
  put(line.slice(at));
  let [text, current] = ["", ""];
  cells.forEach((cell, i) => {
    if (looks[i] !== current) text += `\x1b[0m${looks[i]}`;
    current = looks[i];
    text += cell;
  });
  return look === current ? text : `${text}\x1b[0m${look}`;
}

/** Erases in a line, or moves the cursor in it. @param {string} sequence @param {number} column @param {string[]} cells @param {string[]} looks */
function move(sequence, column, cells, looks) {
  const [, number, action] = /^\x1b\[([0-9]*)[0-9;]*([KGC])$/.exec(sequence) ?? [];
  const n = Number(number || 0);
  if (action === "K" && n === 0) return { column, cells: cells.slice(0, column), looks: looks.slice(0, column) };
  if (action === "K" && n === 1) return { column, cells: cells.map((cell, i) => (i <= column ? " " : cell)), looks };
  if (action === "K" && n === 2) return { column, cells: [], looks: [] };
  if (action === "G") return { column: Math.min(4096, Math.max(0, n - 1)), cells, looks };
  if (action === "C") return { column: Math.min(4096, column + Math.max(1, n)), cells, looks };
  return { column, cells, looks };
}
