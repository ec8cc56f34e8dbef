// @ts-check
// Which runs a list shows: the query in the address, the call that the server answers, and whether a run that changed still fits.
import { ATTENTION, IN_FLIGHT, elapsed } from "./run.js";

/** Lists that have a name: what `status` asks the server for. */
export const VIEWS = {
  all: [],
  "in flight": IN_FLIGHT,
  attention: ATTENTION,
  failed: ["failed"],
  succeeded: ["succeeded"],
  cancelled: ["cancelled"],
};

/** @typedef {{view: string, status: string[], text: string, kind: string, name: string, host: string, user: string, labels: string[], since: string, until: string, archived: boolean, sort: string}} Query */

/** @param {URLSearchParams} params @returns {Query} */
export function read(params) {
  const view = params.get("view") ?? "all";
  return {
    view: view in VIEWS ? view : "all",
    status: params.getAll("status"),
    text: params.get("text") ?? "",
    kind: params.get("kind") ?? "",
    name: params.get("name") ?? "",
    host: params.get("host") ?? "",
    user: params.get("user") ?? "",
    labels: params.getAll("label"),
    since: params.get("since") ?? "",
    until: params.get("until") ?? "",
    archived: params.get("archived") === "yes",
    sort: params.get("sort") ?? "",
  };
}

/** The query for an address; defaults are left out. @param {Query} query */
export function write(query) {
  return {
    view: query.view === "all" ? null : query.view,
    status: query.status,
    text: query.text,
    kind: query.kind,
    name: query.name,
    host: query.host,
    user: query.user,
    label: query.labels,
    since: query.since,
    until: query.until,
    archived: query.archived ? "yes" : null,
    sort: query.sort,
  };
}

/** The fields of `ps` for a page of runs. @param {Query} query @param {number} limit @param {string|null} cursor */
export function fields(query, limit, cursor) {
  const status = query.status.length ? query.status : VIEWS[query.view];
  const asked = { all: true, limit, status, labels: query.labels, unarchived: !query.archived };
  const optional = { cursor, sort: query.sort, text: query.text.trim(), kind: query.kind, name: query.name, host: query.host, user: query.user, since: query.since, until: query.until };
  for (const [name, value] of Object.entries(optional)) if (value) asked[name] = value;
  return asked;
}

/** A moment as the server reads it: a date, or how long ago. @param {string} text @param {number} now */
export function pastMoment(text, now) {
  const span = /^(\d+)([smhdw])$/.exec(text);
  if (!span) return Date.parse(text);
  return now - Number(span[1]) * { s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 6048e5 }[span[2]];
}

/** Whether a run belongs to the list. @param {import("./run.js").Run} run @param {Query} query @param {number} now */
export function fits(run, query, now) {
  const status = query.status.length ? query.status : VIEWS[query.view];
  if (run.step_of) return false;
  if (status.length && !status.includes(run.state) && !status.includes(run.health ?? "") && !(status.includes("parked") && run.can.includes("unpark"))) return false;
  if (run.archived && !query.archived) return false;
  if (query.kind && run.kind !== query.kind) return false;
  if (query.name && run.name !== query.name) return false;
  if (query.host && run.host !== query.host) return false;
  // A maker is written as USER@HOST.
  if (query.user && run.created_by.slice(0, run.created_by.lastIndexOf("@")) !== query.user) return false;
  if (query.labels.some((label) => !hasLabel(run, label))) return false;
  const made = Date.parse(run.created_at);
  if (query.since && made < pastMoment(query.since, now)) return false;
  if (query.until && made >= pastMoment(query.until, now)) return false;
  return mentions(run, query.text.trim());
}

/** @param {import("./run.js").Run} run @param {string} label */
function hasLabel(run, label) {
  const at = label.indexOf("=");
  return run.labels[label.slice(0, at)] === label.slice(at + 1);
}

/** @param {import("./run.js").Run} run @param {string} text */
function mentions(run, text) {
  if (!text) return true;
  const wanted = text.toLowerCase();
  const labels = Object.entries(run.labels).map(([label, value]) => `${label}=${value}`);
  return [run.name, run.kind, ...labels, ...(run.command ?? [])].some((found) => found?.toLowerCase().includes(wanted));
}

/** What a list is sorted by; null where a run has no such thing. The server sorts by the same (`ps --sort`). */
const VALUES = {
  name: (run) => run.name,
  state: (run) => run.state,
  kind: (run) => run.kind,
  duration: (run, now) => elapsed(run, now),
  started: (run) => run.started_at,
  created: (run) => run.created_at,
};

/** The newest first. @param {import("./run.js").Run} a @param {import("./run.js").Run} b */
function newest(a, b) {
  return a.created_at < b.created_at ? 1 : a.created_at > b.created_at ? -1 : a.id < b.id ? 1 : a.id > b.id ? -1 : 0;
}

/**
 * How two runs compare in the order that `sort` names, such as `duration` or `-duration`: runs without a value come last, and those of
 * one value newest first.
 * @param {string} sort @param {number} now
 * @returns {(a: import("./run.js").Run, b: import("./run.js").Run) => number}
 */
export function inOrder(sort, now) {
  const down = sort.startsWith("-");
  const by = VALUES[down ? sort.slice(1) : sort];
  if (!by) return newest;
  return (a, b) => {
    const [x, y] = [by(a, now) ?? null, by(b, now) ?? null];
    if (x === null || y === null) return Number(x === null) - Number(y === null) || newest(a, b);
    return (x === y ? 0 : (x < y) !== down ? -1 : 1) || newest(a, b);
  };
}
