"""`switchagg switch` between interfaces of this host, with either engine, or anywhere with --p4runtime.

With --p4runtime a client fills the tables. Else those of the native engine are filled from --address,
--station and --job, and frames for unknown stations are flooded; those of a P4 program from --entries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from switchagg.cli.options import extras, faults_from, rate_from, refuse_rate_and_capture
from switchagg.cli.p4 import read_statements
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from switchagg.emulator.ether_switch import EtherSwitch
    from switchagg.emulator.p4_interfaces import P4Interfaces
    from switchagg.emulator.switch import Switch
    from switchagg.p4runtime.client.spec import P4RuntimeSpec
    from switchagg.p4runtime.server.model_device import ModelDevice
    from switchagg.p4runtime.server.native.device import NativeDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer, Tls

_LOOK = 0.5  # seconds between looks at the interfaces


class _Serving(Protocol):
    """A switch that runs until it is stopped, or fails."""

    @property
    def failure(self) -> str | None:
        """The reason that it ended by itself; None while it runs."""
        ...


def serve_native(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves interfaces with the native engine until `wait(seconds)` is true; returns the exit status.

    Raises `UsageError` for options, interfaces or jobs that cannot work.
    """
    from switchagg.cli.static_jobs import admit, load_jobs
    from switchagg.emulator.ether_switch import EtherSwitch, RackSwitch
    from switchagg.p4program.program import V1MODEL_CPU_PORT

    if args.program is not None or args.defines or args.include_dirs or args.entries is not None:
        raise UsageError("--program, --entries, -D and -I are for --engine p4")
    ports = _interfaces(args.interface, args.bmv2_interface)
    controller_port = V1MODEL_CPU_PORT if args.cpu_port is None else args.cpu_port
    jobs = [job for path in args.job for job in load_jobs(path)]
    spec = _spec(args)
    options: dict[str, Any] = {
        "controller_port": controller_port,
        "capacity": args.capacity,
        "rate": rate_from(args),
        "faults": faults_from(args),
        "pcap": args.pcap,
    }
    if args.p4runtime is not None:
        return _serve_p4runtime(args, EtherSwitch(ports, udp_port=args.port, **options), wait)
    if args.device_id or args.cpu_port is not None:
        raise UsageError("--device-id and --cpu-port are for --p4runtime")
    if spec.own is None and jobs:
        raise UsageError("--job needs --address, to which workers send")
    switch = RackSwitch(ports, spec.own, spec.stations, **options)
    with switch:
        for job in jobs:
            admit(switch, job)
        _ready(args, switch, jobs=[job.entry.job for job in jobs])
        _watch(args, switch, _InterfaceMonitor(switch, wait).wait, switch.port_counters)
    _stopped(args, switch, switch.port_counters())
    return 1 if switch.failure else 0


def _serve_p4runtime(args: argparse.Namespace, switch: EtherSwitch, wait: Callable[[float], bool]) -> int:
    if args.address is not None or args.station:
        raise UsageError("--address and --station are not for --p4runtime, whose client fills the tables")
    with _p4runtime(args, switch) as (server, counters):
        _ready(args, switch, p4runtime=server.address, device_id=server.device.device_id)
        _watch(args, server, _InterfaceMonitor(switch, wait).wait, counters)
    _stopped(args, switch, counters())
    return 1 if server.failure else 0


def serve_udp(args: argparse.Namespace, switch: Switch, wait: Callable[[float], bool]) -> int:
    """Serves a P4Runtime client with the native engine on a UDP port, likewise.

    Args:
        switch: not started yet.
    """
    with _p4runtime(args, switch) as (server, counters):
        ip, port = switch.address
        for warning in switch.warnings:
            print(f"switchagg switch: warning: {warning}", file=sys.stderr)
        _print_ready(
            args,
            f" on {ip}:{port}, {args.capacity} slots: {_place(server)}",
            engine="native",
            **_place_event(server),
            address=ip,
            port=port,
            capacity=args.capacity,
            seed=switch.faults.seed if switch.faults else None,
            warnings=switch.warnings,
        )
        _watch(args, server, wait, counters)
    _print_stopped(server, counters(), args.json, counters=switch.counters())
    return 1 if server.failure else 0


