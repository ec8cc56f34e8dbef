// @ts-check
// A list of any length in which only the rows in sight are in the document.
//
// Browsers limit the height of an element; a longer list is scrolled in proportion, so that its end can be reached.
//
// A scroll describes only the rows that come into sight, and measures nothing after the document was changed: a measurement
// then costs a layout for each frame. A caller that changes what rows show calls `draw` or `resize`, which forget descriptions.
import { render } from "./view.js";

/** The tallest element that every browser lays out, in pixels. */
const TALLEST = 12_000_000;
/** How many rows beyond the edges are kept, so that a short scroll shows no gap. */
const BEYOND = 6;

export class Virtual {
  /**
   * @param {{row: number, draw: (index: number) => any, name: string, role?: string, look?: string, scrolled?: (byPerson: boolean) => void, resized?: () => void}} options
   *   `row` is the height of a row in pixels; `draw` describes a row by its index.
   */
  constructor(options) {
    this.options = options;
    this.row = options.row;
    this.count = 0;
    /** Where each row begins, in pixels; null where all have the same height. @type {Float64Array|null} */
    this.tops = null;
    this.space = document.createElement("div");
    this.space.className = "space";
    this.space.setAttribute("role", options.role === "grid" ? "rowgroup" : "presentation");
    this.place = document.createElement("div");
    this.place.className = `scroll ${options.look ?? ""}`;
    this.place.append(this.space);
    this.ownScroll = -1;
    /** How far the list is scrolled and how tall the part in sight is, in pixels, as last measured. */
    this.y = 0;
    this.view = 0;
    /** The rows in the document as they were described, by index. @type {Map<number, import("./view.js").Described>} */
    this.described = new Map();
    this.place.addEventListener("scroll", () => {
      this.y = this.place.scrollTop;
      const byPerson = Math.abs(this.y - this.ownScroll) > 1;
      this.ownScroll = -1;
      this.put();
      options.scrolled?.(byPerson);
    }, { passive: true });
    this.watch = new ResizeObserver(() => (options.resized ? options.resized() : this.draw()));
    this.watch.observe(this.place);
  }

  leave() {
    this.watch.disconnect();
  }

  get total() {
    return this.tops ? this.tops[this.count] : this.count * this.row;
  }

  /** How many pixels of the list one pixel of scrolling is. */
  get ratio() {
    return this.total <= TALLEST ? 1 : (this.total - this.view) / (TALLEST - this.view);
  }

  /** Where a row begins. @param {number} index */
  top(index) {
    return this.tops ? this.tops[index] : index * this.row;
  }

  /** The row at a height. @param {number} y */
  at(y) {
    if (!this.tops) return Math.min(this.count - 1, Math.max(0, Math.floor(y / this.row)));
    let [low, high] = [0, this.count];
    while (low < high - 1) {
      const middle = (low + high) >> 1;
      if (this.tops[middle] <= y) low = middle;
      else high = middle;
    }
    return low;
  }

  /** The first row in sight. */
  first() {
    return this.count ? this.at(this.y * this.ratio) : 0;
  }

  /** The last row in sight. */
  last() {
    return this.count ? this.at(this.y * this.ratio + this.view) : 0;
  }

  atEnd() {
    return this.place.scrollTop + this.place.clientHeight >= this.place.scrollHeight - this.row;
  }

  /** @param {number} count @param {Float64Array|null} [tops] */
  resize(count, tops = null) {
    this.count = count;
    this.tops = tops;
    this.described.clear();
    const height = `${Math.min(TALLEST, this.total)}px`;
    if (this.space.style.height !== height) this.space.style.height = height;
  }

  /** Scrolls so that a row is in sight. @param {number} index @param {"start"|"center"|"nearest"} where */
  show(index, where = "nearest") {
    this.measure();
    const { view, ratio } = this;
    const [top, height] = [this.top(index), this.tops ? this.tops[index + 1] - this.tops[index] : this.row];
    let y = this.y * ratio;
    if (where === "start") y = top;
    else if (where === "center") y = top - (view - height) / 2;
    else if (top < y) y = top;
    else if (top + height > y + view) y = top + height - view;
    this.scroll(y / ratio);
  }

  toEnd() {
    this.scroll(this.place.scrollHeight);
  }

  /** @param {number} y */
  scroll(y) {
    const before = this.place.scrollTop;
    this.place.scrollTop = y;
    if (this.place.scrollTop !== before) this.ownScroll = this.place.scrollTop;
    this.draw();
  }

  measure() {
    this.y = this.place.scrollTop;
    this.view = this.place.clientHeight;
  }

  /** Describes all rows in sight anew. */
  draw() {
    this.measure();
    this.described.clear();
    this.put();
  }

  /** Puts the rows in sight in their places; those that were in sight before are as they were described. */
  put() {
    if (!this.count || !this.view) return render(this.space);
    const y = this.y * this.ratio;
    const from = Math.max(0, this.at(y) - BEYOND);
    const to = Math.min(this.count - 1, this.at(y + this.view) + BEYOND);
    const rows = new Map();
    for (let index = from; index <= to; index++) {
      const transform = `translateY(${Math.round(this.top(index) - y + this.y)}px)`;
      const row = this.described.get(index) ?? this.options.draw(index);
      const isThere = row.props.style?.transform === transform;
      rows.set(index, isThere ? row : { ...row, props: { ...row.props, style: { ...row.props.style, transform } } });
    }
    this.described = rows;
    render(this.space, [...rows.values()]);
  }
}
