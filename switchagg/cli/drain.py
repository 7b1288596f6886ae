"""`switchagg drain`: let a job end, or a switch become empty, without disturbing what runs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, add_job_options, client_from
from switchagg.errors import UsageError
from switchagg.report import format as figures


def add_parser(subparsers: Any) -> None:
    """Adds `drain` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "drain",
        help="let a job or a switch run empty",
        description="Drains a job: no rank may join it any more, and it ends when its ranks have left. Or, "
        "with --switch, drains a switch: it gets no new jobs, and those that run there are moved to another "
        "between two collectives where that can be done, or stay until they end.",
    )
    parser.add_argument("job", nargs="?", help="the job")
    parser.add_argument("--switch", metavar="NAME", help="drain this switch instead")
    add_job_options(parser)
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Drains, and says what is draining. Raises `AdmissionError` where the controller refuses."""
    if (args.job is None) == (args.switch is None):
        raise UsageError("name a job, or a switch with --switch")
    if args.switch is not None and (args.id is not None or args.tenant is not None):
        raise UsageError("--id and --tenant are of a job, not of a switch")
    client = client_from(args)
    if args.switch is not None:
        answer = client.drain_switch(args.switch)
        said = f"switch {args.switch!r} is draining"
    else:
        answer = client.drain(args.job, args.id, args.tenant)
        said = f"job {args.job!r} is draining"
    print(json.dumps(answer, indent=1) if args.json else figures.plain(said))
    return 0
