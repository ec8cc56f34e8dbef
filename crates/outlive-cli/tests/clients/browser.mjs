// A person with a browser: watches a run live, follows what it writes, cancels, resumes, archives, searches, and looks at every
// page in both themes and three widths. Called by the test with the tools' directory, the link, the command that plays the shell,
// where to put pictures, and a secret that a run was given.
import { spawn } from "node:child_process";
import assert from "node:assert/strict";
import { person, shell as shellOf, signIn } from "./person.mjs";

const [tools, link, outlive, pictures, secret] = process.argv.slice(2);
const shell = shellOf(outlive);
const { browser, context, tab, complaints, accessible } = await person(tools);
const { origin } = new URL(link);
const page = await tab();
page.on("request", (request) => {
  if (new URL(request.url()).origin !== origin) complaints.push(`asked elsewhere: ${request.url()}`);
});

/** Pictures in both themes at three widths; no page is wider than its window, and all of it is accessible. */
async function looks(name, widths = [1440, 820, 390]) {
  for (const theme of ["light", "dark"]) {
    await page.evaluate((chosen) => (document.documentElement.dataset.theme = chosen), theme);
    for (const width of widths) {
      await page.setViewportSize({ width, height: width < 500 ? 844 : 900 });
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      await page.screenshot({ path: `${pictures}/${name}-${width}-${theme}.png` });
      const wide = await page.evaluate(() => [document.documentElement, document.querySelector("main")].some((node) => node.scrollWidth > node.clientWidth));
      assert.equal(wide, false, `${name} is wider than ${width} pixels`);
      if (width !== 820) await accessible(page, `${name} ${width} ${theme}`);
    }
  }
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.evaluate(() => (document.documentElement.dataset.theme = "light"));
}
const state = (wanted) => page.locator(".title .badge", { hasText: wanted });
const action = (name) => page.locator(".actions").getByRole("button", { name, exact: true });
const confirmed = async () => {
  await action("Cancel").click();
  await page.getByRole("button", { name: "Cancel run" }).click();
};

