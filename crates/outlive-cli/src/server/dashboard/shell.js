// @ts-check
// The shell: the rail with all pages, the registry, who is signed in, and how the connection stands.
import { link } from "./model/route.js";
import { needsAttention } from "./model/run.js";
import { newLink, signOut } from "./net/net.js";
import { applyTheme, choose, settings } from "./net/settings.js";
import { store } from "./net/store.js";
import { failed, help, open, toast } from "./view/dialogs.js";
import { button, copy, icon } from "./view/parts.js";
import { h } from "./view/view.js";

export const PAGES = [
  ["overview", "Overview"], ["runs", "Runs"], ["queue", "Queue"], ["schedules", "Schedules"], ["keys", "Keys"], ["workers", "Workers"], ["insights", "Insights"], ["api", "API"],
];

const LINKS = {
  live: ["good", "live"],
  connecting: ["wait", "connecting"],
  offline: ["bad", "reconnecting"],
  "signed out": ["bad", "signed out"],
};

/** @param {import("./model/route.js").Route} route @param {{redraw: () => void, palette: () => void}} frame */
export function drawShell(route, { redraw, palette }) {
  const current = route.page === "run" || route.page === "compare" ? "runs" : route.page;
  const session = store.session;
  const [look, text] = LINKS[store.link] ?? LINKS.connecting;
  return [
    h("button", { type: "button", class: "skip", onclick: () => document.getElementById("main").focus() }, "Skip to content"),
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#/overview" }, h("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, h("rect", { width: 16, height: 16, rx: 4 }), h("path", { d: "M3 8h3l2-4 2 8 1.5-4H13" })), h("span", null, "outlive")),
      session ? h("span", { class: "registry", title: session.registry }, session.registry) : null,
      session ? h("button", { type: "button", class: "find", onclick: palette, title: "Command palette" }, icon("search"), h("span", null, "Search or jump to…"), h("kbd", null, "Ctrl K")) : null,
      h("span", { class: "gap" }),
      session ? h("span", { id: "live", class: `link ${store.link === "live" ? "on" : ""} ${look}`, role: "status" }, h("i", { class: "dot", "aria-hidden": "true" }), h("span", null, text)) : null,
      h("button", { type: "button", class: "plain zone", onclick: () => (choose({ utc: !settings.utc }), redraw()), title: "Switch between local time and UTC" }, settings.utc ? "UTC" : "local"),
      h("button", { type: "button", class: "plain", "aria-label": "Switch theme", title: "Switch theme", onclick: () => switchTheme(redraw) }, icon("sun")),
      h("button", { type: "button", class: "plain wide-only", "aria-label": "Help", title: "Keys", onclick: () => help() }, icon("help")),
      session ? h("span", { class: "who wide-only", title: `role ${session.role}` }, h("span", null, session.user), h("span", { class: "role" }, session.role)) : null,
      session ? h("button", { type: "button", class: "plain", "aria-label": "Log out", title: "Log out", onclick: () => leave(false) }, icon("out")) : null),
    session ? h("nav", { class: "rail", "aria-label": "Pages" }, PAGES.map(([name, shown]) => h("a", { key: name, href: link([name]), "aria-current": name === current ? "page" : null, title: shown },
      icon(name), h("span", { class: "name" }, shown), counter(name)))) : null,
    session && store.link === "offline" ? h("div", { class: "banner", role: "alert" }, "The server cannot be reached. What is shown is the last that was known; the page continues by itself.") : null,
  ];
}

/** How many runs want a look behind a page's name. @param {string} name */
function counter(name) {
  const runs = store.all();
  const n = { overview: () => runs.filter(needsAttention).length, runs: () => runs.filter((run) => run.state === "running").length, queue: () => runs.filter((run) => run.state === "pending").length }[name]?.() ?? 0;
  return n ? h("span", { class: name === "overview" ? "count bad" : "count" }, n > 999 ? "999+" : n) : null;
}

/** @param {() => void} redraw */
export function switchTheme(redraw) {
  choose({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" });
  applyTheme();
  redraw();
}

/** Ends the session. @param {boolean} everywhere */
export async function leave(everywhere) {
  try {
    await signOut(everywhere);
  } catch (error) {
    return failed(error);
  }
  location.reload();
}

/** Shows a link that signs in another browser once. */
export async function shareLink() {
  try {
    const made = await newLink();
    const address = new URL(made.link, location.href).href;
    await open("Sign in another browser", (close) => h("div", { class: "ask" }, h("h2", null, "Sign in another browser"),
      h("p", null, "This link signs in one browser, once, as you."), h("code", { class: "block" }, address),
      h("div", { class: "buttons" }, button("Close", () => close(null)), button("Copy", async () => { await copy(address); toast("Copied"); close(null); }, { class: "primary" }))));
  } catch (error) {
    failed(error);
  }
}
