// A person with a browser: starts Chromium, collects what the page complains about, and counts what the person does.
import { createRequire } from "node:module";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

/** @param {string} tools the directory with the packages of Node */
export async function person(tools, { width = 1440, height = 900 } = {}) {
  const require = createRequire(`${tools}/`);
  const { chromium } = require("playwright-core");
  const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const context = await browser.newContext({ viewport: { width, height }, reducedMotion: "reduce" });
  context.setDefaultTimeout(60_000);
  const complaints = [];
  /** A tab whose complaints are collected. Refused credentials are told by the browser itself, too. */
  const tab = async (allowed = /never/) => {
    const page = await context.newPage();
    const complain = (text) => allowed.test(text) || complaints.push(text);
    page.on("console", (message) => message.type() === "error" && complain(`${message.text()} ${message.location().url}`));
    page.on("pageerror", (error) => complain(String(error.stack)));
    page.on("requestfailed", (request) => /\/v1\/changes|ERR_ABORTED/.test(`${request.url()} ${request.failure()?.errorText}`) || complain(`${request.url()} ${request.failure()?.errorText}`));
    return page;
  };
  /** No serious or critical violation of WCAG 2.1 AA. */
  const accessible = async (page, where) => {
    await page.evaluate(axe);
    const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
    const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
    assert.deepEqual(serious.map((one) => `${where}: ${one.id} ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`), []);
  };
  return { browser, context, tab, complaints, accessible };
}

/** Calls the command. */
export const shell = (outlive) => (...words) => execFileSync(outlive, words, { encoding: "utf8" });

/** Signs a tab in by the link, and waits until changes arrive. */
export async function signIn(page, link) {
  await page.goto(link);
  await page.locator("#live.on").waitFor();
  assert.ok(!page.url().includes("key="), page.url());
}

/** A person whose clicks, keys and texts are counted; a text that is typed counts as one. */
export function counting(page) {
  const hands = { clicks: 0 };
  return {
    hands,
    click: async (locator) => ((hands.clicks += 1), locator.click()),
    press: async (key) => ((hands.clicks += 1), page.keyboard.press(key)),
    type: async (locator, text) => ((hands.clicks += 1), locator.fill(text)),
  };
}
