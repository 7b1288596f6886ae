// The switches: state, free slots and their fragmentation, the map of slots, drops.

import { KeyedList, byId, h, setAttribute, setText, table } from "./dom.js";
import { bytes, count, percent } from "./format.js";
import { SlotMap, rangeText } from "./slotmap.js";

// Reasons for a drop that point to a sender without the right to send, or to a malformed packet.
const REFUSED = ["truncated", "version", "op", "length", "job", "source", "token", "slot"];

const sum = (counters, names) => names.reduce((total, name) => total + (counters?.[name] ?? 0), 0);

/** Fragmentation: 1 less the largest free range over the largest possible, both powers of two. */
function fragmentation(one) {
  if (!(one.free > 0) || !Number.isFinite(one.largest_free)) return 0;
  return Math.max(0, 1 - one.largest_free / 2 ** Math.floor(Math.log2(one.free)));
}

class SwitchView {
  constructor(actions) {
    this.actions = actions;
    this.name = h("h3", {});
    this.state = h("span", { class: "badge" });
    this.where = h("span", { class: "dim" });
    this.why = h("p", { class: "why", hidden: true });
    this.button = h("button", { type: "button", class: "small", onclick: () => this.drain() });
    this.facts = h("p", { class: "facts" });
    this.map = new SlotMap((range) => actions.choose(range, this.one));
    this.table = h("tbody");
    this.details = h(
      "details",
      {},
      h("summary", {}, "Ranges as a list"),
      h("div", { class: "table-frame" }, table([["First"], ["Last"], ["Slots"], "Job", "Tenant"], this.table)),
    );
    this.counters = h("p", { class: "facts dim" });
    this.element = h(
      "article",
      { class: "panel switch" },
      h("div", { class: "panel-head" }, this.name, this.state, this.where, this.button),
      this.why,
      this.facts,
      this.map.element,
      this.counters,
      this.details,
    );
  }

  remove() {
    this.map.remove();
  }

  drain() {
    const { name, state } = this.one;
    this.actions.drainSwitch(name, state === "draining");
  }

  update(one) {
    this.one = one;
    const capacity = one.capacity?.slots ?? 0;
    setText(this.name, one.name);
    setText(this.state, one.state);
    setAttribute(this.state, "data-state", one.state);
    const where = [one.target, one.address && `${one.address}:${one.port}`, one.parent && `below ${one.parent}`];
    setText(this.where, where.filter(Boolean).join(" · "));
    this.why.hidden = !one.why;
    setText(this.why, one.why ?? "");
    setText(this.button, one.state === "draining" ? "Undrain" : "Drain");
    setAttribute(this.button, "aria-label", `${one.state === "draining" ? "Undrain" : "Drain"} switch ${one.name}`);
    const split = fragmentation(one);
    const free = `${count(one.free)} of ${count(capacity)} slots free`;
    const range = `, ${count(one.largest_free)} in one range (fragmentation ${percent(split)})`;
    const words = one.capacity?.exact_words ?? `up to ${count(one.capacity?.words)}`;
    const memory = `${bytes(one.capacity?.memory)} of memory · ${words} words a packet`;
    setText(this.facts, `${free}${one.free > 0 ? range : ": it is full"} · ${memory}`);
    const counters = one.counters ?? {};
    setText(
      this.counters,
      `${count(counters.received ?? 0)} packets received, ${count(counters.results ?? 0)} rounds completed, ` +
        `${count(counters.retransmissions ?? 0)} resent, ${count(sum(counters, REFUSED))} refused`,
    );
    const ranges = [...(one.ranges ?? [])].sort((a, b) => a.base - b.base);
    this.map.update(capacity, ranges, `Slots of switch ${one.name}: ${free}. ${ranges.length} ranges in use.`);
    this.details.hidden = ranges.length === 0;
    if (this.details.open) this.list(ranges);
    this.details.ontoggle = () => this.list(ranges);
  }

  list(ranges) {
    const signature = JSON.stringify(ranges);
    if (signature === this.listed) return;
    this.listed = signature;
    const rows = ranges.map((range) => {
      const numbers = [range.base, range.base + range.slots - 1, range.slots];
      const cells = numbers.map((number) => h("td", { class: "number" }, String(number)));
      const texts = [range.name ?? "(another tenant's)", range.tenant ?? "–"].map((text) => h("td", {}, text));
      return h("tr", { title: rangeText(range) }, ...cells, ...texts);
    });
    this.table.replaceChildren(...rows);
  }
}

let buttons = null;
const panels = new KeyedList(byId("switches"), (one) => one.name, () => new SwitchView(buttons));

/** actions: drainSwitch(name, undrain), choose(range, switch). */
export function showSwitches(switches, actions) {
  buttons = actions;
  setAttribute(panels.parent, "data-empty", switches.length === 0 ? "This controller has no switch." : null);
  panels.update(switches);
}
