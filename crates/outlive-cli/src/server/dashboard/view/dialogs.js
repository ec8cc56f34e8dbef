// @ts-check
// Questions, remarks and the help: what lies over a page.
import { h, render } from "./view.js";
import { button, icon } from "./parts.js";

let timer = 0;

/** Says something in passing; a remark about a failure stays longer. @param {string} text @param {boolean} [bad] */
export function toast(text, bad = false) {
  const place = document.getElementById("toast");
  render(place, h("div", { class: bad ? "toast bad" : "toast" }, h("span", null, text),
    h("button", { type: "button", class: "plain", "aria-label": "Dismiss", onclick: () => render(place) }, icon("close"))));
  clearTimeout(timer);
  timer = /** @type {any} */ (setTimeout(() => render(place), bad ? 15_000 : 6_000));
}

/** A failure in the words of the server. @param {any} error */
export function failed(error) {
  toast(error.hint ? `${error.message}; ${error.hint}` : error.message, true);
}

/**
 * Opens a dialog. `draw` describes what is in it and is given a function that closes it with an answer.
 * @template T
 * @param {string} name
 * @param {(close: (answer: T|null) => void, redraw: () => void) => any} draw
 * @param {string} [look]
 * @returns {Promise<T|null>}
 */
export function open(name, draw, look = "") {
  const dialog = document.createElement("dialog");
  dialog.className = look;
  dialog.setAttribute("aria-label", name);
  document.body.append(dialog);
  return new Promise((done) => {
    let answered = null;
    const close = (/** @type {any} */ answer) => {
      answered = answer;
      dialog.close();
    };
    const redraw = () => render(dialog, draw(close, redraw));
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(answered);
    });
    // A click beside it closes it.
    dialog.addEventListener("click", (event) => event.target === dialog && close(null));
    redraw();
    dialog.showModal();
  });
}

/**
 * Asks before something is done.
 * @param {string} question @param {any} text @param {string} yes @param {string} [look]
 * @returns {Promise<boolean>}
 */
export async function confirm(question, text, yes, look = "danger") {
  const answer = await open(question, (close) => h("div", { class: "ask" }, h("h2", null, question), h("div", { class: "text" }, text),
    h("div", { class: "buttons" }, button("Keep it", () => close(null)), button(yes, () => close(true), { class: look, autofocus: true, "data-answer": "yes" }))));
  return answer === true;
}

const KEYS = [
  ["Ctrl K", "command palette: pages, runs, actions"], ["/", "search"], ["j k", "next and previous row"], ["Enter", "open the row"], ["x", "select the row"],
  ["Esc", "leave the search, or clear the selection"], ["g o", "overview"], ["g r", "runs"], ["g q", "queue"], ["g s", "schedules"], ["g k", "keys"], ["g w", "workers"], ["g i", "insights"], ["g a", "API"],
  ["n N", "next and previous match in a log"], ["e E", "next and previous error in a log"], ["f", "follow the log"], ["w", "wrap lines"], ["?", "this help"],
];

export function help() {
  return open("Keys", (close) => h("div", { class: "ask" }, h("h2", null, "Keys"),
    h("dl", { class: "keys" }, KEYS.flatMap(([key, text]) => [h("dt", null, key.split(" ").map((one) => h("kbd", null, one))), h("dd", null, text)])),
    h("div", { class: "buttons" }, button("Close", () => close(null), { class: "primary", autofocus: true }))));
}
