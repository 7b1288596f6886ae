"""`switchagg jobs`: the jobs that run, and one of them in full."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from switchagg.cli.options import add_controller_options, add_job_options, client_from
from switchagg.errors import UsageError
from switchagg.report import format as figures
from switchagg.report.table import listing


def add_parser(subparsers: Any) -> None:
    """Adds `jobs` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "jobs",
        help="list the jobs that run",
        description="Lists the jobs of a controller: who has joined, who is missing, lost or has left, how "
        "fast they are, and which blocks they skip and why. With a name: that job, with each of its ranks.",
    )
    parser.add_argument("name", nargs="?", help="show this job in full")
    add_job_options(parser)
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the list, or one job. Raises `SwitchError` where no controller answers."""
    client = client_from(args)
    if args.name is not None:
        job = client.job(args.name, args.id, args.tenant)
        print(json.dumps(job, indent=1) if args.json else _in_full(job))
        return 0
    if args.id is not None or args.tenant is not None:
        raise UsageError("--id and --tenant tell jobs of one name apart: name the job too")
    jobs = client.jobs()
    if args.json:
        print(json.dumps({"jobs": jobs}, indent=1))
    elif not jobs:
        print(f"no jobs at {client.url}")
    else:
        print(jobs_table(jobs))
        for line in _reasons(jobs):
            print(line)
    return 0


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
    return listing(
        tuple(name for name, _ in columns), [tuple(value(job) for _, value in columns) for job in jobs]
    )


def _reasons(jobs: list[dict[str, Any]]) -> list[str]:
    alike: dict[str, list[str]] = {}
    for job in jobs:
        policy = job.get("policy") or {}
        if policy.get("why"):
            alike.setdefault(f"{figures.policy(policy)}: {policy['why']}", []).append(job["name"])
    lines = [figures.plain(f"{', '.join(names)}: {reason}") for reason, names in alike.items()]
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
        (
            "slots",
            "-"
            if base is None
            else f"{job['slots']} ({base} to {base + job['slots'] - 1}), {job['words']} words a packet",
        ),
        ("priority", _known(job.get("priority"))),
        ("lost after", f"{_known(job.get('deadline'))} s of silence, then: {job.get('on_loss') or '-'}"),
        ("speed", figures.throughput(figures.rate(job, "GBps"))),
        ("round trip", figures.microseconds(figures.rate(job, "rtt_us"))),
        ("loss", figures.percent(figures.rate(job, "loss"))),
        ("skipped", f"{figures.percent(figures.rate(job, 'skip_ratio'))} of blocks"),
        ("density", figures.percent(figures.rate(job, "density"))),
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
                f"{member['address']}:{member['port']}",
                *((member.get("switch") or "-",) if job.get("leaves") else ()),
                member.get("why") or "",
            )
            for member in job["members"]
        ]
        leaf = ("switch",) if job.get("leaves") else ()
        lines += ["", listing(("rank", "state", "heard", "packets", "address", *leaf, ""), rows)]
    return "\n".join(lines)


def _where(job: dict[str, Any]) -> str:
    leaves = job.get("leaves") or []
    return (job.get("switch") or "-") + (f" +{len(leaves)}" if leaves else "")


def _state(job: dict[str, Any]) -> str:
    place = job.get("queue_position")
    return str(job["state"]) if place is None else f"{job['state']} ({place})"


def _since(policy: dict[str, Any]) -> str:
    since = policy.get("since")
    return "" if since is None else f", for {figures.duration(time.time() - since)}"


def _heard(member: dict[str, Any]) -> str:
    silent = member.get("silent")
    return "-" if silent is None or member["state"] != "joined" else f"{silent:.1f}s ago"


def _known(value: Any) -> Any:
    return "-" if value is None else value
