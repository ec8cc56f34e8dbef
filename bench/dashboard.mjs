// What the dashboard and `top` cost where there are 100,000 runs: each filter at the server, scrolling, a log of 1,000,000 lines, and
// doing nothing.
//
//   node bench/dashboard.mjs target/tools target/release/outlive
//
// OUTLIVE_BENCH_RUNS is how many runs there are, OUTLIVE_BENCH_LINES how long the log is, OUTLIVE_BENCH_SECONDS for how long what is idle
// is watched; `top` looks seldom where a look is expensive, and is watched for a minute at least.
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { loadavg, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { performance } from "node:perf_hooks";

const [tools, command] = process.argv.slice(2).map((path) => resolve(path));
const RUNS = Number(process.env.OUTLIVE_BENCH_RUNS ?? 100_000);
const LINES = Number(process.env.OUTLIVE_BENCH_LINES ?? 1_000_000);
const SECONDS = Number(process.env.OUTLIVE_BENCH_SECONDS ?? 20);
const ROUNDS = 15;
const scratch = mkdtempSync(join(tmpdir(), "outlive-bench-"));
const env = { ...process.env, OUTLIVE_HOME: join(scratch, "home"), OUTLIVE_REGISTRY: `sqlite:${join(scratch, "r")}`, TERM: "xterm" };
const call = (...words) => execFileSync(command, words, { encoding: "utf8", env, cwd: scratch, maxBuffer: 1 << 28 });
const children = [];
process.on("exit", () => {
  for (const child of children) child.kill();
  try {
    call("cancel", "sampled", "--wait");
  } catch {
    // It was not started.
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
});
const spread = (values) => {
  const sorted = values.slice().sort((a, b) => a - b);
  return `${sorted[sorted.length >> 1].toFixed(1)} (${sorted[0].toFixed(1)}..${sorted.at(-1).toFixed(1)}, ${sorted.length} rounds)`;
};
const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
/** What a process has used of a processor, in seconds, in hundredths: its threads that have ended, too. */
const used = (pid) => readFileSync(`/proc/${pid}/stat`, "utf8").replace(/^.*\) /, "").split(" ").slice(11, 13).reduce((sum, ticks) => sum + Number(ticks) / 100, 0);
const share = async (pid, seconds = SECONDS) => {
  const [before, began] = [used(pid), performance.now()];
  await pause(seconds);
  return `${(((used(pid) - before) * 1000 * 100) / (performance.now() - began)).toFixed(3)} % of a core`;
};
const load = () => `load ${loadavg()[0].toFixed(1)}`;

mkdirSync(env.OUTLIVE_HOME, { recursive: true });

const kinds = ["etl", "train", "deploy", "backup", "ci"];
const line = (i) => JSON.stringify({ name: `job-${i}`, kind: kinds[i % 5], labels: [`team=t${i % 17}`], argv: ["python", "train.py", "--shard", String(i)] });
writeFileSync(join(scratch, "plan.jsonl"), Array.from({ length: RUNS }, (_, i) => line(i)).join("\n"));
call("queue", "add", "--file", join(scratch, "plan.jsonl"), "--json");
console.log(`${RUNS} runs, ${load()}`);

const server = spawn(command, ["serve", "--json", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"], env, cwd: scratch });
children.push(server);
const { link, url } = await new Promise((done) => server.stdout.once("data", (data) => done(JSON.parse(String(data)))));
const token = readFileSync(join(env.OUTLIVE_HOME, "token"), "utf8").trim();
const ask = async (operation, fields) => {
  const reply = await fetch(`${url.replace(/\/$/, "")}/v1/${operation}`, { method: "POST", headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(fields) });
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error.message);
  return answer;
};
const all = { all: true, limit: 100 };
const asked = {
  "no filter": ["ps", all], state: ["ps", { ...all, status: ["pending"] }], "a state that none has": ["ps", { ...all, status: ["failed"] }], kind: ["ps", { ...all, kind: "train" }], name: ["ps", { ...all, name: "job-500" }],
  label: ["ps", { ...all, labels: ["team=t7"] }], "label that none has": ["ps", { ...all, labels: ["team=none"] }], text: ["ps", { ...all, text: "job-77" }], "text that none has": ["ps", { ...all, text: "nowhere" }], time: ["ps", { ...all, since: "1h" }],
  host: ["ps", { ...all, host: "elsewhere" }], user: ["ps", { ...all, user: "eve" }], "kind that none has": ["ps", { ...all, kind: "none" }],
  "text, kind and state": ["ps", { ...all, unarchived: true, text: "train.py", kind: "none", status: ["pending"] }], "label, host and time": ["ps", { ...all, labels: ["team=t7"], host: "elsewhere", since: "1d" }],
  "in the order of names": ["ps", { ...all, limit: 500, sort: "name" }], "of duration, of a kind": ["ps", { ...all, limit: 500, sort: "-duration", kind: "train" }],
  "a page of the list": ["ps", { ...all, limit: 500, unarchived: true }], facets: ["facets", { since: "7d", parts: 80 }],
};
for (const [name, [operation, fields]] of Object.entries(asked)) {
  const took = [];
  try {
    for (let round = 0; round <= ROUNDS; round++) {
      const began = performance.now();
      await ask(operation, fields);
      if (round) took.push(performance.now() - began);
    }
    console.log(`filter: ${name.padEnd(22)} ${spread(took)} ms (bar: 100)`);
  } catch (error) {
    console.log(`filter: ${name.padEnd(22)} not measured: ${error.message}`);
  }
}

const { chromium } = createRequire(`${tools}/`)("playwright-core");
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });
const page = await (await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: "reduce" })).newPage();
await page.goto(link);
await page.locator("#live.on").waitFor();
await page.goto(`${new URL(link).origin}/#/runs`);
await page.getByText(/\+ runs$/).waitFor();
const frames = await page.evaluate(async () => {
  const scroll = document.querySelector(".scroll");
  const times = [];
  for (let step = 0; step < 300; step++) {
    scroll.scrollTop += 120;
    times.push(await new Promise(requestAnimationFrame));
  }
  return times.slice(1).map((time, i) => time - times[i]);
});
const mean = frames.reduce((sum, one) => sum + one, 0) / frames.length;
console.log(`scrolling 36,000 pixels: ${(1000 / mean).toFixed(1)} frames a second in the mean (bar: 50), 95 of 100 frames within ${frames.sort((a, b) => a - b)[Math.floor(frames.length * 0.95)].toFixed(1)} ms, ${load()}`);
for (const path of ["runs", "overview"]) {
  await page.goto(`${new URL(link).origin}/#/${path}`);
  await pause(6);
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable");
  const busy = async () => (await session.send("Performance.getMetrics")).metrics.find((one) => one.name === "TaskDuration").value;
  let requests = 0;
  page.on("request", () => requests++);
  const [before, began] = [await busy(), performance.now()];
  await pause(SECONDS);
  console.log(`${path}, idle: ${(((await busy()) - before) * 1000 * 100 / (performance.now() - began)).toFixed(2)} % of a core in the page (bar: 2), ${requests} requests (bar: 0), ${load()}`);
}
await page.goto(`${new URL(link).origin}/#/overview`);
console.log(`the server, idle, with one listener: ${await share(server.pid)}, ${load()}`);
const long = call("run", "-d", "--name", "long", "--", "seq", "-f", "line %.0f", String(LINES)).trim();
call("wait", long);
for (let round = 0; round < 3; round++) {
  await page.goto("about:blank");
  const began = performance.now();
  await page.goto(`${new URL(link).origin}/#/run/${long}`);
  await page.locator(".log .line .text", { hasText: `line ${LINES}` }).waitFor();
  const painted = performance.now() - began;
  await page.getByText(`${LINES.toLocaleString("en")} lines`).waitFor();
  const whole = performance.now() - began;
  const searched = performance.now();
  await page.getByRole("searchbox", { name: "Find in log" }).fill(`line ${Math.floor(LINES * 0.77)}`);
  await page.locator(".matches", { hasText: " of " }).waitFor();
  console.log(`a log of ${LINES} lines: first paint ${painted.toFixed(0)} ms (bar: 1000), all of it ${whole.toFixed(0)} ms, search ${(performance.now() - searched).toFixed(0)} ms (bar: 500), ${load()}`);
}
await browser.close();

const top = spawn("script", ["-qec", `stty cols 160 rows 50; exec ${command} top`, "/dev/null"], { stdio: ["pipe", "ignore", "ignore"], env, cwd: scratch });
children.push(top);
await pause(3);
const shell = readFileSync(`/proc/${top.pid}/task/${top.pid}/children`, "utf8").trim().split(" ")[0];
console.log(`top, idle: ${await share(shell, Math.max(60, SECONDS))} (bar: 1), ${load()}`);
call("run", "-d", "--name", "sampled", "--", "sleep", "600");
await pause(10);
console.log(`the owner of a run that sleeps, with its heartbeats and samples of usage: ${await share(JSON.parse(call("show", "sampled", "--json")).owner_pid)} (bar of the samples: 0.1), ${load()}`);
process.exit(0);
