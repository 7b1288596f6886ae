// The event log, newest first, with a filter.

import { byId, h, keyed, offer, setAttribute, setText } from "./dom.js";
import { moment } from "./format.js";

const KEPT = 500;
const SHOWN = 200;

const LEVELS = {
  lost: "bad",
  failed: "bad",
  switch_down: "bad",
  evicted: "warn",
  refused: "warn",
  shrunk: "warn",
  drained: "warn",
  moved: "info",
  policy: "info",
  reconciled: "info",
  switch_up: "good",
  opened: "good",
};

let events = []; // newest first
const rows = new Map(); // by number
let quiet = true; // what was there before the page is not read out

const kindText = (kind) => kind.replaceAll("_", " ");

const matches = (event, kind, words) =>
  (!kind || event.kind === kind) &&
  (!words || [event.text, event.job, event.switch, event.tenant, event.kind].some((text) => text?.toLowerCase().includes(words)));

function row(event) {
  const where = [event.job, event.switch].filter(Boolean).join(" · ");
  return h(
    "li",
    { "data-level": LEVELS[event.kind] ?? null },
    h("time", { datetime: new Date(event.time * 1000).toISOString() }, moment(event.time)),
    h("span", { class: "kind" }, kindText(event.kind)),
    h("span", { class: "event-text" }, event.text, where ? h("span", { class: "dim" }, ` ${where}`) : null),
  );
}

function redraw() {
  const kind = byId("event-kind").value;
  const words = byId("event-filter").value.trim().toLowerCase();
  const wanted = events.filter((event) => matches(event, kind, words)).slice(0, SHOWN);
  const list = byId("events");
  setAttribute(list, "aria-live", quiet ? "off" : "polite");
  keyed(
    list,
    rows,
    wanted,
    (event) => event.n,
    (event) => ({ element: row(event), update() {} }),
  );
  list.hidden = wanted.length === 0;
  byId("events-empty").hidden = wanted.length > 0;
  setText(byId("events-empty"), events.length ? "No event is like that." : "Nothing has happened yet.");
  quiet = false;
}

/** Replaces the log, as after a new connection: the controller may have counted from 1 again. */
export function resetEvents(list) {
  quiet = true;
  events = [];
  keyed(byId("events"), rows, []);
  addEvents(list);
}

/** Adds events of a snapshot; those that are there already are not added again. */
export function addEvents(list) {
  const known = new Set(events.map((event) => event.n));
  const fresh = list.filter((event) => !known.has(event.n));
  if (fresh.length === 0 && !quiet) return;
  events = [...fresh, ...events].sort((a, b) => b.n - a.n).slice(0, KEPT);
  offer(byId("event-kind"), events.map((event) => event.kind), kindText);
  redraw();
}

byId("event-filter").addEventListener("input", redraw);
byId("event-kind").addEventListener("change", redraw);
