"""`switchagg switch --p4runtime HOST:PORT`: a switch that a P4Runtime client controls.

With --engine p4 a program in the model, between interfaces of this host; else the native engine on a UDP
port (between interfaces: `switch_ethernet`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from switchagg.cli.serving import extras, interfaces, print_counters, print_stopped, refuse_faults, watch
from switchagg.errors import UsageError

if TYPE_CHECKING:
    from switchagg.emulator.switch import Switch
    from switchagg.p4runtime.server.model_device import ModelDevice
    from switchagg.p4runtime.server.native.device import NativeDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer, Tls


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


def _server(args: argparse.Namespace, interfaces: dict[int, str]) -> P4RuntimeServer[ModelDevice]:
    from switchagg.p4runtime.program_source import source_of
    from switchagg.p4runtime.server.model_device import ModelDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer

    own = None
    if args.program is not None:
        own = source_of(args.program, args.include_dirs, args.defines)
    device = ModelDevice(own, device_id=args.device_id, cpu_port=args.cpu_port, seed=args.seed or 0)
    return P4RuntimeServer(device, args.p4runtime, interfaces, tls=tls(args))


def serve_native(args: argparse.Namespace, switch: Switch, wait: Callable[[float], bool]) -> int:
    """Serves the native engine, likewise.

    Args:
        switch: not started yet.
    """
    check_both(args)
    with extras():
        from switchagg.p4runtime.server.native.device import NativeDevice
        from switchagg.p4runtime.server.server import P4RuntimeServer
    with switch:
        device = NativeDevice(switch, args.capacity, device_id=args.device_id, cpu_port=args.cpu_port)
        server = P4RuntimeServer(device, args.p4runtime, tls=tls(args))

        def counters() -> dict[str, int]:
            return server.counters() | switch.port_counters()

        with server:
            _native_ready(args, server, switch)
            watch(server, wait, args.stats_interval, lambda: print_counters("stats", counters(), args.json))
    print_stopped(server, counters(), args.json, counters=switch.counters())
    return 1 if server.failure else 0


def _native_ready(args: argparse.Namespace, server: P4RuntimeServer[NativeDevice], switch: Switch) -> None:
    ip, port = switch.address
    for warning in switch.warnings:
        print(f"switchagg switch: warning: {warning}", file=sys.stderr)
    if args.json:
        event = {
            "event": "ready",
            "engine": "native",
            "p4runtime": server.address,
            "device_id": server.device.device_id,
            "address": ip,
            "port": port,
            "capacity": args.capacity,
            "seed": switch.faults.seed if switch.faults else None,
            "warnings": switch.warnings,
        }
        print(json.dumps(event), flush=True)
        return
    print(
        f"switch ready on {ip}:{port}, {args.capacity} slots: P4Runtime on {server.address}, "
        f"device {server.device.device_id}",
        flush=True,
    )


def tls(args: argparse.Namespace) -> Tls | None:
    """Returns the TLS files that the options name, None for no encryption. Raises `UsageError`."""
    files = args.grpc_server_cert, args.grpc_server_key, args.grpc_server_cacert
    if not args.grpc_server_ssl:
        if any(files) or args.grpc_server_with_client_auth:
            raise UsageError("--grpc-server-cert and its like are for --grpc-server-ssl")
        return None
    if args.grpc_server_cert is None or args.grpc_server_key is None:
        raise UsageError("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key")
    if args.grpc_server_with_client_auth and args.grpc_server_cacert is None:
        raise UsageError("--grpc-server-with-client-auth needs --grpc-server-cacert, who vouches for clients")
    from switchagg.p4runtime.server.server import Tls

    clients = args.grpc_server_cacert if args.grpc_server_with_client_auth else None
    return Tls(args.grpc_server_cert, args.grpc_server_key, clients)


def _check(args: argparse.Namespace) -> None:
    check_both(args)
    if args.program is None and (args.defines or args.include_dirs):
        raise UsageError("-D and -I are for a --program; a client's config has its own")
    refuse_faults(args)


def check_both(args: argparse.Namespace) -> None:
    """Raises `UsageError` for options that neither engine takes with P4Runtime."""
    if args.job or args.entries is not None:
        raise UsageError("--job and --entries are not for --p4runtime, whose client fills the tables")
    if not 0 <= args.device_id < 1 << 64:
        raise UsageError(f"device-id is {args.device_id}; accepted: 0 to 2**64 - 1")
    if args.cpu_port is not None and not 0 <= args.cpu_port <= 511:
        raise UsageError(f"cpu-port is {args.cpu_port}; accepted: 0 to 511")


def _ready(
    args: argparse.Namespace, server: P4RuntimeServer[ModelDevice], interfaces: dict[int, str]
) -> None:
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
