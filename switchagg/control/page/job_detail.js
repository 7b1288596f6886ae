// The details below a job: its settings, its policy and why, its timeline, four charts, its ranks, two buttons.

import { TimeChart, lossScale, throughputScale, wholeScale } from "./chart.js";
import { h, setText } from "./dom.js";
import { count, duration, microseconds, percent, ranks, short, throughput } from "./format.js";
import { MemberTable } from "./members.js";
import { Timeline } from "./timeline.js";

export function policyText(policy) {
  if (!policy) return "–";
  const parts = [policy.dense ? "dense" : "skips zeros"];
  if (policy.block) parts.push(`blocks of ${policy.block}`);
  if (policy.bits) parts.push(`${policy.bits}-bit lanes`);
  return parts.join(", ");
}

/** A switch below the job's root, with the ranks that attach to it. */
function leafText(leaf) {
  return `${leaf.switch}: rank ${ranks(leaf.ranks)}, slots from ${leaf.base}`;
}

const sinceText = (job) =>
  Number.isFinite(job.policy?.since) ? `, for ${duration(job.now - job.policy.since)}` : "";

function slotsText(job) {
  if (job.base === null || job.base === undefined) return "–";
  return `${count(job.slots)} (${job.base} to ${job.base + job.slots - 1}), ${count(job.words)} words a packet`;
}

const LOSS = { fail: "the job fails", shrink: "go on with the others" };

const FACTS = [
  ["Id", (job) => job.id ?? "–"],
  ["Switch", (job) => job.switch ?? "–"],
  ["Below it", (job) => (job.leaves?.length ? job.leaves.map(leafText).join("; ") : "–")],
  ["Slots", slotsText],
  ["Priority", (job) => job.priority ?? "–"],
  ["When a rank is lost", (job) => `${LOSS[job.on_loss] ?? LOSS.fail}, after ${duration(job.deadline)}`],
  ["Packets", (job) => (job.rates ? `${short(job.rates.packets_per_s)}/s` : "–")],
  ["Round trip", (job) => microseconds(job.rates?.rtt_us)],
  ["Missing", (job) => (job.missing?.length ? `rank ${ranks(job.missing)}` : "nobody")],
  ["Policy", (job) => policyText(job.policy) + sinceText(job)],
  ["Why", (job) => job.policy?.why || "–"],
];

export class JobDetail {
  constructor(actions) {
    this.values = FACTS.map(() => h("dd"));
    this.drain = h("button", { type: "button", class: "small", onclick: () => actions.drainJob(this.job) }, "Drain");
    const evict = { type: "button", class: "small danger", onclick: () => actions.evictJob(this.job) };
    this.evict = h("button", evict, "Evict");
    const group = new Set();
    const chart = (title, field, scale, format) => new TimeChart({ title, field, scale, format, group });
    this.charts = [
      chart("Throughput", "GBps", throughputScale, throughput),
      chart("Packets resent (loss)", "loss", lossScale, percent),
      chart("Blocks skipped", "skip_ratio", wholeScale, percent),
      chart("Density of a rank's blocks", "density", wholeScale, percent),
    ];
    this.timeline = new Timeline();
    this.members = new MemberTable();
    this.why = h("p", { class: "why", hidden: true });
    this.element = h(
      "div",
      { class: "detail" },
      this.why,
      h(
        "dl",
        { class: "fact-list" },
        ...FACTS.map(([title], i) => h("div", title === "Why" ? { class: "long" } : {}, h("dt", {}, title), this.values[i])),
      ),
      this.timeline.element,
      h("div", { class: "charts" }, ...this.charts.map((each) => each.element)),
      this.members.element,
      h("p", { class: "detail-buttons" }, this.drain, this.evict),
    );
  }

  remove() {
    for (const chart of [this.timeline, ...this.charts]) chart.remove();
  }

  update(job, series) {
    this.job = job;
    this.why.hidden = !job.why;
    setText(this.why, job.why ?? "");
    FACTS.forEach(([, value], i) => setText(this.values[i], value(job)));
    this.timeline.update(job, series);
    for (const chart of this.charts) chart.update(series, job.now);
    this.members.update(job);
    this.drain.disabled = job.state === "draining";
    this.drain.setAttribute("aria-label", `Drain job ${job.name}`);
    this.evict.setAttribute("aria-label", `Evict job ${job.name}`);
  }
}
