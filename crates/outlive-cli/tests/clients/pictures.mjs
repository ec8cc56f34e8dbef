// Pictures of every page in both themes at three widths, of a registry that looks like one in use. Called by hand:
//
//   node crates/outlive-cli/tests/clients/pictures.mjs target/tools target/debug/outlive DIRECTORY [PAGE…]
//
// With OUTLIVE_ASSETS=crates/outlive-cli/src/server/dashboard the page has the modules and styles of that directory, not those of the command.
import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { person, signIn } from "./person.mjs";

const [tools, command, directory, ...only] = process.argv.slice(2);
const outlive = resolve(command);
const scratch = mkdtempSync(join(tmpdir(), "outlive-pictures-"));
const work = join(scratch, "shop");
mkdirSync(work);
mkdirSync(directory, { recursive: true });
const env = { ...process.env, OUTLIVE_HOME: join(scratch, "home"), OUTLIVE_REGISTRY: `sqlite:${join(work, ".outlive")}`, PATH: `${resolve(outlive, "..")}:${process.env.PATH}` };
const call = (...words) => execFileSync(outlive, words, { encoding: "utf8", env, cwd: work });
const tried = (...words) => {
  try {
    return call(...words);
  } catch (error) {
    return error.stdout;
  }
};
const started = (name, kind, script, ...flags) => call("run", "-d", "--name", name, "--kind", kind, ...flags, "--", "bash", "-c", script).trim();

call("init");
const failing = `for i in $(seq 1 40); do echo "epoch $i loss 0.$((1000 - i * 20))"; done; printf '\\033[33mwarning\\033[0m: gradient norm 18.2\\n'; echo 'Traceback (most recent call last):' >&2; echo '  File "train.py", line 214, in step' >&2; echo 'RuntimeError: CUDA out of memory (tried to allocate 2.50 GiB)' >&2; exit 1`;
for (const [name, kind, script] of [
  ["import-orders", "etl", "sleep 0.2"], ["import-users", "etl", "sleep 0.4"], ["export-invoices", "etl", "exit 3"], ["train-resnet", "train", "sleep 0.3"],
  ["test-suite", "ci", "sleep 0.5"], ["deploy-staging", "deploy", "true"], ["test-suite", "ci", "sleep 0.1; exit 2"],
]) tried("wait", started(name, kind, `echo ${name} begins; ${script}`, "--label", "team=data"));
const failed = started("train-resnet", "train", failing, "--label", "team=ml", "--label", "model=resnet50");
tried("wait", failed);
const steps = started("release-2.4", "deploy", "outlive step fetch -- sleep 0.3; outlive step build -- sh -ec 'outlive step compile -- sleep 0.6; outlive step link -- sleep 0.2; outlive step pack -- sleep 0.3'; outlive step test -- sleep 0.8; outlive step publish -- sleep 0.2");
tried("wait", steps);
const dead = started("reindex-search", "etl", "echo shard 17 of 64; sleep 0.3; kill -s KILL $PPID $$");
tried("wait", dead);
started("nightly-backup", "backup", "i=0; while sleep 0.5; do i=$((i+1)); echo copied volume $i; outlive progress $((i+120))/400; done", "--label", "team=ops");
started("train-bert", "train", "i=0; while sleep 0.5; do i=$((i+1)); echo step $i loss 0.$((900 - i)); outlive progress $((i+1800))/2400; done", "--label", "team=ml", "--lock", "gpu");
started("api-server", "service", "while sleep 1; do echo GET /health 200; done");
const add = (...words) => call("queue", "add", ...words).trim().split(" ")[0];
add("--name", "extract", "--kind", "etl", "--lock", "gpu", "--", "true");
add("--name", "clean-orders", "--kind", "etl", "--needs", "extract", "--", "true");
add("--name", "clean-users", "--kind", "etl", "--needs", "extract", "--", "true");
add("--name", "join", "--kind", "etl", "--needs", "clean-orders", "--needs", "clean-users", "--", "true");
add("--name", "report", "--kind", "etl", "--needs", "join", "--", "true");
add("--name", "publish-dashboard-of-sales", "--kind", "etl", "--needs", "report", "--", "true");
add("--name", "train-gpt", "--kind", "train", "--lock", "gpu", "--", "true");
add("--name", "hourly-sync", "--cron", "0 * * * *", "--", "true");
add("--name", "nightly-vacuum", "--cron", "30 3 * * *", "--", "true");
add("--name", "weekly-report", "--cron", "0 9 * * mon", "--", "true");
tried("pause", "weekly-report", "--reason", "holidays");
call("registry", "refresh");

