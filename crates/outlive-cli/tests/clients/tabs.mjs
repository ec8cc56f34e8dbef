// A person who keeps tabs open: many at once, over restarts and cuts, with long logs. Called by the test with the tools' directory,
// the link, the name of a case, a run, and the command that plays the shell.
import { spawn } from "node:child_process";
import { connect, createServer } from "node:net";
import assert from "node:assert/strict";
import { person, shell, signIn } from "./person.mjs";

const [tools, link, name, run, outlive] = process.argv.slice(2);
const { browser, context, tab, complaints, accessible } = await person(tools);
const { origin } = new URL(link);
const command = outlive ? shell(outlive) : null;
const logged = (page) => page.locator(".log .line .text");
/** How many requests a page sends, but for the stream. */
function counted(page) {
  const sent = [];
  page.on("request", (request) => sent.push(request.url()));
  return sent;
}
/** Until the page has drawn what it knows. */
const frames = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
/** Refused credentials and a server that is away are errors of the browser's console. */
const AWAY = /401|ERR_CONNECTION|ERR_INTERNET|Failed to load resource|ERR_INCOMPLETE|ERR_EMPTY/;

/** A server at a port of its own, which can be stopped and started again. */
async function serve(port = 0) {
  const child = spawn(outlive, ["serve", "--json", "--listen", `127.0.0.1:${port}`], { stdio: ["ignore", "pipe", "inherit"] });
  const said = await new Promise((done) => child.stdout.once("data", (data) => done(JSON.parse(String(data)))));
  const stop = () => new Promise((done) => (child.once("exit", done), child.kill("SIGKILL")));
  return { ...said, stop };
}

/** A way to the server that can swallow what is sent, as a network does that drops packets. */
async function proxied() {
  const way = { swallows: false, url: "" };
  const proxy = createServer((near) => {
    const far = connect(Number(new URL(link).port), new URL(link).hostname);
    for (const [from, to] of [[near, far], [far, near]]) {
      // The end of one that was cut off is not told of.
      from.unref();
      from.on("data", (data) => way.swallows || to.write(data));
      from.on("error", () => to.destroy());
      from.on("close", () => way.swallows || to.destroy());
    }
  });
  await new Promise((done) => proxy.listen(0, "127.0.0.1", () => done(null)));
  proxy.unref();
  way.url = `http://127.0.0.1:${proxy.address().port}`;
  return way;
}

