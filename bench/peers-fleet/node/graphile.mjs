// graphile-worker, with its local queue and completions in batches where much is to be done.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { forEver, inBatches, mark, number, ready, rest, tell, timed, url, verb } from "./common.mjs";

const logger = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString: url, logger });
await utils.migrate();

const fill = (jobs) =>
  inBatches(jobs, (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: "nothing", payload }))));
const fast = {
  concurrentJobs: 24,
  pollInterval: 100,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const work = (worker, nothing) =>
  run({
    taskList: { nothing },
    preset: { worker: { connectionString: url, logger, maxPoolSize: 8, ...worker } },
    logger,
    noHandleSignals: true,
  });

if (verb === "drain") {
  const jobs = number(0);
  await timed("enqueued", () => fill(jobs));
  const client = new pg.Client(url);
  await client.connect();
  await timed("done", async () => {
    let done = 0;
    await work(fast, () => void done++);
    const left = async () =>
      (await client.query("SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs) AS any")).rows[0].any;
    while (done < jobs || (await left())) await rest(2);
  });
} else if (verb === "fill") {
  await fill(number(0));
} else if (verb === "add") {
  for (let job = 0; job < number(0); job++) {
    await utils.addJob("nothing", { mark: mark() });
    await rest(number(1));
  }
} else {
  const settings = verb === "work" && number(0) >= 100 ? fast : { concurrentJobs: number(0) };
  await work(settings, async (payload) => {
    tell(payload.mark);
    if (verb === "hold") await forEver();
  });
  ready();
  await forEver();
}
process.exit(0);
