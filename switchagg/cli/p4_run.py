"""`switchagg p4 run` and `switchagg p4 stf`: packets through a P4 program, in the model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from switchagg.errors import UsageError


def add_parsers(subparsers: Any) -> None:
    """Adds `run` and `stf` to the subcommands of `switchagg p4`."""
    from switchagg.cli.p4 import add_program_options

    run_parser = subparsers.add_parser(
        "run",
        help="run packets through a program and tell what happens to them",
        description="Runs packets through a P4 program, and prints what is parsed, which tables are hit, and "
        "what comes out. Table entries come from a file of STF statements (add, setdefault, mc_mgrp_create, "
        "...); its packets are sent first, silently.",
    )
    add_program_options(run_parser)
    source = run_parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hex", action="append", metavar="DIGITS", help="a packet; may be given more often")
    source.add_argument("--pcap", type=Path, metavar="FILE", help="all packets of a capture")
    run_parser.add_argument("--port", type=int, default=0, metavar="N", help="where packets come in (0)")
    run_parser.add_argument("--entries", type=Path, metavar="FILE", help="STF statements to begin with")
    run_parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the program's random (0)")
    run_parser.add_argument("--json", action="store_true", help="print JSON")
    run_parser.set_defaults(run_p4=run)
    stf_parser = subparsers.add_parser(
        "stf",
        help="run a test in p4c's STF format",
        description="Runs a test in p4c's STF format on a program in the model. Exits with 1 if anything "
        "is not as the test expects.",
    )
    add_program_options(stf_parser)
    stf_parser.add_argument("test", type=Path, help="the .stf file")
    stf_parser.set_defaults(run_p4=stf)


def read_statements(path: Path) -> str:
    """Returns the text of a file of STF statements. Raises `UsageError` where it has none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text") from None


def run(args: argparse.Namespace) -> int:
    """Prints the trace of each packet. Raises `UsageError` for a wrong program, entry or packet."""
    from switchagg.p4model.runtime.pcap import read_pcap
    from switchagg.p4model.runtime.stf import run_stf
    from switchagg.p4model.runtime.switch import check_port, open_switch

    check_port(args.port)
    if args.hex is not None:
        packets = [(place * 1e-3, _packet(text)) for place, text in enumerate(args.hex)]
    else:
        packets = read_pcap(args.pcap)
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


def stf(args: argparse.Namespace) -> int:
    """Runs a test, prints what is wrong, and returns 0 if nothing is. Raises `UsageError`."""
    from switchagg.p4model.runtime.stf import run_stf
    from switchagg.p4model.runtime.switch import open_switch

    switch = open_switch(args.program, include_dirs=args.include_dirs, defines=args.defines)
    report = run_stf(switch, read_statements(args.test), str(args.test))
    for problem in report.problems:
        print(problem)
    print(f"{args.test}: {'passed' if report.passed else 'failed'}, {report.packets} packets sent")
    return 0 if report.passed else 1
