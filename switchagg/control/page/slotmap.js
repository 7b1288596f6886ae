// The slots of one switch as a map: rows of equal length, a coloured box for each range that a job has.
//
//        0 |####====........|      rows are powers of two long, as ranges are, so a range fills whole rows
//    8,192 |................|      or lies within one

import { h, setAttribute, svg } from "./dom.js";
import { colour } from "./colours.js";
import { count } from "./format.js";

const ROW = 20;
const GAP = 3;
const LABEL = 56;

function rowsFor(capacity, width) {
  const wanted = width < 520 ? 8 : 4;
  let rows = 1;
  while (rows < wanted && capacity / (rows * 2) >= 16) rows *= 2;
  return rows;
}

/** The description of a range. */
export function rangeText(range) {
  const last = range.base + range.slots - 1;
  const who = range.name === null || range.name === undefined ? "a job of another tenant" : `job ${range.name}`;
  const tenant = range.tenant ? ` of ${range.tenant}` : "";
  return `${who}${tenant}: slots ${range.base} to ${last} (${count(range.slots)})`;
}

export class SlotMap {
  /** choose(range): a range was clicked. */
  constructor(choose) {
    this.choose = choose;
    this.capacity = 0;
    this.ranges = [];
    this.picture = svg("svg", { class: "slot-map", width: "100%", role: "img" });
    this.element = h("div", { class: "slot-frame" }, this.picture);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  remove() {
    this.observer.disconnect();
  }

  update(capacity, ranges, summary) {
    this.capacity = capacity;
    this.ranges = ranges;
    setAttribute(this.picture, "aria-label", summary);
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (width === 0 || !(this.capacity > 0)) return;
    const signature = JSON.stringify([width, this.capacity, this.ranges]);
    if (signature === this.drawn) return;
    this.drawn = signature;
    const rows = rowsFor(this.capacity, width);
    const perRow = Math.ceil(this.capacity / rows);
    const scale = (width - LABEL) / perRow;
    const parts = [];
    for (let row = 0; row < rows; row += 1) {
      const y = row * (ROW + GAP);
      parts.push(svg("text", { class: "slot-label", x: LABEL - 8, y: y + 14 }, count(row * perRow)));
      parts.push(svg("rect", { class: "slot-free", x: LABEL, y, width: width - LABEL, height: ROW, rx: 3 }));
    }
    for (const range of this.ranges) parts.push(this.range(range, perRow, scale));
    setAttribute(this.picture, "height", rows * (ROW + GAP) - GAP);
    this.picture.replaceChildren(...parts);
  }

  range(range, perRow, scale) {
    const group = svg(
      "g",
      { class: `slot-range ${colour(range.tenant, range.name)}`, onclick: () => this.choose(range) },
      svg("title", {}, rangeText(range)),
    );
    const end = range.base + range.slots;
    for (let at = range.base; at < end; ) {
      const row = Math.floor(at / perRow);
      const stop = Math.min(end, (row + 1) * perRow);
      // A pixel stays free between neighbours, unless that were all there is.
      const wide = (stop - at) * scale;
      const x = LABEL + (at - row * perRow) * scale;
      const y = row * (ROW + GAP);
      const box = Math.max(1, wide > 3 ? wide - 1 : wide);
      group.append(svg("rect", { x, y, width: box, height: ROW, rx: Math.min(3, box / 3) }));
      const name = range.name ?? "";
      if (name && box > 9 + 7 * Math.min(name.length, 12)) {
        const fits = Math.floor((box - 9) / 7);
        const shown = name.length > fits ? `${name.slice(0, fits - 1)}…` : name;
        group.append(svg("text", { class: "slot-name", x: x + 6, y: y + 14, "aria-hidden": "true" }, shown));
      }
      at = stop;
    }
    return group;
  }
}
