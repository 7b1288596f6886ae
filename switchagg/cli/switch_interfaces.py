"""`switchagg switch --engine p4 --interface ...`: a P4 program between interfaces of this host."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from switchagg.cli.options import faults_from
from switchagg.cli.p4_run import read_statements
from switchagg.errors import UsageError


def serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves until `wait(seconds)` says that it is time to stop; returns the exit status.

    Raises `UsageError` for options, a program, entries or interfaces that cannot work.
    """
    interfaces = _interfaces(args)
    try:
        from switchagg.p4model.runtime.stf_run import run_stf
        from switchagg.p4model.runtime.switch import open_switch

        model = open_switch(
            args.program, include_dirs=args.include_dirs, defines=args.defines, seed=args.seed or 0
        )
    except ModuleNotFoundError as error:
        if error.name not in ("lark", "pcpp"):
            raise
        raise UsageError(f'{error.name} is missing: pip install "switchagg[p4model]"') from None
    from switchagg.emulator.p4_interfaces import P4Interfaces

    if args.entries is not None:
        run_stf(model, read_statements(args.entries), str(args.entries))
    with P4Interfaces(model, interfaces) as switch:
        shown = ", ".join(f"port {port} {name}" for port, name in interfaces.items())
        if args.json:
            names = {str(port): name for port, name in interfaces.items()}
            print(json.dumps({"event": "ready", "engine": "p4", "interfaces": names}), flush=True)
        else:
            print(f"switch ready: {shown}", flush=True)
        while not wait(args.stats_interval or 1.0):
            if switch.failure:
                break
            if args.stats_interval:
                _report("stats", switch.counters(), args.json)
    if args.json:
        print(
            json.dumps({"event": "stopped", "port": switch.counters(), "failure": switch.failure}), flush=True
        )
    else:
        print(f"switch stopped{': ' + switch.failure if switch.failure else ''}")
        _report("port", switch.counters(), args.json)
    return 1 if switch.failure else 0


def _report(event: str, counters: dict[str, int], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": event, "port": counters}), flush=True)
    else:
        print(", ".join(f"{name} {count}" for name, count in counters.items()), flush=True)


def _interfaces(args: argparse.Namespace) -> dict[int, str]:
    if args.engine != "p4" or args.program is None:
        raise UsageError("--interface and --entries are for --engine p4 with a --program")
    if not args.interface:
        raise UsageError("--entries is for --interface; a switch for jobs makes its own")
    if args.job:
        raise UsageError("--job is for a switch on a UDP port, not for --interface")
    if faults_from(args).any or args.pcap is not None:
        raise UsageError("--engine p4 injects no faults and writes no capture")
    interfaces: dict[int, str] = {}
    for each in args.interface:
        port, _, name = each.partition("=")
        if not (port.isascii() and port.isdigit()) or not name:
            raise UsageError(f"--interface takes PORT=NAME such as 0=eth0, not {each}")
        if len(port) > 3 or int(port) > 511:
            raise UsageError(f"--interface {each}: port is {port}; accepted: 0..511")
        if int(port) in interfaces:
            raise UsageError(f"port {port} is given twice")
        interfaces[int(port)] = name
    return interfaces
