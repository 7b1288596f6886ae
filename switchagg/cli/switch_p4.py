"""`switchagg switch --engine p4`, without jobs: a P4 program in the model, between interfaces of this host.

With --p4runtime a client controls it; else its tables hold what --entries says.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from switchagg.cli.p4 import read_statements
from switchagg.cli.serving import (
    check_p4runtime,
    extras,
    interfaces,
    print_stopped,
    refuse_faults,
    tls,
    watch,
)
from switchagg.errors import UsageError

if TYPE_CHECKING:
    from switchagg.emulator.p4_interfaces import P4Interfaces
    from switchagg.p4runtime.server.model_device import ModelDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer


def serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves until `wait(seconds)` says that it is time to stop; returns the exit status.

    Raises `UsageError` for options, a program, entries, interfaces or an address that cannot work.
    """
    _check(args)
    ports = interfaces(args.interface, args.bmv2_interface)
    shown = [f"port {port} {name}" for port, name in ports.items()]
    event: dict[str, Any] = {"event": "ready", "engine": "p4"}
    server: P4RuntimeServer[ModelDevice] | None = None
    with extras():
        if args.p4runtime is not None:
            server = _for_client(args, ports)
        switch = server or _between_interfaces(args, ports)
    with switch:
        if server is not None:
            device = server.device
            event |= {"p4runtime": server.address, "device_id": device.device_id}
            program = "no program yet" if device.running is None else str(args.program)
            shown.insert(0, f"P4Runtime on {server.address}, device {device.device_id}, {program}")
        event["interfaces"] = {str(port): name for port, name in ports.items()}
        print(json.dumps(event) if args.json else f"switch ready: {', '.join(shown)}", flush=True)
        watch(args, switch, wait, switch.counters)
    print_stopped(switch, switch.counters(), args.json)
    return 1 if switch.failure else 0


def _check(args: argparse.Namespace) -> None:
    if args.p4runtime is not None:
        check_p4runtime(args)
        if args.program is None and (args.defines or args.include_dirs):
            raise UsageError("-D and -I are for a --program; a client's config has its own")
    else:
        if args.engine != "p4" or args.program is None:
            raise UsageError("--interface and --entries are for --engine p4 with a --program")
        if not args.interface:
            raise UsageError("--entries is for --interface; a switch for jobs makes its own")
        if args.job:
            raise UsageError("--job is for a switch on a UDP port, not for --interface")
    refuse_faults(args)


def _between_interfaces(args: argparse.Namespace, ports: dict[int, str]) -> P4Interfaces:
    from switchagg.emulator.p4_interfaces import P4Interfaces
    from switchagg.p4model.runtime.open import open_switch
    from switchagg.p4model.runtime.stf import run_stf

    model = open_switch(
        args.program, include_dirs=args.include_dirs, defines=args.defines, seed=args.seed or 0
    )
    if args.entries is not None:
        run_stf(model, read_statements(args.entries), str(args.entries))
    return P4Interfaces(model, ports)


def _for_client(args: argparse.Namespace, ports: dict[int, str]) -> P4RuntimeServer[ModelDevice]:
    from switchagg.p4runtime.program_source import source_of
    from switchagg.p4runtime.server.model_device import ModelDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer

    if args.cpu_port in ports:
        raise UsageError(f"port {args.cpu_port} is the CPU port, and cannot be {ports[args.cpu_port]} too")
    own = None if args.program is None else source_of(args.program, args.include_dirs, args.defines)
    device = ModelDevice(own, device_id=args.device_id, cpu_port=args.cpu_port, seed=args.seed or 0)
    return P4RuntimeServer(device, args.p4runtime, ports, tls=tls(args))
