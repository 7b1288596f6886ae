"""`switchagg switch --engine p4 --p4runtime HOST:PORT`: a P4 program that a P4Runtime client controls."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from switchagg.cli.serving import extras, interfaces, print_counters, print_stopped, refuse_faults, watch
from switchagg.errors import UsageError

if TYPE_CHECKING:
    from switchagg.emulator.p4runtime.server import P4RuntimeServer


def serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves until `wait(seconds)` says that it is time to stop; returns the exit status.

    Raises `UsageError` for options, a program, interfaces or an address that cannot work.
    """
    _check(args)
    ports = interfaces(args.interface, args.bmv2_interface)
    if args.cpu_port in ports:
        raise UsageError(f"port {args.cpu_port} is the CPU port, and cannot be {ports[args.cpu_port]} too")
    with extras():
        server = _server(args, ports)
    with server:
        _ready(args, server, ports)
        watch(
            server, wait, args.stats_interval, lambda: print_counters("stats", server.counters(), args.json)
        )
    print_stopped(server, server.counters(), args.json)
    return 1 if server.failure else 0


def _server(args: argparse.Namespace, interfaces: dict[int, str]) -> P4RuntimeServer:
    from switchagg.emulator.p4runtime.device import Device
    from switchagg.emulator.p4runtime.pipeline import source_of
    from switchagg.emulator.p4runtime.server import P4RuntimeServer

    own = None
    if args.program is not None:
        own = source_of(args.program, args.include_dirs, args.defines)
    device = Device(own, device_id=args.device_id, cpu_port=args.cpu_port, seed=args.seed or 0)
    return P4RuntimeServer(device, args.p4runtime, interfaces)


def _check(args: argparse.Namespace) -> None:
    if args.engine != "p4":
        raise UsageError("--p4runtime is for --engine p4")
    if args.job or args.entries is not None:
        raise UsageError("--job and --entries are not for --p4runtime, whose client fills the tables")
    if args.program is None and (args.defines or args.include_dirs):
        raise UsageError("-D and -I are for a --program; a client's config has its own")
    refuse_faults(args)
    if not 0 <= args.device_id < 1 << 64:
        raise UsageError(f"device-id is {args.device_id}; accepted: 0 to 2**64 - 1")
    if args.cpu_port is not None and not 0 <= args.cpu_port <= 511:
        raise UsageError(f"cpu-port is {args.cpu_port}; accepted: 0 to 511")


def _ready(args: argparse.Namespace, server: P4RuntimeServer, interfaces: dict[int, str]) -> None:
    device = server.device
    if args.json:
        event = {
            "event": "ready",
            "engine": "p4",
            "p4runtime": server.address,
            "device_id": device.device_id,
            "interfaces": {str(port): name for port, name in interfaces.items()},
        }
        print(json.dumps(event), flush=True)
        return
    shown = "".join(f", port {port} {name}" for port, name in interfaces.items())
    program = "no program yet" if device.running is None else str(args.program)
    print(
        f"switch ready: P4Runtime on {server.address}, device {device.device_id}, {program}{shown}",
        flush=True,
    )
