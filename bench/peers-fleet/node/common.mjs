// What the programs share: how they are called (see ../common.rs), and what they say.
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

export const [url, verb] = process.argv.slice(2);
export const number = (place) => Number(process.argv[4 + place]);
export const rest = (ms) => new Promise((go) => setTimeout(go, ms));
export const forEver = () => new Promise(() => setInterval(() => {}, 1 << 30));
export const mark = now;
export const tell = (mark) => process.stdout.write(`picked ${Math.max(0, now() - mark)} ${mark}\n`);
export const ready = () => process.stdout.write("ready\n");

export const timed = async (what, work) => {
  const began = performance.now();
  await work();
  console.log(what, (performance.now() - began) / 1000);
};

// Makes so many jobs, 500 at a time.
export const inBatches = async (jobs, make) => {
  for (let start = 0; start < jobs; start += 500) {
    await make(Array.from({ length: Math.min(500, jobs - start) }, (_, at) => ({ mark: start + at })));
  }
};
