// Everyday tasks of an operator, each from the overview, with the number of clicks printed: at most 5 each.
import assert from "node:assert/strict";
import { counting, person, shell, signIn } from "./person.mjs";

const [tools, link, outlive] = process.argv.slice(2);
const run = shell(outlive);
const { browser, tab, complaints } = await person(tools);
const page = await tab();
await signIn(page, link);
const { origin } = new URL(link);
const rail = (name) => page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name });
const done = {};

/** Does a task from the overview. */
async function task(name, work) {
  await page.goto(`${origin}/#/overview`);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const { hands, ...actions } = counting(page);
  await work(actions);
  done[name] = hands.clicks;
  assert.ok(hands.clicks <= 5, `${name} took ${hands.clicks} clicks`);
}

await task("why last night's run died", async ({ click }) => {
  await click(page.locator(".attention", { hasText: "dead" }).getByRole("link").first());
  const why = page.getByRole("region", { name: "Why" });
  await why.filter({ hasText: /owner is gone/ }).waitFor();
  await why.filter({ hasText: "shard 17" }).waitFor();
});

await task("slowest kind this week", async ({ click }) => {
  await click(rail("Insights"));
  const first = page.getByRole("region", { name: "Kinds" }).getByRole("row").nth(1);
  await first.waitFor();
  assert.match(await first.innerText(), /^slow/);
});

await task("compare two runs", async ({ click }) => {
  await click(rail("Runs"));
  const rows = page.getByRole("row").filter({ hasText: "train" });
  await rows.nth(1).waitFor();
  await click(rows.nth(0).getByRole("checkbox"));
  await click(rows.nth(1).getByRole("checkbox"));
  await click(page.getByRole("link", { name: "Compare" }));
  const differs = page.getByRole("region", { name: "What differs" });
  await differs.getByRole("row").filter({ hasText: "command" }).locator("ins", { hasText: "lr=2" }).waitFor();
  await differs.getByRole("row").filter({ hasText: "state" }).filter({ hasText: "failed" }).waitFor();
});

await task("cancel ten", async ({ click, type }) => {
  await click(rail("Runs"));
  await type(page.getByRole("searchbox", { name: "Search runs" }), "batch");
  await page.getByText("10 runs", { exact: true }).waitFor();
  await click(page.getByRole("checkbox", { name: "Select all that are loaded" }));
  await click(page.getByRole("button", { name: "Cancel 10" }));
  await click(page.getByRole("button", { name: "Cancel runs" }));
  // What was asked to stop is shown as cancelled only when it has.
  await page.getByText(/^(10 cancelled|\d+ cancelled, \d+ cancel requested|10 cancel requested)/).waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll(".space .badge")].filter((badge) => badge.textContent === "cancelled").length === 10);
  const states = JSON.parse(run("ps", "--all", "--text", "batch", "--json")).runs.map((one) => one.state);
  assert.deepEqual(states, Array(10).fill("cancelled"));
});

await task("watch progress and memory", async () => {
  const row = page.getByRole("region", { name: "Running" }).getByRole("listitem").filter({ hasText: "watched" });
  await row.getByRole("progressbar").waitFor();
  await row.getByText(/left/).waitFor();
  await row.getByTitle("memory").filter({ hasText: /^\d[\d.]* [KMG]iB$/ }).waitFor();
});

await task("what is scheduled next", async () => {
  const next = page.getByRole("region", { name: "Next scheduled" }).getByRole("listitem").first();
  await next.filter({ hasText: "every-half-hour" }).filter({ hasText: "in " }).waitFor();
});

await task("who holds a lock", async ({ click }) => {
  await click(rail("Keys"));
  const key = page.getByRole("region", { name: "Key db", exact: true });
  await key.getByText("1 of 1 held").waitFor();
  assert.match(await key.innerText(), /Held by\s+running\s+holder[\s\S]*Waiting \(1\)\s+pending\s+waiter/);
});

