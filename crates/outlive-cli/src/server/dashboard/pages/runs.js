// @ts-check
// The list of runs: searched and filtered by the server, drawn only where it is in sight, with selection and bulk actions.
import { link } from "../model/route.js";
import { elapsed, title } from "../model/run.js";
import { VIEWS, fields, fits, inOrder, pastMoment, read, write } from "../model/query.js";
import { count, duration } from "../model/text.js";
import { call } from "../net/net.js";
import { choose, settings } from "../net/settings.js";
import { store } from "../net/store.js";
import { failed, open } from "../view/dialogs.js";
import { badge, button, empty, progress, reasonText, since } from "../view/parts.js";
import { Histogram } from "../view/histogram.js";
import { h } from "../view/view.js";
import { Virtual } from "../view/virtual.js";
import { OFFERS, act } from "./actions.js";
import { loaded, onState } from "./loaded.js";

const ROW = 40;
/** How many runs a page of the server has. */
const PAGE = 500;
/** How long to wait for another letter before the server is asked, in milliseconds. */
const PAUSE = 150;
/** How long to wait until runs are counted again, in milliseconds: each count reads many. */
const COUNTED = 5000;
/** Into how many parts the time is cut. */
const PARTS = 80;
const TIMES = [["", "any time"], ["1h", "last hour"], ["24h", "last 24 hours"], ["7d", "last 7 days"], ["30d", "last 30 days"]];
const COLUMNS = [["name", "Run"], ["state", "State"], ["kind", "Kind"], ["duration", "Time"], ["", "Progress"], ["created", "Made"], ["", "Reason"]];

/** @param {import("./all.js").Frame} frame */
export function runsPage(frame) {
  return new Runs(frame);
}

class Runs {
  /** @param {import("./all.js").Frame} frame */
  constructor({ route, redraw, replace, go }) {
    this.redraw = redraw;
    this.replace = replace;
    this.go = go;
    this.full = true;
    this.query = read(route.query);
    /** @type {Map<string, any>} */
    this.known = new Map();
    /** @type {any[]} */
    this.shown = [];
    this.next = null;
    this.turn = 0;
    this.loading = true;
    /** The first page is here. */
    this.loaded = false;
    /** Runs that changed since the page that is loading was asked for. @type {any[]} */
    this.meanwhile = [];
    /** The last run of the last page: where the next one begins. @type {any} */
    this.end = null;
    this.problem = "";
    this.at = -1;
    /** @type {Set<string>} */
    this.selected = new Set();
    this.anchor = -1;
    this.timer = 0;
    this.list = new Virtual({ row: ROW, name: "Runs", role: "grid", look: "runs", draw: (index) => this.row(index), scrolled: () => this.more() });
    this.histogram = new Histogram({ redraw, choose: (from, to) => this.set({ since: new Date(from).toISOString(), until: to === null ? "" : new Date(to).toISOString() }) });
    /** The time in which all runs were made, as far as that is known. */
    this.widest = "7d";
    this.span = spanOf(this.query, Date.now(), this.widest);
    // The first page says how long ago runs were made.
    const first = Promise.resolve().then(() => this.load());
    this.counts = loaded(() => first.then(() => call("facets", { since: this.span, parts: PARTS })), redraw, COUNTED);
    this.moved = onState(this.counts.soon);
  }

  title() {
    return this.query.view === "all" ? "Runs" : `Runs: ${this.query.view}`;
  }

  leave() {
    clearTimeout(this.timer);
    this.counts.leave();
    this.list.leave();
  }

  /** @param {import("../model/route.js").Route} route */
  route(route) {
    const before = JSON.stringify(this.query);
    this.query = read(route.query);
    if (JSON.stringify(this.query) !== before) {
      this.recount();
      this.load();
    }
    return true;
  }

  again() {
    this.counts.soon();
    this.load(false);
  }

  ticks() {
    return this.shown.some((run) => run.state === "running");
  }

