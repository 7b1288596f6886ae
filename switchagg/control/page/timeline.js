// A job's life over time: its state, its switch, what happened, and its collectives per second.
//
//     State   |joining|######### running #########|~|#### running ####|     from the event log
//     Switch          |######### rack-1  #########| |#### rack-2  ####|
//     Events  o       o              x ^           # #       .              a mark an event, or several close ones
//     Coll./s                              ____/\_____/\______              from the last ten minutes of heartbeats

import { getJson } from "./api.js";
import { h, setAttribute, setText, svg, table } from "./dom.js";
import { eventsOf, fold, kindText } from "./events.js";
import { clock, duration, moment, short } from "./format.js";
import { WINDOW } from "./series.js";

const LEFT = 54;
const RIGHT = 8;
const LANES = { state: 0, switch: 24, marks: 48, rate: 72 };
const BAR = 17;
const RATE_HEIGHT = 44;
const AXIS = LANES.rate + RATE_HEIGHT;
const HEIGHT = AXIS + 20;
const SHORTEST = 10; // seconds that the axis shows at least
const LIMIT = 1000; // events asked for
const APART = 11; // pixels between two marks
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const STEPS = [1, 2, 5, 10, 15, 30, MINUTE, 120, 300, 600, 900, 1800, HOUR, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 7 * DAY];

const UNOPENED = ["created", "queued", "joining", "opening"];
const WAITS = ["moving", "paused"]; // states without progress, which end with the next of RESUMES
const RESUMES = ["moved", "shrunk", "joined"];

// By importance: of several marks in one place the first kind is drawn.
const MARKS = {
  failed: ["bad", "times"],
  lost: ["bad", "times"],
  evicted: ["warn", "square"],
  refused: ["warn", "square"],
  shrunk: ["warn", "diamond"],
  drained: ["warn", "square"],
  moving: ["warn", "diamond"],
  moved: ["info", "diamond"],
  paused: ["warn", "diamond"],
  joined: ["good", "triangle"],
  left: ["dim", "hollow"],
  opened: ["good", "circle"],
  ended: ["dim", "hollow"],
  job_created: ["info", "circle"],
  policy: ["info", "dot"],
};
const KINDS = Object.keys(MARKS);
const SHAPES = {
  times: "M-4 -4L4 4M-4 4L4 -4",
  square: "M-4 -4h8v8h-8z",
  diamond: "M0 -5.5L5.5 0L0 5.5L-5.5 0z",
  triangle: "M0 -5L5 4h-10z",
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
  hollow: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
  dot: "M-2.2 0a2.2 2.2 0 1 0 4.4 0a2.2 2.2 0 1 0 -4.4 0z",
};

const rank = (kind) => (KINDS.includes(kind) ? KINDS.indexOf(kind) : KINDS.length);

function shape(kind, attributes = {}) {
  const [level, form] = MARKS[kind] ?? ["dim", "circle"];
  return svg("path", { d: SHAPES[form], class: `mark ${form}`, "data-level": level, ...attributes });
}

/** The events of this job, oldest first: names are used again, so from its own creation up to the next one's. */
function ofThisJob(job, events) {
  const began = job.now - job.age;
  const births = events.filter((event) => event.kind === "job_created");
  const off = (event) => Math.abs(event.time - began);
  const own = births.reduce((best, event) => (best && off(best) < off(event) ? best : event), null);
  const next = births[births.indexOf(own) + 1];
  return events.filter((event) => (!own || event.n >= own.n) && (!next || event.n < next.n));
}

/**
 * A job's life as {start, states, switches, took}: states and switches as [{name, from, to}], and by an event's number
 * the seconds that the wait took which it ended.
 */
