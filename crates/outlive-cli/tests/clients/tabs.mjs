// A person who keeps several tabs open. Called by the test with the tools' directory, the link, and the name of a case.
import { createRequire } from "node:module";
import assert from "node:assert/strict";

const [tools, link, name, run] = process.argv.slice(2);
const require = createRequire(`${tools}/`);
const { chromium } = require("playwright-core");
const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const { origin } = new URL(link);
const context = await browser.newContext();
context.setDefaultTimeout(60_000);

const cases = {
  /** More tabs than a browser has connections to one server, each with a run that goes on. */
  async tabs() {
    const first = await context.newPage();
    await first.goto(link);
    await first.locator("#live.on").waitFor();
    for (let tab = 0; tab < 8; tab++) {
      const page = await context.newPage();
      await page.goto(`${origin}/#/run/${run}`);
      await page.locator("#live.on").waitFor();
      await page.locator("pre.log", { hasText: "tick" }).waitFor();
    }
  },
  /** The link is pasted into the tab that asks for it. */
  async paste() {
    const page = await context.newPage();
    await page.goto(`${origin}/`);
    await page.getByText("This cannot be shown").waitFor();
    await page.evaluate((hash) => (location.hash = hash), new URL(link).hash);
    await page.locator("#live.on").waitFor();
    assert.ok(!page.url().includes("key="), page.url());
  },
  /** A run that writes more than a page can hold. */
  async flood() {
    const page = await context.newPage();
    await page.goto(link);
    await page.locator("#live.on").waitFor();
    await page.goto(`${origin}/#/run/${run}`);
    await page.locator("pre.log", { hasText: "line 120000" }).waitFor();
    const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
    assert.ok(nodes > 100 && nodes < 20_000, `${nodes} nodes`);
    const lines = await page.evaluate(() => document.querySelector("pre.log").textContent.split("\n").length);
    assert.ok(lines >= 5_000 && lines < 20_000, `${lines} lines`);
  },
  /** A line without an end costs no more than its length. */
  async line() {
    const page = await context.newPage();
    await page.goto(`${origin}/`);
    const text = await page.evaluate(async () => {
      const { Ansi } = await import("/assets/ansi.js");
      const shown = (text) => new Ansi().nodes(text).map((node) => node.textContent).join("");
      const long = "x".repeat(8 << 20);
      if (shown(long).length !== long.length) return "cut";
      return shown("10%\r20%\nwhole\r\nlast\rover");
    });
    assert.equal(text, "20%\nwhole\nover");
  },
};
await cases[name]();
await browser.close();
