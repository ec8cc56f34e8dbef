// @ts-check
// Routes: the page, its parameters and the line in the address. Everything that a page shows can be reached by its link.
//
//   #/runs?status=failed&text=train        #/run/ID/log?stream=err#L120

/**
 * @typedef {{page: string, id: string, tab: string, query: URLSearchParams, line: number|null, until: number|null}} Route
 */

/** @param {string} hash @returns {Route} */
export function parse(hash) {
  const [, path = "", anchor = ""] = /^#?([^#]*)(?:#(.*))?$/s.exec(hash) ?? [];
  const [place, query = ""] = path.split(/\?(.*)/s);
  const [page = "", id = "", tab = ""] = place.replace(/^\//, "").split("/").map(decode);
  const lines = /^L(\d+)(?:-L?(\d+))?$/.exec(anchor);
  return {
    page: page || "overview",
    id,
    tab,
    query: new URLSearchParams(query),
    line: lines ? Number(lines[1]) : null,
    until: lines?.[2] ? Number(lines[2]) : null,
  };
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * @param {string[]} path
 * @param {URLSearchParams|Record<string, string|string[]|null|undefined>} [query]
 * @param {string} [anchor]
 */
export function link(path, query = {}, anchor = "") {
  const pairs = query instanceof URLSearchParams ? query : new URLSearchParams();
  if (!(query instanceof URLSearchParams)) {
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== "") pairs.append(name, one);
    }
  }
  const text = pairs.toString();
  return `#/${path.filter(Boolean).map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}${anchor ? `#${anchor}` : ""}`;
}

/** The key of a link to sign in with, or null. @param {string} hash */
export function keyOf(hash) {
  return /^#key=([0-9a-f]+)$/.exec(hash)?.[1] ?? null;
}
