// @ts-check
// The frame: signs in, routes to pages, listens to changes, and draws what changed.
import { keyOf, link, parse } from "./model/route.js";
import { needsAttention } from "./model/run.js";
import { session, signIn, signedOut } from "./net/net.js";
import { applyTheme } from "./net/settings.js";
import { store } from "./net/store.js";
import { listen } from "./net/stream.js";
import { failed, help } from "./view/dialogs.js";
import { empty } from "./view/parts.js";
import { render } from "./view/view.js";
import { drawShell } from "./shell.js";
import { openPalette } from "./palette.js";
import { pages } from "./pages/all.js";
import { signInPage } from "./pages/sign_in.js";

const main = document.getElementById("main");
const shell = document.getElementById("shell");

/** @typedef {{title?: () => string, icon?: () => string, draw: () => any, route?: (route: import("./model/route.js").Route) => boolean, changed?: (runs: any[]) => void,
 *   workers?: () => void, output?: (sizes: Record<string, any>) => void, again?: () => void, key?: (event: KeyboardEvent) => boolean|void, leave?: () => void, full?: boolean, ticks?: () => boolean}} Page */

/** @type {Page|null} */
let page = null;
let route = parse(location.hash);
/** The address of the page in sight: a link to sign in with must not replace it. */
let address = keyOf(location.hash) ? "#/" : location.hash || "#/";
/** How far each page was scrolled, by address, for the way back. */
const scrolled = new Map();
let begin = () => {};
let drawing = false;

/** Draws the page soon; many changes at once are drawn once. */
export function redraw() {
  if (drawing) return;
  drawing = true;
  const draw = () => {
    drawing = false;
    try {
      drawNow();
    } catch (error) {
      console.error(error);
    }
  };
  // Frames do not come to a hidden page; it is drawn when it is shown.
  if (document.hidden) drawing = false;
  else requestAnimationFrame(draw);
}

function drawNow() {
  render(shell, drawShell(route, { redraw, palette }));
  if (!page) return;
  render(main, page.draw());
  const name = page.title?.() ?? "";
  const attention = store.all().filter(needsAttention).length;
  const heading = [attention && !route.id ? `(${attention})` : "", name, "outlive"].filter(Boolean).join(" · ").replace(") · ", ") ");
  if (document.title !== heading) document.title = heading;
  const look = page.icon?.() ?? (attention ? "bad" : store.all().some((run) => run.state === "running") ? "busy" : "");
  favicon(store.link === "offline" ? "quiet" : look);
}

/** @param {string} look */
function favicon(look) {
  const wanted = ["good", "bad", "busy", "warn", "quiet"].includes(look) ? `/assets/icon-${look}.svg` : "/assets/icon.svg";
  const icon = /** @type {HTMLLinkElement} */ (document.querySelector("link[rel=icon]"));
  if (icon.getAttribute("href") !== wanted) icon.setAttribute("href", wanted);
}

/** Changes the address without a new page. @param {string} hash */
export function replace(hash) {
  history.replaceState(null, "", hash);
  address = hash;
  route = parse(hash);
}

/** @param {string} hash */
export function go(hash) {
  if (location.hash === hash) show();
  else location.hash = hash;
}

function show() {
  if (!store.session) return;
  const next = parse(location.hash);
  const isSame = page && next.page === route.page && next.id === route.id;
  route = next;
  address = location.hash || "#/";
  if (isSame && page.route?.(route)) return redraw();
  page?.leave?.();
  render(main);
  main.className = "";
  const make = pages[route.page];
  try {
    page = make ? make({ route, redraw, replace, go }) : { draw: () => empty("There is no such page.", "The rail leads to all pages.") };
  } catch (error) {
    page = { draw: () => empty(/** @type {Error} */ (error).message) };
  }
  main.className = page.full ? "full" : "";
  drawNow();
  main.scrollTop = scrolled.get(address) ?? 0;
}

/** Shows the form to sign in with; afterwards the page that was wanted. @param {string} [why] */
function showSignIn(why = "") {
  store.session = null;
  page?.leave?.();
  page = signInPage({ why, redraw, done: () => start() });
  route = parse("#/signin");
  main.className = "";
  drawNow();
}

