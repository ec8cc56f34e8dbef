// @ts-check
// The view: elements described as values, and a document that is changed only where the description changed.
//
// A list is compared by keys, so an element that stays in a list stays the same node: focus, text selection, scroll position and
// open menus survive a redraw. Text is always a text node; nothing is ever parsed as markup.
import { visible } from "../model/text.js";

/** @typedef {{tag: string, props: Record<string, any>, children: any[], key: any}} Described */
/** @typedef {Described|Node|string|number|null|undefined|false|any[]} Child */

const SVG = "http://www.w3.org/2000/svg";
/** How each element was described when it was drawn last. @type {WeakMap<Node, Described>} */
const drawn = new WeakMap();
/** The event listeners of each element: one function per event, whose target is replaced. @type {WeakMap<Node, Record<string, any>>} */
const listeners = new WeakMap();
/** Properties that attributes do not change once a person has used the element. */
const LIVE = new Set(["value", "checked", "indeterminate", "selected"]);

/**
 * Describes an element. `on…` are listeners, `style` is an object of CSS properties, `key` identifies it among its siblings.
 * @param {string} tag
 * @param {Record<string, any>|null} [props]
 * @param {...Child} children
 * @returns {Described}
 */
export function h(tag, props, ...children) {
  const { key = null, ...rest } = props ?? {};
  return { tag, props: rest, children, key };
}

/** @param {Child[]} children @param {any[]} [into] */
function flat(children, into = []) {
  for (const child of children) {
    if (Array.isArray(child)) flat(child, into);
    else if (child !== null && child !== undefined && child !== false) into.push(child);
  }
  return into;
}

/**
 * Makes the children of `place` what is described.
 * @param {Element} place
 * @param {...Child} children
 */
export function render(place, ...children) {
  const wanted = flat(children);
  const keyed = new Map();
  const free = [];
  for (const node of place.childNodes) {
    const key = drawn.get(node)?.key ?? null;
    if (key !== null) keyed.set(key, node);
    else free.push(node);
  }
  let next = 0;
  const used = new Set();
  const nodes = wanted.map((child) => {
    let node;
    if (child instanceof Node) node = child;
    else if (typeof child !== "object") {
      while (next < free.length && (free[next].nodeType !== 3 || used.has(free[next]))) next++;
      node = next < free.length ? free[next++] : document.createTextNode("");
    } else {
      node = reuse(child, keyed, free, next, used);
      if (node && child.key === null) next = free.indexOf(node, next) + 1;
      node ??= create(child.tag, place);
    }
    used.add(node);
    return node;
  });
  // What is gone goes first: else every node behind it would be moved, and laid out anew.
  for (const node of [...place.childNodes]) if (!used.has(node)) node.remove();
  /** @type {Node|null} */
  let cursor = place.firstChild;
  for (const [index, child] of wanted.entries()) {
    const node = nodes[index];
    if (!(child instanceof Node)) {
      if (typeof child === "object") update(node, child);
      else {
        const text = visible(child);
        if (node.data !== text) node.data = text;
      }
    }
    if (node === cursor) cursor = cursor.nextSibling;
    else place.insertBefore(node, cursor);
  }
}

/** The node that an element was drawn as before. */
function reuse(child, keyed, free, next, used) {
  if (child.key !== null) {
    const found = keyed.get(child.key);
    return found && drawn.get(found)?.tag === child.tag && !used.has(found) ? found : null;
  }
  for (let i = next; i < free.length; i++) if (drawn.get(free[i])?.tag === child.tag && !used.has(free[i])) return free[i];
  return null;
}

/** @param {string} tag @param {Element} place */
function create(tag, place) {
  const inSvg = tag === "svg" || (place.namespaceURI === SVG && place.tagName !== "foreignObject");
  return inSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
}

/** @param {any} node @param {Described} child */
function update(node, child) {
  const known = drawn.get(node);
  // Descriptions are values: the same one describes what is drawn already.
  if (known === child) return;
  const before = known?.props ?? {};
  drawn.set(node, child);
  for (const name of Object.keys(before)) if (!(name in child.props)) set(node, name, null, before[name]);
  // Options come before the value that selects one of them.
  if (child.tag !== "textarea") render(node, ...child.children);
  for (const [name, value] of Object.entries(child.props)) set(node, name, value, before[name]);
}

/** @param {any} node @param {string} name @param {any} value @param {any} before */
function set(node, name, value, before) {
  if (name.startsWith("on")) return listen(node, name.slice(2), value);
  if (name === "style") {
    for (const property of Object.keys(before ?? {})) if (!(property in (value ?? {}))) node.style.removeProperty(property);
    for (const [property, is] of Object.entries(value ?? {})) if (before?.[property] !== is) node.style.setProperty(property, String(is));
    return;
  }
  if (LIVE.has(name)) {
    if (value !== before && node[name] !== value) node[name] = value ?? "";
    return;
  }
  if (value === before && before !== undefined) return;
  // Whatever a run is called, a link leads to a page of the dashboard.
  if (name === "href" && value && !String(value).startsWith("#/")) throw new Error(`no page of the dashboard: ${value}`);
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : String(value));
}

/** @param {Node} node @param {string} event @param {any} listener */
function listen(node, event, listener) {
  const all = listeners.get(node) ?? {};
  listeners.set(node, all);
  if (!(event in all)) node.addEventListener(event, (happened) => all[event]?.(happened));
  all[event] = listener;
}
