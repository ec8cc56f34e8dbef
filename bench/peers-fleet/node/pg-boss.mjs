// pg-boss with batches, on the database that the first word names, for as many jobs as the second says.
import PgBoss from "pg-boss";

const [url, jobs] = [process.argv[2], Number(process.argv[3])];
const boss = new PgBoss({ connectionString: url, max: 8, supervise: false, schedule: false });
await boss.start();
await boss.createQueue("nothing");
let began = performance.now();
for (let start = 0; start < jobs; start += 500) {
  const batch = Array.from({ length: Math.min(500, jobs - start) }, (_, at) => ({
    name: "nothing",
    data: { number: start + at },
  }));
  await boss.insert(batch);
}
console.log("enqueued", (performance.now() - began) / 1000);
// Its workers fetch at most every half second; whoever wants more fetches and completes batches, as its guide says.
began = performance.now();
let done = 0;
await Promise.all(
  Array.from({ length: 4 }, async () => {
    while (done < jobs) {
      const batch = await boss.fetch("nothing", { batchSize: 500 });
      if (batch.length === 0) break;
      await boss.complete("nothing", batch.map((job) => job.id));
      done += batch.length;
    }
  }),
);
console.log("done", (performance.now() - began) / 1000);
process.exit(0);
