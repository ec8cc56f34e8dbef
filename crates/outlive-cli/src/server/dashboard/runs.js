// The list of runs: all that are loaded, of which only those in sight are in the page.

import { badge, elapsed, el, progress, title, word } from "/assets/dom.js";
import { call, toast } from "/assets/app.js";

const ROW = 36;
const PAGE = 1000;
// How many are loaded at once: older ones when they are asked for, or scrolled to.
const MANY = 10000;
const FILTERS = {
  all: () => true,
  "in flight": (run) => ["pending", "running", "suspended"].includes(run.state),
  "needs attention": (run) => ["dead", "interrupted"].includes(run.state) || (run.health ?? "healthy") !== "healthy",
  failed: (run) => run.state === "failed",
  succeeded: (run) => run.state === "succeeded",
  cancelled: (run) => run.state === "cancelled",
};

export class Runs {
  constructor() {
    this.known = new Map();
    this.shown = [];
    this.text = "";
    this.filter = "all";
    this.loaded = false;
    this.most = MANY;
    // Where older ones begin that are not loaded.
    this.next = null;
    this.loading = 0;
  }

  /** Loads them anew, page by page, the newest first. */
  async load() {
    const known = new Map();
    await this.read(known, null);
  }

  /** Loads as many older ones again. */
  async more() {
    if (!this.next || this.reading) return;
    this.most = this.known.size + MANY;
    await this.read(this.known, this.next);
  }

  async read(known, after) {
    // Whoever begins anew takes the place of whoever still reads.
    const turn = ++this.loading;
    this.reading = true;
    this.heard = new Map();
    try {
      do {
        const page = await call("ps", { all: true, limit: PAGE, after });
        if (turn !== this.loading) return;
        for (const run of page.runs) known.set(run.id, run);
        // What was heard meanwhile is younger than what was read.
        for (const [id, run] of this.heard) known.set(id, run);
        after = page.next;
        Object.assign(this, { known, next: after, loaded: true });
        this.select();
      } while (after && known.size < this.most);
    } finally {
      if (turn === this.loading) this.reading = false;
      this.tell();
    }
  }

  /** Says that there are older ones which are not loaded, and loads them. For every page that tells of all that are. */
  older() {
    const button = el("button", { type: "button", onclick: () => this.more().catch((error) => toast(error.message)) }, "Load older");
    this.behind = { text: el("span", {}), button };
    const place = el("span", { class: "older" }, this.behind.text, " ", button);
    this.behind.place = place;
    this.tell();
    return place;
  }

  tell() {
    if (!this.behind) return;
    const { place, text, button } = this.behind;
    place.hidden = !this.next;
    text.textContent = `The newest ${this.known.size} are loaded; there are older ones.`;
    button.disabled = this.reading;
  }

  /** Takes in what has changed. */
  change(changed) {
    for (const run of changed.filter((run) => run.step_of === null)) {
      this.known.set(run.id, run);
      if (this.reading) this.heard.set(run.id, run);
    }
    this.select();
  }

  select() {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    const says = (run) => {
      const labels = Object.entries(run.labels).map(([key, value]) => `${key}=${value}`);
      const all = [run.id, run.kind, title(run), word(run), run.reason, run.host, ...labels].join(" ").toLowerCase();
      return words.every((wanted) => all.includes(wanted));
    };
    const fits = FILTERS[this.filter];
    this.shown = [...this.known.values()].filter((run) => fits(run) && !(run.archived && !words.length && this.filter === "all") && says(run));
    this.tell();
    this.shown.sort((a, b) => (a.created_at < b.created_at ? 1 : a.created_at > b.created_at ? -1 : a.id < b.id ? 1 : -1));
    this.draw();
  }

