// @ts-check
// Parts that every page uses: badges, times, tables, buttons, icons.
import { settings } from "../net/settings.js";
import { store } from "../net/store.js";
import { elapsed, fraction, remaining, title, tone, word } from "../model/run.js";
import { ago, duration, moment } from "../model/text.js";
import { link } from "../model/route.js";
import { h } from "./view.js";

/** Paths of the icons, drawn in a box of 24. */
const ICONS = {
  overview: "M4 13h6V4H4zm0 7h6v-4H4zm10 0h6v-9h-6zm0-16v4h6V4z",
  runs: "M5 6h14M5 12h14M5 18h9",
  queue: "M4 7h10M4 12h10M4 17h6M17 9l3 3-3 3",
  schedules: "M12 7v5l3 2M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  keys: "M14.5 9.5a4.5 4.5 0 1 1-4.2-4.5 4.5 4.5 0 0 1 4.2 4.5zM13.5 13l6.5 6.5M17 16.5l2-2",
  workers: "M4 5h16v6H4zm0 8h16v6H4zM7.5 8h.01M7.5 16h.01",
  insights: "M4 19V5M4 19h16M8 15v-4M12 15V8M16 15v-6",
  api: "M9 8l-4 4 4 4M15 8l4 4-4 4",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4 4",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M18.4 5.6L17 7M7 17l-1.4 1.4",
  help: "M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 17h.01M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  out: "M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
  close: "M6 6l12 12M18 6L6 18",
};

/** @param {string} name */
export function icon(name) {
  return h("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, h("path", { d: ICONS[name] ?? "" }));
}

/** @param {{state: string, health?: string|null, replays?: string|null, can?: string[]}} run */
export function badge(run) {
  return label(word(run));
}

/** @param {string} text @param {string} [look] */
export function label(text, look = tone(text)) {
  return h("span", { class: `badge ${look}` }, h("i", { class: "dot", "aria-hidden": "true" }), text);
}

/** A moment with the distance to it as a tooltip, in the time zone that was chosen. @param {string|null|undefined} at @param {number} now */
export function time(at, now) {
  return at ? h("time", { datetime: at, title: ago(at, now) }, moment(at, settings.utc)) : null;
}

/** The distance to a moment, with the moment as a tooltip. @param {string|null|undefined} at @param {number} now */
export function since(at, now) {
  return at ? h("time", { datetime: at, title: moment(at, settings.utc) }, ago(at, now)) : null;
}

const NAMED = /`([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})`|(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/g;

/** A reason of the server, in which runs are links by their names, and times are in the zone that was chosen. @param {string|null|undefined} text */
export function reasonOf(text) {
  const shown = [];
  let at = 0;
  for (const match of (text ?? "").matchAll(NAMED)) {
    const [whole, id, when] = match;
    shown.push(...withCode(text.slice(at, match.index)), id ? h("a", { class: "inline", href: link(["run", id]) }, store.current.has(id) ? title(store.current.get(id)) : short(id)) : moment(when, settings.utc));
    at = match.index + whole.length;
  }
  return [...shown, ...withCode((text ?? "").slice(at))];
}

/** A reason as a text without marks, in which runs have their names, where those are known, and times are in the zone that was chosen. @param {string|null|undefined} text */
export function reasonText(text) {
  return (text ?? "").replace(NAMED, (whole, id, when) => (id ? (store.current.has(id) ? title(store.current.get(id)) : short(id)) : moment(when, settings.utc))).replaceAll("`", "");
}

/** The end of an id: ids that were made at about the same time begin alike. @param {string} id */
export function short(id) {
  return id.slice(-8);
}

/** A link to a run. @param {any} run @param {string} [tab] */
export function runLink(run, tab = "") {
  return h("a", { href: link(["run", run.id, tab]), class: "runlink", title: title(run) }, title(run));
}

/** How far a run is, and when it will be done. @param {any} run @param {number} now */
export function progress(run, now) {
  const share = fraction(run);
  if (run.progress_done === null || run.progress_done === undefined) return null;
  if (share === null) return h("span", { class: "num" }, `${run.progress_done.toLocaleString("en")}`);
  const left = remaining(run, now);
  const percent = `${Math.floor(share * 100)}%`;
  return h("span", { class: "progress" },
    h("span", { class: "bar", role: "progressbar", "aria-valuenow": Math.floor(share * 100), "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": `progress of ${title(run)}` },
      h("span", { style: { width: `${share * 100}%` } })),
    h("span", { class: "num" }, percent, left ? h("span", { class: "quiet" }, ` ${duration(left)} left`) : null));
}

/** @param {any} run @param {number} now */
export function took(run, now) {
  return duration(elapsed(run, now));
}

/**
 * A table in a region of its own that scrolls sideways where it must.
 * @param {string} name
 * @param {(string|{text: string, class?: string})[]} heads
 * @param {any[]} rows
 * @param {string} [look]
 */
export function table(name, heads, rows, look = "") {
  const head = heads.map((one) => (typeof one === "string" ? h("th", { scope: "col" }, one) : h("th", { scope: "col", class: one.class }, one.text)));
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name },
    h("table", { class: look }, h("thead", null, h("tr", null, head)), h("tbody", null, rows)));
}

/** @param {string} text @param {() => any} onclick @param {Record<string, any>} [props] */
export function button(text, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, text);
}

/** What a page says where it has nothing to show. @param {string} text @param {string} [hint] */
export function empty(text, hint = "") {
  return h("div", { class: "empty" }, h("p", null, text), hint ? h("p", { class: "quiet" }, withCode(hint)) : null);
}

/** A text whose parts between backticks are code. @param {string} text */
export function withCode(text) {
  return text.split("`").map((part, index, all) => (index % 2 && index < all.length - 1 ? h("code", null, part) : part));
}

/** A panel with a heading. @param {string} name @param {any} aside @param {...any} children */
export function panel(name, aside, ...children) {
  return h("section", { class: "panel", "aria-label": name }, h("div", { class: "panel-head" }, h("h2", null, name), aside), children);
}

/** Puts a text on the clipboard; the caller tells the person. @param {string} text */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
