// @ts-check
// The differences between two runs as the operation `diff` answers them, for people; and the words in which two commands differ.
import { duration, moment, size } from "./text.js";

/** @typedef {{name: string, left: string, right: string, same: boolean, measured: boolean, ratio: string}} Difference */

/** What a field is called for people. @param {string} field */
function label(field) {
  return field.includes(" ") ? field : field.replace(/_(ms|bytes)$/, "").replaceAll("_", " ");
}

/** A value for people. @param {string} field @param {any} value @param {boolean} utc */
function shown(field, value, utc) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" && field.endsWith("_ms")) return duration(value);
  if (typeof value === "number" && field.endsWith("_bytes")) return size(value);
  if (field.endsWith("_at")) return moment(value, utc);
  if (typeof value === "object") return Object.entries(value).map(([key, one]) => `${key}=${one}`).join(", ");
  return String(value);
}

/** How many times the left the right is, where that says more than both. @param {any} field */
function ratio(field) {
  const isSize = /_(ms|bytes)$/.test(field.field) && typeof field.left === "number" && typeof field.right === "number";
  if (!isSize || field.left < 1 || field.equal) return "";
  const times = field.right / field.left;
  return times > 0.95 && times < 1.05 ? "" : `×${times >= 10 ? Math.round(times) : times.toFixed(2)}`;
}

/** @param {any} step */
function stepText(step) {
  return step ? `${step.state} ${duration(step.duration_ms)}`.trim() : "";
}

/** The rows of a comparison; what neither run has is left out. @param {any} answer @param {boolean} utc @returns {Difference[]} */
export function rows(answer, utc) {
  const fields = answer.fields.filter((/** @type {any} */ field) => field.left !== null || field.right !== null).map((/** @type {any} */ field) => ({
    name: label(field.field), left: shown(field.field, field.left, utc), right: shown(field.field, field.right, utc), same: field.equal, measured: field.measured, ratio: ratio(field),
  }));
  const steps = answer.steps.map((/** @type {any} */ step) => ({ name: `step ${step.name}`, left: stepText(step.left), right: stepText(step.right), same: step.equal, measured: false, ratio: "" }));
  return [...fields.filter((/** @type {any} */ row) => !row.measured), ...steps, ...fields.filter((/** @type {any} */ row) => row.measured)];
}

/** The state of a side of a comparison. @param {any} answer @param {"left"|"right"} side */
export function stateOf(answer, side) {
  return answer.fields.find((/** @type {any} */ field) => field.field === "state")?.[side] ?? "";
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
