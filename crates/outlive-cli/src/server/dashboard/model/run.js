// @ts-check
// A run as the page shows it: its word, its tone, its title, its progress. Rules about states are the server's (`can`).
import { commandLine } from "./text.js";

/**
 * @typedef {{id: string, name: string|null, kind: string, labels: Record<string, string>, command: string[]|null, cwd: string|null,
 *   state: string, health: string|null, can: string[], reason: string|null, priority: number, queued: boolean, not_before: string|null,
 *   waits_for: string[], attempt: number, epoch: number, owner: string|null, owner_host: string|null, owner_pid: number|null,
 *   host: string|null, last_beat_at: string|null, leftover_pids: number[], leftover_names: string[], created_by: string,
 *   created_at: string, started_at: string|null, ended_at: string|null, updated_at: string, duration_ms: number|null,
 *   exit_code: number|null, signal: number|null, error_type: string|null, error_message: string|null,
 *   cancel_requested_at: string|null, progress_done: number|null, progress_total: number|null, progress_message: string|null,
 *   archived: boolean, step: string|null, step_of: string|null, schedule?: string|null, upcoming: string[], keys?: {mode: string, name: string, limit: number}[],
 *   [more: string]: any}} Run
 */

/** The states in which a run is not over. */
export const IN_FLIGHT = ["pending", "running", "suspended"];
/** The healths that want a look. `late` passes by itself. */
export const UNWELL = ["stalled", "overdue", "unresponsive", "orphaned"];

/** What `status` asks the server for to list the runs that an operator should look at. */
export const ATTENTION = ["dead", "interrupted", "parked", ...UNWELL];

/** How a run stands, in one word. @param {{state: string, health?: string|null, replays?: string|null, can?: string[]}} run */
export function word(run) {
  if (run.health && run.health !== "healthy") return run.health;
  if (run.can?.includes("unpause")) return "paused";
  return run.replays ? "replayed" : run.state;
}

const TONES = {
  running: "busy", succeeded: "good", failed: "bad", dead: "bad", interrupted: "warn", pending: "wait", suspended: "wait", cancelled: "quiet",
  late: "warn", stalled: "warn", overdue: "warn", unresponsive: "warn", orphaned: "bad", replayed: "good", paused: "warn",
  alive: "good", silent: "bad", gone: "bad",
};

/** What the word of a run means for an operator: good, busy, wait, warn, bad or quiet. @param {string} name */
export function tone(name) {
  return TONES[name] ?? "quiet";
}

/** @param {{name?: string|null, step?: string|null, command?: string[]|null, kind?: string, id?: string}} run */
export function title(run) {
  return run.name ?? run.step ?? (run.command ? commandLine(run.command) : run.kind ?? run.id ?? "");
}

/** Whether an operator should look at it. @param {Run} run */
export function needsAttention(run) {
  if (run.archived) return false;
  return ["dead", "interrupted"].includes(run.state) || UNWELL.includes(run.health ?? "") || run.can.includes("unpark");
}

/** @param {Run} run */
export function isInFlight(run) {
  return IN_FLIGHT.includes(run.state);
}

/** For how long it has run, in milliseconds; null where it has not. @param {Run} run @param {number} now */
export function elapsed(run, now) {
  if (!run.started_at) return run.duration_ms;
  if (run.ended_at || run.state === "dead") return run.duration_ms;
  return Math.max(0, now - Date.parse(run.started_at));
}

/** Progress between 0 and 1; null where there is none or no total. @param {Run} run */
export function fraction(run) {
  const { progress_done: done, progress_total: total } = run;
  if (done === null || done === undefined || !total) return null;
  return Math.min(1, Math.max(0, done / total));
}

/** When it will be done at its present speed, in milliseconds from now; null where that is unknown. @param {Run} run @param {number} now */
export function remaining(run, now) {
  const [share, ran] = [fraction(run), elapsed(run, now)];
  if (run.state !== "running" || !share || ran === null || share >= 1 || ran < 1000) return null;
  return (ran * (1 - share)) / share;
}

/** How it ended, in words for a header; empty while it has not. @param {Run} run */
export function ending(run) {
  if (run.signal !== null && run.signal !== undefined) return `signal ${run.signal}`;
  if (run.exit_code !== null && run.exit_code !== undefined) return `exit code ${run.exit_code}`;
  return run.error_type ?? "";
}

/** The call that gives the same command to a shell. @param {Run} run */
export function asCommand(run) {
  if (!run.command) return "";
  const name = run.name ? ` --name ${commandLine([run.name])}` : "";
  const labels = Object.entries(run.labels ?? {}).map(([key, value]) => ` --label ${commandLine([`${key}=${value}`])}`).join("");
  const run_it = `outlive run${name}${labels} -- ${commandLine(run.command)}`;
  return run.cwd ? `cd ${commandLine([run.cwd])} && ${run_it}` : run_it;
}
