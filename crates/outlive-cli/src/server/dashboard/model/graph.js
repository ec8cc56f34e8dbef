// @ts-check
// Which run waits for which, laid out in columns: a run stands right of everything that it waits for.

/** @typedef {{id: string, column: number, row: number}} Place */
/** @typedef {{places: Place[], edges: [string, string][], columns: number, rows: number, left: number}} Layout */

/**
 * @param {{id: string, waits_for?: string[]}[]} runs runs that wait, in the order in which they are executed
 * @param {number} most how many runs are placed at most
 * @returns {Layout} `left` is how many were left out
 */
export function layout(runs, most) {
  /** @type {Map<string, string[]>} */
  const parents = new Map();
  let left = 0;
  for (const run of runs.filter((one) => one.waits_for?.length)) {
    const added = [run.id, ...run.waits_for].filter((id) => !parents.has(id)).length;
    if (parents.size + added > most) {
      left++;
      continue;
    }
    for (const id of run.waits_for) if (!parents.has(id)) parents.set(id, []);
    parents.set(run.id, run.waits_for);
  }
  const column = columns(parents);
  /** @type {string[][]} */
  const rows = [];
  for (const id of parents.keys()) {
    while (rows.length <= column.get(id)) rows.push([]);
    rows[column.get(id)].push(id);
  }
  const row = new Map();
  // A run stands near the middle of what it waits for.
  const middle = (/** @type {string} */ id) => {
    const of = parents.get(id).filter((parent) => row.has(parent));
    return of.length ? of.reduce((sum, parent) => sum + row.get(parent), 0) / of.length : 0;
  };
  for (const ids of rows) {
    const near = new Map(ids.map((id) => [id, middle(id)]));
    ids.sort((a, b) => near.get(a) - near.get(b)).forEach((id, index) => row.set(id, index));
  }
  const places = [...parents.keys()].map((id) => ({ id, column: column.get(id), row: row.get(id) }));
  const edges = [...parents].flatMap(([id, of]) => of.map((parent) => /** @type {[string, string]} */ ([parent, id])));
  return { places, edges, columns: rows.length, rows: Math.max(0, ...rows.map((ids) => ids.length)), left };
}

/** The longest way to each run from one that waits for nothing here. @param {Map<string, string[]>} parents */
function columns(parents) {
  const found = new Map();
  const depth = (/** @type {string} */ id, /** @type {Set<string>} */ on) => {
    if (found.has(id)) return found.get(id);
    // The server refuses runs that wait for each other; a page that shows several moments at once does not hang on one.
    if (on.has(id)) return 0;
    const above = parents.get(id).map((parent) => depth(parent, new Set([...on, id])) + 1);
    found.set(id, Math.max(0, ...above));
    return found.get(id);
  };
  for (const id of parents.keys()) depth(id, new Set());
  return found;
}