await task("resume a dead run", async ({ click }) => {
  const dead = page.locator(".attention", { hasText: "died" });
  await click(dead.getByRole("button", { name: "Resume" }));
  await dead.waitFor({ state: "detached" });
  assert.equal(JSON.parse(run("show", "died", "--json")).attempt, 2);
});

await task("follow a log with search", async ({ click, type, press }) => {
  await click(page.getByRole("region", { name: "Running" }).getByRole("link", { name: "watched" }));
  await type(page.getByRole("searchbox", { name: "Find in log" }), "step 3");
  await page.locator(".log mark", { hasText: "step 3" }).first().waitFor();
  await page.locator(".matches", { hasText: /\d+ of \d+/ }).waitFor();
  await press("Enter");
  await click(page.getByRole("button", { name: "Follow" }));
  const lines = () => page.evaluate(() => document.querySelector(".log .line:last-child .no").textContent);
  const before = Number(await lines());
  await page.waitForFunction((least) => Number(document.querySelector(".log .line:last-child .no").textContent) > least, before);
});

// Three of them by keys alone: the mouse is never used.
const keys = async (...all) => {
  for (const key of all) await page.keyboard.press(key);
};
await page.goto(`${origin}/#/overview`);
await page.getByRole("heading", { name: "Overview" }).waitFor();
// Why a run failed: the list of failures by the palette, its first row, its banner.
await keys("Control+k");
await page.getByRole("combobox").waitFor();
await page.keyboard.type("failed runs");
await keys("Enter");
await page.getByRole("row").filter({ hasText: "train" }).first().waitFor();
await keys("j", "Enter");
await page.getByRole("region", { name: "Why" }).filter({ hasText: "exit code 1" }).waitFor();
// A log with search: by the name of the run, then from match to match.
await keys("Control+k");
await page.getByRole("combobox").waitFor();
await page.keyboard.type("watched");
await page.getByRole("option").filter({ hasText: "watched" }).waitFor();
await keys("Enter");
await page.locator(".log .text", { hasText: "step" }).first().waitFor();
await keys("/");
await page.keyboard.type("step 1");
await page.locator(".matches", { hasText: /of \d+/ }).waitFor();
const match = await page.locator(".matches").innerText();
await keys("Escape", "n");
await page.waitForFunction((before) => parseInt(document.querySelector(".matches").textContent) !== parseInt(before), match);
// Runs are selected and compared.
await keys("g", "r");
await page.getByRole("searchbox", { name: "Search runs" }).waitFor();
await keys("/");
await page.keyboard.type("train");
await page.getByText("2 runs", { exact: true }).waitFor();
await keys("ArrowDown", "x", "j", "x");
await page.getByText("2 runs selected").waitFor();
await page.getByRole("link", { name: "Compare" }).focus();
await keys("Enter");
await page.getByRole("region", { name: "What differs" }).waitFor();

await task("rerun with another argument", async ({ click, type }) => {
  const failed = page.getByRole("region", { name: "Failures in 24 hours" }).getByRole("link", { name: "train" });
  const before = JSON.parse(run("show", "train", "--json")).id;
  await click(failed);
  await page.waitForURL(new RegExp(`run/${before}`));
  await click(page.getByRole("button", { name: "Rerun with changes…" }));
  await type(page.getByRole("textbox", { name: "Arguments" }), "-c 'echo training with $0' lr=3");
  await click(page.getByRole("button", { name: "Start", exact: true }));
  await page.waitForURL((url) => /#\/run\//.test(url.hash) && !url.hash.includes(before));
  await page.locator(".title h1", { hasText: "train" }).waitFor();
  const made = JSON.parse(run("show", /run\/([^/?#]+)/.exec(page.url())[1], "--json"));
  assert.deepEqual(made.command, ["bash", "-c", "echo training with $0", "lr=3"]);
});

console.log(JSON.stringify({ clicks: done }));
assert.equal(Object.keys(done).length, 10);
assert.deepEqual(complaints, []);
await browser.close();
