// The frame: who we are to the server, which page is shown, and what changes meanwhile.

import { el, visible } from "/assets/dom.js";
import { Runs } from "/assets/runs.js";
import { showRun } from "/assets/run.js";
import { showCharts } from "/assets/charts.js";
import { showQueue, showWorkers } from "/assets/pages.js";

const main = document.getElementById("main");
const live = document.getElementById("live");

/** Asks the server for something. What it refuses is an error with its words. */
export async function call(operation, fields = {}) {
  const reply = await fetch(`/v1/${operation.replaceAll(" ", "/")}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(fields),
  });
  const body = await reply.json();
  if (reply.ok) return body;
  throw Object.assign(new Error(body.error?.message ?? reply.statusText), { status: reply.status, hint: body.error?.hint });
}

/** Which operations there are: what the server cannot do is not offered. */
export const operations = new Set();

/** Says something in passing. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = visible(text);
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => (place.textContent = ""), 6000);
}

/** Asks before something is done. */
export function confirm(question, text) {
  const dialog = document.getElementById("dialog");
  document.getElementById("dialog-title").textContent = visible(question);
  document.getElementById("dialog-text").textContent = visible(text);
  dialog.querySelector("[value=no]").hidden = false;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

export const runs = new Runs();
let page = null;
let shown = 0;

async function show() {
  page?.leave?.();
  page = null;
  const turn = ++shown;
  // What a page that was left is still told goes where nobody sees it.
  const place = el("div", { class: "page" });
  main.replaceChildren(place);
  const [, name = "", id = ""] = location.hash.split("/");
  const current = name || "runs";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.className = current === "runs" ? "full" : "";
  main.scrollTop = 0;
  const pages = { runs: () => runs.show(place), queue: () => showQueue(place), workers: () => showWorkers(place), charts: () => showCharts(place, runs), run: () => showRun(place, id) };
  try {
    const made = await (pages[current] ?? pages.runs)();
    if (turn === shown) page = made;
    else made.leave?.();
  } catch (error) {
    if (turn === shown) failed(error);
  }
}

function failed(error) {
  const hint = error.status === 401 ? "Open the link that `outlive serve` printed: it makes you known to this browser." : error.hint;
  main.className = "";
  main.replaceChildren(el("h1", {}, "This cannot be shown"), el("p", {}, error.message), el("p", { class: "note" }, hint ?? ""));
}

function listen() {
  const say = (on) => {
    live.textContent = on ? "live" : "reconnecting";
    live.classList.toggle("on", on);
  };
  const heard = {
    // Every later change is sent, so now is the time to load.
    hello: () => {
      runs.load().catch(failed);
      say(true);
    },
    error: () => say(false),
    again: () => runs.load(),
    runs: (text) => {
      const changed = JSON.parse(text).runs;
      runs.change(changed);
      page?.change?.(changed);
    },
  };
  if (globalThis.SharedWorker) {
    const { port } = new SharedWorker("/assets/live.js");
    port.onmessage = ({ data }) => heard[data.name](data.text);
    addEventListener("pagehide", () => port.postMessage("leave"));
    // A page that the browser kept aside has left the stream.
    addEventListener("pageshow", (event) => event.persisted && location.reload());
  } else {
    const changes = new EventSource("/v1/changes");
    for (const name of Object.keys(heard)) changes.addEventListener(name, (event) => heard[name](event.data));
  }
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const go = { r: "#/", q: "#/queue", w: "#/workers", c: "#/charts" };
  if (go[event.key]) location.hash = go[event.key];
  else if (event.key === "?") help();
  else if (event.key === "/") {
    event.preventDefault();
    const field = () => document.querySelector("input[type=search]");
    // At once where it can be: the next letter is meant for it.
    if (field()) return field().focus();
    location.hash = "#/";
    setTimeout(() => field()?.focus());
  } else page?.key?.(event);
}

function help() {
  const dialog = document.getElementById("dialog");
  document.getElementById("dialog-title").textContent = "Keys";
  document.getElementById("dialog-text").textContent =
    "/ search\n↑ ↓ move through runs, Enter opens one\nr runs, q queue, w workers, c charts\nEscape leaves a search";
  dialog.querySelector("[value=no]").hidden = true;
  dialog.showModal();
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const chosen = localStorage.getItem("theme") ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = chosen;
  return chosen;
}

const linkKey = () => /^#key=([0-9a-f]+)$/.exec(location.hash)?.[1];

/** The key behind the link is exchanged for a cookie, and does not stay in the address. */
async function begin() {
  const key = linkKey();
  if (!key) return;
  history.replaceState(null, "", "/#/");
  await (await fetch("/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }) })).text();
}

theme();
document.getElementById("theme").addEventListener("click", () => {
  localStorage.setItem("theme", theme() === "dark" ? "light" : "dark");
  theme();
});
document.getElementById("help").addEventListener("click", help);
addEventListener("keydown", keys);
// A link that is pasted into an open tab changes the hash alone.
addEventListener("hashchange", () => (linkKey() ? begin().then(() => location.reload(), failed) : show()));

try {
  await begin();
  const described = await fetch("/v1/openapi.json");
  if (!described.ok) throw Object.assign(new Error("This browser is not known here."), { status: described.status });
  for (const path of Object.keys((await described.json()).paths)) operations.add(path.slice(4).replaceAll("/", " "));
  listen();
  await show();
} catch (error) {
  failed(error);
}