function life(job, events) {
  const start = events[0]?.kind === "job_created" ? events[0].time : Math.min(job.now - job.age, events[0]?.time ?? job.now);
  const opens = events.some((event) => event.kind === "opened");
  const unopened = UNOPENED.includes(job.state);
  const states = [{ name: opens ? "joining" : unopened ? job.state : "running", from: start }];
  const switches = [];
  const took = new Map();
  let usual = "running";
  let waiting = null;
  const enter = (name, time) => {
    states.at(-1).to = time;
    states.push({ name, from: time });
  };
  const sit = (name, time) => {
    const last = switches.at(-1);
    if (last && last.to === undefined) {
      if (last.name === name) return;
      last.to = time;
    }
    if (name) switches.push({ name, from: time });
  };
  if (!opens && !unopened && !["moving", "failed"].includes(events.find((event) => event.switch)?.kind)) sit(job.switch, start);
  for (const { kind, n, time, switch: there } of events) {
    if (kind === "opened") {
      enter(usual, time);
      sit(there, time);
    } else if (WAITS.includes(kind) || (kind === "lost" && job.on_loss === "shrink")) {
      waiting ??= time;
      enter(kind === "lost" ? "paused" : kind, time);
      if (kind === "moving") {
        if (!switches.length) sit(there, start);
        sit(null, time);
      }
    } else if (RESUMES.includes(kind)) {
      if (waiting !== null) took.set(n, time - waiting);
      waiting = null;
      enter(usual, time);
      sit(there, time);
    } else if (kind === "drained") {
      usual = "draining";
      if (states.at(-1).name === "running") enter(usual, time);
    } else if (kind === "failed" || kind === "ended") {
      enter(kind, time);
      sit(null, time);
    }
  }
  for (const last of [states.at(-1), switches.at(-1)]) if (last && last.to === undefined) last.to = job.now;
  return { start, states, switches, took };
}

const precise = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : value < 10 ? `${value.toFixed(1)} s` : duration(value));

function tickText(time, step) {
  if (step >= DAY) return new Date(time * 1000).toLocaleDateString("en-CA").slice(5);
  return step < MINUTE ? clock(time) : clock(time).slice(0, 5);
}

