"""`switchagg stats`: the counters of the switches and of their jobs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, client_from
from switchagg.report.table import listing


def add_parser(subparsers: Any) -> None:
    """Adds `stats` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "stats",
        help="show the counters of the switches and of their jobs",
        description="Shows what each switch has counted since it started, in all and for each job. "
        "Counters that are 0 everywhere are left out, except with --json.",
    )
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the counters. Raises `SwitchError` where no controller answers."""
    stats = client_from(args).stats()
    if args.json:
        print(json.dumps(stats, indent=1))
        return 0
    switches: dict[str, dict[str, int]] = stats.get("switches") or {}
    if len(switches) < 2:
        switches = {"switch": stats["switch"]}
    jobs = stats["jobs"]
    spread = {job["name"] for job in jobs if sum(each["id"] == job["id"] for each in jobs) > 1}
    columns = [*switches.items(), *((_called(job, spread), job["counters"]) for job in jobs)]
    names = list(dict.fromkeys(name for _, counters in columns for name in counters))
    rows = [
        (name, *(counters.get(name, 0) for _, counters in columns))
        for name in names
        if any(counters.get(name) for _, counters in columns)
    ]
    if rows:
        print(listing(("counter", *(name for name, _ in columns)), rows))
    else:
        print("nothing has been counted yet")
    return 0


def _called(job: dict[str, Any], spread: set[str]) -> str:
    """A job on a tree has a column for each of its switches."""
    return f"{job['name']} at {job['switch']}" if job["name"] in spread else str(job["name"])
