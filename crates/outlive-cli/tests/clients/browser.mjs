// A person with a browser: watches a run live, follows what it writes, cancels, resumes, archives, searches, and looks at its
// steps, the queue, the workers and the charts. Called by the test with the tools' directory, the link, the command that plays
// the shell, where to put pictures, and a secret that a run was given.
import { execFileSync, spawn } from "node:child_process";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

const [tools, link, outlive, pictures, secret] = process.argv.slice(2);
const require = createRequire(`${tools}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const shell = (...words) => execFileSync(outlive, words, { encoding: "utf8" });

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const { origin } = new URL(link);
const complaints = [];
// The checker of accessibility is put into the page by us; the page's own policy forbids everybody else to.
const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, reducedMotion: "reduce" });
const page = await context.newPage();
page.setDefaultTimeout(30_000);
page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("requestfailed", (request) => {
  // Streams end with the page, and so does what it had not yet loaded of its own.
  const ends = /\/v1\/(changes|follow)/.test(request.url()) || (request.url().includes("/assets/") && request.failure()?.errorText === "net::ERR_ABORTED");
  if (!ends) complaints.push(`${request.url()} ${request.failure()?.errorText}`);
});
page.on("request", (request) => {
  if (new URL(request.url()).origin !== origin) complaints.push(`asked elsewhere: ${request.url()}`);
});
const text = (wanted) => page.getByText(wanted, { exact: true }).first();
/** The whole page: the window is made as high as what is in it. */
async function picture(name) {
  const { width, height } = page.viewportSize();
  const whole = await page.evaluate(() => document.querySelector("header").offsetHeight + document.querySelector("main").scrollHeight);
  await page.setViewportSize({ width, height: Math.min(6000, Math.max(height, whole)) });
  await page.screenshot({ path: `${pictures}/${name}.png` });
  await page.setViewportSize({ width, height });
}
async function accessible(where) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
  const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
  assert.deepEqual(serious.map((one) => `${where}: ${one.id} ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`), []);
}
async function looks(name) {
  await accessible(name);
  for (const theme of ["light", "dark"]) {
    await page.evaluate((theme) => (document.documentElement.dataset.theme = theme), theme);
    await picture(`${name}-${theme}`);
    await accessible(`${name} ${theme}`);
  }
  await page.setViewportSize({ width: 390, height: 800 });
  await picture(`${name}-phone-dark`);
  await page.evaluate(() => (document.documentElement.dataset.theme = "light"));
  await picture(`${name}-phone`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  assert.equal(wide, false, `${name} is wider than a phone`);
  await page.setViewportSize({ width: 1200, height: 800 });
  await page.evaluate(() => (document.documentElement.dataset.theme = "light"));
}
const confirmed = async (name) => {
  await page.getByRole("button", { name, exact: true }).click();
  await page.getByRole("button", { name: "Yes" }).click();
};

// The link makes the browser known, and the key leaves the address.
await page.goto(link);
await page.locator("#live.on").waitFor();
assert.ok(!page.url().includes("key="), page.url());
const cookies = await context.cookies();
assert.ok(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", JSON.stringify(cookies));

// A run that begins while the page is open appears in it.
const script = `i=0; while [ $i -lt 2000 ]; do i=$((i+1)); printf '\\033[32mline %s\\033[0m <b>bold</b>\\n' $i; outlive progress $i/2000; sleep 0.2; done`;
const run = shell("run", "-d", "--name", "watched", "--", "sh", "-c", script).trim();
await page.getByRole("row").filter({ hasText: "watched" }).waitFor();
await looks("runs");

// Searching narrows the list; keys lead through it.
await page.keyboard.press("/");
await page.keyboard.type("watched");
await page.waitForFunction(() => document.querySelectorAll(".space .row").length === 1);
await page.keyboard.press("ArrowDown");
await page.keyboard.press("Enter");
await page.waitForURL(new RegExp(`run/${run}`));

// What it writes is followed, coloured, and is text whatever it looks like.
await page.locator(".log span.f2", { hasText: /^line \d+$/ }).nth(3).waitFor();
assert.equal(await page.locator(".log b").count(), 0);
assert.match(await page.locator(".log").innerText(), /<b>bold<\/b>/);
const before = await page.locator(".log span.f2").count();
await page.waitForFunction((before) => document.querySelectorAll(".log span.f2").length > before, before);
await looks("run");

// It is stopped, and the page says so by itself.
await confirmed("Cancel");
await page.locator(".title .badge", { hasText: "cancelled" }).waitFor();
await picture("run-cancelled");

// One that was interrupted is resumed, and its next attempt is followed.
const stopped = spawn(outlive, ["run", "--name", "stopped", "--", "sh", "-c", "echo attempt $OUTLIVE_ATTEMPT; exec sleep 300"], { stdio: "ignore" });
await page.goto(`${origin}/#/`);
await page.reload();
await page.getByRole("row").filter({ hasText: "stopped" }).click();
await page.locator(".title .badge", { hasText: "running" }).waitFor();
stopped.kill("SIGTERM");
await page.locator(".title .badge", { hasText: "interrupted" }).waitFor();
await confirmed("Resume");
await page.locator(".title .badge", { hasText: "running" }).waitFor();
await page.locator(".log", { hasText: "attempt 2" }).waitFor();
await confirmed("Cancel");
await page.locator(".title .badge", { hasText: "cancelled" }).waitFor();

// It is made again, and the page of what was made is shown.
const original = page.url().split("/").pop();
await confirmed("Rerun");
await page.waitForURL((url) => !url.hash.endsWith(original));
const made = JSON.parse(shell("show", page.url().split("/").pop(), "--json"));
assert.equal(made.name, "stopped");
assert.notEqual(made.id, original);
await page.locator(".title .badge", { hasText: made.state }).waitFor();

// It is put away, after a question that can be answered with no, and comes back.
await confirmed("Cancel");
await page.locator(".title .badge", { hasText: "cancelled" }).waitFor();
const archived = () => JSON.parse(shell("show", made.id, "--json")).archived;
await page.getByRole("button", { name: "Archive", exact: true }).click();
await page.getByRole("button", { name: "No", exact: true }).click();
assert.equal(archived(), false);
await confirmed("Archive");
await page.locator(".title", { hasText: "archived" }).waitFor();
assert.equal(archived(), true);
await page.goto(`${origin}/#/`);
await page.locator(".space .row").first().waitFor();
await page.locator(`.row[data-id="${made.id}"]`).waitFor({ state: "detached" });
await page.goto(`${origin}/#/run/${made.id}`);
await confirmed("Unarchive");
await page.getByRole("button", { name: "Archive", exact: true }).waitFor();
assert.equal(archived(), false);

// Steps are a tree, each with its time; what is inside another stands below it, and deeper.
const deep = JSON.parse(shell("show", "steps", "--json"));
await page.goto(`${origin}/#/run/${deep.id}`);
await page.locator("table.steps").waitFor();
const drawn = await page.locator("table.steps tbody tr:has(td)").evaluateAll((rows) => rows.map((row) => {
  const [place] = row.cells;
  const bar = row.querySelector("rect").getBBox();
  return { name: place.querySelector("a").textContent, depth: Number(place.dataset.depth), left: place.querySelector("a").getBoundingClientRect().left, from: bar.x, to: bar.x + bar.width };
}));
assert.deepEqual(drawn.map(({ name, depth }) => [name, depth]), [["fetch", 0], ["build", 0], ["compile", 1], ["<b>link</b>", 2], ["pack", 1], ["test", 0]]);
for (const [inner, outer] of [[2, 1], [3, 2], [4, 1]]) {
  assert.ok(drawn[inner].left > drawn[outer].left, `${drawn[inner].name} stands no deeper than ${drawn[outer].name}`);
  assert.ok(drawn[inner].from >= drawn[outer].from && drawn[inner].to <= drawn[outer].to + 1, `${drawn[inner].name} is drawn outside ${drawn[outer].name}`);
}
assert.ok(drawn[4].from >= drawn[3].from && drawn[5].from >= drawn[1].from, JSON.stringify(drawn));
await looks("steps");
await page.getByRole("link", { name: "compile", exact: true }).click();
await page.locator("dt", { hasText: "inside" }).waitFor();

// What waits says for what: runs, and entries that others than outlive execute.
await page.goto(`${origin}/#/queue`);
const waits = (region, row) => page.getByRole("region", { name: region, exact: true }).getByRole("row").filter({ hasText: row });
await waits("Queue", "second").filter({ hasText: "waits for `" }).waitFor();
await waits("Entries of all repositories", "app later").filter({ hasText: "waits until " }).waitFor();
await waits("Entries of all repositories", "app blocked").filter({ hasText: "waits for key `db`, held by `" }).waitFor();
await waits("Entries of all repositories", "app free").filter({ hasText: "waits for an executor" }).waitFor();

// Whoever owns a run is a worker.
const busy = shell("run", "-d", "--name", "busy", "--", "sleep", "300").trim();
const owner = JSON.parse(shell("show", busy, "--json"));
await page.goto(`${origin}/#/workers`);
const worker = page.getByRole("row").filter({ hasText: owner.owner });
await worker.filter({ hasText: "alive" }).waitFor();
assert.deepEqual((await worker.getByRole("cell").allInnerTexts()).slice(1, 5), [owner.owner_host, String(owner.owner_pid), "alive", "1"]);

// What a page is told after it was left stays out of the next.
let release;
const held = new Promise((done) => (release = done));
let asked = 0;
await page.route("**/v1/workers", async (route) => {
  asked += 1;
  await held;
  await route.continue();
});
shell("queue", "add", "--name", "news", "--not-before", "1h", "--", "true");
while (!asked) await page.waitForTimeout(50);
await page.goto(`${origin}/#/charts`);
await page.getByRole("heading", { name: "Charts" }).waitFor();
const late = page.waitForResponse("**/v1/workers");
release();
await (await late).finished();
await page.unroute("**/v1/workers");
await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
assert.equal(await page.locator("h1").innerText(), "Charts");

// Charts count what there is, each state for itself, and say what ended runs early.
const counted = {};
for (const run of JSON.parse(shell("ps", "--all", "--limit", "1000", "--json")).runs) counted[run.state] = (counted[run.state] ?? 0) + 1;
await page.goto(`${origin}/#/charts`);
for (const [state, count] of Object.entries(counted)) await page.locator(".legend li", { hasText: new RegExp(`^${state} ${count}$`) }).waitFor();
const series = await page.locator(".plot rect").evaluateAll((all) => all.map((rect) => [rect.dataset.state, getComputedStyle(rect).fill]));
assert.deepEqual([...new Set(series.map(([state]) => state))].sort(), Object.keys(counted).sort());
assert.equal(new Set(series.map(([, fill]) => fill)).size, Object.keys(counted).length, "two states look alike");
assert.ok(counted.succeeded && counted.failed && counted.dead, JSON.stringify(counted));
for (const [name, count] of [["Deaths", counted.dead], ["Failures", counted.failed]]) {
  const cells = page.getByRole("region", { name, exact: true }).locator("td.num");
  assert.equal((await cells.allInnerTexts()).reduce((sum, text) => sum + Number(text), 0), count, name);
}
assert.match(await page.getByRole("region", { name: "Deaths", exact: true }).innerText(), /process is gone|is gone|died|ended/i);
assert.ok((await page.getByRole("region", { name: "Durations", exact: true }).getByRole("row").count()) === 8);
await page.getByRole("combobox", { name: "Runs made within" }).selectOption("1 hour");
await page.locator(".plot rect").first().waitFor();
shell("cancel", busy, "--wait");

// Names, labels, reasons and output of a stranger are text wherever they are shown.
const strange = JSON.parse(shell("ps", "--all", "--limit", "1000", "--json")).runs.filter((run) => run.labels.hostile);
assert.ok(strange.length >= 4, "the strangers are missing");
for (const run of strange) {
  await page.goto(`${origin}/#/run/${run.id}`);
  await page.locator(".title h1").waitFor();
  const shown = await page.evaluate(() => document.querySelector("main").innerText);
  assert.doesNotMatch(shown, /[\u202a-\u202e\u2066-\u2069\u200b-\u200f\x1b\x00]/, "what nobody sees is in the page");
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth || document.querySelector("main").scrollWidth > document.querySelector("main").clientWidth);
  assert.equal(wide, false, `the page of ${run.name} is wider than the window`);
}
await page.getByText("\\u{202e}").first().waitFor();
await looks("hostile");
for (const path of ["#/", "#/queue", "#/workers", "#/charts"]) {
  await page.goto(`${origin}/${path}`);
  await page.locator("h1").first().waitFor();
  await page.waitForFunction(() => !document.querySelector("main .note")?.textContent.startsWith("Loading"));
  // No link leads out of the page, whatever runs are called.
  const leads = await page.evaluate(() => [...document.links].filter((link) => !link.getAttribute("href").startsWith("#")).map((link) => link.outerHTML));
  assert.deepEqual(leads, [], path);
  if (path !== "#/") await looks(path.slice(2));
  assert.ok(!(await page.content()).includes(secret), `${path} tells a secret`);
}
const secretive = JSON.parse(shell("show", "secretive", "--json")).id;
await page.goto(`${new URL(link).origin}/#/run/${secretive}`);
await page.getByText("[redacted]").first().waitFor();
assert.ok(!(await page.content()).includes(secret), "the page of a run tells a secret");
assert.equal(await page.evaluate(() => window.pwned), undefined);
assert.equal(await page.locator("main script, main img, main b").count(), 0);

