// @ts-check
// A page that shows what an operation answers, and asks again only when the server says that something changed.
import { store } from "../net/store.js";

/** How long changes are collected before the server is asked again, in milliseconds. */
const PAUSE = 400;

/**
 * @template T
 * @param {() => Promise<T>} load
 * @param {() => void} redraw
 * @param {number} [pause]
 */
export function loaded(load, redraw, pause = PAUSE) {
  const kept = { /** @type {T|null} */ answer: null, problem: "", timer: 0, again: () => {}, soon: () => {}, leave: () => clearTimeout(kept.timer) };
  let turn = 0;
  kept.again = () => {
    const mine = ++turn;
    load().then((answer) => {
      if (mine === turn) Object.assign(kept, { answer, problem: "" });
    }, (error) => {
      if (mine === turn) kept.problem = error.message;
    }).then(redraw);
  };
  kept.soon = () => {
    if (kept.timer) return;
    kept.timer = /** @type {any} */ (setTimeout(() => {
      kept.timer = 0;
      kept.again();
    }, pause));
  };
  kept.again();
  return kept;
}

/**
 * Calls `act` when runs came or changed their state, and not when one only reports progress or usage.
 * @param {() => void} act
 * @param {(run: any) => string} [of] what a change must be of
 * @returns {(runs: any[]) => void}
 */
export function onState(act, of = (run) => run.state) {
  const known = new Map(store.all().map((run) => [run.id, of(run)]));
  return (runs) => {
    const changed = runs.filter((run) => known.get(run.id) !== of(run));
    for (const run of changed) known.set(run.id, of(run));
    if (changed.length) act();
  };
}
