// Follows the controller and hands each snapshot to the parts of the page.

import { getJson, jobPath, request, setToken, token } from "./api.js";
import { askToken, confirmed, toast } from "./dialogs.js";
import { KeyedList, byId, h, setAttribute, setText } from "./dom.js";
import { addEvents, resetEvents } from "./events.js";
import { clock, duration, percent, throughput } from "./format.js";
import { forgetSeries, revealJob, showJobs } from "./jobs.js";
import { follow } from "./live.js";
import { HERE, health } from "./members.js";
import { showSwitches } from "./switches.js";

const EVENTS = 200; // asked for after connecting

// The state of the connection.

let lostAt = null;
let lostWhy = "";
let lastSeen = null;

function say(state, text) {
  const element = byId("connection");
  setAttribute(element, "data-state", state);
  setText(element, text);
}

function showLoss() {
  if (lostAt === null) return;
  const ago = (Date.now() - lostAt) / 1000;
  say("lost", "controller lost");
  const banner = byId("banner");
  banner.hidden = false;
  const seen = lastSeen === null ? "" : ` What you see is of ${clock(lastSeen)}.`;
  // The age would be read out each second if it were part of the alert.
  setText(banner, `Lost the controller: ${lostWhy}. Trying again.${seen}`);
  setAttribute(banner, "title", `for ${duration(ago)}`);
  document.body.classList.toggle("stale", lastSeen !== null);
}

function showLive(now) {
  lostAt = null;
  lastSeen = now;
  say("live", "live");
  setAttribute(byId("connection"), "title", `as of ${clock(now)}`);
  byId("banner").hidden = true;
  document.body.classList.remove("stale");
}

// The actions of buttons.

async function act(path, method, done) {
  try {
    await request(path, { method });
    toast(done);
  } catch (error) {
    toast(error instanceof TypeError ? "The controller does not answer." : `Refused: ${error.message}`);
  }
}

const actions = {
  async drainJob(job) {
    const text = "No rank may join it any more; it ends when its ranks leave. Running ranks go on undisturbed.";
    if (await confirmed(`Drain job ${job.name}?`, text, "Drain"))
      await act(jobPath(job, "/drain"), "POST", `Job ${job.name} is draining.`);
  },
  async evictJob(job) {
    const text = "It fails now: every rank gets an error, and its slots are free at once.";
    if (await confirmed(`Evict job ${job.name}?`, text, "Evict"))
      await act(jobPath(job), "DELETE", `Job ${job.name} was evicted.`);
  },
  async drainSwitch(name, undrain) {
    const path = `v1/switches/${encodeURIComponent(name)}/${undrain ? "undrain" : "drain"}`;
    const text = "It gets no new jobs, and the jobs that run there are moved where they can be.";
    if (undrain) await act(path, "POST", `Switch ${name} takes jobs again.`);
    else if (await confirmed(`Drain switch ${name}?`, text, "Drain"))
      await act(path, "POST", `Switch ${name} is draining.`);
  },
  choose(range) {
    if (range.name !== null && range.name !== undefined) revealJob(range.tenant, range.name);
  },
};

// The figures at the top.

const cards = new KeyedList(byId("summary"), ([title]) => title, ([title]) => {
  const [value, note] = ["card-value", "card-note"].map((name) => h("dd", { class: name }));
  const element = h("div", { class: "card" }, h("dt", {}, title), value, note);
  const update = ([, figure, text, level]) => {
    setText(value, figure);
    setText(note, text);
    setAttribute(element, "data-level", level || null);
  };
  return { element, update };
});

function showSummary(snapshot) {
  const { jobs, switches } = snapshot;
  const total = (list, figure) => list.reduce((sum, each) => sum + (figure(each) ?? 0), 0);
  const members = jobs.flatMap((job) => job.members.map((member) => health(member, job.deadline)));
  const late = members.filter((each) => each === "late").length;
  const lost = members.filter((each) => each === "lost").length;
  const queued = jobs.filter((job) => job.state === "queued").length;
  const down = switches.filter((one) => one.state === "down");
  const slots = total(switches, (one) => one.capacity?.slots);
  const free = total(switches, (one) => one.free);
  const all = [
    ["Throughput", throughput(total(jobs, (job) => job.rates?.GBps)), "reduced, all jobs together", ""],
    ["Jobs", jobs.length - queued, queued ? `and ${queued} queued` : "none queued", queued ? "warn" : ""],
    [
      "Ranks",
      members.filter((each) => HERE.includes(each)).length,
      [late && `${late} silent`, lost && `${lost} lost`].filter(Boolean).join(", ") ||
        (!members.length ? "nobody is there" : members.includes("quiet") ? "none silent" : "all heard"),
      lost ? "bad" : late ? "warn" : "",
    ],
    ["Slots in use", percent(slots ? (slots - free) / slots : null), slots ? `of ${slots.toLocaleString("en-US")}` : "no switch", ""],
    [
      "Switches",
      switches.length ? `${switches.length - down.length}/${switches.length}` : "0",
      down.length ? `down: ${down.map((one) => one.name).join(", ")}` : switches.length ? "up" : "none known",
      down.length ? "bad" : "",
    ],
  ];
  cards.update(all);
}

// The stream.

function showToken() {
  byId("token-button").hidden = token() === null;
}

byId("token-button").addEventListener("click", () => {
  setToken(null);
  location.reload();
});

showToken();
setInterval(showLoss, 1000);
follow({
  async connected() {
    const wasLost = lostAt !== null;
    const { events } = await getJson(`v1/events?limit=${EVENTS}`);
    resetEvents(events);
    if (wasLost) forgetSeries();
  },
  snapshot(snapshot) {
    showLive(snapshot.now);
    showSummary(snapshot);
    showSwitches(snapshot.switches, actions);
    showJobs(snapshot.jobs, snapshot.now, actions);
    addEvents(snapshot.events ?? []);
  },
  lost(reason) {
    if (lostAt === null) lostAt = Date.now();
    lostWhy = reason;
    showLoss();
  },
  async refused(error) {
    say("refused", "needs a token");
    const given = token() === null ? "" : "The token given before is not accepted: ";
    setToken(await askToken(`${given}${error.message}`));
    showToken();
  },
});
