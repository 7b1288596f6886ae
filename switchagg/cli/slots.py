"""`switchagg slots`: who has which slots of each switch, and what a job's slots wait for."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, client_from
from switchagg.report import format as figures
from switchagg.report.table import listing


def add_parser(subparsers: Any) -> None:
    """Adds `slots` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "slots",
        help="show who has which slots, and what they wait for",
        description="Shows which range of each switch's slots each job has. With --job: the slots of that "
        "job that some ranks have sent to and others have not, which tells whom a job that hangs waits for.",
    )
    parser.add_argument("--job", metavar="NAME", help="look into the slots of this job")
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the ranges, or one job's slots. Raises `SwitchError` where no controller answers."""
    client = client_from(args)
    if args.job is not None:
        waiting = client.waiting_slots(args.job)
        print(json.dumps(waiting, indent=1) if args.json else _waiting(waiting))
        return 0
    slots = client.slots()
    if args.json:
        print(json.dumps(slots, indent=1))
        return 0
    switches = slots.get("switches") or []
    if len(switches) < 2:
        print(_ranges(slots))
    else:
        print("\n\n".join(f"switch {figures.plain(each['name'])}: {_ranges(each)}" for each in switches))
    return 0


def _ranges(slots: dict[str, Any]) -> str:
    said = (
        f"{slots['free']} of {slots['capacity']} slots free, {slots['largest_free']} in one range; "
        f"{slots['memory_used']} of {slots['memory']} bytes used; up to {slots['max_words']} words a packet"
    )
    if not slots["ranges"]:
        return said
    rows = [
        (
            each["base"],
            each["base"] + each["slots"] - 1,
            each["slots"],
            "-" if each.get("words") is None else each["words"],
            "(another tenant's)" if each.get("name") is None else each["name"],
            each.get("tenant") or "-",
        )
        for each in sorted(slots["ranges"], key=lambda each: int(each["base"]))
    ]
    headings = ("first", "last", "slots", "words", "job", "tenant")
    if len({row[-1] for row in rows}) == 1:
        headings, rows = headings[:-1], [row[:-1] for row in rows]  # type: ignore[assignment,misc]
    return f"{said}\n{listing(headings, list(rows))}"


def _waiting(answer: dict[str, Any]) -> str:
    slots = answer["slots"]
    if slots is None:
        return "this switch does not show what its slots hold"
    if not slots:
        return f"no slot of job {answer['job']!r} waits for anybody"
    rows = [
        (
            each.get("switch") or "-",
            each["slot"],
            each["seq"],
            "words" if each["filled"] else "skips",
            figures.ranks(each["seen"]),
            figures.ranks(each["missing"]),
        )
        for each in slots
    ]
    headings = ("switch", "slot", "seq", "holds", "ranks there", "ranks missing")
    if len({row[0] for row in rows}) == 1:
        headings, rows = headings[1:], [row[1:] for row in rows]  # type: ignore[assignment,misc]
    return listing(headings, list(rows))
