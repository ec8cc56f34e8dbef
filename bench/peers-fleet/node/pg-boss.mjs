// pg-boss. Its workers fetch at most twice a second; whoever wants more fetches and completes batches, as its guide says.
import PgBoss from "pg-boss";
import { forEver, inBatches, mark, number, ready, rest, tell, timed, url, verb } from "./common.mjs";

const boss = new PgBoss({ connectionString: url, max: 8, supervise: verb === "hold", schedule: false });
await boss.start();
await boss.createQueue("nothing");

const fill = (jobs) => inBatches(jobs, (batch) => boss.insert(batch.map((data) => ({ name: "nothing", data }))));
// Fetches and completes until `goesOn` says otherwise where there is nothing.
const loops = (count, begin, goesOn) =>
  Promise.all(
    Array.from({ length: count }, async () => {
      for (;;) {
        const batch = await boss.fetch("nothing", { batchSize: 500 });
        if (batch.length === 0) {
          if (!(await goesOn())) return;
          continue;
        }
        batch.forEach(begin);
        await boss.complete("nothing", batch.map((job) => job.id));
      }
    }),
  );

if (verb === "drain") {
  await timed("enqueued", () => fill(number(0)));
  await timed("done", () => loops(4, () => {}, () => false));
} else if (verb === "fill") {
  await fill(number(0));
} else if (verb === "add") {
  for (let job = 0; job < number(0); job++) {
    await boss.send("nothing", { mark: mark() });
    await rest(number(1));
  }
} else if (verb === "work") {
  ready();
  await loops(number(0) >= 100 ? 4 : 1, (job) => tell(job.data.mark), async () => (await rest(20), true));
} else {
  // A worker has one batch at a time.
  for (let slot = 0; slot < number(0); slot++) {
    await boss.work("nothing", async ([job]) => {
      tell(job.data.mark);
      await forEver();
    });
  }
  ready();
  await forEver();
}
process.exit(0);
