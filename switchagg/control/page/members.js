// The ranks of a job: a strip of boxes for the list, a table for the details.

import { KeyedList, h, setAttribute, setText, table } from "./dom.js";
import { count, seconds } from "./format.js";

/** The health of a member, a word that style.css has a colour for: ok, late, quiet, waiting, lost, left, missing. */
export function health(member, deadline) {
  if (["lost", "left", "waiting"].includes(member.state)) return member.state;
  if (member.silent === null || member.silent === undefined) return "quiet";
  return member.silent > (deadline ?? 10) / 2 ? "late" : "ok";
}

const WORDS = {
  ok: (member) => `heard ${seconds(member.silent)} ago`,
  late: (member) => `silent for ${seconds(member.silent)}`,
  quiet: () => "no heartbeat yet",
  waiting: () => "waits to come back in",
  lost: (member) => (member.why ? `lost: ${member.why}` : "lost"),
  left: (member) => (member.why ? `left: ${member.why}` : "left in order"),
  missing: () => "has not joined",
};

/** Healths of members that take part. */
export const HERE = ["ok", "late", "quiet"];

/** Every rank of a job in order, those that have not joined too. */
function everyRank(job) {
  const there = new Map((job.members ?? []).map((member) => [member.rank, member]));
  const all = (job.missing ?? []).map((rank) => ({ rank, state: "missing", health: "missing" }));
  for (const member of there.values()) all.push({ ...member, health: health(member, job.deadline) });
  return all.sort((a, b) => a.rank - b.rank);
}

export class RankStrip {
  constructor() {
    this.boxes = h("span", { class: "ranks", "aria-hidden": "true" });
    this.text = h("span", { class: "ranks-text" });
    this.element = h("div", { class: "rank-cell" }, this.text, this.boxes);
    this.list = new KeyedList(this.boxes, (member) => member.rank, () => {
      const element = h("i");
      const update = (member) => {
        setAttribute(element, "data-health", member.health);
        setAttribute(element, "title", `rank ${member.rank}: ${WORDS[member.health](member)}`);
      };
      return { element, update };
    });
  }

  update(job) {
    const all = everyRank(job);
    const here = all.filter((member) => HERE.includes(member.health)).length;
    const parts = [`${here}/${job.world_size}`];
    for (const kind of ["late", "waiting", "lost", "left"]) {
      const number = all.filter((member) => member.health === kind).length;
      if (number) parts.push(`${number} ${kind}`);
    }
    setText(this.text, parts.join(", "));
    this.list.update(all);
  }
}

export class MemberTable {
  constructor() {
    const body = h("tbody");
    this.list = new KeyedList(body, (member) => member.rank, () => {
      const classes = ["number", null, null, "number", "mono"];
      const [rank, state, heard, packets, address] = classes.map((name) => h("td", { class: name }));
      const dot = h("i", { class: "dot-mark", "aria-hidden": "true" });
      const word = h("span");
      state.append(dot, word);
      const element = h("tr", {}, rank, state, heard, packets, address);
      const update = (member) => {
        setText(rank, member.rank);
        setText(word, member.state);
        setAttribute(dot, "data-health", member.health);
        setText(heard, WORDS[member.health](member));
        setText(packets, count(member.packets));
        const leaf = this.job.leaves?.length && member.switch ? ` at ${member.switch}` : "";
        setText(address, member.address ? `${member.address}:${member.port}${leaf}` : "–");
      };
      return { element, update };
    });
    this.element = h(
      "div",
      { class: "table-frame members", tabindex: 0, role: "region", "aria-label": "Ranks" },
      table([["Rank"], "State", "Heartbeat", ["Packets admitted"], "Address"], body),
    );
  }

  update(job) {
    this.job = job;
    this.list.update(everyRank(job));
  }
}
