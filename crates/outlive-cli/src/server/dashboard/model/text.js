// @ts-check
// Text for people: durations, moments, sizes, shell words. Pure functions, without a document.

/** Characters that hide, or change the direction of their neighbours, as the table of the command has them. Tabs and line ends stay. */
export const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/**
 * A text in which hidden characters are written as escapes.
 * @param {unknown} text
 */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/**
 * A duration in at most two units. Every unit is rounded down before it is shown, so 60 seconds are never left over.
 * @param {number|null|undefined} ms
 */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))}ms`;
  const s = ms / 1000;
  if (s < 10) return `${Math.floor(s * 10) / 10}s`;
  const whole = Math.floor(s);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${Math.floor((whole % 3600) / 60)}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

/**
 * How long ago a moment was, or how long it is until then.
 * @param {string|null|undefined} at
 * @param {number} now
 */
export function ago(at, now) {
  if (!at) return "";
  const ms = now - Date.parse(at);
  if (Math.abs(ms) < 1000) return "now";
  return ms >= 0 ? `${duration(coarse(ms))} ago` : `in ${duration(coarse(-ms))}`;
}

/** Whole seconds below ten: a moment that is shown as text does not need tenths. @param {number} ms */
function coarse(ms) {
  return ms < 10_000 ? Math.floor(ms / 1000) * 1000 : ms;
}

const two = (/** @type {number} */ n) => String(n).padStart(2, "0");

/**
 * Date and time in local time or in UTC, the same on every machine.
 * @param {string|number|null|undefined} at
 * @param {boolean} utc
 */
export function moment(at, utc) {
  const parts = split(at, utc);
  return parts ? `${parts.date} ${parts.time}${utc ? " UTC" : ""}` : "";
}

/**
 * The time of day, with milliseconds where they are wanted.
 * @param {string|number|null|undefined} at
 * @param {boolean} utc
 * @param {boolean} [fine]
 */
export function clock(at, utc, fine = false) {
  const parts = split(at, utc);
  return parts ? (fine ? `${parts.time}.${parts.ms}` : parts.time) : "";
}

/** @param {string|number|null|undefined} at @param {boolean} utc */
function split(at, utc) {
  if (at === null || at === undefined || at === "") return null;
  const d = new Date(at);
  if (Number.isNaN(d.getTime())) return null;
  const [y, mo, day, h, mi, s, ms] = utc
    ? [d.getUTCFullYear(), d.getUTCMonth(), d.getUTCDate(), d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds(), d.getUTCMilliseconds()]
    : [d.getFullYear(), d.getMonth(), d.getDate(), d.getHours(), d.getMinutes(), d.getSeconds(), d.getMilliseconds()];
  return { date: `${y}-${two(mo + 1)}-${two(day)}`, time: `${two(h)}:${two(mi)}:${two(s)}`, ms: String(ms).padStart(3, "0") };
}

/** A size in binary units. @param {number|null|undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [value, unit] = [bytes, 0];
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** A number with its unit in the right form. @param {number} n @param {string} one @param {string} [many] */
export function count(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

/** A word as a POSIX shell must be given it. @param {string} word */
export function quote(word) {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word)) return word;
  return `'${word.replaceAll("'", `'\\''`)}'`;
}

/** A command as a POSIX shell must be given it. @param {string[]} argv */
export function commandLine(argv) {
  return argv.map(quote).join(" ");
}

/**
 * The words of a command line, as a POSIX shell splits it; null where a quote is not closed. Variables stay as they are.
 * @param {string} line
 * @returns {string[]|null}
 */
export function words(line) {
  const found = [];
  let word = null;
  for (let i = 0; i < line.length; i++) {
    const c = line[i];
    if (/\s/.test(c)) {
      if (word !== null) found.push(word);
      word = null;
    } else if (c === "'") {
      const end = line.indexOf("'", i + 1);
      if (end < 0) return null;
      word = (word ?? "") + line.slice(i + 1, end);
      i = end;
    } else if (c === '"') {
      word ??= "";
      for (i++; i < line.length && line[i] !== '"'; i++) {
        if (line[i] === "\\" && '"\\$`'.includes(line[i + 1] ?? " ")) i++;
        word += line[i];
      }
      if (i >= line.length) return null;
    } else if (c === "\\") {
      if (i + 1 >= line.length) return null;
      word = (word ?? "") + line[++i];
    } else word = (word ?? "") + c;
  }
  if (word !== null) found.push(word);
  return found;
}
