// The reports of each job over the last ten minutes: the controller's history, then a point a snapshot.

import { getJson, jobPath } from "./api.js";

export const WINDOW = 600; // seconds, as long as the controller's own history
const SHORTEST = 60; // seconds that an axis shows at least
const AT_ONCE = 3; // histories asked for at the same time, so that fifty jobs do not delay the live stream

const FIELDS = ["GBps", "loss", "skip_ratio", "density", "collectives"];
const waiting = [];
let running = 0;

function next() {
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    waiting.shift()().finally(() => {
      running -= 1;
      next();
    });
  }
}

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

const pointOf = (t, rates) => Object.fromEntries([["t", t], ...FIELDS.map((field) => [field, number(rates?.[field])])]);

export class Series {
  constructor() {
    this.points = []; // {t, GBps, loss, …}, null for "not known", oldest first
    this.asked = null; // the generation whose history we have, or are getting
  }

  /** Appends what a snapshot says. */
  add(now, rates) {
    const last = this.points.at(-1);
    if (last && now <= last.t) return;
    this.points = [...this.points.filter((point) => point.t >= now - WINDOW), pointOf(now, rates)];
  }

  /** Puts the controller's history before what we saw ourselves; once for each generation of a job. */
  load(job, done) {
    if (this.asked === job.id) return;
    this.asked = job.id;
    waiting.push(async () => {
      try {
        const { points } = await getJson(jobPath(job, "/history"));
        const first = this.points[0]?.t ?? Infinity;
        const older = points.filter((point) => point.t < first).map((point) => pointOf(point.t, point));
        this.points = [...older, ...this.points];
        done();
      } catch (error) {
        console.warn(`no history of ${job.name}: ${error.message}`);
      }
    });
    next();
  }

  /** The points of one field as {t, value}, with the seconds and the largest value that an axis must hold. */
  line(field, now) {
    const points = this.points.map((point) => ({ t: point.t, value: point[field] }));
    const span = Math.min(WINDOW, Math.max(SHORTEST, now - (points[0]?.t ?? now)));
    return { points, span, largest: points.reduce((most, point) => Math.max(most, point.value ?? 0), 0) };
  }

  /** Forgets that history was loaded: after a gap in the stream there is more to be had. */
  stale() {
    this.asked = null;
    this.points = [];
  }
}
