// @ts-check
// The differences between two runs: fields that differ, words of the command, labels, and steps by name.
import { commandLine, duration } from "./text.js";

/** @typedef {{name: string, left: string, right: string, same: boolean}} Difference */

/** @param {any} left @param {any} right @returns {Difference[]} */
export function compare(left, right) {
  const rows = [];
  const add = (/** @type {string} */ name, /** @type {any} */ a, /** @type {any} */ b) => {
    const [x, y] = [a, b].map((value) => (value === null || value === undefined ? "" : String(value)));
    if (x || y) rows.push({ name, left: x, right: y, same: x === y });
  };
  const both = (/** @type {(run: any) => any} */ of) => [of(left), of(right)];
  add("state", ...pair(both((run) => run.state)));
  add("took", ...pair(both((run) => duration(run.duration_ms))));
  add("exit", ...pair(both((run) => (run.signal !== null ? `signal ${run.signal}` : run.exit_code !== null ? `code ${run.exit_code}` : ""))));
  add("reason", ...pair(both((run) => run.reason)));
  add("command", ...pair(both((run) => (run.command ? commandLine(run.command) : ""))));
  add("directory", ...pair(both((run) => run.cwd)));
  add("kind", ...pair(both((run) => run.kind)));
  add("host", ...pair(both((run) => run.host)));
  add("made by", ...pair(both((run) => run.created_by)));
  add("attempts", ...pair(both((run) => run.attempt)));
  for (const label of keysOf(left.labels, right.labels)) add(`label ${label}`, left.labels[label], right.labels[label]);
  const steps = both((run) => Object.fromEntries((run.steps ?? []).map((/** @type {any} */ step) => [step.name, `${step.state} ${duration(step.duration_ms)}`.trim()])));
  for (const step of keysOf(steps[0], steps[1])) add(`step ${step}`, steps[0][step], steps[1][step]);
  return rows;
}

/** @param {any[]} values @returns {[any, any]} */
function pair(values) {
  return [values[0], values[1]];
}

/** @param {Record<string, any>} a @param {Record<string, any>} b */
function keysOf(a, b) {
  return [...new Set([...Object.keys(a ?? {}), ...Object.keys(b ?? {})])];
}

/**
 * The words of two commands with marks where they differ: the longest common subsequence stays.
 * @param {string[]} left @param {string[]} right
 * @returns {{word: string, in: "both"|"left"|"right"}[]}
 */
export function wordDiff(left, right) {
  const [n, m] = [left.length, right.length];
  // Long commands would take a table that is too large; they are shown whole.
  if (n * m > 1_000_000) return [...left.map((word) => ({ word, in: /** @type {const} */ ("left") })), ...right.map((word) => ({ word, in: /** @type {const} */ ("right") }))];
  const table = Array.from({ length: n + 1 }, () => new Uint32Array(m + 1));
  for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) table[i][j] = left[i] === right[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  /** @type {{word: string, in: "both"|"left"|"right"}[]} */
  const found = [];
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && left[i] === right[j]) {
      found.push({ word: left[i++], in: "both" });
      j++;
    } else if (j >= m || (i < n && table[i + 1][j] >= table[i][j + 1])) found.push({ word: left[i++], in: "left" });
    else found.push({ word: right[j++], in: "right" });
  }
  return found;
}
