// graphile-worker with its batches, on the database that the first word names, for as many jobs as the second says.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const [url, jobs] = [process.argv[2], Number(process.argv[3])];
const logger = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString: url, logger });
await utils.migrate();
let began = performance.now();
for (let start = 0; start < jobs; start += 500) {
  const specs = Array.from({ length: Math.min(500, jobs - start) }, (_, at) => ({
    identifier: "nothing",
    payload: { number: start + at },
  }));
  await utils.addJobs(specs);
}
console.log("enqueued", (performance.now() - began) / 1000);
let done = 0;
const client = new pg.Client(url);
await client.connect();
began = performance.now();
const runner = await run({
  taskList: { nothing: () => void done++ },
  preset: {
    worker: {
      connectionString: url,
      logger,
      concurrentJobs: 24,
      pollInterval: 100,
      maxPoolSize: 8,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
  logger,
  noHandleSignals: true,
});
const left = async () => (await client.query("SELECT EXISTS (SELECT 1 FROM graphile_worker._private_jobs) AS any")).rows[0].any;
while (done < jobs || (await left())) await new Promise((go) => setTimeout(go, 2));
console.log("done", (performance.now() - began) / 1000);
process.exit(0);
