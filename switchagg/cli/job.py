"""`switchagg job create`: order a job before its ranks come."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, client_from
from switchagg.report import format as figures

_FIELDS = ("world_size", "words", "slots", "priority", "deadline", "on_loss", "switch")


def add_parser(subparsers: Any) -> None:
    """Adds `job` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "job",
        help="order a job before its ranks come",
        description="Orders jobs. A job that nobody ordered is made when its first rank connects; one that "
        "was ordered has its slots, or its place in the queue, at once.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser(
        "create",
        help="order a job",
        description="Orders a job. Its ranks then connect to it by name, with the same world size.",
    )
    create.add_argument("name", help="its name, unique among the tenant's jobs")
    create.add_argument("--world-size", type=int, required=True, metavar="N", help="its ranks, 1..32")
    create.add_argument(
        "--words", type=int, metavar="K", help="32-bit words of a packet (the switch's default)"
    )
    create.add_argument("--slots", type=int, metavar="P", help="a power of two (the switch's default)")
    create.add_argument("--priority", type=int, metavar="0..9", help="higher ones leave the queue first (5)")
    create.add_argument(
        "--deadline", type=float, metavar="S", help="seconds of silence until a rank is lost (10)"
    )
    create.add_argument("--on-loss", choices=("fail", "shrink"), help="what becomes of the job then (fail)")
    create.add_argument("--switch", metavar="NAME", help="run on this switch only")
    add_controller_options(create)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Orders the job, and says where it stands. Raises `AdmissionError` where the controller refuses."""
    spec = {name: getattr(args, name) for name in _FIELDS if getattr(args, name) is not None}
    job = client_from(args).create({"name": args.name, **spec})
    if args.json:
        print(json.dumps(job, indent=1))
    elif job.get("queue_position") is not None:
        print(figures.plain(f"job {args.name!r} is number {job['queue_position']} in the queue"))
    else:
        where = f" on switch {job['switch']!r}" if job.get("switch") else ""
        print(
            figures.plain(
                f"job {args.name!r} is {job['state']}{where}: {job['world_size']} ranks may connect"
            )
        )
    return 0
