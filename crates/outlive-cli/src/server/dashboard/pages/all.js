// @ts-check
// All pages, by the first word of the address.
import { apiPage } from "./api.js";
import { comparePage } from "./compare.js";
import { insightsPage } from "./insights.js";
import { keysPage } from "./keys.js";
import { overviewPage } from "./overview.js";
import { queuePage } from "./queue.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";
import { schedulesPage } from "./schedules.js";
import { workersPage } from "./workers.js";

/** @typedef {{route: import("../model/route.js").Route, redraw: () => void, replace: (hash: string) => void, go: (hash: string) => void}} Frame */

/** @type {Record<string, (frame: Frame) => any>} */
export const pages = {
  api: apiPage,
  compare: comparePage,
  insights: insightsPage,
  keys: keysPage,
  overview: overviewPage,
  queue: queuePage,
  run: runPage,
  runs: runsPage,
  schedules: schedulesPage,
  workers: workersPage,
};