  /** Loads the first page anew. What was listed stays until the answer is here. @param {boolean} [toTop] */
  async load(toTop = true) {
    const turn = this.ask();
    this.redraw();
    try {
      const page = await call("ps", fields(this.query, PAGE, null));
      if (turn !== this.turn) return;
      this.known.clear();
      this.take(page);
      this.problem = "";
      for (const id of this.selected) if (!this.known.has(id)) this.selected.delete(id);
      if (toTop) this.at = -1;
    } catch (error) {
      if (turn !== this.turn) return;
      // Its cursor belongs to the list of before.
      this.next = null;
      // The shell says that the server is away.
      this.problem = /** @type {any} */ (error).status === 0 ? "" : /** @type {Error} */ (error).message;
    }
    if (!this.isFiltered()) this.widest = this.next ? "7d" : spanSince(this.known.values(), Date.now());
    if (this.loaded) this.recount();
    else this.span = spanOf(this.query, Date.now(), this.widest);
    this.loading = false;
    this.loaded = true;
    this.arrange();
    if (toTop) this.list.scroll(0);
  }

  /** Loads the next page when the end of the list comes near. */
  async more() {
    if (!this.next || this.loading || this.list.last() < this.shown.length - PAGE / 2) return;
    const turn = this.ask();
    try {
      const page = await call("ps", fields(this.query, PAGE, this.next));
      if (turn !== this.turn) return;
      this.take(page);
    } catch (error) {
      if (turn !== this.turn) return;
      // Asked again with the next scroll: an answer that is refused is refused again.
      this.loading = false;
      failed(error);
      return;
    }
    this.loading = false;
    this.arrange();
    this.more();
  }

  /** Begins to load: what was asked for before is not waited for any more. */
  ask() {
    this.loading = true;
    this.meanwhile = [];
    return ++this.turn;
  }

  /** Takes in a page, and after it what changed since it was asked for: the page may be older. @param {{runs: any[], next: string|null}} page */
  take({ runs, next }) {
    for (const run of runs) this.known.set(run.id, run);
    this.next = next;
    this.end = runs.at(-1) ?? this.end;
    this.note(this.meanwhile.filter((run) => !(this.known.get(run.id)?.updated_at > run.updated_at)));
  }

  /** @param {any[]} runs */
  changed(runs) {
    this.moved(runs.filter((run) => !run.step_of));
    if (this.loading) this.meanwhile.push(...runs);
    if (this.loaded && this.note(runs)) this.arrange();
  }

  /** Takes in runs that changed, but those of pages that are not loaded yet; answers whether the list has changed. @param {any[]} runs */
  note(runs) {
    const now = Date.now();
    const compared = inOrder(this.query.sort, now);
    let has = false;
    for (const run of runs) {
      const isKnown = this.known.has(run.id);
      if (fits(run, this.query, now)) {
        if (!isKnown && this.next && compared(this.end, run) < 0) continue;
        this.known.set(run.id, run);
        has = true;
      } else if (isKnown) has = this.known.delete(run.id) || has;
    }
    return has;
  }

  arrange() {
    const current = this.shown[this.at]?.id;
    this.shown = [...this.known.values()].sort(inOrder(this.query.sort, Date.now()));
    if (current) this.at = this.shown.findIndex((run) => run.id === current);
    this.list.resize(this.shown.length);
    this.redraw();
  }

  /** Changes the query and the address. @param {Partial<import("../model/query.js").Query>} changed @param {boolean} [soon] */
  set(changed, soon = false) {
    this.query = { ...this.query, ...changed };
    this.replace(link(["runs"], write(this.query)));
    // All of them are here.
    if ("sort" in changed && Object.keys(changed).length === 1 && this.loaded && !this.loading && !this.next) return this.arrange();
    if ("since" in changed) this.recount();
    clearTimeout(this.timer);
    if (soon) this.timer = /** @type {any} */ (setTimeout(() => this.load(), PAUSE));
    else this.load();
  }

  /** Counts runs over another time, where the list is of another. */
  recount() {
    const span = spanOf(this.query, Date.now(), this.widest);
    if (span === this.span) return;
    this.span = span;
    this.counts.again();
  }

