"""`switchagg switch --engine p4 --p4runtime HOST:PORT`: a P4 program that a P4Runtime client controls."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from switchagg.cli.options import faults_from
from switchagg.errors import UsageError

if TYPE_CHECKING:
    from switchagg.emulator.p4runtime.server import P4RuntimeServer

_MODEL_PACKAGES = ("lark", "pcpp")
_PACKAGES = ("grpc", "google", "p4")


def serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves until `wait(seconds)` says that it is time to stop; returns the exit status.

    Raises `UsageError` for options, a program, interfaces or an address that cannot work.
    """
    _check(args)
    interfaces = _interfaces([*args.interface, *args.bmv2_interface])
    if args.cpu_port in interfaces:
        raise UsageError(
            f"port {args.cpu_port} is the CPU port, and cannot be {interfaces[args.cpu_port]} too"
        )
    try:
        server = _server(args, interfaces)
    except ModuleNotFoundError as error:
        if error.name in _MODEL_PACKAGES:
            raise UsageError(f'{error.name} is missing: pip install "switchagg[p4model]"') from None
        if error.name is not None and error.name.split(".")[0] in _PACKAGES:
            raise UsageError(f'{error.name} is missing: pip install "switchagg[p4runtime]"') from None
        raise
    with server:
        _ready(args, server, interfaces)
        while not wait(args.stats_interval or 1.0):
            if server.failure:
                break
            if args.stats_interval:
                _report("stats", server, as_json=args.json)
    if not args.json:
        print(f"switch stopped{': ' + server.failure if server.failure else ''}", flush=True)
    _report("stopped", server, as_json=args.json)
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
    if faults_from(args).any or args.pcap is not None:
        raise UsageError("--engine p4 injects no faults and writes no capture")
    if not 0.0 <= args.stats_interval <= 86400.0:
        raise UsageError(f"stats-interval is {args.stats_interval}; accepted: seconds, 0 (never) to 86400")
    if not 0 <= args.device_id < 1 << 64:
        raise UsageError(f"device-id is {args.device_id}; accepted: 0 to 2**64 - 1")
    if args.cpu_port is not None and not 0 <= args.cpu_port <= 511:
        raise UsageError(f"cpu-port is {args.cpu_port}; accepted: 0 to 511")


def _interfaces(given: list[str]) -> dict[int, str]:
    interfaces: dict[int, str] = {}
    for each in given:
        # simple_switch_grpc writes PORT@NAME, our own --interface PORT=NAME.
        port, _, name = each.replace("@", "=", 1).partition("=")
        if not port.isdigit() or not name:
            raise UsageError(f"-i takes PORT@NAME such as 0@eth0, not {each}")
        if int(port) in interfaces:
            raise UsageError(f"port {port} is given twice")
        interfaces[int(port)] = name
    return interfaces


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


def _report(event: str, server: P4RuntimeServer, *, as_json: bool) -> None:
    counters = server.counters()
    if as_json:
        line: dict[str, object] = {"event": event, "port": counters}
        if event == "stopped":
            line["failure"] = server.failure
        print(json.dumps(line), flush=True)
    else:
        print(", ".join(f"{name} {count}" for name, count in counters.items()), flush=True)
