"""`switchagg stats`: the counters of the switch and of its jobs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, table


def add_parser(subparsers: Any) -> None:
    """Adds `stats` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "stats",
        help="show the counters of the switch and of its jobs",
        description="Shows what the switch has counted since it started, in all and for each job. "
        "Counters that are 0 everywhere are left out, except with --json.",
    )
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the counters. Raises `SwitchError` where no controller answers."""
    from switchagg.control.client import ControllerClient, controller_url

    stats = ControllerClient(controller_url(args.controller)).stats()
    if args.json:
        print(json.dumps(stats, indent=1))
        return 0
    columns: list[dict[str, int]] = [stats["switch"], *(job["counters"] for job in stats["jobs"])]
    names = list(dict.fromkeys(name for each in columns for name in each))
    rows = [
        (name, *(each.get(name, 0) for each in columns))
        for name in names
        if any(each.get(name) for each in columns)
    ]
    if rows:
        print(table(("counter", "switch", *(job["name"] for job in stats["jobs"])), rows))
    else:
        print("nothing has been counted yet")
    return 0