  draw() {
    this.list.resize(this.shown.length);
    queueMicrotask(() => (this.list.draw(), this.more()));
    const total = this.next ? `${this.shown.length.toLocaleString("en")}+` : this.shown.length.toLocaleString("en");
    return [
      h("h1", { class: "only-read" }, "Runs"),
      h("div", { class: "filters" }, this.filters(), h("span", { class: "total", role: "status" }, this.loading && !this.shown.length ? "loading…" : `${total} ${this.shown.length === 1 ? "run" : "runs"}`)),
      this.counts.answer ? this.histogram.draw(this.counts.answer, this.chosen(), settings.utc) : h("div", { class: "histogram" }),
      this.problem ? h("p", { class: "warning", role: "alert" }, this.problem) : null,
      this.selected.size ? this.bulk() : null,
      h("div", { class: "grid", role: "grid", "aria-label": "Runs", "aria-rowcount": this.shown.length + 1, "aria-multiselectable": "true" }, h("div", { role: "rowgroup" }, this.head()), this.list.place),
      !this.loading && !this.shown.length ? empty("No run matches.", this.isFiltered() ? "Remove a filter to see more." : "`outlive run -- COMMAND` starts the first.") : null,
    ];
  }

  /** The time range that was chosen, where it is none of the menu. */
  chosen() {
    const { since: from, until } = this.query;
    if (!until && TIMES.some(([value]) => value === from)) return null;
    return { since: from ? pastMoment(from, Date.now()) : -Infinity, until: until ? pastMoment(until, Date.now()) : Infinity };
  }

  isFiltered() {
    const { view, status, text, kind, name, host, user, labels, since: from } = this.query;
    return view !== "all" || status.length > 0 || labels.length > 0 || Boolean(text || kind || name || host || user || from);
  }

  filters() {
    const { query } = this;
    const chip = (/** @type {string} */ text, /** @type {Partial<import("../model/query.js").Query>} */ without) => h("button", { type: "button", key: `c${text}`, class: "chip", onclick: () => this.set(without), "aria-label": `Remove filter ${text}` }, text, h("span", { "aria-hidden": "true" }, "×"));
    return [
      h("input", { type: "search", placeholder: "Search names, commands, labels", "aria-label": "Search runs", value: query.text,
        oninput: (/** @type {any} */ event) => this.set({ text: event.target.value }, true), onkeydown: (/** @type {KeyboardEvent} */ event) => this.inSearch(event) }),
      h("div", { class: "segments", role: "group", "aria-label": "Which runs" }, Object.keys(VIEWS).map((view) => h("button", { key: view, type: "button", "aria-pressed": view === query.view && !query.status.length ? "true" : "false", onclick: () => this.set({ view, status: [] }) }, view))),
      h("select", { "aria-label": "Made within", value: TIMES.some(([value]) => value === query.since) ? query.since : "", onchange: (/** @type {any} */ event) => this.set({ since: event.target.value, until: "" }) }, TIMES.map(([value, text]) => h("option", { value, key: value }, text))),
      ["kind", "host", "user"].map((what) => this.menu(what)),
      h("label", { class: "check" }, h("input", { type: "checkbox", checked: query.archived, onchange: (/** @type {any} */ event) => this.set({ archived: event.target.checked }) }), "archived"),
      settings.views.map((view) => h("a", { key: `v${view.name}`, class: "chip", href: `#/runs?${view.query}` }, view.name)),
      query.status.map((one) => chip(one, { status: query.status.filter((other) => other !== one) })),
      query.name ? chip(`name ${query.name}`, { name: "" }) : null,
      query.labels.map((one) => chip(one, { labels: query.labels.filter((other) => other !== one) })),
      this.chosen() ? chip("time range", { since: "", until: "" }) : null,
      this.isFiltered() ? button("Save view", () => this.save(), { class: "plain small" }) : null,
    ];
  }

