"""`switchagg switch --engine p4 --interface ...`: a P4 program between interfaces of this host."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from switchagg.cli.p4 import read_statements
from switchagg.cli.serving import extras, interfaces, print_counters, print_stopped, refuse_faults, watch
from switchagg.errors import UsageError


def serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves until `wait(seconds)` says that it is time to stop; returns the exit status.

    Raises `UsageError` for options, a program, entries or interfaces that cannot work.
    """
    _check(args)
    ports = interfaces(args.interface)
    with extras():
        from switchagg.emulator.p4_interfaces import P4Interfaces
        from switchagg.p4model.runtime.open import open_switch
        from switchagg.p4model.runtime.stf import run_stf

        model = open_switch(
            args.program, include_dirs=args.include_dirs, defines=args.defines, seed=args.seed or 0
        )
    if args.entries is not None:
        run_stf(model, read_statements(args.entries), str(args.entries))
    with P4Interfaces(model, ports) as switch:
        if args.json:
            names = {str(port): name for port, name in ports.items()}
            print(json.dumps({"event": "ready", "engine": "p4", "interfaces": names}), flush=True)
        else:
            shown = ", ".join(f"port {port} {name}" for port, name in ports.items())
            print(f"switch ready: {shown}", flush=True)
        watch(
            switch, wait, args.stats_interval, lambda: print_counters("stats", switch.counters(), args.json)
        )
    print_stopped(switch, switch.counters(), args.json)
    return 1 if switch.failure else 0


def _check(args: argparse.Namespace) -> None:
    if args.engine != "p4" or args.program is None:
        raise UsageError("--interface and --entries are for --engine p4 with a --program")
    if not args.interface:
        raise UsageError("--entries is for --interface; a switch for jobs makes its own")
    if args.job:
        raise UsageError("--job is for a switch on a UDP port, not for --interface")
    refuse_faults(args)
