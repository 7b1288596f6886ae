"""`switchagg switch --engine native` as an Ethernet switch (--interface), or on a UDP port with --p4runtime.

With --p4runtime a client fills the tables; else those of the Ethernet switch are filled from --address,
--station and --job, and frames for unknown stations are flooded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from switchagg.cli.options import faults_from, rate_from
from switchagg.cli.serving import check_p4runtime, extras, interfaces, print_stopped, tls, watch
from switchagg.errors import UsageError

if TYPE_CHECKING:
    from switchagg.cli.static_jobs import StaticJob
    from switchagg.emulator.ether_switch import EtherSwitch
    from switchagg.emulator.switch import Switch
    from switchagg.p4runtime.client.spec import P4RuntimeSpec
    from switchagg.p4runtime.server.native.device import NativeDevice
    from switchagg.p4runtime.server.server import P4RuntimeServer

_LOOK = 0.5  # seconds between looks at the interfaces


def serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    """Serves until `wait(seconds)` says that it is time to stop; returns the exit status.

    Raises `UsageError` for options, interfaces or jobs that cannot work.
    """
    from switchagg.cli.static_jobs import load_jobs
    from switchagg.emulator.ether_switch import EtherSwitch
    from switchagg.p4program.program import V1MODEL_CPU_PORT

    if args.program is not None or args.defines or args.include_dirs or args.entries is not None:
        raise UsageError("--program, --entries, -D and -I are for --engine p4")
    ports = interfaces(args.interface, args.bmv2_interface)
    controller_port = V1MODEL_CPU_PORT if args.cpu_port is None else args.cpu_port
    jobs = [job for path in args.job for job in load_jobs(path)]
    spec = _spec(args)
    switch = EtherSwitch(
        ports,
        udp_port=args.port,
        controller_port=controller_port,
        capacity=args.capacity,
        rate=rate_from(args),
        faults=faults_from(args),
        pcap=args.pcap,
    )
    if args.p4runtime is not None:
        return _serve_p4runtime(args, switch, wait)
    if args.device_id or args.cpu_port is not None:
        raise UsageError("--device-id and --cpu-port are for --p4runtime")
    with switch:
        _fill(switch, spec, jobs)
        _ready(args, switch, jobs=[job.entry.job for job in jobs])
        watch(args, switch, _InterfaceMonitor(switch, wait).wait, switch.port_counters)
    _stopped(args, switch, switch.port_counters())
    return 1 if switch.failure else 0


@contextlib.contextmanager
def _p4runtime(
    args: argparse.Namespace, switch: EtherSwitch | Switch
) -> Iterator[tuple[P4RuntimeServer[NativeDevice], Callable[[], dict[str, int]]]]:
    """Starts the switch and a P4Runtime server of it; yields the server, and the counters of both."""
    check_p4runtime(args)
    with extras():
        from switchagg.p4runtime.server.native.device import NativeDevice
        from switchagg.p4runtime.server.server import P4RuntimeServer
    with switch:
        device = NativeDevice(switch, args.capacity, device_id=args.device_id, cpu_port=args.cpu_port)
        with P4RuntimeServer(device, args.p4runtime, tls=tls(args)) as server:
            yield server, lambda: server.counters() | switch.port_counters()


def _serve_p4runtime(args: argparse.Namespace, switch: EtherSwitch, wait: Callable[[float], bool]) -> int:
    if args.address is not None or args.station:
        raise UsageError("--address and --station are not for --p4runtime, whose client fills the tables")
    with _p4runtime(args, switch) as (server, counters):
        _ready(args, switch, p4runtime=server.address, device_id=server.device.device_id)
        watch(args, server, _InterfaceMonitor(switch, wait).wait, counters)
    _stopped(args, switch, counters())
    return 1 if server.failure else 0


def serve_udp(args: argparse.Namespace, switch: Switch, wait: Callable[[float], bool]) -> int:
    """Serves a P4Runtime client with the native engine on a UDP port, likewise.

    Args:
        switch: not started yet.
    """
    with _p4runtime(args, switch) as (server, counters):
        _udp_ready(args, server, switch)
        watch(args, server, wait, counters)
    print_stopped(server, counters(), args.json, counters=switch.counters())
    return 1 if server.failure else 0


def _udp_ready(args: argparse.Namespace, server: P4RuntimeServer[NativeDevice], switch: Switch) -> None:
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


def _spec(args: argparse.Namespace) -> P4RuntimeSpec:
    """The switch's own address and its stations, as a P4Runtime switch's configuration would name them."""
    from switchagg.p4runtime.client.spec import from_table

    table: dict[str, Any] = {"url": "p4runtime://127.0.0.1:1", "stations": list(args.station)}
    if args.address is not None:
        ip, _, mac = args.address.partition(",")
        table |= {"address": ip.strip(), "udp_port": args.port} | ({"mac": mac.strip()} if mac else {})
    return from_table("of these options", table)


def _fill(switch: EtherSwitch, spec: P4RuntimeSpec, jobs: list[StaticJob]) -> None:
    """Tables for frames, and jobs."""
    from switchagg.cli.static_jobs import admit
    from switchagg.emulator.ether_switch import fill_frame_tables
    from switchagg.p4program import entries as p4_entries
    from switchagg.p4program import program as p4_program
    from switchagg.p4program.program import Entries, JobPlace, Parent

    for ip, station in spec.stations.items():
        if station.port not in switch.ports:
            raise UsageError(
                f"station {ip} is at port {station.port}; accepted: {', '.join(map(str, switch.ports))}"
            )
    target = p4_program.v1model()
    entries = Entries((), ())
    if spec.own is not None:
        entries = p4_entries.switch_entries(target, spec.own, switch.ports)
    elif jobs:
        raise UsageError("--job needs --address, to which workers send")
    fill_frame_tables(switch, entries, spec.stations.values())
    for job in jobs:
        unknown = [each.ip for each in job.entry.workers if each.ip not in spec.stations]
        if job.entry.parent is not None and job.entry.parent.ip not in spec.stations:
            unknown.append(job.entry.parent.ip)
        if unknown:
            raise UsageError(
                f"job {job.entry.job}: {unknown[0]} is no station; name it: --station {unknown[0]},MAC,PORT"
            )
        stations = {each.bit: spec.stations[each.ip] for each in job.entry.workers}
        above = job.entry.parent
        parent = None
        if above is not None:
            station = spec.stations[above.ip]
            parent = Parent(station, above.ip, above.token, above.base, above.result_token, above.port)
        admit(switch, job, JobPlace(0, stations, parent))


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
        print_stopped(
            switch, ports, True, **more, interfaces=switch.interface_counters(), warnings=switch.warnings
        )
        return
    print_stopped(switch, ports, False)
    for name, counts in more.items():
        shown = ", ".join(f"{each} {count}" for each, count in counts.items() if count)
        if shown:
            print(f"{name}: {shown}", flush=True)


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