export class Timeline {
  constructor() {
    this.known = new Map(); // events by number
    this.epoch = null; // of the log that they are from
    this.at = null; // number of the event under the cursor
    this.recent = false; // the last ten minutes only
    this.figures = h("span", { class: "timeline-figures" });
    this.zoom = h(
      "button",
      { type: "button", class: "small", "aria-pressed": "false", onclick: () => this.toggle() },
      "Last 10 minutes",
    );
    this.bars = svg("g");
    this.cross = svg("line", { class: "cross", y1: 0, y2: AXIS, visibility: "hidden" });
    const point = (event) => this.point(event);
    const leave = () => this.show(null);
    const events = { onpointermove: point, onpointerdown: point, onpointerleave: leave, onblur: leave };
    const looks = { role: "img", tabindex: 0, height: HEIGHT, width: "100%", onkeydown: (event) => this.key(event) };
    this.picture = svg("svg", { ...looks, ...events }, this.bars, this.cross);
    this.text = h("p", { class: "timeline-text", "aria-live": "polite" });
    this.legend = h("ul", { class: "timeline-legend" });
    this.rows = h("tbody");
    const frame = { class: "table-frame", tabindex: 0, role: "region", "aria-label": "Timeline as a list" };
    const listed = table(["Time", ["After"], "Event", "What happened"], this.rows);
    this.list = h("details", { ontoggle: () => this.fill() }, h("summary", {}, "Timeline as a list"), h("div", frame, listed));
    const finer = h("a", { href: "page/help.html#trace" }, "Finer: every collective of every rank");
    this.element = h(
      "figure",
      { class: "timeline" },
      h("figcaption", {}, h("span", { class: "timeline-title" }, "Timeline"), this.figures, this.zoom),
      this.picture,
      this.text,
      this.legend,
      h("p", { class: "timeline-finer" }, finer),
      this.list,
    );
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.picture);
  }

  remove() {
    this.observer.disconnect();
    this.job = null; // events that come now have no place
  }

  /** Asks once for what is older than the page; again after a gap in the stream. */
  async load(job, epoch) {
    this.epoch = epoch;
    this.known.clear();
    const query = new URLSearchParams({ job: job.name, limit: LIMIT });
    if (job.tenant) query.set("tenant", job.tenant);
    try {
      const { events } = await getJson(`v1/events?${query}`);
      if (this.job === null || this.epoch !== epoch) return;
      for (const event of events) this.known.set(event.n, event);
      this.update(this.job, this.series);
    } catch (error) {
      console.warn(`no events of ${job.name}: ${error.message}`);
    }
  }

  update(job, series) {
    this.job = job;
    this.series = series;
    const { epoch, events } = eventsOf(job);
    if (this.epoch !== epoch) this.load(job, epoch);
    for (const event of events) this.known.set(event.n, event);
    const all = [...this.known.values()].sort((a, b) => a.n - b.n);
    this.events = ofThisJob(job, all);
    this.life = life(job, this.events);
    this.marks = fold([...this.events].reverse()).reverse();
    this.draw();
    this.describe();
    if (this.list.open) this.fill();
  }

  // The picture.

  toggle() {
    this.recent = !this.recent;
    setAttribute(this.zoom, "aria-pressed", this.recent);
    this.draw();
  }

  draw() {
    const width = this.picture.clientWidth;
    if (!this.job || width === 0) return;
    const { now } = this.job;
    const { start, states, switches } = this.life;
    this.zoom.hidden = now - start <= WINDOW;
    const from = this.recent && !this.zoom.hidden ? now - WINDOW : start;
    const span = Math.max(SHORTEST, now - from);
    this.from = from;
    this.x = (time) => LEFT + ((time - from) / span) * (width - LEFT - RIGHT);
    const parts = [];
    for (const [name, y] of [["State", LANES.state], ["Switch", LANES.switch], ["Events", LANES.marks], ["Coll./s", LANES.rate]])
      parts.push(svg("text", { class: "lane", x: 0, y: y + 13 }, name));
    parts.push(...this.axis(from, span, width));
    // A pause or a move may last a moment: it is drawn last, and wide enough to be seen.
    const brief = (each) => (WAITS.includes(each.name) ? 1 : 0);
    for (const each of [...states].sort((a, b) => brief(a) - brief(b)))
      parts.push(this.bar(each, LANES.state, `state-bar s-${each.name}`, brief(each) ? 4 : 1));
    for (const each of switches) parts.push(this.bar(each, LANES.switch, "switch-bar", 2));
    parts.push(...this.drawRate(from, now), ...this.drawMarks());
    this.bars.replaceChildren(...parts.filter(Boolean));
    this.cursor();
  }

  bar({ name, from, to }, y, classes, least) {
    if (to < this.from) return null;
    const x = this.x(Math.max(from, this.from));
    const width = Math.max(least, this.x(to) - x);
    const text = `${name}: ${moment(from)} to ${moment(to)}, ${precise(to - from)}`;
    const box = svg("rect", { x, y, width, height: BAR, rx: Math.min(3, width / 3) });
    const fits = Math.floor((width - 8) / 6.6);
    const shown = name.length > fits ? `${name.slice(0, fits - 1)}…` : name;
    const label = fits >= Math.min(name.length, 6) ? svg("text", { x: x + 5, y: y + 12.5, "aria-hidden": "true" }, shown) : null;
    return svg("g", { class: classes }, svg("title", {}, text), box, label);
  }

  axis(from, span, width) {
    const step = STEPS.find((each) => (width - LEFT - RIGHT) / (span / each) >= 68) ?? STEPS.at(-1);
    const zone = new Date(from * 1000).getTimezoneOffset() * MINUTE; // ticks at whole hours of the clock on the wall
    const parts = [svg("line", { x1: LEFT, x2: width - RIGHT, y1: AXIS, y2: AXIS })];
    for (let time = Math.ceil((from - zone) / step) * step + zone; time <= from + span; time += step) {
      const x = this.x(time);
      parts.push(svg("line", { x1: x, x2: x, y1: 0, y2: AXIS + 4 }));
      const anchor = x < LEFT + 24 ? "start" : x > width - 30 ? "end" : "middle";
      parts.push(svg("text", { x, y: HEIGHT - 4, "text-anchor": anchor }, tickText(time, step)));
    }
    return [svg("g", { class: "grid" }, ...parts)];
  }

  drawRate(from, now) {
    const { points, largest } = this.series.line("collectives", now);
    const y = (value) => AXIS - (value / (largest || 1)) * (RATE_HEIGHT - 6);
    const pieces = [];
    let previous = null;
    const close = () => {
      if (previous !== null) pieces.push(`V${AXIS}z`);
      previous = null;
    };
    for (const { t, value } of points) {
      if (value === null || t < from || (previous !== null && t - previous > 5)) close();
      if (value === null || t < from) continue;
      const x = this.x(t).toFixed(1);
      pieces.push(previous === null ? `M${x} ${AXIS}V${y(value).toFixed(1)}` : `L${x} ${y(value).toFixed(1)}`);
      previous = t;
    }
    close();
    const top = largest > 0 ? svg("text", { class: "lane", x: 0, y: LANES.rate + 27 }, `≤ ${short(largest)}`) : null;
    return [svg("path", { class: "rate-area", d: pieces.join("") }), top];
  }

  drawMarks() {
    const y = LANES.marks + BAR / 2;
    const groups = [];
    for (const mark of this.marks) {
      if (mark.event.time < this.from) continue;
      const x = this.x(mark.event.time);
      const last = groups.at(-1);
      if (last && x - last.x < APART) last.marks.push(mark);
      else groups.push({ x, marks: [mark] });
    }
    return groups.map(({ x, marks }) => {
      const kinds = marks.map(({ event }) => event.kind).sort((a, b) => rank(a) - rank(b));
      const title = svg("title", {}, marks.map(({ event }) => `${moment(event.time)} ${event.text}`).join("\n"));
      const more = marks.length > 1 ? svg("path", { class: "more", d: "M-4 9h8" }) : null;
      return svg("g", { transform: `translate(${x.toFixed(1)} ${y})` }, title, shape(kinds[0]), more);
    });
  }

  // Words.

  describe() {
    const { job, marks } = this;
    const counts = new Map();
    for (const { event, folded } of marks) counts.set(event.kind, (counts.get(event.kind) ?? 0) + 1 + folded);
    const kinds = [...counts.keys()].sort((a, b) => rank(a) - rank(b));
    const signature = JSON.stringify([...counts]);
    if (signature !== this.counted) {
      this.counted = signature;
      const sign = (kind) => svg("svg", { viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true" }, shape(kind));
      this.legend.replaceChildren(...kinds.map((kind) => h("li", {}, sign(kind), `${counts.get(kind)} ${kindText(kind)}`)));
    }
    const rate = job.rates?.collectives;
    const speed = typeof rate === "number" ? `, ${short(rate)} collectives/s` : "";
    setText(this.figures, `since ${moment(this.life.start)}${speed}`);
    this.summary = `Timeline of job ${job.name}: ${job.state}, since ${moment(this.life.start)}${speed}; ${
      kinds.map((kind) => `${counts.get(kind)} ${kindText(kind)}`).join(", ") || "no events"
    }. Arrow keys go from event to event.`;
    this.cursor();
  }

  sentence({ event, folded }) {
    const took = this.life.took.get(event.n);
    const more = folded ? ` (and ${folded} earlier change${folded === 1 ? "" : "s"})` : "";
    return `${event.text}${took === undefined ? "" : `, after ${precise(took)} without sums`}${more}`;
  }

  fill() {
    if (!this.marks) return;
    const signature = JSON.stringify(this.marks.map(({ event, folded }) => [event.n, folded]));
    if (signature === this.filled) return;
    this.filled = signature;
    const rows = this.marks.map((mark) => {
      const { kind, time } = mark.event;
      const after = Math.max(0, time - this.life.start);
      const cells = [moment(time), precise(after), kindText(kind), this.sentence(mark)];
      const classes = ["number", "number", "kind", "event-text"];
      return h("tr", {}, ...cells.map((cell, i) => h("td", { class: classes[i] }, cell)));
    });
    this.rows.replaceChildren(...rows);
  }

  // The cursor.

  get shown() {
    return this.marks.filter(({ event }) => event.time >= this.from);
  }

  point(event) {
    if (!this.x || !this.marks) return;
    const x = event.clientX - this.picture.getBoundingClientRect().left;
    const off = (mark) => Math.abs(this.x(mark.event.time) - x);
    const near = this.shown.reduce((best, mark) => (best && off(best) <= off(mark) ? best : mark), null);
    this.show(near && off(near) <= 24 ? near.event.n : null);
  }

  key(event) {
    if (!["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key) || !this.marks) return;
    event.preventDefault();
    const numbers = this.shown.map((mark) => mark.event.n);
    if (event.key === "Escape" || !numbers.length) return this.show(null);
    const last = numbers.length - 1;
    const here = numbers.indexOf(this.at);
    const index = { ArrowLeft: here < 0 ? last : here - 1, ArrowRight: here + 1, Home: 0, End: last }[event.key];
    return this.show(numbers[Math.min(last, Math.max(0, index))]);
  }

  show(number) {
    this.at = number;
    this.cursor();
  }

  cursor() {
    const mark = this.marks?.find(({ event }) => event.n === this.at);
    const words = mark ? `${moment(mark.event.time)} ${kindText(mark.event.kind)}: ${this.sentence(mark)}` : "";
    setText(this.text, words);
    setAttribute(this.picture, "aria-label", words || this.summary);
    const visible = mark && this.x && mark.event.time >= this.from;
    setAttribute(this.cross, "visibility", visible ? "visible" : "hidden");
    if (!visible) return;
    for (const end of ["x1", "x2"]) setAttribute(this.cross, end, this.x(mark.event.time).toFixed(1));
  }
}
