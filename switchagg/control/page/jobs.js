// The list of jobs: a row each, with details below it.

import { Sparkline } from "./chart.js";
import { colour, jobKey } from "./colours.js";
import { Filter, KeyedList, byId, h, setAttribute, setText } from "./dom.js";
import { duration, percent, throughput } from "./format.js";
import { JobDetail, policyText } from "./job_detail.js";
import { RankStrip } from "./members.js";
import { Series } from "./series.js";

const COLUMNS = 10;

const series = new Map(); // by key, since a row may go and come with the filter
const opened = new Set();
const filter = new Filter("job", "state", redraw);
const rows = new KeyedList(byId("job-rows"), (job) => job.key, (job) => new JobView(job, last.actions));

class JobView {
  constructor(job, actions) {
    this.key = job.key;
    this.actions = actions;
    this.shown = false;
    this.detail = null;
    this.swatch = h("i", { class: `swatch ${colour(job.tenant, job.name)}`, "aria-hidden": "true" });
    this.name = h("span", { class: "job-name" });
    this.tenant = h("span", { class: "dim sub" });
    this.toggle = h(
      "button",
      { type: "button", class: "disclose", "aria-expanded": "false", onclick: () => this.open(!opened.has(this.key)) },
      this.swatch,
      h("span", { class: "job-title" }, this.name, this.tenant),
    );
    this.state = h("span", { class: "badge" });
    this.queue = h("span", { class: "dim sub" });
    this.ranks = new RankStrip();
    this.rate = h("span", { class: "rate" });
    this.spark = new Sparkline("GBps", "Throughput over the last minutes");
    const classes = ["number mid", "number mid fine", "number mid fine", "wide policy", "wide", "number wide"];
    const cells = classes.map((name) => h("td", { class: name }));
    [this.loss, this.skip, this.density, this.policy, this.place, this.age] = cells;
    this.row = h(
      "tr",
      { class: "job" },
      h("td", { class: "job-cell" }, this.toggle),
      h("td", {}, this.state, this.queue),
      h("td", {}, this.ranks.element),
      h("td", { class: "rate-cell" }, this.rate, this.spark.element),
      ...cells,
    );
    this.cell = h("td", { colspan: COLUMNS });
    this.below = h("tr", { class: "below", hidden: true }, this.cell);
    this.elements = [this.row, this.below];
    seen.set(this.row, this);
    watch.observe(this.row);
  }

  remove() {
    watch.unobserve(this.row);
    this.detail?.remove();
    this.job = null; // a history that comes now has no row to be drawn in
  }

  open(wanted) {
    if (wanted) opened.add(this.key);
    else opened.delete(this.key);
    this.draw();
  }

  visible() {
    this.shown = true;
    this.draw();
  }

  update(job) {
    this.job = job;
    this.draw();
  }

  draw() {
    const { job } = this;
    if (!job) return;
    const open = opened.has(this.key);
    const line = series.get(this.key);
    const rates = job.rates ?? {};
    setText(this.name, job.name);
    setText(this.tenant, job.tenant ?? "");
    setAttribute(this.toggle, "aria-expanded", open);
    setText(this.state, job.state);
    setAttribute(this.state, "data-state", job.state);
    setText(this.queue, job.queue_position ? `number ${job.queue_position} in the queue` : "");
    this.ranks.update(job);
    setText(this.rate, throughput(job.rates ? rates.GBps : null));
    setText(this.loss, percent(rates.loss));
    setAttribute(this.loss, "data-level", rates.loss > 0.05 ? "bad" : rates.loss > 0.005 ? "warn" : null);
    setText(this.skip, percent(rates.skip_ratio));
    setText(this.density, percent(rates.density));
    setText(this.policy, policyText(job.policy));
    setAttribute(this.policy, "title", job.policy?.why ?? null);
    setText(this.place, job.switch ?? "–");
    setText(this.age, duration(job.age));
    if (this.shown || open) {
      line.load(job, () => this.draw());
      this.spark.update(line, job.now);
    }
    this.below.hidden = !open;
    if (open && this.detail === null) {
      this.detail = new JobDetail(this.actions);
      this.cell.append(this.detail.element);
    } else if (!open && this.detail !== null) {
      this.detail.remove();
      this.detail.element.remove();
      this.detail = null;
    }
    this.detail?.update(job, line);
  }
}

const seen = new WeakMap();
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) seen.get(entry.target)?.visible();
});

/** Gives each job a key that it keeps over its generations; an older generation that lingers has its own. */
function withKeys(jobs, now) {
  const newest = new Map();
  for (const job of jobs) {
    const key = jobKey(job.tenant, job.name);
    const other = newest.get(key);
    if (other === undefined || job.id === null || (other.id !== null && job.id > other.id)) newest.set(key, job);
  }
  return jobs.map((job) => {
    const key = jobKey(job.tenant, job.name);
    return { ...job, now, key: newest.get(key) === job ? key : `${key}#${job.id}` };
  });
}

let last = { jobs: [], now: 0, actions: null };

/** Shows the jobs of a snapshot. actions: drainJob(job), evictJob(job). */
export function showJobs(jobs, now, actions) {
  const all = withKeys(jobs, now);
  const keys = new Set(all.map((job) => job.key));
  for (const key of series.keys()) if (!keys.has(key)) series.delete(key);
  for (const key of opened) if (!keys.has(key)) opened.delete(key);
  for (const job of all) {
    if (!series.has(job.key)) series.set(job.key, new Series());
    series.get(job.key).add(now, job.rates);
  }
  last = { jobs: all, now, actions };
  filter.offer(all.map((job) => job.state));
  redraw();
}

function redraw() {
  const shown = last.jobs.filter((job) => filter.matches(job.state, [job.name, job.tenant, job.switch]));
  rows.update(shown);
  byId("jobs-frame").hidden = shown.length === 0;
  byId("jobs-empty").hidden = shown.length > 0;
  setText(
    byId("jobs-empty"),
    last.jobs.length
      ? `None of the ${last.jobs.length} jobs is like that.`
      : "No jobs. One begins when its first rank connects, or with switchagg job create.",
  );
}

/** Fills a gap in the stream from the controller's history. */
export function forgetSeries() {
  for (const line of series.values()) line.stale();
}

/** Opens a job's row and goes there. */
export function revealJob(tenant, name) {
  filter.clear();
  redraw();
  const view = rows.views.get(jobKey(tenant, name));
  if (!view) return;
  view.open(true);
  view.row.scrollIntoView({ block: "start", behavior: "smooth" });
  view.toggle.focus({ preventScroll: true });
}