  /** A menu of the values that runs have; none where there is nothing to choose. @param {string} what */
  menu(what) {
    const chosen = this.query[what];
    const counted = this.counts.answer?.[`${what}s`] ?? [];
    if (counted.length < 2 && !chosen) return null;
    const values = counted.some((/** @type {any} */ one) => one.value === chosen) || !chosen ? counted : [{ value: chosen, runs: 0 }, ...counted];
    return h("select", { key: what, "aria-label": `Filter by ${what}`, class: chosen ? "on" : "", value: chosen, onchange: (/** @type {any} */ event) => this.set({ [what]: event.target.value }) },
      h("option", { value: "", key: "any" }, `any ${what}`), values.map((/** @type {any} */ one) => h("option", { value: one.value, key: `v${one.value}` }, one.runs ? `${one.value} (${one.runs.toLocaleString("en")})` : one.value)));
  }

  async save() {
    const query = location.hash.split("?")[1] ?? "";
    const known = settings.views.find((view) => view.query === query);
    const field = document.createElement("input");
    Object.assign(field, { value: known?.name ?? "", maxLength: 40, required: true });
    field.setAttribute("aria-label", "Name of the view");
    const name = await open("Save view", (close) => h("form", { class: "ask", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); close(field.value.trim()); } },
      h("h2", null, "Save view"), h("p", { class: "quiet" }, "Kept in this browser, beside the filters. An empty name removes it."), field,
      h("div", { class: "buttons" }, known ? button("Remove", () => close("")) : null, h("button", { type: "submit", class: "primary" }, "Save"))));
    if (name === null) return;
    const others = settings.views.filter((view) => view.query !== query && view.name !== name);
    choose({ views: name ? [...others, { name: /** @type {string} */ (name), query }] : others });
    this.redraw();
  }

  /** @param {KeyboardEvent} event */
  inSearch(event) {
    const field = /** @type {HTMLInputElement} */ (event.target);
    if (event.key === "Escape") {
      field.value = "";
      this.set({ text: "" });
      field.blur();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      field.blur();
      this.move(this.at < 0 ? 1 : 0);
    }
  }

  head() {
    const { sort } = this.query;
    return h("div", { role: "row", class: "row head" }, h("span", { role: "columnheader", class: "check" }, h("input", { type: "checkbox", "aria-label": "Select all that are loaded", checked: this.selected.size > 0 && this.selected.size === this.shown.length,
      onchange: (/** @type {any} */ event) => { this.selected = new Set(event.target.checked ? this.shown.map((run) => run.id) : []); this.redraw(); } })),
    COLUMNS.map(([name, text]) => {
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : null;
      const turn = sort === `-${name}` ? name : sort === name ? "" : `-${name}`;
      return h("span", { key: text, role: "columnheader", class: `c-${text.toLowerCase()}`, "aria-sort": name && order ? order : null },
        name ? h("button", { type: "button", class: "plain", onclick: () => this.set({ sort: turn }) }, text, order ? (order === "ascending" ? " ↑" : " ↓") : "") : text);
    }));
  }

  /** @param {number} index */
  row(index) {
    const run = this.shown[index];
    const now = Date.now();
    const isSelected = this.selected.has(run.id);
    const cell = (/** @type {string} */ name, /** @type {any} */ ...children) => h("span", { role: "gridcell", class: `c-${name}` }, children);
    return h("div", { key: run.id, role: "row", class: `row${index === this.at ? " current" : ""}${isSelected ? " selected" : ""}`, "aria-rowindex": index + 2, "aria-selected": isSelected ? "true" : "false", "data-id": run.id,
      onclick: (/** @type {MouseEvent} */ event) => this.clicked(event, index) },
    h("span", { role: "gridcell", class: "check" }, h("input", { type: "checkbox", checked: isSelected, tabindex: -1, "aria-label": `Select ${title(run)}`, onclick: (/** @type {MouseEvent} */ event) => { event.stopPropagation(); this.toggle(index, event.shiftKey); } })),
    cell("run", h("a", { href: link(["run", run.id]), title: title(run), tabindex: index === Math.max(0, this.at) ? 0 : -1 }, title(run)), run.archived ? h("span", { class: "quiet" }, " archived") : null),
    cell("state", badge(run)),
    cell("kind", run.kind),
    cell("time", duration(elapsed(run, now))),
    cell("progress", progress(run, now)),
    cell("made", since(run.created_at, now)),
    cell("reason", h("span", { title: reasonText(run.reason) }, reasonText(run.reason))));
  }

  /** @param {MouseEvent} event @param {number} index */
  clicked(event, index) {
    this.at = index;
    if (/** @type {Element} */ (event.target).closest("a, input") || getSelection()?.toString()) return this.redraw();
    this.go(link(["run", this.shown[index].id]));
  }

  /** @param {number} index @param {boolean} [through] */
  toggle(index, through = false) {
    const run = this.shown[index];
    if (!run) return;
    const on = !this.selected.has(run.id);
    const [from, to] = through && this.anchor >= 0 ? [Math.min(this.anchor, index), Math.max(this.anchor, index)] : [index, index];
    for (const one of this.shown.slice(from, to + 1)) {
      if (on) this.selected.add(one.id);
      else this.selected.delete(one.id);
    }
    this.anchor = index;
    this.redraw();
  }

  bulk() {
    const chosen = this.shown.filter((run) => this.selected.has(run.id));
    const able = OFFERS.filter(({ operation }) => store.may(operation)).map((offer) => ({ ...offer, n: chosen.filter((run) => run.can.includes(offer.operation)).length })).filter(({ n }) => n);
    return h("div", { class: "bulk", role: "toolbar", "aria-label": "Actions for the selection" }, h("strong", null, `${count(chosen.length, "run")} selected`),
      able.map(({ operation, name, look, n }) => button(`${name} ${n}`, async () => {
        if (await act(operation, chosen)) {
          this.selected.clear();
          this.load(false);
        }
      }, { key: operation, class: look, "data-action": operation })),
      chosen.length === 2 ? h("a", { class: "button", href: link(["compare", chosen[1].id, chosen[0].id]) }, "Compare") : null,
      h("span", { class: "gap" }), button("Clear", () => (this.selected.clear(), this.redraw()), { class: "plain" }));
  }

  /** @param {number} by */
  move(by) {
    if (!this.shown.length) return;
    this.at = Math.min(this.shown.length - 1, Math.max(0, this.at + by));
    this.list.show(this.at);
    this.redraw();
    const focus = () => /** @type {HTMLElement|null} */ (this.list.space.querySelector(".row.current a"))?.focus({ preventScroll: true });
    requestAnimationFrame(() => requestAnimationFrame(focus));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    // Links and buttons have their own meaning of Enter.
    if (event.key === "Enter" && /** @type {Element} */ (event.target).closest("a, button")) return false;
    const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: 12, PageUp: -12 };
    if (steps[event.key]) this.move(this.at < 0 ? 1 : steps[event.key]);
    else if (event.key === "Home" || event.key === "End") this.move(event.key === "Home" ? -Infinity : Infinity);
    else if (event.key === "x" || event.key === "X") this.toggle(Math.max(0, this.at), event.key === "X");
    else if (event.key === "Enter" && this.at >= 0) this.go(link(["run", this.shown[this.at].id]));
    else if (event.key === "Escape" && this.selected.size) this.selected.clear();
    else return false;
    this.redraw();
    return true;
  }
}

const SPANS = ["1h", "24h", "7d", "30d", "365d"];

/** The shortest time in which all of these runs were made. @param {Iterable<any>} runs @param {number} now */
function spanSince(runs, now) {
  let oldest = now;
  for (const run of runs) oldest = Math.min(oldest, Date.parse(run.created_at));
  return SPANS.find((span) => pastMoment(span, now) <= oldest) ?? "365d";
}

/** Over which time runs are counted: that of the list, or the shortest in which a chosen range lies. @param {import("../model/query.js").Query} query @param {number} now @param {string} widest */
function spanOf({ since: from, until }, now, widest) {
  if (!from) return widest;
  if (!until && SPANS.includes(from)) return from;
  const begins = pastMoment(from, now);
  return SPANS.find((span) => pastMoment(span, now) <= begins) ?? from;
}
