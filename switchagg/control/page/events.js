// The event log, newest first, with a filter. Changes of a job's policy that follow each other are one line.

import { Filter, KeyedList, byId, h, setAttribute, setText } from "./dom.js";
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
  moving: "warn",
  paused: "warn",
  moved: "info",
  policy: "info",
  reconciled: "info",
  switch_up: "good",
  opened: "good",
};

let events = []; // newest first
let epoch = 0; // counts the times that the log was replaced
let quiet = true; // what was there before the page is not read out

const filter = new Filter("event", "kind", redraw);
const log = byId("events-log");
const rows = new KeyedList(byId("events"), ({ event }) => event.n, row);

export const kindText = (kind) => kind.replaceAll("_", " ");

function row({ event }) {
  const where = [event.job, event.switch].filter(Boolean).join(" · ");
  const earlier = h("span", { class: "dim" });
  const element = h(
    "li",
    { "data-level": LEVELS[event.kind] ?? null },
    h("time", { datetime: new Date(event.time * 1000).toISOString() }, moment(event.time)),
    h("span", { class: "kind" }, kindText(event.kind)),
    h("span", { class: "event-text" }, event.text, where ? h("span", { class: "dim" }, ` ${where}`) : null, earlier),
  );
  const update = ({ folded }) => {
    setText(earlier, folded ? ` (and ${folded} earlier change${folded === 1 ? "" : "s"})` : "");
  };
  return { element, update };
}

/** Returns [{event, folded}] of events, newest first: a policy change holds the older ones of its job up to that job's next other event. */
export function fold(list) {
  const found = [];
  const open = new Map(); // the newest foldable item of each job
  for (const event of list) {
    const job = JSON.stringify([event.tenant, event.job]);
    if (event.kind === "policy" && open.has(job)) {
      open.get(job).folded += 1;
      continue;
    }
    const item = { event, folded: 0 };
    found.push(item);
    if (event.kind === "policy") open.set(job, item);
    else open.delete(job);
  }
  return found;
}

function redraw() {
  const texts = (event) => [event.text, event.job, event.switch, event.tenant, event.kind];
  const found = events.filter((event) => filter.matches(event.kind, texts(event)));
  const all = filter.select.value === "policy"; // who asks for these alone wants to see them
  const wanted = (all ? found.map((event) => ({ event, folded: 0 })) : fold(found)).slice(0, SHOWN);
  setAttribute(log, "aria-live", quiet ? "off" : "polite");
  rows.update(wanted);
  log.hidden = wanted.length === 0;
  byId("events-empty").hidden = wanted.length > 0;
  setText(byId("events-empty"), events.length ? "No event is like that." : "Nothing has happened yet.");
  quiet = false;
}

/** Replaces the log, as after a new connection: the controller may have counted from 1 again. */
export function resetEvents(list) {
  quiet = true;
  epoch += 1;
  events = [];
  rows.update([]);
  addEvents(list);
}

/** The events of jobs with this job's tenant and name that are here, and a number that a new log changes. */
export function eventsOf(job) {
  return { epoch, events: events.filter((event) => event.job === job.name && event.tenant === job.tenant) };
}

/** Adds events of a snapshot; those that are there already are not added again. */
export function addEvents(list) {
  const known = new Set(events.map((event) => event.n));
  const fresh = list.filter((event) => !known.has(event.n));
  if (fresh.length === 0 && !quiet) return;
  events = [...fresh, ...events].sort((a, b) => b.n - a.n).slice(0, KEPT);
  filter.offer(events.map((event) => event.kind), kindText);
  redraw();
}
