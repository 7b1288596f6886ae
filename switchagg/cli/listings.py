"""`switchagg jobs`, `slots`, `stats`, `switches` and `events`: what a controller knows, as tables or JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from switchagg.addresses import show_address
from switchagg.cli.options import add_controller_options, add_job_options, client_from, print_answer
from switchagg.errors import UsageError, require
from switchagg.report import format as figures
from switchagg.report.table import listing

MAX_EVENTS = 1000


def add_parser(subparsers: Any) -> None:
    jobs = subparsers.add_parser(
        "jobs",
        description="Lists the jobs of a controller: the ranks that have joined, are missing, lost or have "
        "left, the speed, and the blocks that are skipped and why. With a name: that job, rank by rank.",
    )
    jobs.add_argument("name", nargs="?", help="show this job in full")
    add_job_options(jobs)
    add_controller_options(jobs, run=list_jobs)

    slots = subparsers.add_parser(
        "slots",
        description="Shows the range of each switch's slots that each job has. With --job: the slots of that "
        "job that some ranks have sent to and others have not. If a job hangs, the missing ranks are those "
        "that it waits for.",
    )
    slots.add_argument("--job", metavar="NAME", help="look into the slots of this job")
    add_controller_options(slots, run=_slots)

    stats = subparsers.add_parser(
        "stats",
        description="Shows the counters of each switch since it started, in all and for each job. "
        "Counters that are 0 everywhere are left out, except with --json.",
    )
    add_controller_options(stats, run=_stats)

    switches = subparsers.add_parser(
        "switches",
        description="Lists the switches of a controller: their state and its reason, and their free slots.",
    )
    add_controller_options(switches, run=_switches)

    events = subparsers.add_parser(
        "events",
        description="Shows the controller's event log, oldest first: jobs made, ranks that joined, were "
        "lost or left, policies changed, switches that went down and came back, requests refused.",
    )
    events.add_argument(
        "--since", type=int, default=0, metavar="N", help="only events numbered more than this"
    )
    events.add_argument("--limit", type=int, default=50, metavar="N", help="the newest N of them (50)")
    events.add_argument("--job", metavar="NAME", help="only of this job")
    events.add_argument("--kind", metavar="KIND", help="only of this kind, such as lost or policy")
    events.add_argument("--follow", "-f", action="store_true", help="print new events, until Ctrl-C")
    add_controller_options(events, run=_events)


def add_job_list(parser: argparse.ArgumentParser) -> None:
    """Makes a parser that of the list of all jobs."""
    add_controller_options(parser, run=list_jobs, name=None, id=None, tenant=None)


def list_jobs(args: argparse.Namespace) -> int:
    """Prints the jobs, or the one that is named. Raises `UsageError` for --id without a name."""
    client = client_from(args)
    if args.name is not None:
        job = client.job(args.name, args.id, args.tenant)
        return print_answer(args, job, _in_full(job))
    if args.id is not None or args.tenant is not None:
        raise UsageError("--id and --tenant tell jobs of one name apart: name the job too")
    jobs = client.jobs()
    text = "\n".join([jobs_table(jobs), *_reasons(jobs)]) if jobs else f"no jobs at {client.url}"
    return print_answer(args, {"jobs": jobs}, text)


def _table(columns: Sequence[tuple[str, Callable[[Any], Any]]], rows: Sequence[Any]) -> str:
    """Lists rows in columns, which are a heading and the function of a row that gives the cell."""
    return listing([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def jobs_table(jobs: list[dict[str, Any]]) -> str:
    """Returns the list of jobs; the tenant and the switch only where there are several."""
    columns: list[tuple[str, Any]] = [
        ("job", lambda job: job["name"]),
        ("tenant", lambda job: job.get("tenant") or "-"),
        ("id", lambda job: _known(job["id"])),
        ("state", _state),
        ("ranks", figures.joined),
        ("missing", lambda job: figures.ranks(job["missing"])),
        ("lost", lambda job: figures.ranks(job["lost"])),
        ("left", lambda job: figures.in_state(job, "left")),
        ("switch", _where),
        ("slots", lambda job: _known(job["slots"])),
        ("words", lambda job: _known(job["words"])),
        ("speed", lambda job: figures.throughput(figures.rate(job, "GBps"))),
        ("loss", lambda job: figures.percent(figures.rate(job, "loss"))),
        ("density", lambda job: figures.percent(figures.rate(job, "density"))),
        ("policy", lambda job: figures.policy(job.get("policy"))),
        ("age", lambda job: figures.duration(job["age"])),
    ]
    alike = [name for name in ("tenant", "switch") if len({job.get(name) for job in jobs}) == 1]
    columns = [column for column in columns if column[0] not in alike]
    return _table(columns, jobs)


def _reasons(jobs: list[dict[str, Any]]) -> list[str]:
    waiting = [
        figures.plain(f"{job['name']}: {job['why']}")
        for job in sorted(jobs, key=lambda job: job.get("queue_position") or 0)
        if job.get("queue_position") is not None and job.get("why")
    ]
    alike: dict[str, list[str]] = {}
    for job in jobs:
        policy = job.get("policy") or {}
        if policy.get("why"):
            alike.setdefault(f"{figures.policy(policy)}: {policy['why']}", []).append(job["name"])
    lines = [figures.plain(f"{', '.join(names)}: {reason}") for reason, names in alike.items()]
    lines = waiting + lines
    return ["", *lines] if lines else []


def _in_full(job: dict[str, Any]) -> str:
    policy = job.get("policy") or {}
    base = job["base"]
    facts = [
        ("job", f"{job['name']} (id {_known(job['id'])}, tenant {job.get('tenant') or '-'})"),
        ("state", _state(job) + (f": {job['why']}" if job.get("why") else "")),
        ("age", figures.duration(job["age"])),
        ("switch", job.get("switch") or "-"),
        *(
            ("below it", f"{leaf['switch']}: ranks {figures.ranks(leaf['ranks'])}, slots from {leaf['base']}")
            for leaf in job.get("leaves") or []
        ),
        *(
            (
                "dealt to",
                f"{stripe['switch']}: slots from {stripe['base']}, weight {stripe['weight']} at first",
            )
            for stripe in job.get("stripes") or []
        ),
        (
            "slots",
            "-"
            if base is None
            else f"{job['slots']} ({base} to {base + job['slots'] - 1}), {job['words']} words a packet"
            + (", shared by the workers" if job.get("shared") else ""),
        ),
        ("priority", _known(job.get("priority"))),
        ("lost after", f"{_known(job.get('deadline'))} s of silence, then: {job.get('on_loss') or '-'}"),
        ("speed", figures.throughput(figures.rate(job, "GBps"))),
        ("round trip", figures.microseconds(figures.rate(job, "rtt_us"))),
        ("loss", figures.percent(figures.rate(job, "loss"))),
        ("skipped", f"{figures.percent(figures.rate(job, 'skip_ratio'))} of blocks"),
        ("density", figures.percent(figures.rate(job, "density"))),
        ("sums", _sums(job)),
        ("policy", figures.policy(policy) + _since(policy)),
        ("why", policy.get("why") or "-"),
        ("missing", figures.ranks(job["missing"])),
    ]
    lines = [f"{name:<11} {figures.plain(value)}" for name, value in facts]
    if job["members"]:
        rows = [
            (
                member["rank"],
                member["state"],
                _heard(member),
                figures.count(member.get("packets")),
                show_address(member["address"], member["port"]),
                *((member.get("switch") or "-",) if job.get("leaves") else ()),
                member.get("why") or "",
            )
            for member in job["members"]
        ]
        leaf = ("switch",) if job.get("leaves") else ()
        lines += ["", listing(("rank", "state", "heard", "packets", "address", *leaf, ""), rows)]
    return "\n".join(lines)


def _where(job: dict[str, Any]) -> str:
    more = job.get("leaves") or (job.get("stripes") or [])[1:]
    return (job.get("switch") or "-") + (f" +{len(more)}" if more else "")


def _state(job: dict[str, Any]) -> str:
    place = job.get("queue_position")
    return str(job["state"]) if place is None else f"{job['state']} ({place})"


def _sums(job: dict[str, Any]) -> str:
    exact, bounded, refined = (figures.rate(job, name) for name in ("exact", "bounded", "refined"))
    if exact is None or bounded is None:
        return "-"
    others = max(0.0, 1 - exact - bounded)
    more = "" if refined is None else f", {figures.percent(refined)} of these in more words"
    return (
        f"{figures.percent(exact)} of elements exact, {figures.percent(bounded)} bounded{more}, "
        f"{figures.percent(others)} of lanes or integers"
    )


def _since(policy: dict[str, Any]) -> str:
    since = policy.get("since")
    return "" if since is None else f", for {figures.duration(time.time() - since)}"


def _heard(member: dict[str, Any]) -> str:
    silent = member.get("silent")
    return "-" if silent is None or member["state"] != "joined" else f"{silent:.1f}s ago"


def _known(value: Any) -> Any:
    return "-" if value is None else value


def _slots(args: argparse.Namespace) -> int:
    client = client_from(args)
    if args.job is not None:
        waiting = client.waiting_slots(args.job)
        return print_answer(args, waiting, _waiting(waiting))
    slots = client.slots()
    switches = slots.get("switches") or []
    if len(switches) < 2:
        return print_answer(args, slots, _ranges(slots))
    text = "\n\n".join(f"switch {figures.plain(each['name'])}: {_ranges(each)}" for each in switches)
    return print_answer(args, slots, text)


def _ranges(slots: dict[str, Any]) -> str:
    free = (
        f"{slots['free']} of {slots['capacity']} slots free, {slots['largest_free']} in one range; "
        f"{slots['memory_used']} of {slots['memory']} bytes used; up to {slots['max_words']} words a packet"
    )
    ranges = sorted(slots["ranges"], key=lambda each: int(each["base"]))
    if not ranges:
        return free
    columns: list[tuple[str, Any]] = [
        ("first", lambda each: each["base"]),
        ("last", lambda each: each["base"] + each["slots"] - 1),
        ("slots", lambda each: each["slots"]),
        ("words", lambda each: _known(each.get("words"))),
        ("job", lambda each: "(another tenant's)" if each.get("name") is None else each["name"]),
        ("tenant", lambda each: each.get("tenant") or "-"),
    ]
    if len({each.get("tenant") or "-" for each in ranges}) == 1:
        columns.pop()
    return f"{free}\n{_table(columns, ranges)}"


def _waiting(answer: dict[str, Any]) -> str:
    slots = answer["slots"]
    if slots is None:
        return "this switch does not show what its slots hold"
    if not slots:
        return f"no slot of job {answer['job']!r} waits for anybody"
    columns: list[tuple[str, Any]] = [
        ("switch", lambda each: each.get("switch") or "-"),
        ("slot", lambda each: each["slot"]),
        ("seq", lambda each: each["seq"]),
        ("holds", lambda each: "words" if each["filled"] else "skips"),
        ("ranks there", lambda each: figures.ranks(each["seen"])),
        ("ranks missing", lambda each: figures.ranks(each["missing"])),
    ]
    if len({each.get("switch") or "-" for each in slots}) == 1:
        del columns[0]
    return _table(columns, slots)


def _stats(args: argparse.Namespace) -> int:
    stats = client_from(args).stats()
    switches: dict[str, dict[str, int]] = stats.get("switches") or {}
    if len(switches) < 2:
        switches = {"switch": stats["switch"]}
    jobs = stats["jobs"]
    on_tree = {job["name"] for job in jobs if sum(each["id"] == job["id"] for each in jobs) > 1}
    columns = list(switches.items())
    for job in jobs:  # one on a tree has a column for each of its switches
        name = f"{job['name']} at {job['switch']}" if job["name"] in on_tree else str(job["name"])
        columns.append((name, job["counters"]))
    names = dict.fromkeys(name for _, counters in columns for name in counters)
    rows = [(name, *(counters.get(name, 0) for _, counters in columns)) for name in names]
    rows = [row for row in rows if any(row[1:])]
    text = listing(("counter", *(name for name, _ in columns)), rows)
    return print_answer(args, stats, text if rows else "nothing has been counted yet")


def _switches(args: argparse.Namespace) -> int:
    client = client_from(args)
    switches = client.switches()
    reasons = [figures.plain(f"{one['name']}: {one['why']}") for one in switches if one.get("why")]
    text = "\n".join([switches_table(switches), *reasons]) if switches else f"no switches at {client.url}"
    return print_answer(args, {"switches": switches}, text)


def switches_table(switches: list[dict[str, Any]]) -> str:
    """Returns the list of switches; the parent and the hosts that attach only where there is a tree."""
    columns: list[tuple[str, Any]] = [
        ("switch", lambda one: one["name"]),
        ("below", lambda one: one.get("parent") or "-"),
        ("hosts", _hosts),
        ("target", lambda one: one["target"]),
        ("address", lambda one: show_address(one["address"], one["port"])),
        ("state", lambda one: one["state"]),
        ("free", lambda one: one["free"]),
        ("of", lambda one: one["capacity"]["slots"]),
        ("largest", lambda one: one["largest_free"]),
        ("words", lambda one: _words(one["capacity"])),
        ("jobs", lambda one: len(one["ranges"])),
        ("packets", lambda one: figures.count((one.get("counters") or {}).get("received"))),
    ]
    if not any(one.get("parent") for one in switches):
        columns = [column for column in columns if column[0] not in ("below", "hosts")]
    return _table(columns, switches)


def _hosts(switch: dict[str, Any]) -> str:
    hosts = switch.get("hosts")
    if hosts is None:
        return "any"
    return ", ".join(hosts[:2]) + (f" and {len(hosts) - 2} more" if len(hosts) > 2 else "") or "none"


def _words(capacity: dict[str, Any]) -> str:
    exact = capacity.get("exact_words")
    return f"up to {capacity['words']}" if exact is None else f"{exact}"


def _events(args: argparse.Namespace) -> int:
    """Prints events: lines, or JSON; with --follow a JSON object a line."""
    require(1 <= args.limit <= MAX_EVENTS, "limit", args.limit, f"1..{MAX_EVENTS}")
    require(args.since >= 0, "since", args.since, "0 or more")
    client = client_from(args)

    def wanted(event: dict[str, Any]) -> bool:
        return args.job in (None, event.get("job")) and args.kind in (None, event["kind"])

    def show(event: dict[str, Any]) -> None:
        print(json.dumps(event) if args.json else event_line(event), flush=True)

    # A filter leaves few, so it gets all that there are.
    filtered = args.job is not None or args.kind is not None
    found = client.events(args.since, MAX_EVENTS if filtered else args.limit, args.job)
    events = [event for event in found if wanted(event)][-args.limit :]
    if not args.follow:
        none = "nothing has happened yet" if not args.since and not filtered else "no such event"
        return print_answer(args, {"events": events}, "\n".join(map(event_line, events)) or none)
    for event in events:
        show(event)
    last = max((event["n"] for event in found), default=args.since)
    with contextlib.suppress(KeyboardInterrupt):
        for snapshot in client.live():
            for event in snapshot["events"]:
                if event["n"] > last:
                    last = event["n"]
                    if wanted(event):
                        show(event)
    return 0


def event_line(event: dict[str, Any]) -> str:
    """Returns an event as a line of text."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
    who = " ".join(
        f"{name}={event[name]}" for name in ("tenant", "job", "switch", "rank") if event.get(name) is not None
    )
    return figures.plain(f"{when}  {event['kind']:<12} {event['text']}" + (f"  [{who}]" if who else ""))
