"""`switchagg evict`: end a job now."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, add_job_options, client_from
from switchagg.report import format as figures


def add_parser(subparsers: Any) -> None:
    """Adds `evict` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "evict",
        help="end a job now",
        description="Ends a job at once: it is removed from its switch, every rank gets an error that "
        "says so, and its slots are free. `switchagg drain` lets it finish instead.",
    )
    parser.add_argument("job", help="the job")
    add_job_options(parser)
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evicts. Raises `AdmissionError` where the controller refuses."""
    answer = client_from(args).evict(args.job, args.id, args.tenant)
    print(json.dumps(answer, indent=1) if args.json else figures.plain(f"job {args.job!r} was evicted"))
    return 0