const cases = {
  /** More tabs than a browser has connections to one server, each with a run that goes on. */
  async tabs() {
    const first = await tab();
    await signIn(first, link);
    const pages = [];
    for (let i = 0; i < 8; i++) {
      const page = await tab();
      await page.goto(`${origin}/#/run/${run}`);
      await page.locator("#live.on").waitFor();
      await logged(page).filter({ hasText: "tick" }).first().waitFor();
      pages.push(page);
    }
    // All of them stay live: each shows lines that are written from now on.
    const numbers = (page) => page.evaluate(() => Number(document.querySelector(".log .line:last-child .no").textContent));
    const before = await Promise.all(pages.map(numbers));
    await Promise.all(pages.map((page, i) => page.waitForFunction((least) => Number(document.querySelector(".log .line:last-child .no").textContent) > least, before[i])));
  },
  /** The link is pasted into the tab that asks for it. */
  async paste() {
    const page = await tab(AWAY);
    await page.goto(`${origin}/#/queue`);
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    await accessible(page, "sign in");
    await page.evaluate((hash) => (location.hash = hash), new URL(link).hash);
    await page.locator("#live.on").waitFor();
    assert.ok(!page.url().includes("key="), page.url());
    // The page that was wanted is shown.
    await page.getByRole("heading", { name: "Queue" }).waitFor();
    // A link signs in once.
    const other = await (await browser.newContext()).newPage();
    await other.goto(link);
    await other.getByText("This link was used already").waitFor();
  },
  /** A run that writes more than a page can hold. */
  async flood() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/run/${run}`);
    await logged(page).filter({ hasText: "line 120000" }).waitFor();
    const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
    assert.ok(nodes > 100 && nodes < 20_000, `${nodes} nodes`);
    await page.getByText("120,000 lines").waitFor();
  },
  /** A log of a million lines is searched, linked to and scrolled; times are printed, not asserted. */
  async million() {
    const page = await tab();
    await signIn(page, link);
    const began = Date.now();
    await page.goto(`${origin}/#/run/${run}`);
    await logged(page).filter({ hasText: "line 1000000" }).waitFor();
    const painted = Date.now() - began;
    await page.getByText("1,000,000 lines").waitFor();
    const whole = Date.now() - began;
    const searched = Date.now();
    await page.getByRole("searchbox", { name: "Find in log" }).fill("line 77777");
    await page.locator(".matches", { hasText: "of 11" }).waitFor();
    const found = Date.now() - searched;
    await page.locator(".log .line.found", { hasText: "line 77777" }).waitFor();
    await page.getByRole("searchbox", { name: "Find in log" }).press("Escape");
    await page.keyboard.press("n");
    await page.locator(".log .line.found", { hasText: "line 777770" }).waitFor();
    await page.keyboard.press("N");
    await page.locator(".matches", { hasText: "1 of 11" }).waitFor();
    // A link to a line shows it, marked.
    await page.locator(".log .line.found .no").click();
    assert.match(page.url(), /#L77777$/);
    const other = await tab();
    await other.goto(`${origin}/#/run/${run}/log#L500000`);
    await other.locator(".log .line.marked", { hasText: "line 500000" }).waitFor();
    const scrolled = await other.evaluate(async () => {
      const place = document.querySelector(".scroll.log");
      const most = [];
      for (let step = 0; step <= 40; step++) {
        place.scrollTop = ((place.scrollHeight - place.clientHeight) * step) / 40;
        await new Promise(requestAnimationFrame);
        most.push(document.querySelectorAll("*").length);
      }
      return { nodes: Math.max(...most), first: most[0], last: document.querySelector(".log .line:last-child .no").textContent };
    });
    assert.ok(scrolled.nodes < 20_000, JSON.stringify(scrolled));
    assert.equal(scrolled.last, "1000000");
    console.log(JSON.stringify({ million: { painted_ms: painted, whole_ms: whole, searched_ms: found, nodes: scrolled.nodes } }));
  },
  /** What a terminal would show: overwritten lines, streams apart, colours; errors are found, streams filtered, lines wrapped. */
  async terminal() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/run/${run}`);
    await logged(page).filter({ hasText: "the end" }).waitFor();
    await page.locator(".scroll.log").focus();
    await page.keyboard.press("Home");
    await logged(page).filter({ hasText: "100% done" }).waitFor();
    const texts = await logged(page).allInnerTexts();
    assert.deepEqual(texts.slice(0, 3), ["100% done", "red on green, reverse, struck", "out"]);
    assert.ok(texts.includes("error: on stderr"), JSON.stringify(texts.slice(0, 8)));
    const style = (of) => page.locator(".log span", { hasText: of }).last().evaluate((node) => ({ ...Object.fromEntries(["color", "backgroundColor", "textDecorationLine"].map((name) => [name, getComputedStyle(node)[name]])), name: node.className }));
    assert.match((await style("red on green")).name, /f1 k2/);
    assert.notEqual((await style("reverse")).backgroundColor, "rgba(0, 0, 0, 0)");
    assert.equal((await style("struck")).textDecorationLine, "line-through");
    await page.getByRole("button", { name: "Next error" }).click();
    await page.locator(".log .line.marked", { hasText: "error: on stderr" }).waitFor();
    await page.getByRole("button", { name: "stderr" }).click();
    await page.waitForFunction(() => [...document.querySelectorAll(".log .line .text")].every((line) => line.textContent.startsWith("error")));
    await page.getByRole("button", { name: "both" }).click();
    await page.getByRole("button", { name: "Wrap" }).click();
    const long = page.locator(".log .line", { hasText: "wwww" }).first();
    await page.getByRole("searchbox", { name: "Find in log" }).fill("wwww");
    await long.waitFor();
    const box = await long.evaluate((node) => ({ high: node.clientHeight, text: node.querySelector(".text").scrollHeight, inside: node.scrollWidth <= node.clientWidth }));
    assert.ok(box.high > 20 && box.inside && box.text <= box.high, JSON.stringify(box));
    await page.getByRole("button", { name: "Times" }).click();
    await page.locator(".log .at").first().waitFor();
    // A download has all of it, byte for byte: what was overwritten and the colours, too.
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
    const read = await file.createReadStream();
    let text = "";
    for await (const part of read) text += part;
    assert.ok(text.startsWith("10% todo\r100% done\n\x1b[31;42mred on green\x1b[0m"), JSON.stringify(text.slice(0, 80)));
    assert.match(text, /the end\n$/);
  },
  /** Following yields to whoever scrolls, and a selection survives what is written meanwhile. */
  async follow() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/run/${run}`);
    await logged(page).filter({ hasText: "tick 60" }).first().waitFor();
    await page.locator(".scroll.log").hover();
    await page.mouse.wheel(0, -400);
    await page.locator(".follow[aria-pressed=false]").waitFor();
    const kept = await page.evaluate(() => {
      const line = document.querySelectorAll(".log .line .text")[14];
      getSelection().selectAllChildren(line);
      window.kept = line;
      return { text: String(getSelection()), top: document.querySelector(".scroll.log").scrollTop };
    });
    const total = () => page.evaluate(() => Number(/([\d,]+) lines/.exec(document.querySelector(".tools").textContent)[1].replace(",", "")));
    const before = await total();
    await page.waitForFunction((least) => Number(/([\d,]+) lines/.exec(document.querySelector(".tools").textContent)[1].replace(",", "")) > least + 3, before);
    const after = await page.evaluate(() => ({ text: String(getSelection()), top: document.querySelector(".scroll.log").scrollTop, same: window.kept.isConnected }));
    assert.deepEqual(after, { ...kept, same: true });
    await page.getByRole("button", { name: "Follow" }).click();
    const atEnd = () => page.waitForFunction(() => { const place = document.querySelector(".scroll.log"); return place.scrollTop + place.clientHeight >= place.scrollHeight - 20; });
    await atEnd();
    // In a smaller window, too, before anything more is written.
    command("cancel", run, "--wait");
    await page.locator(".title .badge", { hasText: "cancelled" }).waitFor();
    await page.setViewportSize({ width: 390, height: 844 });
    await frames(page);
    await atEnd();
  },
  /** Nothing is asked for while nothing changes, on any page. */
  async idle() {
    const page = await tab();
    await signIn(page, link);
    for (const path of ["overview", "runs", "queue", "schedules", "keys", "workers", "insights", "api", `run/${run}`, `run/${run}/timeline`]) {
      await page.goto(`${origin}/#/${path}`);
      await page.locator("#main :is(h1, .title)").first().waitFor();
      const sent = counted(page);
      // What the page was to load is loaded when it has asked for nothing for a while.
      for (let before = -1; before !== sent.length; await page.waitForTimeout(1_500)) before = sent.length;
      const loaded = sent.length;
      await page.waitForTimeout(3_000);
      assert.deepEqual(sent.slice(loaded), [], `${path} asks though nothing changed`);
    }
  },
  /** Redraws keep what a person selected and focused, and draw only what changed. */
  async steady() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/runs`);
    await page.getByRole("row").filter({ hasText: "reports" }).waitFor();
    await page.getByRole("group", { name: "Runs over time" }).waitFor();
    await page.evaluate(() => {
      const cell = document.querySelector(".space .row .c-run a");
      window.kept = cell;
      getSelection().selectAllChildren(cell);
      window.added = 0;
      new MutationObserver((all) => all.forEach((one) => (window.added += one.addedNodes.length))).observe(document.querySelector("main"), { childList: true, subtree: true });
    });
    const selected = await page.evaluate(() => String(getSelection()));
    const percent = () => page.getByRole("row").filter({ hasText: "reports" }).locator(".progress").innerText();
    const before = await percent();
    await page.waitForFunction((text) => document.querySelector(".space .progress")?.innerText !== text, before);
    const after = await page.evaluate(() => ({ text: String(getSelection()), same: window.kept.isConnected, added: window.added }));
    assert.equal(after.text, selected);
    assert.ok(after.same && after.added < 40, JSON.stringify(after));
  },
  /** An answer that comes late is older than what was heard since it was asked for, and does not undo it. */
  async late() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/runs`);
    const row = page.getByRole("row").filter({ hasText: "slow-news" });
    await row.filter({ hasText: "running" }).waitFor();
    let [ask, release] = [() => {}, () => {}];
    const [asked, released] = [new Promise((done) => (ask = done)), new Promise((done) => (release = done))];
    await page.route("**/v1/ps", async (route) => {
      const reply = await route.fetch();
      const answer = await reply.json();
      ask();
      await released;
      const marker = { ...answer.runs[0], id: "01a1e1d5-0000-7000-8000-000000000000", name: "marker" };
      await route.fulfill({ response: reply, json: { ...answer, runs: [...answer.runs, marker] } });
    });
    await page.getByLabel("Made within").selectOption("1h");
    await asked;
    command("cancel", run, "--wait");
    await row.filter({ hasText: "cancelled" }).waitFor();
    release();
    await page.getByRole("row").filter({ hasText: "marker" }).waitFor();
    assert.equal(await row.filter({ hasText: "cancelled" }).count(), 1);
  },
  /** Columns are sorted by the server: of more runs than are loaded, the first in order are shown, and all by scrolling. */
  async sorted() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/runs`);
    await page.getByText("500+ runs").waitFor();
    await page.getByRole("columnheader", { name: "Run" }).getByRole("button").click();
    await page.waitForFunction(() => document.querySelector(".space .row .c-run a")?.textContent === "job-0699");
    await page.getByRole("columnheader", { name: "Run" }).getByRole("button").click();
    await page.waitForFunction(() => document.querySelector(".space .row .c-run a")?.textContent === "job-0000");
    assert.match(page.url(), /sort=name/);
    const seen = await page.evaluate(async () => {
      const [place, names] = [document.querySelector(".scroll"), new Set()];
      for (let still = 0; still < 60; ) {
        const before = names.size;
        for (const link of document.querySelectorAll(".space .row .c-run a")) names.add(link.textContent);
        place.scrollTop += 300;
        await new Promise(requestAnimationFrame);
        still = names.size === before ? still + 1 : 0;
      }
      return [...names];
    });
    assert.deepEqual(seen, Array.from({ length: 700 }, (_, i) => `job-${String(i).padStart(4, "0")}`));
  },
  /** The server is killed and started again: the page says so, and goes on by itself without signing in again. */
  async restart() {
    let server = await serve();
    const page = await tab(AWAY);
    await signIn(page, server.link);
    const { port } = new URL(server.url);
    await page.goto(`${server.url}/#/runs`);
    await server.stop();
    await page.locator(".banner", { hasText: "The server cannot be reached" }).waitFor();
    const made = command("run", "-d", "--name", "meanwhile", "--", "sleep", "600").trim();
    server = await serve(port);
    await page.locator("#live.on").waitFor();
    await page.locator(".banner").waitFor({ state: "detached" });
    await page.getByRole("row").filter({ hasText: "meanwhile" }).waitFor();
    command("cancel", made, "--wait");
    await page.getByRole("row").filter({ hasText: "meanwhile" }).filter({ hasText: "cancelled" }).waitFor();
    await server.stop();
  },
  /** The network is cut: the page says so, and goes on when it is back. */
  async cut() {
    const page = await tab(AWAY);
    const way = await proxied();
    await signIn(page, link.replace(origin, way.url));
    await page.goto(`${way.url}/#/runs`);
    // Nothing breaks: what is sent does not arrive any more.
    way.swallows = true;
    await page.locator(".banner", { hasText: "The server cannot be reached" }).waitFor();
    command("run", "--name", "unseen", "--", "true");
    way.swallows = false;
    await page.locator("#live.on").waitFor();
    await page.getByRole("row").filter({ hasText: "unseen" }).waitFor();
  },
  /** Where the worker that all tabs share cannot be started, the page has a stream of its own. */
  async alone() {
    const page = await tab(/404|Failed to load|Failed to fetch/);
    await page.addInitScript(() => {
      const Shared = globalThis.SharedWorker;
      globalThis.SharedWorker = class extends Shared {
        constructor() {
          super("/assets/none.js", { type: "module" });
        }
      };
    });
    await signIn(page, link);
    await page.goto(`${origin}/#/runs`);
    const row = page.getByRole("row").filter({ hasText: "alone" });
    await row.filter({ hasText: "running" }).waitFor();
    command("cancel", run, "--wait");
    await row.filter({ hasText: "cancelled" }).waitFor();
  },
  /** A long queue hides neither what is executed nor what died. */
  async behind() {
    const page = await tab();
    await signIn(page, link);
    await page.goto(`${origin}/#/overview`);
    const part = (name) => page.getByRole("region", { name, exact: true });
    await part("Needs attention").getByRole("link", { name: "died" }).waitFor();
    await part("Running").getByRole("link", { name: "busy" }).waitFor();
    await page.locator(".tile", { hasText: "Waiting" }).filter({ hasText: "1,200" }).waitFor();
    // And what becomes of it is seen as it happens.
    command("cancel", run, "--wait");
    await part("Running").getByText("Nothing is running.").waitFor();
  },
  /** What a run reports comes with the stream: pages ask for no more than what else is known, and that rarely. */
  async reports() {
    const page = await tab();
    await signIn(page, link);
    const watched = async (path, reported) => {
      await page.goto(`${origin}/#/${path}`);
      await page.locator(reported).first().waitFor();
      const [sent, began] = [counted(page), Date.now()];
      const known = new Set();
      while (known.size < 8) {
        const before = await page.locator(reported).first().innerText();
        await page.waitForFunction(([selector, text]) => document.querySelector(selector)?.innerText !== text, [reported, before]);
        known.add(before);
      }
      page.removeAllListeners("request");
      const of = (operation) => sent.filter((url) => new URL(url).pathname === `/v1/${operation}`).length;
      return { of, all: sent, seconds: (Date.now() - began) / 1000 };
    };
    const queue = await tab();
    await queue.goto(`${origin}/#/queue`);
    await queue.getByText("Nothing waits.").waitFor();
    const asked = counted(queue);
    for (let before = -1; before !== asked.length; await queue.waitForTimeout(1_000)) before = asked.length;
    const loaded = asked.length;
    const one = await watched(`run/${run}/details`, ".title .progress");
    assert.ok(one.of("why") === 0 && one.of("show") <= one.seconds + 2, JSON.stringify({ sent: one.all, seconds: one.seconds }));
    assert.deepEqual(asked.slice(loaded), [], "the queue asks though no run came, left or waits for another reason");
    await page.goto(`${origin}/#/run/${run}/diff`);
    await page.locator(".compare").waitFor();
    await page.evaluate(() => (window.kept = document.querySelector(".compare")));
    const compared = await watched(`run/${run}/diff`, ".title .progress");
    assert.equal(compared.of("diff"), 0);
    assert.ok(await page.evaluate(() => window.kept.isConnected), "the comparison is drawn anew while the run reports");
  },
  /** A refused rerun keeps no other from being made; orders, times and heartbeats are shown as they are. */
  async shown() {
    const page = await tab(/409|Failed to load resource/);
    await signIn(page, link);
    await page.goto(`${origin}/#/runs?view=succeeded`);
    await page.getByText("3 runs", { exact: true }).waitFor();
    await page.route("**/v1/rerun", (route) => (route.request().postData().includes(run) ? route.fulfill({ status: 409, json: { schema: 1, error: { code: "refused", message: "not this one", hint: null } } }) : route.continue()));
    await page.getByRole("checkbox", { name: "Select all that are loaded" }).check();
    await page.getByRole("toolbar", { name: "Actions for the selection" }).getByRole("button", { name: "Rerun" }).click();
    await page.getByText("Rerun: 2 of 3 runs made; job: not this one").waitFor();
    await page.goto(`${origin}/#/insights?sort=kind`);
    await page.locator("th[aria-sort=ascending]", { hasText: "Kind ↑" }).waitFor();
    await page.getByRole("button", { name: "Runs", exact: true }).click();
    await page.locator("th[aria-sort=descending]", { hasText: "Runs ↓" }).waitFor();
    command("run", "-d", "--name", "busy", "--", "sleep", "600");
    await page.goto(`${origin}/#/workers`);
    await page.getByRole("row").filter({ hasText: "alive" }).locator("time").first().waitFor();
    // Hours of the overview are those of the zone that was chosen.
    const far = await (await browser.newContext({ timezoneId: "Asia/Kolkata", storageState: await context.storageState() })).newPage();
    await far.goto(`${origin}/#/overview`);
    await far.locator("#live.on").waitFor();
    const hours = (minutes) => far.locator(".chart .tick", { hasText: new RegExp(`^\\d\\d:${minutes}$`) }).first().waitFor();
    await hours("30");
    await far.getByRole("button", { name: "local" }).click();
    await hours("00");
  },
  /** The link that was printed, opened again by a browser that is signed in, shows the page. */
  async again() {
    await signIn(await tab(), link);
    const second = await tab(AWAY);
    await second.goto(link);
    await second.locator("#live.on").waitFor();
    assert.equal(await second.getByRole("heading", { name: "Sign in" }).count(), 0);
    assert.ok(!second.url().includes("key="), second.url());
  },
  /** Tabs whose session has ended continue when one of them signs in. */
  async revived() {
    const token = JSON.parse(command("token", "create", "ada", "--role", "read", "--json")).token;
    const pages = [];
    for (const path of ["overview", "runs", "queue"]) {
      const page = await tab(AWAY);
      await page.goto(`${origin}/#/${path}`);
      if (!pages.length) {
        await page.getByLabel("Or paste a token").fill(token);
        await page.getByRole("button", { name: "Sign in" }).click();
      }
      await page.locator("#live.on").waitFor();
      pages.push(page);
    }
    command("token", "revoke", "ada");
    for (const page of pages) await page.getByText("Your session has ended").waitFor();
    await pages[0].evaluate((hash) => (location.hash = hash), new URL(link).hash);
    for (const [index, name] of ["Overview", "Runs", "Queue"].entries()) {
      await pages[index].locator("#live.on").waitFor();
      await pages[index].getByRole("heading", { name, exact: true }).first().waitFor();
    }
  },
  /** A token signs in with its role; when it is revoked the page says so; logging out ends the session. */
  async token() {
    const token = JSON.parse(command("token", "create", "ada", "--role", "read", "--json")).token;
    const page = await tab(AWAY);
    await page.goto(`${origin}/#/run/${run}/details`);
    await page.getByLabel("Or paste a token").fill("wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("No such token is known here").waitFor();
    await page.getByLabel("Or paste a token").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator("#live.on").waitFor();
    // The page that was wanted, without what the role does not allow.
    await page.getByRole("tab", { name: "Details", selected: true }).waitFor();
    await page.locator(".who", { hasText: "ada" }).filter({ hasText: "read" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0);
    const [cookie] = await context.cookies();
    assert.ok(cookie.httpOnly && cookie.sameSite === "Strict", JSON.stringify(cookie));
    command("token", "revoke", "ada");
    await page.getByText("Your session has ended").waitFor();
    // Signing in again shows the same page; logging out forgets the cookie, and it is no longer good.
    await page.evaluate((hash) => (location.hash = hash), new URL(link).hash);
    await page.getByRole("tab", { name: "Details", selected: true }).waitFor();
    const [own] = await context.cookies();
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("heading", { name: "Sign in" }).waitFor();
    assert.equal((await context.cookies()).length, 0);
    const reply = await fetch(`${origin}/v1/ps`, { headers: { Cookie: `${own.name}=${own.value}` } });
    assert.equal(reply.status, 401);
  },
};
await cases[name]();
await frames((await context.pages())[0]);
assert.deepEqual(complaints, []);
await browser.close();
