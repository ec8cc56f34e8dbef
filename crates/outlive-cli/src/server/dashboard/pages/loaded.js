// @ts-check
// A page that shows what an operation answers, and asks again only when the server says that something changed.

/** How long changes are collected before the server is asked again, in milliseconds. */
const PAUSE = 400;

/**
 * @template T
 * @param {() => Promise<T>} load
 * @param {() => void} redraw
 */
export function loaded(load, redraw) {
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
    }, PAUSE));
  };
  kept.again();
  return kept;
}
