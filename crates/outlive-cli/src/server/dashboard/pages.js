// The queue and the workers.

import { call } from "/assets/app.js";
import { badge, duration, el, title } from "/assets/dom.js";

export function table(name, heads, rows, look = "") {
  const head = heads.map((text) => el("th", { scope: "col" }, text));
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": name },
    el("table", { class: look }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** A page that is drawn anew when something has changed, and now and then. */
export async function kept(draw) {
  await draw();
  let waiting = false;
  const again = async () => {
    if (waiting) return;
    waiting = true;
    const focused = document.activeElement?.getAttribute("href");
    await draw().catch(() => {});
    // Whoever goes through the page by keys goes on from where they were.
    if (focused && document.activeElement === document.body) {
      const links = [...document.querySelectorAll("main a")];
      links.find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }
    waiting = false;
  };
  const clock = setInterval(again, 5000);
  return { leave: () => clearInterval(clock), change: again };
}

export function showQueue(main) {
  return kept(async () => {
    const queue = await call("queue list");
    const row = (run) => el("tr", {},
      el("td", {}, el("a", { href: `#/run/${run.id}` }, title(run))),
      el("td", {}, badge(run)),
      el("td", { class: "num" }, String(run.priority)),
      el("td", {}, run.reason ?? (run.state === "pending" ? "waits for a worker" : "")));
    const all = [...queue.running, ...queue.waiting];
    const shown = all.length + queue.entries.length;
    main.replaceChildren(
      el("h1", {}, "Queue"),
      all.length ? table("Queue", ["Run", "State", "Priority", "Reason"], all.map(row), "queue")
        : el("p", { class: "note" }, "Nothing is queued. `outlive queue add -- COMMAND` adds something."),
      ...entries(queue.entries),
      ...(queue.next ? [el("p", { class: "note" }, `The first ${shown}; \`outlive queue list\` has more.`)] : []));
  });
}

/** The queue of all repositories, which others than outlive execute. */
function entries(all) {
  if (!all.length) return [];
  const about = (entry) => ["app", "workflow", "run"].filter((what) => entry[what]).map((what) => `${what} ${entry[what]}`).join(", ");
  const row = (entry) => el("tr", {},
    el("td", {}, about(entry), entry.note ? el("div", { class: "quiet" }, entry.note) : null),
    el("td", {}, badge(entry)),
    el("td", { class: "num" }, String(entry.priority)),
    el("td", {}, entry.reason ?? (entry.state === "pending" ? "waits for an executor" : "")),
    el("td", {}, el("code", {}, entry.repo ?? "")));
  return [el("h2", {}, "Entries of all repositories"), table("Entries of all repositories", ["About", "State", "Priority", "Reason", "Repository"], all.map(row), "queue")];
}

export function showWorkers(main) {
  return kept(async () => {
    const { workers } = await call("workers");
    const tones = { alive: "good", late: "doubt", silent: "bad", gone: "bad" };
    const row = (worker) => el("tr", {},
      el("td", {}, el("code", {}, worker.id)),
      el("td", {}, worker.host),
      el("td", { class: "num" }, String(worker.pid)),
      el("td", {}, el("span", { class: `badge ${tones[worker.health] ?? "quiet"}` }, worker.health)),
      el("td", { class: "num" }, String(worker.runs)),
      el("td", { class: "num" }, `${duration(worker.silent_ms)} ago`));
    main.replaceChildren(el("h1", {}, "Workers"), workers.length
      ? table("Workers", ["Worker", "Host", "Pid", "Health", "Runs", "Last beat"], workers.map(row), "workers")
      : el("p", { class: "note" }, "No workers. Every process that owns a run is one."));
  });
}
