"""`switchagg slots`: who has which slots of the switch, and what a job's slots wait for."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, table


def add_parser(subparsers: Any) -> None:
    """Adds `slots` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "slots",
        help="show who has which slots, and what they wait for",
        description="Shows which range of the switch's slots each job has. With --job: the slots of that job "
        "that some ranks have sent to and others have not, which tells whom a job that hangs waits for.",
    )
    parser.add_argument("--job", metavar="NAME", help="look into the slots of this job")
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the ranges, or one job's slots. Raises `SwitchError` where no controller answers."""
    from switchagg.control.client import ControllerClient, controller_url

    client = ControllerClient(controller_url(args.controller))
    if args.job is not None:
        waiting = client.waiting_slots(args.job)
        print(json.dumps(waiting, indent=1) if args.json else _waiting(waiting))
        return 0
    slots = client.slots()
    if args.json:
        print(json.dumps(slots, indent=1))
        return 0
    print(
        f"{slots['free']} of {slots['capacity']} slots free, {slots['largest_free']} in one range; "
        f"{slots['memory_used']} of {slots['memory']} bytes used; up to {slots['max_words']} words a packet"
    )
    if slots["ranges"]:
        rows = [
            (each["base"], each["base"] + each["slots"] - 1, each["slots"], each["words"], each["name"])
            for each in slots["ranges"]
        ]
        print(table(("first", "last", "slots", "words", "job"), rows))
    return 0


def _waiting(answer: dict[str, Any]) -> str:
    slots = answer["slots"]
    if slots is None:
        return "this switch does not show what its slots hold"
    if not slots:
        return f"no slot of job {answer['job']!r} waits for anybody"
    rows = [
        (
            each["slot"],
            each["seq"],
            "words" if each["filled"] else "skips",
            ",".join(map(str, each["seen"])),
            ",".join(map(str, each["missing"])),
        )
        for each in slots
    ]
    return table(("slot", "seq", "holds", "ranks there", "ranks missing"), rows)
