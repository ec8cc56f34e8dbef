// @ts-check
// The API for people: every operation with its fields, its answer and a call by curl, from the description that the server gives.
import { link } from "../model/route.js";
import { describe } from "../net/net.js";
import { toast } from "../view/dialogs.js";
import { button, copy, empty, label, table, withCode } from "../view/parts.js";
import { h } from "../view/view.js";
import { loaded } from "./loaded.js";

/** A call of an operation by curl. @param {string} origin @param {string} path @param {any} methods */
export function curl(origin, path, methods) {
  const auth = '-H "Authorization: Bearer $OUTLIVE_TOKEN"';
  const example = methods.post?.requestBody?.content?.["application/json"]?.example ?? {};
  if (methods.get && !methods.post) {
    const asked = (methods.get.parameters ?? []).some((/** @type {any} */ one) => one.name === "run") ? "?run=@last" : "";
    return `curl -N ${auth} '${origin}${path}${asked}'`;
  }
  if (methods.get && !Object.keys(example).length) return `curl ${auth} '${origin}${path}'`;
  return `curl ${auth} -H 'Content-Type: application/json' \\\n     -d '${JSON.stringify(example).replaceAll("'", "'\\''")}' '${origin}${path}'`;
}

/** @param {any} of */
function typeName(of) {
  if (of.enum) return of.enum.join(" | ");
  const types = [of.type ?? (of.anyOf ? of.anyOf.map((/** @type {any} */ one) => one.type ?? "object") : "any")].flat().filter((one) => one !== "null");
  return types.map((type) => (type === "array" ? `${[of.items?.type ?? "any"].flat()[0]}[]` : type)).join(" | ");
}

/** @param {import("./all.js").Frame} frame */
export function apiPage({ route, redraw, go }) {
  const kept = loaded(describe, redraw);
  let [chosen, text] = [decodeURIComponent(route.id), ""];
  return {
    title: () => "API",
    leave: kept.leave,
    ticks: () => false,
    route: (/** @type {any} */ next) => {
      chosen = decodeURIComponent(next.id);
      return true;
    },
    draw: () => {
      if (!kept.answer) return [h("h1", null, "API"), kept.problem ? empty(kept.problem) : h("p", { class: "loading" }, "Loading…")];
      const paths = Object.entries(kept.answer.paths);
      const name = (/** @type {string} */ path) => path.replace(/^\/v1\//, "").replaceAll("/", " ");
      const wanted = text.toLowerCase();
      const shown = paths.filter(([path, methods]) => !wanted || name(path).includes(wanted) || ((methods.post ?? methods.get).summary ?? "").toLowerCase().includes(wanted));
      const groups = new Map();
      for (const [path, methods] of shown) {
        const tag = (methods.post ?? methods.get).tags?.[0] ?? "operations";
        groups.set(tag, [...(groups.get(tag) ?? []), [path, methods]]);
      }
      const [first] = shown;
      const found = paths.find(([path]) => name(path) === chosen) ?? first;
      return [
        h("div", { class: "heading" }, h("h1", null, "API"), h("span", { class: "quiet" }, `outlive ${kept.answer.info.version}, OpenAPI ${kept.answer.openapi} at `, h("code", null, "/v1/openapi.json"))),
        h("div", { class: "api" },
          h("div", { class: "api-list" }, h("input", { type: "search", placeholder: "Find an operation", "aria-label": "Find an operation", value: text, oninput: (/** @type {any} */ event) => ((text = event.target.value), redraw()) }),
            h("nav", { "aria-label": "Operations" }, [...groups].map(([tag, all]) => h("div", { key: tag }, h("h2", null, tag), all.map((/** @type {any} */ [path, methods]) => h("a", { key: path, href: link(["api", name(path)]), "aria-current": found?.[0] === path ? "true" : null }, h("strong", null, name(path)), h("span", { class: "quiet clip" }, (methods.post ?? methods.get).summary.replaceAll("`", "")))))))),
          found ? operation(found[0], found[1], go) : empty("No operation has these words.")),
      ];
    },
  };
}

/** What a description says beyond its first line, which is the summary. @param {any} of */
function about(of) {
  const text = of.description ?? "";
  return (text.startsWith(of.summary) ? text.slice(of.summary.length) : text).trim();
}

/** @param {string} path @param {any} methods @param {(hash: string) => void} _go */
function operation(path, methods, _go) {
  const of = methods.post ?? methods.get;
  const schema = of.requestBody?.content?.["application/json"]?.schema ?? {};
  const fields = Object.entries(schema.properties ?? {});
  const parameters = methods.post ? [] : (of.parameters ?? []);
  const answer = of.responses?.["200"]?.content?.["application/json"]?.schema ?? {};
  const line = curl(location.origin, path, methods);
  return h("article", { class: "operation", key: path },
    h("h2", null, Object.keys(methods).map((method) => label(method.toUpperCase(), method === "get" ? "good" : "busy")), h("code", null, path)),
    h("p", null, withCode(of.summary)), about(of) ? h("p", { class: "quiet prose" }, withCode(about(of))) : null,
    h("div", { class: "curl" }, h("pre", { tabindex: 0, role: "region", "aria-label": "Call by curl" }, line), button("Copy", async () => { await copy(line); toast("Copied: the call by curl"); }, { class: "small" })),
    h("h3", null, "Fields"),
    fields.length || parameters.length ? table("Fields", ["Field", "Type", "What it says"], [
      ...fields.map(([name, field]) => h("tr", { key: name }, h("td", null, h("code", null, name), (schema.required ?? []).includes(name) ? h("span", { class: "required" }, " required") : null), h("td", { class: "quiet" }, typeName(field)), h("td", null, withCode(/** @type {any} */ (field).description ?? "")))),
      ...parameters.map((/** @type {any} */ one) => h("tr", { key: one.name }, h("td", null, h("code", null, one.name), one.required ? h("span", { class: "required" }, " required") : null), h("td", { class: "quiet" }, typeName(one.schema ?? {})), h("td", null, withCode(one.description ?? "")))),
    ], "fields") : h("p", { class: "quiet" }, "none"),
    h("h3", null, "Answer"),
    Object.keys(answer.properties ?? {}).length ? table("Answer", ["Field", "Type", "What it says"], Object.entries(answer.properties).map(([name, field]) => h("tr", { key: name }, h("td", null, h("code", null, name)), h("td", { class: "quiet" }, typeName(field)), h("td", null, withCode(/** @type {any} */ (field).description ?? "")))), "fields")
      : h("p", { class: "quiet" }, of.responses?.["200"]?.description ?? ""));
}
