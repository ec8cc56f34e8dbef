// @ts-check
// Two runs side by side, as the operation `diff` compares them: what differs comes first.
import { rows, stateOf, wordDiff } from "../model/compare.js";
import { link } from "../model/route.js";
import { title } from "../model/run.js";
import { quote, words } from "../model/text.js";
import { call } from "../net/net.js";
import { settings } from "../net/settings.js";
import { badge, empty, runLink, since, table } from "../view/parts.js";
import { h } from "../view/view.js";

/** How many runs are offered to compare with. */
const OFFERED = 12;

/** `#/compare/LEFT/RIGHT` @param {import("./all.js").Frame} frame */
export function comparePage({ route, redraw }) {
  /** @type {any} */
  let answer = null;
  let problem = "";
  call("diff", { left: route.id, right: route.tab }).then((found) => (answer = found), (error) => (problem = error.message)).then(redraw);
  return {
    title: () => "Compare",
    ticks: () => false,
    draw: () => [h("h1", null, "Compare"), problem ? empty(problem) : answer ? differences(answer) : h("p", { class: "loading" }, "Loading…")],
  };
}

/** The Diff tab: with which run to compare, and the comparison. @param {any} page @param {any} run */
export function compareTab(page, run) {
  const chosen = page.current.query.get("with");
  if (page.compared?.of !== compared(run, chosen)) load(page, run, chosen);
  const { others, answer, problem } = page.compared;
  if (problem) return empty(problem);
  if (!others) return h("p", { class: "loading" }, "Loading…");
  const now = Date.now();
  return [
    h("p", { class: "quiet" }, "Compare with another run", run.name ? " of the same name" : " of the same kind", ":"),
    others.length ? h("ul", { class: "cards compact" }, others.map((/** @type {any} */ one) => h("li", { key: one.id, class: one.id === answer?.left.id ? "chosen" : "" },
      h("a", { class: "line", href: link(["run", run.id, "diff"], { with: one.id }), "aria-current": one.id === answer?.left.id ? "true" : null }, badge(one), h("span", { class: "clip grow" }, title(one)), h("span", { class: "quiet num" }, since(one.created_at, now)))))) : empty("There is no other run to compare with."),
    answer ? differences(answer) : null,
  ];
}

/** What a comparison is of: what a run reports while it runs does not begin another. @param {any} run @param {string|null} chosen */
function compared(run, chosen) {
  return `${run.id} ${chosen} ${run.state} ${run.attempt}`;
}

/** @param {any} page @param {any} run @param {string|null} chosen */
async function load(page, run, chosen) {
  // What is compared already stays until the answer is here, but for another run.
  const last = page.compared?.chosen === chosen ? page.compared : null;
  const kept = { of: compared(run, chosen), chosen, others: page.compared?.others ?? null, answer: last?.answer ?? null, problem: "" };
  page.compared = kept;
  try {
    const same = run.name ? { name: run.name } : { kind: run.kind };
    const list = await call("ps", { all: true, limit: OFFERED + 1, ...same });
    kept.others = list.runs.filter((/** @type {any} */ one) => one.id !== run.id).slice(0, OFFERED);
    // Without a choice it is the run before it.
    const before = kept.others.find((/** @type {any} */ one) => one.created_at < run.created_at) ?? kept.others[0];
    const wanted = chosen ?? before?.id;
    if (wanted) kept.answer = await call("diff", { left: wanted, right: run.id });
  } catch (error) {
    kept.problem = /** @type {Error} */ (error).message;
  }
  page.frame.redraw();
}

/** @param {any} answer */
export function differences(answer) {
  const all = rows(answer, settings.utc);
  const [differ, same] = [all.filter((row) => !row.same), all.filter((row) => row.same)];
  const row = (/** @type {import("../model/compare.js").Difference} */ one) => h("tr", { key: one.name, class: one.same ? "same" : one.measured ? "measured" : "differs" }, h("th", { scope: "row" }, one.name),
    one.name === "command" && !one.same ? commands(one) : [h("td", null, one.left), h("td", null, one.right, one.ratio ? h("span", { class: "quiet" }, ` ${one.ratio}`) : null)]);
  const side = (/** @type {"left"|"right"} */ which) => [runLink({ ...answer[which], kind: answer[which].id }), " ", badge({ state: stateOf(answer, which) })];
  return h("section", { class: "compare", "aria-label": "Differences" },
    h("div", { class: "line" }, h("span", null, "from ", side("left")), h("span", null, "to ", side("right"))),
    answer.same ? h("p", { class: "quiet" }, "Both were asked to do the same, and ended alike.") : null,
    differ.length ? table("What differs", ["Field", "From", "To"], differ.map(row), "diff") : empty("Nothing that is recorded differs."),
    same.length ? h("details", null, h("summary", null, `${same.length} fields are the same`), table("What is the same", ["Field", "From", "To"], same.map(row), "diff")) : null);
}

/** The words of both commands, those marked that only one has. @param {{left: string, right: string}} one */
function commands({ left, right }) {
  const all = wordDiff(words(left) ?? [left], words(right) ?? [right]);
  const side = (/** @type {string} */ which) => h("td", null, h("code", null, all.filter((one) => one.in === "both" || one.in === which).map((one, i) => [i ? " " : "", one.in === "both" ? quote(one.word) : h(which === "left" ? "del" : "ins", null, quote(one.word))])));
  return [side("left"), side("right")];
}
