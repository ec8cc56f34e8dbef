// @ts-check
// What can be done about runs. The server says what is possible (`can`) and what the role allows; this asks, calls and reports.
import { call } from "../net/net.js";
import { store } from "../net/store.js";
import { asCommand, title } from "../model/run.js";
import { commandLine, count, quote, words } from "../model/text.js";
import { button, copy } from "../view/parts.js";
import { confirm, failed, open, toast } from "../view/dialogs.js";
import { h } from "../view/view.js";

/** @typedef {import("../model/run.js").Run} Run */
/** @typedef {{operation: string, name: string, look: string, text: string}} Offer */

/** Actions that continue a run come first, those that end it last. @type {Offer[]} */
export const OFFERS = [
  { operation: "resume", name: "Resume", look: "primary", text: "The same run continues with its next attempt." },
  { operation: "unpark", name: "Unpark", look: "primary", text: "It may be retried again." },
  { operation: "unpause", name: "Unpause", look: "primary", text: "It waits for its turn again, a schedule for its next time." },
  { operation: "reap", name: "Mark dead", look: "", text: "Its death is recorded, and what it held is free." },
  { operation: "rerun", name: "Rerun", look: "", text: "A new run with the same command is made, linked to this one." },
  { operation: "pause", name: "Pause", look: "", text: "No worker executes it until it is unpaused. Times of its schedule that pass meanwhile are left out." },
  { operation: "archive", name: "Archive", look: "", text: "It is hidden from lists. Nothing is deleted." },
  { operation: "unarchive", name: "Unarchive", look: "", text: "It is listed again." },
  { operation: "cancel", name: "Cancel", look: "danger", text: "It is asked to stop, and killed if it does not." },
];

/** What may be done about a run by this person. @param {Run} run */
export function offers(run) {
  return OFFERS.filter(({ operation }) => (run.can ?? []).includes(operation) && store.may(operation));
}

/** @param {Run[]} runs */
function warnings(runs) {
  const scheduled = runs.filter((run) => run.schedule);
  if (!scheduled.length) return null;
  const text = scheduled.length === 1 ? `${title(scheduled[0])} repeats (${scheduled[0].schedule}).` : `${scheduled.length} of them repeat.`;
  return h("p", { class: "warning" }, `${text} Cancelling ends the schedule.`);
}

/** What a cancellation came to. A run that is asked to stop has not stopped yet. @param {any} answer */
export function cancelled(answer) {
  const by = (/** @type {string} */ outcome) => answer.runs.filter((/** @type {any} */ run) => run.outcome === outcome);
  const [done, asked, ended] = [by("cancelled"), by("cancel_requested"), by("ended")];
  const said = [];
  if (done.length) said.push(`${done.length} cancelled`);
  if (asked.length) said.push(`${asked.length} cancel requested${asked.length === 1 ? (asked[0].note ?? "") : ""}`);
  if (ended.length) said.push(`${ended.length} had ended before`);
  return said.join(", ") || "nothing to cancel";
}

/**
 * Does something about runs, after a question where that is due.
 * @param {string} operation @param {Run[]} runs @param {Record<string, any>} [more]
 * @returns {Promise<any[]|null>} the answers, or null where it was not done
 */
export async function act(operation, runs, more = {}) {
  const offer = OFFERS.find((one) => one.operation === operation);
  const able = runs.filter((run) => run.can.includes(operation));
  if (!able.length) return null;
  if (operation === "cancel") {
    const question = able.length === 1 ? `Cancel ${title(able[0])}?` : `Cancel ${count(able.length, "run")}?`;
    const yes = able.length === 1 ? "Cancel run" : "Cancel runs";
    if (!(await confirm(question, h("div", null, h("p", null, offer.text), warnings(able)), yes))) return null;
  }
  try {
    const answers = await perform(operation, able, more);
    toast(report(offer, able, answers));
    return answers;
  } catch (error) {
    failed(error);
    return null;
  }
}

/** @param {string} operation @param {Run[]} runs @param {Record<string, any>} more */
async function perform(operation, runs, more) {
  if (operation === "rerun") {
    const answers = [];
    // One that is refused does not keep the others from being made.
    for (const run of runs) answers.push(await call("rerun", { run: run.id, ...more }).catch((error) => ({ run, error })));
    const refused = answers.filter((answer) => answer.error);
    if (refused.length === runs.length) throw refused[0].error;
    return answers;
  }
  /** @type {Record<string, any>} */
  const fields = { runs: runs.map((run) => run.id), ...more };
  if (operation === "cancel") fields.reason = "from the dashboard";
  if (operation === "resume" && runs.some((run) => run.state === "failed")) fields.failed = true;
  return [await call(operation, fields)];
}

/** @param {Offer} offer @param {Run[]} runs @param {any[]} answers */
function report(offer, runs, answers) {
  if (offer.operation === "cancel") return cancelled(answers[0]);
  const refused = answers.filter((answer) => answer.error);
  if (refused.length) return `${offer.name}: ${runs.length - refused.length} of ${count(runs.length, "run")} made; ${title(refused[0].run)}: ${refused[0].error.message}`;
  return `${offer.name}: ${runs.length === 1 ? title(runs[0]) : count(runs.length, "run")}`;
}

/** Buttons for a run. @param {Run} run @param {(operation: string, answers: any[]) => void} done */
export function buttons(run, done) {
  return offers(run).map(({ operation, name, look, text }) => button(name, async () => {
    const answers = await act(operation, [run]);
    if (answers) done(operation, answers);
  }, { class: look, title: text, "data-action": operation, key: operation }));
}

/** Whether this person may repeat a run with other arguments: that names a command. */
export function mayChange() {
  return store.may("rerun") && store.may("queue add");
}

/** Repeats a run with other arguments; the program stays. @param {Run} run @param {(id: string) => void} go */
export async function rerunChanged(run, go) {
  const [program, ...before] = run.command ?? [];
  let problem = "";
  const field = /** @type {HTMLTextAreaElement} */ (document.createElement("textarea"));
  Object.assign(field, { value: commandLine(before), rows: 4, spellcheck: false, autofocus: true });
  field.setAttribute("aria-label", "Arguments");
  const start = async (/** @type {any} */ close, /** @type {any} */ redraw) => {
    const args = words(field.value);
    if (!args?.length) {
      problem = args ? "Name at least one argument." : "A quote is not closed.";
      return redraw();
    }
    try {
      close(await call("rerun", { run: run.id, args, force: !run.can.includes("rerun"), reason: "with other arguments, from the dashboard" }));
    } catch (error) {
      problem = /** @type {Error} */ (error).message;
      redraw();
    }
  };
  const answer = await open("Rerun with other arguments", (close, redraw) => h("div", { class: "ask" },
    h("h2", null, "Rerun with other arguments"),
    h("p", { class: "quiet" }, "A new run of ", h("code", null, quote(program ?? "")), ", linked to this one. Words are split as a shell splits them; variables are not expanded."),
    field,
    problem ? h("p", { class: "warning", role: "alert" }, problem) : null,
    h("div", { class: "buttons" }, button("Close", () => close(null)), button("Start", () => start(close, redraw), { class: "primary" }))));
  if (/** @type {any} */ (answer)?.id) go(/** @type {any} */ (answer).id);
}

/** Copies the call for a shell. @param {Run} run */
export async function copyCommand(run) {
  await copy(asCommand(run));
  toast("Copied: the command for a shell");
}

/** Copies the link to what is shown. */
export async function copyLink() {
  await copy(location.href);
  toast("Copied: the link to this page");
}

