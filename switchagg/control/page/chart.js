// Small line charts over time in SVG, with axes, units and a value under the pointer or the arrow keys.

import { h, setAttribute, setText, svg } from "./dom.js";
import { clock } from "./format.js";

const MARGIN = { left: 38, right: 10, top: 8, bottom: 20 };
const HEIGHT = 132;
const STEPS = [10, 15, 30, 60, 120, 300]; // seconds between ticks of the time axis

/** The smallest round number, whose half is round too, that is not below `value`. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * power >= value * 0.999999) * power;
}

/** Pieces of a path: a gap in the data, or in time, is a gap in the line. */
function path(points, x, y, gap) {
  const pieces = [];
  let previous = null;
  for (const point of points) {
    if (point.value === null) {
      previous = null;
      continue;
    }
    const joined = previous !== null && point.t - previous.t <= gap;
    pieces.push(`${joined ? "L" : "M"}${x(point.t).toFixed(1)} ${y(point.value).toFixed(1)}`);
    // A lone point would draw nothing.
    if (!joined) pieces.push("h0.1");
    previous = point;
  }
  return pieces.join("");
}

const agoLabel = (seconds) =>
  seconds === 0 ? "now" : seconds % 60 === 0 ? `−${seconds / 60} min` : `−${seconds} s`;

/**
 * A chart of one field of a `Series`.
 *
 * title, field: what it shows. scale(max) -> {top, factor, unit}: the axis for values up to `max`; `format(value)`:
 * a value in words. `group`: a Set shared by charts whose crosshairs move together.
 */
