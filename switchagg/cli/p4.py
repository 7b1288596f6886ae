"""`switchagg p4 check`, `info`, `run` and `stf`: work on P4 programs without a compiler."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from switchagg.cli.options import add_macro_options, extras
from switchagg.errors import UsageError
from switchagg.p4program.sources import source_path
from switchagg.report.progress import working


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "p4",
        description="Works on P4_16 programs for v1model (bmv2) and TNA (Tofino 1), with no compiler. "
        'Needs the extra "p4model": pip install "switchagg[p4model]".',
    )
    commands = parser.add_subparsers(dest="p4_command", metavar="COMMAND", required=True)
    for add in (_add_check, _add_info, _add_run, _add_stf):
        add(commands)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser(
        "check",
        help="say whether a program is right",
        description="Checks syntax, names, types, and that the model can run it. Warns of arguments that "
        "overlap and of out parameters that are left unwritten. With --target tofino also checks the chip's "
        "rules for registers and their actions, and estimates stages, PHV and SRAM. Exit status 1: it breaks "
        "a rule of the chip. An estimate past the chip is a warning.",
    )
    _add_program_options(parser)
    parser.add_argument("--target", choices=("tofino",), help="check against this chip too")
    parser.add_argument("--json", action="store_true", help="print warnings and the estimate as JSON")
    parser.set_defaults(run_p4=_check)


def _add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="print a program's P4Info",
        description="Prints the P4Info message (P4Runtime) of a program, with the ids that p4c gives.",
    )
    _add_program_options(parser)
    parser.add_argument("--json", action="store_true", help="as JSON, not in protobuf's text format")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to this file")
    parser.set_defaults(run_p4=_info)


def _add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run packets through a program and tell what happens to them",
        description="Runs packets through a P4 program, and prints what is parsed, which tables are hit, and "
        "what comes out. Table entries come from a file of STF statements (add, setdefault, mc_mgrp_create, "
        "...); its packets are sent first, silently.",
    )
    _add_program_options(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hex", action="append", metavar="DIGITS", help="a packet; may be given more often")
    source.add_argument("--pcap", type=Path, metavar="FILE", help="all packets of a capture")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="where packets come in (0)")
    parser.add_argument("--entries", type=Path, metavar="FILE", help="STF statements to begin with")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the program's random (0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run_p4=_run)


def _add_stf(commands: Any) -> None:
    parser = commands.add_parser(
        "stf",
        help="run a test in p4c's STF format",
        description="Runs a test in p4c's STF format on a program in the model. Exits with 1 if anything "
        "is not as the test expects.",
    )
    _add_program_options(parser)
    parser.add_argument("test", type=Path, help="the .stf file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run_p4=_stf)


def _add_program_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "program", type=source_path, metavar="PROGRAM.p4", help="a source; v1model and tna are our own"
    )
    add_macro_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command. Raises `P4Error` for a program that is wrong."""
    with extras():
        return int(args.run_p4(args))


def _check(args: argparse.Namespace) -> int:
    from switchagg.p4model import load
    from switchagg.p4model.runtime.open import open_switch
    from switchagg.p4model.warnings import warnings_of

    estimate = None
    with working(f"checking {args.program}"):
        program = load(args.program, args.include_dirs, args.defines)
        open_switch(program)  # refuses what a run would refuse
        warnings = [str(each) for each in warnings_of(program)]
        if args.target is not None:
            from switchagg.p4model.target_tofino.report import check

            estimate = check(program)
    for warning in warnings:
        print(warning, file=sys.stderr)
    if args.json:
        shown = {"program": str(args.program), "warnings": warnings}
        print(json.dumps(shown | (json.loads(estimate.to_json()) if estimate else {}), indent=1))
    elif estimate is not None:
        print(estimate.to_text())
    else:
        print(f"{args.program}: no errors", file=sys.stderr)
    return 1 if estimate is not None and estimate.findings else 0


def _info(args: argparse.Namespace) -> int:
    from switchagg.p4model import load
    from switchagg.p4model.p4info import generate

    with working(f"reading {args.program}"):
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


def read_statements(path: Path) -> str:
    """Returns the text of a file of STF statements. Raises `UsageError` where it has none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text") from None


def _run(args: argparse.Namespace) -> int:
    """Prints the trace of each packet. Raises `UsageError` for a wrong program, entry or packet."""
    from switchagg.p4model.runtime.open import open_switch
    from switchagg.p4model.runtime.pcap import read_pcap
    from switchagg.p4model.runtime.stf import run_stf
    from switchagg.p4model.runtime.switch import check_port

    check_port(args.port)
    if args.hex is not None:
        packets = [(place * 1e-3, _packet(text)) for place, text in enumerate(args.hex)]
    else:
        packets = read_pcap(args.pcap)
    with working(f"reading {args.program}"):
        switch = open_switch(
            args.program, include_dirs=args.include_dirs, defines=args.defines, seed=args.seed, traced=True
        )
        if args.entries is not None:
            run_stf(switch, read_statements(args.entries), str(args.entries))
    results = []
    for now, packet in packets:
        sent = switch.process(args.port, packet, now)
        if args.json:
            events = [{"kind": event.kind, "text": event.text} for event in switch.trace.events]
            out = [{"port": port, "data": data.hex()} for port, data in sent]
            results.append({"in": packet.hex(), "port": args.port, "events": events, "out": out})
            continue
        print(switch.trace)
        for port, data in sent:
            print(f"{port}: {data.hex()}")
    if args.json:
        print(json.dumps(results, indent=1))
    return 0


def _packet(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"--hex takes pairs of hexadecimal digits, not {text}") from None


def _stf(args: argparse.Namespace) -> int:
    """Runs a test, prints what is wrong, and returns 0 if nothing is. Raises `UsageError`."""
    from switchagg.p4model.runtime.open import open_switch
    from switchagg.p4model.runtime.stf import run_stf

    with working(f"running {args.test}"):
        switch = open_switch(args.program, include_dirs=args.include_dirs, defines=args.defines)
        report = run_stf(switch, read_statements(args.test), str(args.test))
    if args.json:
        print(
            json.dumps({"passed": report.passed, "packets": report.packets, "problems": [*report.problems]})
        )
        return 0 if report.passed else 1
    for problem in report.problems:
        print(problem)
    print(f"{args.test}: {'passed' if report.passed else 'failed'}, {report.packets} packets sent")
    return 0 if report.passed else 1
