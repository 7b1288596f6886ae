"""`switchagg switches`: the switches of a controller, and how they are."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, client_from
from switchagg.report import format as figures
from switchagg.report.table import listing


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
    """Returns the list of switches; the one above, and whose workers attach, only where there is a tree."""
    columns: list[tuple[str, Any]] = [
        ("switch", lambda one: one["name"]),
        ("below", lambda one: one.get("parent") or "-"),
        ("hosts", _hosts),
        ("target", lambda one: one["target"]),
        ("address", lambda one: f"{one['address']}:{one['port']}"),
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
    return listing(
        tuple(name for name, _ in columns), [tuple(value(one) for _, value in columns) for one in switches]
    )


def _hosts(switch: dict[str, Any]) -> str:
    hosts = switch.get("hosts")
    if hosts is None:
        return "any"
    return ", ".join(hosts[:2]) + (f" and {len(hosts) - 2} more" if len(hosts) > 2 else "") or "none"


def _words(capacity: dict[str, Any]) -> str:
    exact = capacity.get("exact_words")
    return f"up to {capacity['words']}" if exact is None else f"{exact}"