def serve_p4(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves a P4 program in the model until `wait(seconds)` is true; returns the exit status.

    Raises `UsageError` for options, a program, entries, interfaces or an address that cannot work.
    """
    _check_p4(args)
    ports = _interfaces(args.interface, args.bmv2_interface)
    shown = [f"port {port} {name}" for port, name in ports.items()]
    event: dict[str, Any] = {}
    server: P4RuntimeServer[ModelDevice] | None = None
    with extras():
        if args.p4runtime is not None:
            server = _for_client(args, ports)
        switch = server or _between_interfaces(args, ports)
    with switch:
        if server is not None:
            event = _place_event(server)
            program = "no program yet" if server.device.running is None else str(args.program)
            shown.insert(0, f"{_place(server)}, {program}")
        names = {str(port): name for port, name in ports.items()}
        seed = switch.faults.seed if switch.faults else None
        _print_ready(args, f": {', '.join(shown)}", engine="p4", **event, interfaces=names, seed=seed)
        if switch.faults and not args.json:
            print(f"faults: {switch.faults}", flush=True)
        _watch(args, switch, wait, switch.counters)
    _print_stopped(switch, switch.counters(), args.json, faults=switch.fault_counters())
    if not args.json:
        _print_groups(faults=switch.fault_counters())
    return 1 if switch.failure else 0


def _interfaces(ours: Iterable[str], bmv2: Iterable[str]) -> dict[int, str]:
    """Returns names of interfaces by port.

    Args:
        ours: PORT=NAME, as --interface has it.
        bmv2: PORT@NAME, or the same, as -i has it.

    Raises `UsageError` as `interfaces_by_port` does.
    """
    from switchagg.emulator.ether_switch import interfaces_by_port

    given = [
        (
            each if "=" in each else each.replace("@", "=", 1),
            f"--interface takes PORT=NAME such as 0=eth0, not {each}",
        )
        for each in ours
    ]
    given += [(each.replace("@", "=", 1), f"-i takes PORT@NAME such as 0@eth0, not {each}") for each in bmv2]
    return interfaces_by_port(given)


@contextlib.contextmanager
def _p4runtime(
    args: argparse.Namespace, switch: EtherSwitch | Switch
) -> Iterator[tuple[P4RuntimeServer[NativeDevice], Callable[[], dict[str, int]]]]:
    """Starts the switch and a P4Runtime server of it; yields the server, and the counters of both."""
    _check_p4runtime(args)
    with extras():
        from switchagg.p4runtime.server.native.device import NativeDevice
        from switchagg.p4runtime.server.server import P4RuntimeServer
    with switch:
        device = NativeDevice(switch, args.capacity, device_id=args.device_id, cpu_port=args.cpu_port)
        with P4RuntimeServer(device, args.p4runtime, tls=_tls(args)) as server:
            yield server, lambda: server.counters() | switch.port_counters()


def _check_p4(args: argparse.Namespace) -> None:
    if args.p4runtime is not None:
        _check_p4runtime(args)
        if args.program is None and (args.defines or args.include_dirs):
            raise UsageError("-D and -I are for a --program; a client's config has its own")
    else:
        if args.engine != "p4" or args.program is None:
            raise UsageError("--interface and --entries are for --engine p4 with a --program")
        if not args.interface:
            raise UsageError("--entries is for --interface; a switch for jobs makes its own")
        if args.job:
            raise UsageError("--job is for a switch on a UDP port, not for --interface")
    refuse_rate_and_capture(args)
    if faults_from(args).any and not (args.interface or args.bmv2_interface):
        raise UsageError("faults are done to frames of interfaces; name one: --interface PORT=NAME")


def _check_p4runtime(args: argparse.Namespace) -> None:
    """Raises `UsageError` for options that neither engine takes with P4Runtime."""
    if args.job or args.entries is not None:
        raise UsageError("--job and --entries are not for --p4runtime, whose client fills the tables")
    require(0 <= args.device_id < 1 << 64, "device-id", args.device_id, "0 to 2**64 - 1")
    require(args.cpu_port is None or 0 <= args.cpu_port <= 511, "cpu-port", args.cpu_port, "0 to 511")


def _between_interfaces(args: argparse.Namespace, ports: dict[int, str]) -> P4Interfaces:
    from switchagg.emulator.p4_interfaces import P4Interfaces
    from switchagg.p4model.runtime.open import open_switch
    from switchagg.p4model.runtime.stf import run_stf

    model = open_switch(
        args.program, include_dirs=args.include_dirs, defines=args.defines, seed=args.seed or 0
    )
    if args.entries is not None:
        run_stf(model, read_statements(args.entries), str(args.entries))
    return P4Interfaces(model, ports, faults=faults_from(args))


def _for_client(args: argparse.Namespace, ports: dict[int, str]) -> P4RuntimeServer[ModelDevice]:
    from switchagg.p4runtime.program_source import source_of
    from switchagg.p4runtime.server.model_device import ModelDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer

    if args.cpu_port in ports:
        raise UsageError(f"port {args.cpu_port} is the CPU port, and cannot be {ports[args.cpu_port]} too")
    own = None if args.program is None else source_of(args.program, args.include_dirs, args.defines)
    device = ModelDevice(own, device_id=args.device_id, cpu_port=args.cpu_port, seed=args.seed or 0)
    return P4RuntimeServer(device, args.p4runtime, ports, faults=faults_from(args), tls=_tls(args))


def _tls(args: argparse.Namespace) -> Tls | None:
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


def _spec(args: argparse.Namespace) -> P4RuntimeSpec:
    """The switch's own address and its stations, as a P4Runtime switch's configuration would name them."""
    from switchagg.p4runtime.client.spec import from_table

    table: dict[str, Any] = {"url": "p4runtime://127.0.0.1:1", "stations": list(args.station)}
    if args.address is not None:
        ip, _, mac = args.address.partition(",")
        table |= {"address": ip.strip(), "udp_port": args.port} | ({"mac": mac.strip()} if mac else {})
    return from_table("of these options", table)


def _place(server: P4RuntimeServer[Any]) -> str:
    return f"P4Runtime on {server.address}, device {server.device.device_id}"


def _place_event(server: P4RuntimeServer[Any]) -> dict[str, Any]:
    return {"p4runtime": server.address, "device_id": server.device.device_id}


def _print_ready(args: argparse.Namespace, text: str, **event: object) -> None:
    print(json.dumps({"event": "ready", **event}) if args.json else f"switch ready{text}", flush=True)


def _ready(args: argparse.Namespace, switch: EtherSwitch, **more: Any) -> None:
    names = {str(port): name for port, name in switch.interfaces.items()}
    if args.json:
        seed = switch.faults.seed if switch.faults else None
        event = {"event": "ready", "engine": "native", "interfaces": names, "pid": os.getpid()}
        print(json.dumps(event | {"capacity": args.capacity, "seed": seed} | more), flush=True)
        return
    shown = ", ".join(f"port {port} {name}" for port, name in names.items())
    server = ""
    if "p4runtime" in more:
        server = f", P4Runtime on {more['p4runtime']}, device {more['device_id']}"
    print(f"switch ready: {shown}{server}", flush=True)
    if switch.faults:
        print(f"faults: {switch.faults}", flush=True)


def _stopped(args: argparse.Namespace, switch: EtherSwitch, ports: dict[str, int]) -> None:
    frames, faults = switch.ether_counters(), switch.fault_counters()
    more = {"frames": frames, "counters": switch.counters(), "rate": switch.rate_counters(), "faults": faults}
    if args.json:
        _print_stopped(
            switch, ports, True, **more, interfaces=switch.interface_counters(), warnings=switch.warnings
        )
        return
    _print_stopped(switch, ports, False)
    _print_groups(**more)


def _print_groups(**groups: dict[str, int]) -> None:
    """Prints counters that are not zero, a line for each group."""
    for name, counts in groups.items():
        shown = ", ".join(f"{each} {count}" for each, count in counts.items() if count)
        if shown:
            print(f"{name}: {shown}", flush=True)


def _watch(
    args: argparse.Namespace,
    switch: _Serving,
    wait: Callable[[float], bool],
    counters: Callable[[], dict[str, int]],
) -> None:
    """Returns when `wait(seconds)` says so or the switch has failed; prints counters as the options ask."""
    while not wait(args.stats_interval or 1.0) and not switch.failure:
        if args.stats_interval:
            _print_counters("stats", counters(), args.json)


def _print_counters(event: str, port: dict[str, int], as_json: bool, **more: object) -> None:
    """Prints counters as one line: an object of this event, with `more` in it, or text."""
    if as_json:
        print(json.dumps({"event": event, "port": port, **more}), flush=True)
    else:
        print(", ".join(f"{name} {count}" for name, count in port.items()), flush=True)


def _print_stopped(switch: _Serving, port: dict[str, int], as_json: bool, **more: object) -> None:
    """Prints that the switch has stopped, why if it was by itself, and its counters."""
    if not as_json:
        print(f"switch stopped{': ' + switch.failure if switch.failure else ''}", flush=True)
    _print_counters("stopped", port, as_json, failure=switch.failure, **more)


class _InterfaceMonitor:
    """Tells a person, on standard error, when an interface goes down or comes back, and of other trouble."""

    def __init__(self, switch: EtherSwitch, wait: Callable[[float], bool]) -> None:
        self._switch, self._wait = switch, wait
        self._up = {each["name"]: True for each in switch.interface_counters()}
        self._told: set[str] = set()
        self._look()

    def wait(self, seconds: float) -> bool:
        """Waits as the switch's own `wait` does, and looks at the interfaces meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._wait(min(left, _LOOK)):
                return True
            self._look()
        return False

    def _look(self) -> None:
        for each in self._switch.interface_counters():
            name, up = each["name"], bool(each["up"])
            if up != self._up[name]:
                self._up[name] = up
                state = "is back" if up else "is down or away; its frames are dropped until it is back"
                print(f"switchagg switch: port {each['port']} ({name}) {state}", file=sys.stderr, flush=True)
        for warning in self._switch.trouble:
            if warning not in self._told:
                self._told.add(warning)
                print(f"switchagg switch: warning: {warning}", file=sys.stderr, flush=True)