/** @param {string} name @param {string} text */
function heard(name, text) {
  if (!store.session) {
    // Another tab has signed in: the stream, which all of them share, lives again.
    if (name === "state" && text === "live" && begin !== nothing) start(true);
    return;
  }
  if (name === "state") {
    const before = store.link;
    store.link = text;
    if (text === "signed out") return showSignIn("Your session has ended: it was revoked or has expired. Sign in again to continue.");
    if (text === "live" && before !== "live" && !store.loaded) load();
  } else if (name === "hello" || name === "again") load();
  else if (name === "runs") {
    const changed = JSON.parse(text).runs;
    store.change(changed);
    page?.changed?.(changed);
  } else if (name === "workers") {
    store.workers = JSON.parse(text).workers;
    page?.workers?.();
  } else if (name === "output") page?.output?.(JSON.parse(text).output);
  redraw();
}

function load() {
  store.load().then(() => {
    page?.again?.();
    redraw();
  }, (error) => error.status !== 401 && error.status !== 0 && failed(error));
}

function palette() {
  openPalette({ go, redraw });
}

/** Whether the last key was `g`, which the letter of a page follows. */
let leads = false;
const GO = { o: "overview", r: "runs", q: "queue", s: "schedules", k: "keys", w: "workers", i: "insights", a: "api" };

/** @param {KeyboardEvent} event */
function keys(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && store.session) {
    event.preventDefault();
    return palette();
  }
  const target = /** @type {Element} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || !store.session) return;
  // What a dialog held has the focus for a moment after it was closed.
  if (!target.closest("dialog:not([open])") && target.closest("input, select, textarea, dialog")) return;
  if (leads && GO[event.key]) {
    leads = false;
    return go(link([GO[event.key]]));
  }
  leads = event.key === "g";
  if (page?.key?.(event)) return event.preventDefault();
  if (event.key === "?") help();
  else if (event.key === "/") {
    event.preventDefault();
    const field = /** @type {HTMLInputElement|null} */ (main.querySelector("input[type=search]"));
    if (field) field.focus();
    else palette();
  }
}

/** The key behind a link is exchanged for a cookie, and does not stay in the address. */
async function useKey() {
  const key = keyOf(location.hash);
  if (!key) return;
  history.replaceState(null, "", address);
  try {
    await signIn({ key });
  } catch (error) {
    // A link is good once. A browser that is signed in needs none, and says of no other that it is.
    if (/** @type {any} */ (error).status !== 401 || !(await session().catch(() => null))) throw error;
  }
}

/** Shows the requested page to the signed-in user. @param {boolean} [isLive] the stream lives already */
async function start(isLive = false) {
  try {
    await useKey();
    store.session = await session();
    store.link = isLive ? "live" : "connecting";
    store.loaded = false;
    if (!isLive) begin();
    if (begin === nothing) begin = listen(heard);
    show();
    load();
  } catch (error) {
    const { status, message } = /** @type {any} */ (error);
    if (status === 401 || status === 429) return showSignIn(status === 429 ? message : keyed ? "This link was used already, or the server that printed it has ended." : "");
    page = { draw: () => empty(message, "The page tries again every few seconds.") };
    drawNow();
    setTimeout(start, 3000);
  } finally {
    keyed = false;
  }
}

const nothing = begin;
let keyed = keyOf(location.hash) !== null;
applyTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
addEventListener("keydown", keys);
addEventListener("popstate", () => scrolled.set(address, main.scrollTop));
// A link that is pasted into an open tab changes the hash alone.
addEventListener("hashchange", () => {
  keyed = keyOf(location.hash) !== null;
  if (keyed) start();
  else show();
});
main.addEventListener("scroll", () => scrolled.set(address, main.scrollTop), { passive: true });
addEventListener("resize", redraw);
document.addEventListener("visibilitychange", () => !document.hidden && redraw());
signedOut.addEventListener("signedout", () => store.session && showSignIn("Your session has ended: it was revoked or has expired. Sign in again to continue."));
store.addEventListener("runs", redraw);
store.addEventListener("workers", redraw);
// Durations of what runs grow by the second.
setInterval(() => !document.hidden && (page?.ticks?.() ?? store.all().some((run) => run.state === "running")) && redraw(), 1000);
start();