  show(main) {
    const search = el("input", { type: "search", placeholder: "Search names, commands, labels, reasons", "aria-label": "Search runs", value: this.text,
      oninput: (event) => { this.text = event.target.value; this.select(); } });
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { search.value = this.text = ""; this.select(); search.blur(); }
      if (event.key === "ArrowDown") { this.focus(0); event.preventDefault(); }
    });
    const filter = el("select", { "aria-label": "Which runs", onchange: (event) => { this.filter = event.target.value; this.select(); } },
      Object.keys(FILTERS).map((name) => el("option", { value: name, selected: name === this.filter }, name)));
    this.count = el("span", { class: "count", role: "status" });
    const columns = [["name", "RUN"], ["", "STATE"], ["", "TIME"], ["progress", "PROGRESS"], ["reason", "REASON"]];
    const head = el("div", { role: "row", class: "row head" }, columns.map(([name, text]) => el("span", { role: "columnheader", class: name }, text)));
    this.space = el("div", { class: "space", role: "rowgroup" });
    this.scroll = el("div", { class: "scroll", role: "presentation", onscroll: () => this.draw() }, this.space);
    this.grid = el("div", { class: "grid", role: "grid", "aria-label": "Runs" }, el("div", { role: "rowgroup" }, head), this.scroll);
    main.replaceChildren(el("h1", { class: "skip" }, "Runs"), el("div", { class: "tools" }, search, filter, this.count, this.older()), this.grid);
    this.rows = new Map();
    this.draw();
    const clock = setInterval(() => this.draw(true), 1000);
    const resized = () => this.draw();
    addEventListener("resize", resized);
    return {
      leave: () => { clearInterval(clock); removeEventListener("resize", resized); this.grid = null; },
      key: (event) => this.key(event),
    };
  }

  /** Draws what is in sight. A row that is in sight already stays the element that it is. */
  draw() {
    if (!this.grid) return;
    const total = this.shown.length;
    this.grid.setAttribute("aria-rowcount", String(total + 1));
    this.count.textContent = this.loaded ? `${total} of ${this.next ? "the newest " : ""}${this.known.size}` : "Loading…";
    this.space.style.height = `${total * ROW}px`;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 5);
    const last = Math.min(total, Math.ceil((this.scroll.scrollTop + this.scroll.clientHeight) / ROW) + 5);
    const rows = new Map();
    for (let at = first; at < last; at++) {
      const run = this.shown[at];
      const old = this.rows.get(run.id);
      const said = `${at} ${word(run)} ${elapsed(run)} ${run.progress_done} ${run.reason} ${run.archived}`;
      if (old?.said === said) rows.set(run.id, old);
      else rows.set(run.id, { node: this.row(run, at, old?.node), said });
    }
    for (const [id, { node }] of this.rows) if (!rows.has(id)) node.remove();
    for (const { node } of rows.values()) if (!node.isConnected) this.space.append(node);
    this.rows = rows;
    // Whoever comes to the end of all that is loaded goes on.
    if (last === total && first > 0 && this.next) this.more().catch(() => {});
  }

  row(run, at, old) {
    const cells = [
      el("span", { role: "gridcell", class: "name" }, title(run)),
      el("span", { role: "gridcell" }, badge(run)),
      el("span", { role: "gridcell", class: "num" }, elapsed(run)),
      el("span", { role: "gridcell", class: "progress" }, progress(run)),
      el("span", { role: "gridcell", class: "reason quiet" }, (run.archived ? "archived " : "") + (run.reason ?? "")),
    ];
    const node = old ?? el("a", { role: "row", class: "row", href: `#/run/${run.id}`, "data-id": run.id });
    node.replaceChildren(...cells);
    node.setAttribute("aria-rowindex", String(at + 2));
    node.style.top = `${at * ROW}px`;
    return node;
  }

  focus(at) {
    at = Math.max(0, Math.min(this.shown.length - 1, at));
    if (!this.shown[at]) return;
    const [top, bottom] = [this.scroll.scrollTop, this.scroll.scrollTop + this.scroll.clientHeight];
    if (at * ROW < top) this.scroll.scrollTop = at * ROW;
    if ((at + 1) * ROW > bottom) this.scroll.scrollTop = (at + 1) * ROW - this.scroll.clientHeight;
    this.draw();
    this.rows.get(this.shown[at].id)?.node.focus();
  }

  key(event) {
    const at = this.shown.findIndex((run) => run.id === document.activeElement?.dataset?.id);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    this.focus(at < 0 ? 0 : at + step);
    event.preventDefault();
  }
}
