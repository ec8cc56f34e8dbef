// @ts-check
// What a person has chosen for this browser: theme, time zone, saved views, log options. Kept in local storage.

/** @param {string} name @param {any} otherwise */
function read(name, otherwise) {
  try {
    const text = localStorage.getItem(`outlive.${name}`);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export const settings = {
  /** `light`, `dark` or `auto`. @type {string} */
  theme: read("theme", "auto"),
  /** Times are shown in UTC instead of local time. @type {boolean} */
  utc: read("utc", false),
  /** Lists of runs that were given a name: name and query. @type {{name: string, query: string}[]} */
  views: read("views", []),
  /** Options of the log. @type {{wrap: boolean, times: boolean}} */
  log: read("log", { wrap: false, times: false }),
};

/** Changes a setting and keeps it. @param {Partial<typeof settings>} changed */
export function choose(changed) {
  Object.assign(settings, changed);
  for (const [name, value] of Object.entries(changed)) {
    try {
      localStorage.setItem(`outlive.${name}`, JSON.stringify(value));
    } catch {
      // Private windows may refuse; the choice lasts as long as the page.
    }
  }
}

/** Applies the theme to the document. */
export function applyTheme() {
  const dark = settings.theme === "dark" || (settings.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
