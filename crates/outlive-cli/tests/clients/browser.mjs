// A person with a browser: watches a run live, follows what it writes, cancels, resumes, searches. Called by the test with
// the tools' directory, the link, the command that plays the shell, where to put pictures, and a secret that a run was given.
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
  if (new URL(request.url()).origin !== new URL(link).origin) complaints.push(`asked elsewhere: ${request.url()}`);
});
const text = (wanted) => page.getByText(wanted, { exact: true }).first();
const picture = (name) => page.screenshot({ path: `${pictures}/${name}.png` });
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
await page.goto(`${new URL(link).origin}/#/`);
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

// Names, labels, reasons and output of a stranger are text wherever they are shown.
for (const path of ["#/", "#/queue", "#/workers", "#/charts"]) {
  await page.goto(`${new URL(link).origin}/${path}`);
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

// Ten thousand runs scroll: what is out of sight is not in the page.
await page.goto(`${new URL(link).origin}/#/`);
await page.evaluate(async () => {
  const { runs } = await import("/assets/app.js");
  const one = [...runs.known.values()][0];
  const many = Array.from({ length: 10000 }, (_, index) => ({ ...one, id: `many-${index}`, name: `many ${index}`, created_at: new Date(index * 1000).toISOString() }));
  runs.change(many);
});
const slowest = await page.evaluate(async () => {
  const scroll = document.querySelector(".scroll");
  const times = [];
  for (let step = 0; step < 60; step++) {
    const began = performance.now();
    scroll.scrollTop = (scroll.scrollHeight * step) / 60;
    scroll.dispatchEvent(new Event("scroll"));
    scroll.getBoundingClientRect();
    times.push(performance.now() - began);
    await new Promise(requestAnimationFrame);
  }
  return { rows: document.querySelectorAll(".space .row").length, p95: times.sort((a, b) => a - b)[57] };
});
console.log(JSON.stringify({ scrolled: slowest }));
assert.ok(slowest.rows < 80, `${slowest.rows} rows are in the page`);
assert.deepEqual(complaints, []);
await browser.close();