// More runs than are loaded at once: the page says so, and loads older ones when it is asked to or scrolled there.
const one = JSON.parse(shell("ps", "--all", "--limit", "1", "--json")).runs[0];
const OLD = 22500;
const old = (index) => ({ ...one, id: `many-${index}`, name: `many ${index}`, created_at: new Date(1e12 - index * 1000).toISOString() });
await page.route("**/v1/ps", (route) => {
  const { after, limit } = route.request().postDataJSON();
  const from = Number(after ?? 0);
  const to = Math.min(OLD, from + limit);
  const runs = Array.from({ length: to - from }, (_, index) => old(from + index));
  return route.fulfill({ json: { schema: 1, registry: "", runs, next: to < OLD ? String(to) : null } });
});
await page.goto(`${origin}/#/`);
await page.reload();
await page.getByText("10000 of the newest 10000", { exact: true }).waitFor();
await page.getByText("The newest 10000 are loaded; there are older ones.").waitFor();
await accessible("older");
await page.getByRole("button", { name: "Load older" }).click();
await page.getByText("20000 of the newest 20000", { exact: true }).waitFor();
await page.goto(`${origin}/#/charts`);
await page.getByText("The newest 20000 are loaded; there are older ones.").waitFor();
await page.goto(`${origin}/#/`);

