// Elements made of text. Nothing that a run says is ever parsed as markup.

/** A text with everything made visible that would hide, or turn around what stands beside it. */
export function visible(text) {
  const hidden = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  return String(text).replace(hidden, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** An element with properties and children; a child that is no node is text. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  const there = children.flat().filter((child) => child !== null && child !== undefined);
  node.append(...there.map((child) => (child instanceof Node ? child : visible(child))));
  return node;
}

/** The same for drawings. */
export function svg(tag, properties = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)}s`;
  if (s < 90) return `${Math.round(s)}s`;
  if (s < 5400) return `${Math.floor(s / 60)}m ${Math.round(s % 60)}s`;
  if (s < 172800) return `${Math.floor(s / 3600)}h ${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d`;
}

export function moment(text) {
  return text ? new Date(text).toLocaleString() : "";
}

/** How a run stands in one word, and what the word wants to say. */
export function word(run) {
  return run.health && run.health !== "healthy" ? run.health : run.state;
}

export function tone(run) {
  const health = { late: "doubt", stalled: "doubt", overdue: "doubt", unresponsive: "doubt", orphaned: "bad" };
  const state = {
    running: "good", succeeded: "good", failed: "bad", dead: "bad", interrupted: "doubt", pending: "wait", suspended: "wait",
  };
  return health[run.health] ?? state[run.state] ?? "quiet";
}

export function badge(run) {
  return el("span", { class: `badge ${tone(run)}` }, word(run));
}

export function title(run) {
  return run.name ?? run.step ?? (run.command ? run.command.join(" ") : run.kind);
}

export function progress(run) {
  if (run.progress_done === null || run.progress_done === undefined) return el("span");
  const total = run.progress_total;
  if (!total) return el("span", { class: "num" }, String(run.progress_done));
  const percent = Math.min(100, Math.floor((run.progress_done * 100) / total));
  const meter = el("meter", { class: "meter", min: 0, max: total, value: run.progress_done, "aria-label": "progress" });
  return el("span", { class: "num" }, meter, `${percent}%`);
}

export function elapsed(run) {
  if (!run.started_at) return "";
  if (run.ended_at || run.state === "dead") return duration(run.duration_ms);
  return duration(Date.now() - Date.parse(run.started_at));
}
