"""`switchagg p4`: what can be done with a P4 program without a compiler: check it, describe it, run it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchagg.cli.options import add_macro_options
from switchagg.cli.serving import extras
from switchagg.errors import UsageError


def add_parser(subparsers: Any) -> None:
    """Adds `p4` to the commands of an argparse parser."""
    parser = subparsers.add_parser(
        "p4",
        help="check, describe and run P4 programs",
        description="Works on P4_16 programs for v1model (bmv2) and TNA (Tofino 1), with no compiler. "
        'Needs the extra "p4model": pip install "switchagg[p4model]".',
    )
    commands = parser.add_subparsers(dest="p4_command", metavar="COMMAND", required=True)
    _add_check(commands)
    _add_info(commands)
    from switchagg.cli import p4_run

    p4_run.add_parsers(commands)
    parser.set_defaults(run=run)


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """The program, and what a compiler would want to know to read it."""
    parser.add_argument("program", type=Path, metavar="PROGRAM.p4")
    add_macro_options(parser)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="say whether a program is right",
        description="Checks syntax, names and types. With --target tofino also what a Tofino 1 can do: "
        "registers and their actions, and an estimate of stages, PHV and SRAM. Exit status 1: it breaks a "
        "rule of the chip. An estimate past the chip is a warning.",
    )
    add_program_options(parser)
    parser.add_argument("--target", choices=("tofino",), help="check against this chip too")
    parser.add_argument("--json", action="store_true", help="print the estimate as JSON")
    parser.set_defaults(run_p4=_check)


def _add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="print a program's P4Info",
        description="Prints the P4Info message (P4Runtime) of a program, with the ids that p4c gives.",
    )
    add_program_options(parser)
    parser.add_argument("--json", action="store_true", help="as JSON, not in protobuf's text format")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to this file")
    parser.set_defaults(run_p4=_info)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Raises `P4Error` for a program that is wrong."""
    chosen: Callable[[argparse.Namespace], int] = args.run_p4
    with extras():
        return chosen(args)


def _check(args: argparse.Namespace) -> int:
    from switchagg.p4model import load

    program = load(args.program, args.include_dirs, args.defines)
    if args.target is None:
        print(f"{args.program}: no errors", file=sys.stderr)
        return 0
    from switchagg.p4model.target_tofino.report import check

    estimate = check(program)
    print(estimate.to_json() if args.json else estimate.to_text())
    return 1 if estimate.findings else 0


def _info(args: argparse.Namespace) -> int:
    from switchagg.p4model import load
    from switchagg.p4model.p4info import generate

    message = generate(load(args.program, args.include_dirs, args.defines))
    text = message.to_json() if args.json else message.to_text()
    if args.output is None:
        print(text, end="")
    else:
        try:
            args.output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{args.output}: {error.strerror}") from None
    return 0