// They scroll: what is out of sight is not in the page, and what comes into sight is all that is made.
const scrolled = await page.evaluate(async () => {
  const scroll = document.querySelector(".scroll");
  let made = 0;
  const watch = new MutationObserver((all) => all.forEach((one) => (made += [...one.addedNodes].filter((node) => node.classList?.contains("row")).length)));
  watch.observe(document.querySelector(".space"), { childList: true });
  const times = [];
  const steps = [];
  for (let step = 0; step < 60; step++) {
    const [began, before] = [performance.now(), made];
    scroll.scrollTop = (scroll.scrollHeight * step) / 61;
    scroll.dispatchEvent(new Event("scroll"));
    const top = scroll.getBoundingClientRect().top;
    times.push(performance.now() - began);
    await new Promise(requestAnimationFrame);
    const inSight = [...document.querySelectorAll(".space .row")].some((row) => Math.abs(row.getBoundingClientRect().top - top) <= 36);
    steps.push({ made: made - before, rows: document.querySelectorAll(".space .row").length, inSight });
  }
  times.sort((a, b) => a - b);
  return { steps, p50: times[30], p95: times[57] };
});
console.log(JSON.stringify({ scrolled: { p50: scrolled.p50, p95: scrolled.p95 } }));
assert.deepEqual(scrolled.steps.filter(({ made, rows, inSight }) => made > 80 || rows > 80 || !inSight), []);

// Whoever comes to their end is given the rest.
await page.evaluate(() => {
  const scroll = document.querySelector(".scroll");
  scroll.scrollTop = scroll.scrollHeight;
});
await page.getByText(`${OLD} of ${OLD}`, { exact: true }).waitFor();
assert.equal(await page.getByRole("button", { name: "Load older" }).count(), 0);
assert.deepEqual(complaints, []);
await browser.close();
