"""`switchagg undrain`: let a drained switch have jobs again."""

from __future__ import annotations

import argparse
import json
from typing import Any

from switchagg.cli.options import add_controller_options, client_from
from switchagg.report import format as figures


def add_parser(subparsers: Any) -> None:
    """Adds `undrain` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "undrain",
        help="let a drained switch have jobs again",
        description="Ends what `switchagg drain --switch NAME` began. Jobs that were moved stay where they "
        "are. A job that drains cannot be undrained: start another.",
    )
    parser.add_argument("--switch", metavar="NAME", required=True, help="the switch")
    add_controller_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Undrains. Raises `AdmissionError` where the controller refuses."""
    answer = client_from(args).undrain_switch(args.switch)
    said = figures.plain(f"switch {args.switch!r} takes jobs again")
    print(json.dumps(answer, indent=1) if args.json else said)
    return 0