// The link makes the browser known, and the key leaves the address.
await signIn(page, link);
const cookies = await context.cookies();
assert.ok(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", JSON.stringify(cookies));

// A run that begins while the page is open appears in it, with its progress.
await page.goto(`${origin}/#/runs`);
const script = `i=0; while [ $i -lt 2000 ]; do i=$((i+1)); printf '\\033[32mline %s\\033[0m <b>bold</b>\\n' $i; outlive progress $i/2000; sleep 0.2; done`;
const run = shell("run", "-d", "--name", "watched", "--", "sh", "-c", script).trim();
await page.getByRole("row").filter({ hasText: "watched" }).getByRole("progressbar").waitFor();
assert.match(await page.title(), /Runs · outlive/);
await looks("runs");
// A drag over the histogram chooses a time; one that reaches the present has no end.
const brush = await page.locator(".brush").boundingBox();
await page.mouse.move(brush.x + brush.width * 0.6, brush.y + 20);
await page.mouse.down();
await page.mouse.move(brush.x + brush.width - 3, brush.y + 20, { steps: 4 });
await page.mouse.up();
await page.waitForURL(/since=\d{4}-/);
await page.getByRole("row").filter({ hasText: "watched" }).waitFor();
await page.getByRole("button", { name: "Remove filter time range" }).click();
await page.waitForURL((url) => !url.href.includes("since="));

// Searching is done by the server and kept in the address; keys lead through the list.
await page.keyboard.press("/");
await page.keyboard.type("watched");
await page.waitForURL(/text=watched/);
await page.getByText("1 run", { exact: true }).waitFor();
await page.keyboard.press("ArrowDown");
await page.locator(".row.current a:focus").waitFor();
await page.keyboard.press("x");
await page.getByText("1 run selected").waitFor();
await page.keyboard.press("Escape");
await page.getByText("1 run selected").waitFor({ state: "detached" });
await page.keyboard.press("Enter");
await page.waitForURL(new RegExp(`run/${run}`));

// What it writes is followed, coloured, and is text whatever it looks like. Title and icon tell its state.
await page.locator(".log span.f2", { hasText: /^line \d+$/ }).nth(3).waitFor();
assert.equal(await page.locator(".log b").count(), 0);
assert.match(await page.locator(".log").innerText(), /<b>bold<\/b>/);
const before = await page.locator(".log span.f2").last().innerText();
await page.waitForFunction((text) => [...document.querySelectorAll(".log span.f2")].at(-1).innerText !== text, before);
assert.equal(await page.title(), "watched running · outlive");
await page.waitForFunction(() => document.querySelector("link[rel=icon]").getAttribute("href") === "/assets/icon-busy.svg");
await looks("run");
await page.goBack();
await page.locator("input[type=search]").waitFor();
assert.equal(await page.locator("input[type=search]").inputValue(), "watched", "the way back forgets the search");
await page.goForward();

// It is stopped after a question that can be answered with no, and the page says so by itself.
await action("Cancel").click();
await page.getByRole("dialog").waitFor();
await looks("dialog-cancel", [1440, 390]);
await page.getByRole("button", { name: "Keep it" }).click();
assert.equal(JSON.parse(shell("show", run, "--json")).cancel_requested_at, null);
await confirmed();
await state("cancelled").waitFor();

// One that was interrupted is resumed by the next step of the banner, and its next attempt is followed.
const stopped = spawn(outlive, ["run", "--name", "stopped", "--", "sh", "-c", "echo attempt $OUTLIVE_ATTEMPT; exec sleep 300"], { stdio: "ignore" });
await page.goto(`${origin}/#/runs`);
await page.getByRole("row").filter({ hasText: "stopped" }).click();
await state("running").waitFor();
stopped.kill("SIGTERM");
await state("interrupted").waitFor();
await page.getByRole("region", { name: "Why" }).getByRole("button", { name: "Resume" }).click();
await state("running").waitFor();
await page.locator(".log .text", { hasText: "attempt 2" }).waitFor();
await page.getByRole("combobox", { name: "Attempt" }).selectOption("1");
// Its first attempt wrote to a file of its caller.
await page.getByText("nothing was written, or nothing of it was kept").waitFor();
await confirmed();
await state("cancelled").waitFor();

// It is made again, and the page of what was made is shown.
const original = /run\/([^/?#]+)/.exec(page.url())[1];
await action("Rerun").click();
await page.waitForURL((url) => !url.href.includes(original));
const made = JSON.parse(shell("show", /run\/([^/?#]+)/.exec(page.url())[1], "--json"));
assert.equal(made.name, "stopped");
await state(made.state).waitFor();
await confirmed();
await state("cancelled").waitFor();

// It is put away, is listed only where that is asked for, and comes back.
const archived = () => JSON.parse(shell("show", made.id, "--json")).archived;
await action("Archive").click();
await page.locator(".title", { hasText: "archived" }).waitFor();
assert.equal(archived(), true);
await page.goto(`${origin}/#/runs?view=cancelled`);
await page.locator(`.row[data-id="${original}"]`).waitFor();
assert.equal(await page.locator(`.row[data-id="${made.id}"]`).count(), 0);
await page.getByLabel("archived").check();
await page.locator(`.row[data-id="${made.id}"]`).waitFor();
await page.goto(`${origin}/#/run/${made.id}`);
await action("Unarchive").click();
await action("Archive").waitFor();
assert.equal(archived(), false);

// Cancelling what repeats says that its schedule ends.
await page.goto(`${origin}/#/schedules`);
const nightly = page.getByRole("row").filter({ hasText: "nightly" });
await nightly.filter({ hasText: "every day at 03:00" }).waitFor();
// When it comes is what the server says, by the calendar of the schedule.
await nightly.getByRole("img", { name: /^1 time: \d\d:00$/ }).waitFor();
await nightly.getByRole("button", { name: "Cancel nightly" }).click();
await page.getByText("Cancelling ends the schedule.").waitFor();
await page.getByRole("button", { name: "Keep it" }).click();
// A schedule is paused and continues, here and for every other caller.
await nightly.getByRole("button", { name: "Pause nightly", exact: true }).click();
await nightly.locator(".badge", { hasText: "paused" }).waitFor();
assert.ok(JSON.parse(shell("ps", "--all", "--name", "nightly", "--json")).runs.some((run) => run.can.includes("unpause")));
await nightly.getByRole("button", { name: "Unpause nightly", exact: true }).click();
await nightly.locator(".badge", { hasText: "pending" }).waitFor();
await nightly.getByRole("button", { name: "Run now: nightly" }).click();
await page.getByText("Run now: nightly as").waitFor();
await looks("schedules");

// Steps are a tree, each with its time; what is inside another stands below it, and deeper.
const deep = JSON.parse(shell("show", "steps", "--json"));
await page.goto(`${origin}/#/run/${deep.id}/steps`);
await page.locator("table.steps").waitFor();
const drawn = await page.locator("table.steps tbody tr").evaluateAll((rows) => rows.map((row) => {
  const [bar, link] = [row.querySelector(".span").getBoundingClientRect(), row.querySelector("a")];
  return { name: link.textContent, depth: Number(row.cells[0].dataset.depth), left: link.getBoundingClientRect().left, from: bar.left, to: bar.right };
}));
assert.deepEqual(drawn.map(({ name, depth }) => [name, depth]), [["fetch", 0], ["build", 0], ["compile", 1], ["<b>link</b>", 2], ["pack", 1], ["test", 0]]);
for (const [inner, outer] of [[2, 1], [3, 2], [4, 1]]) {
  assert.ok(drawn[inner].left > drawn[outer].left, `${drawn[inner].name} stands no deeper than ${drawn[outer].name}`);
  assert.ok(drawn[inner].from >= drawn[outer].from - 1 && drawn[inner].to <= drawn[outer].to + 3, `${drawn[inner].name} is drawn outside ${drawn[outer].name}`);
}
await looks("steps");
// On a phone the last bar can be reached.
await page.setViewportSize({ width: 390, height: 844 });
const reached = await page.locator("table.steps .track").last().evaluate((track) => (track.scrollIntoView({ inline: "end" }), track.getBoundingClientRect().right <= innerWidth));
assert.ok(reached, "the last bars are off-screen on a phone");
await page.setViewportSize({ width: 1440, height: 900 });
await page.getByRole("link", { name: "compile", exact: true }).click();
await page.getByRole("tab", { name: "Details" }).click();
await page.locator("dt", { hasText: "Inside" }).waitFor();
for (const part of ["timeline", "details", "diff", "json"]) {
  await page.goto(`${origin}/#/run/${deep.id}/${part}`);
  await page.getByRole("tab", { selected: true, name: new RegExp(part, "i") }).waitFor();
  await looks(`run-${part}`, [1440, 390]);
}

// What was used over time, and two runs side by side.
await page.goto(`${origin}/#/run/${run}/usage`);
await page.getByRole("tab", { name: "Usage", selected: true }).waitFor();
await page.locator("#part .chart").first().waitFor();
await looks("run-usage", [1440, 390]);
await page.goto(`${origin}/#/compare/${original}/${made.id}`);
await page.getByRole("region", { name: "Differences" }).waitFor();
await looks("compare", [1440, 390]);
await page.goto(`${origin}/#/run/${run}`);
await page.getByRole("button", { name: "Rerun with changes…" }).click();
await page.getByRole("dialog", { name: "Rerun with other arguments" }).waitFor();
await looks("dialog-rerun", [1440, 390]);
await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();

// What waits says for what, with links: runs, keys, and entries that others than outlive execute.
await page.goto(`${origin}/#/queue`);
const waits = (region, row) => page.getByRole("region", { name: region, exact: true }).getByRole("row").filter({ hasText: row });
await page.getByRole("group", { name: "Which run waits for which" }).getByRole("link", { name: "second, pending" }).waitFor();
await waits("Queue", "second").getByRole("link", { name: "<img src=x" }).waitFor();
await waits("Entries of all repositories", "app later").filter({ hasText: "waits until " }).waitFor();
await waits("Entries of all repositories", "app blocked").filter({ hasText: "waits for key db, held by " }).waitFor();
await waits("Entries of all repositories", "app free").filter({ hasText: "waits for an executor" }).waitFor();

// Whoever owns a run is a worker; one that comes or goes appears without a reload.
await page.goto(`${origin}/#/workers`);
const busy = shell("run", "-d", "--name", "busy", "--", "sleep", "300").trim();
const owner = JSON.parse(shell("show", busy, "--json"));
const worker = page.getByRole("row").filter({ hasText: owner.owner.slice(-8) });
await worker.filter({ hasText: "alive" }).filter({ hasText: String(owner.owner_pid) }).filter({ hasText: owner.owner_host }).waitFor();
await worker.getByRole("link", { name: "busy" }).click();
await state("running").waitFor();
shell("cancel", busy, "--wait");
await state("cancelled").waitFor();

// Insights count what there is; a click leads to the runs.
await page.goto(`${origin}/#/insights`);
const kind = page.getByRole("region", { name: "Kinds" }).getByRole("row").filter({ hasText: "command" });
await kind.getByRole("link").last().click();
await page.waitForURL(/kind=command.*view=failed|view=failed.*kind=command/);
const failures = JSON.parse(shell("ps", "--all", "--status", "failed", "--kind", "command", "--json")).runs.length;
await page.getByText(`${failures} runs`, { exact: true }).waitFor();

// The palette finds pages, actions and runs.
await page.keyboard.press("Control+k");
await page.keyboard.type("steps");
await page.getByRole("option").filter({ hasText: deep.id.slice(-8) }).waitFor();
await accessible(page, "palette");
await page.keyboard.press("ArrowDown");
await page.keyboard.press("Escape");
await page.keyboard.press("?");
await page.getByRole("dialog", { name: "Keys" }).waitFor();
await looks("dialog-keys", [1440, 390]);
await page.getByRole("dialog", { name: "Keys" }).getByRole("button", { name: "Close" }).click();
await page.keyboard.press("g");
await page.keyboard.press("q");
await page.getByRole("heading", { name: "Queue" }).waitFor();
// Times are switched between the zone of the browser and UTC, on every page, and the choice stays.
await page.goto(`${origin}/#/run/${deep.id}/details`);
await page.getByRole("button", { name: "local" }).click();
await page.locator("dd time", { hasText: "UTC" }).first().waitFor();
await page.reload();
await page.locator("dd time", { hasText: "UTC" }).first().waitFor();
await page.getByRole("button", { name: "UTC", exact: true }).click();

// The API page has a call for every operation that the description has, and the streams.
await page.goto(`${origin}/#/api/queue%20add`);
await page.locator(".curl pre", { hasText: "/v1/queue/add" }).waitFor();
const listed = await page.getByRole("navigation", { name: "Operations" }).getByRole("link").count();
const described = await page.evaluate(async () => Object.keys((await (await fetch("/v1/openapi.json")).json()).paths).length);
assert.equal(listed, described);

// The skip link stays on the page.
await page.goto(`${origin}/#/queue`);
await page.reload();
await page.getByRole("heading", { name: "Queue" }).waitFor();
await page.keyboard.press("Tab");
await page.keyboard.press("Enter");
assert.equal(await page.evaluate(() => document.activeElement.id), "main");
assert.match(page.url(), /#\/queue$/);

// Names, labels, reasons and output of a stranger are text wherever they are shown.
const strange = JSON.parse(shell("ps", "--all", "--limit", "1000", "--json")).runs.filter((one) => one.labels.hostile);
assert.ok(strange.length >= 4, "the strangers are missing");
for (const one of strange) {
  for (const part of ["", "/details"]) {
    await page.goto(`${origin}/#/run/${one.id}${part}`);
    await page.locator(".title h1").waitFor();
    const shown = await page.evaluate(() => document.querySelector("main").innerText);
    assert.doesNotMatch(shown, /[\u202a-\u202e\u2066-\u2069\u200b-\u200f\x1b\x00]/, "what nobody sees is in the page");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth || document.querySelector("main").scrollWidth > document.querySelector("main").clientWidth);
    assert.equal(wide, false, `the page of ${one.name} is wider than the window`);
  }
}
await page.getByText("\\u{202e}").first().waitFor();
await looks("hostile", [1440, 390]);
for (const path of ["overview", "runs", "queue", "schedules", "keys", "workers", "insights", "api"]) {
  await page.goto(`${origin}/#/${path}`);
  await page.locator("#main h1").first().waitFor();
  await page.waitForFunction(() => !document.querySelector("main .loading"));
  // No link leads out of the page, whatever runs are called.
  const leads = await page.evaluate(() => [...document.links].filter((one) => !one.getAttribute("href").startsWith("#/")).map((one) => one.outerHTML));
  assert.deepEqual(leads, [], path);
  if (!["runs", "schedules"].includes(path)) await looks(path);
  assert.ok(!(await page.content()).includes(secret), `${path} tells a secret`);
}
const secretive = JSON.parse(shell("show", "secretive", "--json")).id;
await page.goto(`${origin}/#/run/${secretive}/details`);
await page.getByText("[redacted]").first().waitFor();
assert.ok(!(await page.content()).includes(secret), "the page of a run tells a secret");
assert.equal(await page.evaluate(() => window.pwned), undefined);
assert.equal(await page.locator("main script, main img, main b").count(), 0);

// A list of 100,000 runs scrolls: what is out of sight is not in the page.
const one = JSON.parse(shell("ps", "--all", "--limit", "1", "--json")).runs[0];
const OLD = 100_000;
const old = (index) => ({ ...one, command: null, labels: {}, reason: null, id: `many-${index}`, name: `many ${index}`, created_at: new Date(1e12 - index * 1000).toISOString() });
await page.route("**/v1/ps", (route) => {
  const { cursor, limit } = route.request().postDataJSON();
  const from = Number(cursor ?? 0);
  const to = Math.min(OLD, from + Math.max(limit, 10_000));
  return route.fulfill({ json: { schema: 1, registry: "", runs: Array.from({ length: to - from }, (_, index) => old(from + index)), next: to < OLD ? String(to) : null } });
});
await page.goto(`${origin}/#/runs?text=many`);
await page.getByText("10,000+ runs").waitFor();
// The end of the list loads more.
await page.evaluate(() => setInterval(() => { const scroll = document.querySelector(".scroll"); if (!window.still && scroll) scroll.scrollTop = scroll.scrollHeight; }, 200));
await page.getByText("100,000 runs").waitFor();
await page.evaluate(() => (window.still = true));
const scrolled = await page.evaluate(async () => {
  const scroll = document.querySelector(".scroll");
  const [rows, times] = [[], []];
  for (let step = 0; step < 60; step++) {
    const began = performance.now();
    scroll.scrollTop = (scroll.scrollHeight * step) / 61;
    scroll.dispatchEvent(new Event("scroll"));
    const top = scroll.getBoundingClientRect().top;
    times.push(performance.now() - began);
    await new Promise(requestAnimationFrame);
    rows.push({ rows: document.querySelectorAll(".space .row").length, inSight: [...document.querySelectorAll(".space .row")].some((row) => Math.abs(row.getBoundingClientRect().top - top) <= 40) });
  }
  times.sort((a, b) => a - b);
  return { rows, p50: times[30], p95: times[57] };
});
console.log(JSON.stringify({ scrolled: { p50: scrolled.p50, p95: scrolled.p95 } }));
assert.deepEqual(scrolled.rows.filter(({ rows, inSight }) => rows > 80 || !inSight), []);
assert.deepEqual(complaints, []);
await browser.close();
