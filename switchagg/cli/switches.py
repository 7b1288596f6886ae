"""`switchagg switches`: the switches of a controller, and how they are."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli import figures
from switchagg.cli.options import add_controller_options, client_from, table


def add_parser(subparsers: Any) -> None:
    """Adds `switches` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "switches",
        help="list the switches, and how they are",
        description="Lists the switches of a controller: whether they answer, what is free, and why not.",
    )
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the list. Raises `SwitchError` where no controller answers."""
    client = client_from(args)
    switches = client.switches()
    if args.json:
        print(json.dumps({"switches": switches}, indent=1))
    elif not switches:
        print(f"no switches at {client.url}")
    else:
        print(switches_table(switches))
        for one in switches:
            if one.get("why"):
                print(figures.plain(f"{one['name']}: {one['why']}"))
    return 0


def switches_table(switches: list[dict[str, Any]]) -> str:
    """Returns the list of switches."""
    return table(
        ("switch", "target", "address", "state", "free", "of", "largest", "words", "jobs", "packets"),
        [
            (
                one["name"],
                one["target"],
                f"{one['address']}:{one['port']}",
                one["state"],
                one["free"],
                one["capacity"]["slots"],
                one["largest_free"],
                _words(one["capacity"]),
                len(one["ranges"]),
                figures.count((one.get("counters") or {}).get("received")),
            )
            for one in switches
        ],
    )


def _words(capacity: dict[str, Any]) -> str:
    exact = capacity.get("exact_words")
    return f"up to {capacity['words']}" if exact is None else f"{exact}"