export class TimeChart {
  constructor({ title, field, scale, format, group }) {
    Object.assign(this, { title, field, scale, format, group, points: [], now: 0 });
    this.at = null; // time under the crosshair
    group.add(this);

    this.caption = h("span", { class: "chart-title" }, title);
    this.value = h("span", { class: "chart-value" });
    this.grid = svg("g", { class: "grid" });
    this.line = svg("path", { class: "line" });
    this.cross = svg("line", { class: "cross", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
    this.dot = svg("circle", { class: "dot", r: 3.5, visibility: "hidden" });
    const point = (event) => this.point(event);
    const leave = () => this.show(null);
    const events = { onpointermove: point, onpointerdown: point, onpointerleave: leave, onblur: leave };
    const looks = { role: "img", tabindex: 0, height: HEIGHT, width: "100%", onkeydown: (event) => this.key(event) };
    this.picture = svg("svg", { ...looks, ...events }, this.grid, this.line, this.cross, this.dot);
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, this.caption, this.value), this.picture);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.picture);
  }

  remove() {
    this.observer.disconnect();
    this.group.delete(this);
  }

  update(series, now) {
    Object.assign(this, series.line(this.field, now), { now });
    this.draw();
  }

  draw() {
    const width = this.picture.clientWidth;
    if (width === 0 || this.now === 0) return;
    const right = width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    this.x = (t) => right - ((this.now - t) / this.span) * (right - MARGIN.left);
    const { top, factor, unit } = this.scale(this.largest);
    this.y = (value) => bottom - (value / top) * (bottom - MARGIN.top);
    const visible = this.points.filter((point) => point.t >= this.now - this.span - 1);
    setAttribute(this.line, "d", path(visible, this.x, this.y, 5));
    this.drawGrid(width, right, bottom, top, factor, unit);
    this.cursor();
  }

  drawGrid(width, right, bottom, top, factor, unit) {
    const step = STEPS.find((each) => (right - MARGIN.left) / (this.span / each) >= 46) ?? STEPS.at(-1);
    const signature = [width, top, factor, unit, Math.round(this.span), step].join();
    if (signature === this.drawn) return;
    this.drawn = signature;
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const height = this.y(top * part);
      parts.push(svg("line", { x1: MARGIN.left, x2: right, y1: height, y2: height }));
      const label = Number((top * part * factor).toPrecision(3)).toString();
      parts.push(svg("text", { x: MARGIN.left - 6, y: height + 4, class: "y" }, label));
    }
    for (let ago = 0; ago <= this.span; ago += step) {
      const place = this.x(this.now - ago);
      if (place < MARGIN.left + 12 && ago) break;
      parts.push(svg("line", { x1: place, x2: place, y1: bottom, y2: bottom + 4 }));
      const anchor = ago === 0 ? "end" : "middle";
      parts.push(svg("text", { x: ago === 0 ? right + 4 : place, y: HEIGHT - 4, "text-anchor": anchor }, agoLabel(ago)));
    }
    setText(this.caption, `${this.title}, ${unit}`);
    this.grid.replaceChildren(...parts);
  }

  // The crosshair.

  point(event) {
    if (!this.x) return;
    const box = this.picture.getBoundingClientRect();
    const width = box.width - MARGIN.left - MARGIN.right;
    const share = (event.clientX - box.left - MARGIN.left) / width;
    this.show(this.now - (1 - Math.min(1, Math.max(0, share))) * this.span);
  }

  key(event) {
    const known = this.points.filter((point) => point.value !== null);
    if (!known.length || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    const here = this.at === null ? known.length - 1 : known.indexOf(this.nearest(this.at));
    const index = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: known.length - 1 }[event.key];
    this.show(event.key === "Escape" ? null : known[Math.min(known.length - 1, Math.max(0, index))].t);
  }

  show(time) {
    for (const chart of this.group) {
      chart.at = time;
      chart.cursor();
    }
  }

  nearest(time) {
    const known = this.points.filter((point) => point.value !== null);
    const distance = (point) => Math.abs(point.t - time);
    return known.reduce((best, point) => (best && distance(best) <= distance(point) ? best : point), null);
  }

  cursor() {
    const last = this.points.at(-1) ?? null;
    const point = this.at === null ? last : this.nearest(this.at);
    const words = point === null ? this.format(null) : this.format(point.value);
    const pointing = this.at !== null && point !== null;
    setText(this.value, pointing ? `${words} at ${clock(point.t)}` : words);
    setAttribute(this.picture, "aria-label", `${this.title}: ${words}${pointing ? ` at ${clock(point.t)}` : " now"}`);
    for (const part of [this.cross, this.dot]) setAttribute(part, "visibility", pointing ? "visible" : "hidden");
    if (!pointing || !this.x) return;
    const place = this.x(point.t).toFixed(1);
    for (const end of ["x1", "x2"]) setAttribute(this.cross, end, place);
    setAttribute(this.dot, "cx", place);
    setAttribute(this.dot, "cy", this.y(point.value).toFixed(1));
  }
}

/** Axis of a throughput in GB/s: in the unit that its largest value asks for. */
export function throughputScale(largest) {
  const units = { 1: "GB/s", 1e3: "MB/s", 1e6: "kB/s" };
  const factor = Object.keys(units).map(Number).find((each) => largest * each >= 1) ?? 1;
  const unit = units[factor];
  return { top: largest > 0 ? nice(largest) : 1, factor, unit };
}

/** Axis of a share that may be anything from 0 to 1. */
export const wholeScale = () => ({ top: 1, factor: 100, unit: "%" });

/** Axis of a share that is small when all is well. */
export const lossScale = (largest) => ({ top: Math.min(1, nice(Math.max(largest, 0.01))), factor: 100, unit: "%" });

/** A line without axes, for a table's cell. */
export class Sparkline {
  constructor(field, label) {
    this.field = field;
    this.line = svg("path", { class: "line" });
    this.element = svg(
      "svg",
      { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("title", {}, label),
      this.line,
    );
  }

  update(series, now) {
    const { points, span, largest } = series.line(this.field, now);
    const x = (t) => 100 - ((now - t) / span) * 100;
    const y = (value) => 22.5 - (value / (largest || 1)) * 21;
    setAttribute(this.line, "d", path(points, x, y, 5));
  }
}
