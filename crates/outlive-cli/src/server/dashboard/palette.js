// @ts-check
// The command palette: pages, runs and actions by a few letters.
import { link } from "./model/route.js";
import { title } from "./model/run.js";
import { call } from "./net/net.js";
import { choose, settings } from "./net/settings.js";
import { help, open } from "./view/dialogs.js";
import { badge, icon, short } from "./view/parts.js";
import { h } from "./view/view.js";
import { copyLink } from "./pages/actions.js";
import { PAGES, leave, shareLink, switchTheme } from "./shell.js";

/** How long to wait for another letter before runs are searched, in milliseconds. */
const PAUSE = 120;

/** @typedef {{text: string, hint?: string, icon?: string, run?: any, act: () => void}} Choice */

/** @param {{go: (hash: string) => void, redraw: () => void}} frame */
export function openPalette({ go, redraw }) {
  if (document.querySelector("dialog.palette")) return;
  /** @type {Choice[]} */
  const fixed = [
    ...PAGES.map(([name, text]) => ({ text, hint: "page", icon: name, act: () => go(link([name])) })),
    { text: "Needs attention", hint: "list", icon: "runs", act: () => go(link(["runs"], { view: "attention" })) },
    { text: "Failed runs", hint: "list", icon: "runs", act: () => go(link(["runs"], { view: "failed" })) },
    { text: "Switch theme", hint: "action", icon: "sun", act: () => switchTheme(redraw) },
    { text: "Switch between local time and UTC", hint: "action", icon: "schedules", act: () => (choose({ utc: !settings.utc }), redraw()) },
    { text: "Copy link to this page", hint: "action", icon: "api", act: copyLink },
    { text: "Sign in another browser", hint: "action", icon: "workers", act: shareLink },
    { text: "Keys", hint: "action", icon: "help", act: () => help() },
    { text: "Log out", hint: "action", icon: "out", act: () => leave(false) },
    { text: "Log out of all browsers", hint: "action", icon: "out", act: () => leave(true) },
  ];
  const state = { text: "", at: 0, runs: /** @type {any[]} */ ([]), timer: 0, asked: "" };
  const choices = () => {
    const wanted = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = fixed.filter((choice) => wanted.every((one) => choice.text.toLowerCase().includes(one)));
    /** @type {Choice[]} */
    const runs = state.runs.map((run) => ({ text: title(run), run, act: () => go(link(["run", run.id])) }));
    return wanted.length ? [...found.slice(0, 5), ...runs] : found;
  };
  open("Command palette", (close, draw) => {
    const shown = choices();
    state.at = Math.min(state.at, Math.max(0, shown.length - 1));
    const take = (/** @type {Choice|undefined} */ choice) => {
      close(null);
      choice?.act();
    };
    return [
      h("input", { type: "text", class: "palette-input", autocomplete: "off", spellcheck: "false", placeholder: "Search runs, pages and actions", "aria-label": "Search runs, pages and actions", autofocus: true, role: "combobox",
        "aria-expanded": "true", "aria-controls": "choices", "aria-activedescendant": shown.length ? `choice-${state.at}` : null,
        oninput: (/** @type {any} */ event) => { state.text = event.target.value; state.at = 0; search(state, draw); draw(); },
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) { state.at = (state.at + step + shown.length) % Math.max(1, shown.length); draw(); event.preventDefault(); }
          else if (event.key === "Enter") { event.preventDefault(); take(shown[state.at]); }
        } }),
      h("ul", { id: "choices", role: "listbox", "aria-label": "Choices" }, shown.map((choice, index) => h("li", { key: choice.run?.id ?? choice.text, id: `choice-${index}`, role: "option", "aria-selected": index === state.at ? "true" : "false",
        onclick: () => take(choice) }, choice.run ? badge(choice.run) : icon(choice.icon), h("span", { class: "name" }, choice.text), h("span", { class: "quiet" }, choice.run ? short(choice.run.id) : choice.hint)))),
      shown.length ? null : h("p", { class: "quiet none" }, "Nothing has these words."),
    ];
  }, "palette");
}

/** Finds runs with the words, once no further letter is typed. */
function search(state, draw) {
  clearTimeout(state.timer);
  const text = state.text.trim();
  if (!text) {
    state.runs = [];
    return;
  }
  state.timer = setTimeout(async () => {
    const page = await call("ps", { all: true, text, limit: 8 }).catch(() => ({ runs: [] }));
    if (state.text.trim() !== text) return;
    state.runs = page.runs;
    if (document.querySelector("dialog.palette")) draw();
  }, PAUSE);
}