let server = null;
/** Ends whatever was started. */
function clear() {
  server?.kill();
  tried("cancel", "--all", "--yes", "--wait");
  rmSync(scratch, { recursive: true, force: true });
}
process.on("exit", clear);

server = spawn(outlive, ["serve", "--json", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"], env, cwd: work });
const { link } = await new Promise((done) => server.stdout.once("data", (data) => done(JSON.parse(String(data)))));
const { origin } = new URL(link);
const { browser, context, tab } = await person(resolve(tools));
if (process.env.OUTLIVE_ASSETS) {
  const kinds = { js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
  await context.route("**/assets/**", (route) => {
    const name = new URL(route.request().url()).pathname.replace("/assets/", "");
    if (name.startsWith("icon-")) return route.continue();
    return route.fulfill({ contentType: kinds[name.split(".").pop()], body: readFileSync(join(process.env.OUTLIVE_ASSETS, name), "utf8") });
  });
}
// The pictures show no directory of the machine that made them.
await context.route("**/session", async (route) => {
  if (route.request().method() !== "GET") return route.continue();
  const reply = await route.fetch();
  return route.fulfill({ response: reply, json: { ...(await reply.json()), registry: "sqlite:/srv/shop/.outlive", user: "ada" } });
});
const page = await tab();
await signIn(page, link);
const pages = {
  overview: "overview", runs: "runs", queue: "queue", schedules: "schedules", keys: "keys", workers: "workers", insights: "insights", api: "api/queue%20add",
  failed: `run/${failed}`, steps: `run/${steps}/steps`, timeline: `run/${steps}/timeline`, usage: "", details: `run/${failed}/details`, diff: `run/${failed}/diff`, dead: `run/${dead}`, log: "",
};
const live = JSON.parse(call("show", "nightly-backup", "--json")).id;
pages.usage = `run/${live}/usage`;
pages.log = `run/${live}`;
const older = JSON.parse(call("ps", "--all", "--name", "train-resnet", "--json")).runs.at(-1).id;
pages.compare = `compare/${older}/${failed}`;
/** What is done on a page before its picture is taken. */
const before = {
  "dialog-cancel": async () => {
    await page.locator(".actions").getByRole("button", { name: "Cancel", exact: true }).click();
    await page.getByRole("dialog").waitFor();
  },
  "dialog-rerun": async () => {
    await page.getByRole("button", { name: "Rerun with changes…" }).click();
    await page.getByRole("dialog").waitFor();
  },
  "dialog-keys": async () => {
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
  },
};
Object.assign(pages, { "dialog-cancel": `run/${live}/details`, "dialog-rerun": `run/${failed}/details`, "dialog-keys": "keys" });
for (const [name, path] of Object.entries(pages)) {
  if (only.length && !only.includes(name)) continue;
  await page.goto(`${origin}/#/${path}`);
  await page.locator("#main :is(h1, .title)").first().waitFor();
  await page.waitForFunction(() => !document.querySelector("main .loading"));
  if (name === "runs") await page.locator(".histogram .brush").waitFor();
  if (name === "runs") await page.getByText(/^\d{2} runs$/).waitFor();
  await before[name]?.();
  for (const theme of ["light", "dark"]) {
    await page.evaluate((chosen) => (document.documentElement.dataset.theme = chosen), theme);
    for (const [width, height] of [[1440, 900], [820, 900], [390, 844]]) {
      await page.setViewportSize({ width, height });
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      await page.screenshot({ path: `${directory}/${name}-${width}-${theme}.png` });
    }
    // As the documentation shows it.
    await page.setViewportSize({ width: 1180, height: 740 });
    await page.screenshot({ path: `${directory}/docs-${name}-${theme}.png` });
  }
  if (before[name]) await page.getByRole("dialog").last().getByRole("button").first().click();
}
await browser.close();
process.exit(0);
