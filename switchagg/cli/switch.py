"""`switchagg switch`: a software switch alone, until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from switchagg.addresses import show_address
from switchagg.cli.bmv2_options import add_bmv2_options, arranged, settle
from switchagg.cli.options import (
    REPEATABLE,
    add_macro_options,
    add_network_options,
    add_topics,
    add_transport_options,
    extras,
    faults_from,
    rate_from,
    refuse_rate_and_capture,
    transport_from,
)
from switchagg.errors import UsageError, require
from switchagg.launch.signals import stop_signals
from switchagg.p4program.sources import source_path
from switchagg.wire.header import DEFAULT_PORT

if TYPE_CHECKING:
    from switchagg.emulator.p4_switch import P4Switch
    from switchagg.emulator.switch import Switch

_EPILOG = """\
Prints a line when it is ready, and its counters at the end. With --json every line is an object with
"event": "ready", "stats" or "stopped". Exit status: 0 stopped by SIGINT or SIGTERM, 1 it could not start or
go on, 2 a value that cannot work.
"""

_TOPICS = {
    "p4": "P4",
    "ethernet": "Ethernet",
    "p4runtime": "P4Runtime",
    "bmv2": "as simple_switch_grpc",
    "network": "network",
}
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM}

__all__ = ["add_parser", "arranged", "run"]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("switch", description=__doc__, epilog=_EPILOG, add_help=False)
    option = parser.add_argument
    add_topics(parser, _TOPICS)
    option(
        "--engine",
        choices=("native", "p4"),
        help="what executes: our own code, or a P4 program in the model (native)",
    )
    p4 = parser.add_argument_group("P4", "with --engine p4, which has no --rate and writes no capture")
    p4.add_argument(
        "--program",
        type=source_path,
        metavar="FILE.p4",
        help="a source; v1model and tna are our own (on a UDP port: v1model)",
    )
    add_macro_options(p4)
    option("--host", default="127.0.0.1", help="address of this host to serve on (%(default)s)")
    option("--port", type=int, default=DEFAULT_PORT, help="UDP port, 0 any (%(default)s)")
    add_transport_options(parser)
    option("--capacity", type=int, default=65536, help="slots, at most 65536 (%(default)s)")
    option("--job", **REPEATABLE, type=Path, metavar="FILE.json", help="admit its jobs (repeatable)")
    p4.add_argument(
        "--entries", type=Path, metavar="FILE.stf", help="with --interface: STF statements to begin with"
    )
    ethernet = parser.add_argument_group(
        "Ethernet", "between interfaces of this host instead of on a UDP port; needs root"
    )
    ethernet.add_argument(
        "--interface",
        **REPEATABLE,
        metavar="PORT=NAME",
        help="switch frames between these, with either engine; any program's with --engine p4",
    )
    ethernet.add_argument(
        "--address",
        metavar="IP[,MAC]",
        help="native, without --p4runtime: the switch's own, to which workers send (MAC: 02:00 and IP)",
    )
    ethernet.add_argument(
        "--station",
        **REPEATABLE,
        metavar="IP,MAC,PORT",
        help="native, without --p4runtime: a host, where others are flooded (repeatable)",
    )
    p4runtime = parser.add_argument_group(
        "P4Runtime", "with either engine; --engine p4 with or without a --program, and interfaces"
    )
    p4runtime.add_argument(
        "--p4runtime",
        "--grpc-server-addr",
        metavar="HOST:PORT",
        help="serve P4Runtime here, such as 127.0.0.1:9559; no jobs",
    )
    p4runtime.add_argument("--device-id", type=int, default=0, help="of this switch (%(default)s)")
    p4runtime.add_argument(
        "--cpu-port", type=int, help="where packets to and from the client pass (v1model: 510, Tofino: 192)"
    )
    p4runtime.add_argument(
        "-i",
        dest="bmv2_interface",
        **REPEATABLE,
        metavar="PORT@NAME",
        help="--interface as simple_switch_grpc has it",
    )
    add_bmv2_options(parser)
    add_network_options(parser)
    option("--no-offload", action="store_true", help="do without the kernel's UDP_SEGMENT and UDP_GRO")
    option("--stats-interval", type=float, default=0.0, metavar="SECONDS", help="print counters that often")
    option("--json", action="store_true", help="print JSON lines")


def run(args: argparse.Namespace) -> int:
    """Serves until a signal comes; returns the exit status as the command's help says it."""
    settle(args)
    # SIGHUP ends it as it ends any program; SIGINT stops it also where a shell's background ignores that.
    with stop_signals(_STOP_SIGNALS, keep_ignored=False) as signals:

        def stopped(seconds: float) -> bool:
            readable, _, _ = select.select([signals], [], [], seconds)
            return bool(readable) and not _STOP_SIGNALS.isdisjoint(os.read(signals, 4096))

        return _serve(args, stopped)


def _serve(args: argparse.Namespace, wait: Callable[[float], bool]) -> int:
    from switchagg.cli.static_jobs import admit, load_jobs

    interval = args.stats_interval
    require(0.0 <= interval <= 86400.0, "stats-interval", interval, "seconds, 0 (never) to 86400")
    if args.threads != "1" and (args.engine != "native" or args.interface or args.bmv2_interface):
        raise UsageError("--threads is for --engine native on a UDP port")
    if args.engine == "native" and (args.interface or args.bmv2_interface):
        from switchagg.cli.switch_ethernet import serve_native

        return serve_native(args, wait)
    if args.address is not None or args.station:
        raise UsageError("--address and --station are for --engine native with --interface")
    if args.p4runtime is None and (args.bmv2_interface or args.device_id or args.cpu_port is not None):
        raise UsageError("-i, --device-id and --cpu-port are for --p4runtime")
    if args.p4runtime is not None and args.engine == "native":
        from switchagg.cli.switch_ethernet import serve_udp

        require(":" not in args.host, "host", args.host, "with --p4runtime, an IPv4 address or its name")
        return serve_udp(args, _native_switch(args), wait)
    if args.p4runtime is not None or args.interface or args.entries is not None:
        from switchagg.cli.switch_ethernet import serve_p4

        return serve_p4(args, wait)
    jobs = [job for path in args.job for job in load_jobs(path)]
    switch = _p4_switch(args) if args.engine == "p4" else _native_switch(args)
    with switch:
        for job in jobs:
            admit(switch, job)
        report = _Report(args, switch)
        report.ready([job.entry.job for job in jobs])
        while not wait(interval or 1.0) and not switch.failure:
            if interval:
                report.stats()
    report.stopped()
    return 1 if switch.failure else 0


def _native_switch(args: argparse.Namespace) -> Switch:
    """Returns the native switch that the options ask for. Raises `UsageError`."""
    from switchagg.emulator.switch import Switch

    if args.program is not None or args.defines or args.include_dirs:
        raise UsageError("--program, -D and -I are for --engine p4")
    return Switch(
        args.host,
        args.port,
        capacity=args.capacity,
        rate=rate_from(args),
        faults=faults_from(args),
        pcap=args.pcap,
        offload=not args.no_offload,
        **transport_from(args),
    )


def _p4_switch(args: argparse.Namespace) -> P4Switch:
    refuse_rate_and_capture(args)
    with extras():
        from switchagg.emulator.p4_switch import P4Switch

        return P4Switch(
            args.program or source_path("v1model"),
            args.host,
            args.port,
            include_dirs=args.include_dirs,
            defines=args.defines,
            capacity=args.capacity,
            seed=args.seed or 0,
            faults=faults_from(args),
        )


def _counters(switch: Switch | P4Switch) -> dict[str, dict[str, int]]:
    return {
        "counters": switch.counters(),
        "port": switch.port_counters(),
        "rate": switch.rate_counters(),
        "faults": switch.fault_counters(),
        "capture": switch.capture_counters(),
    }


def _print(line: str, stream: TextIO | None = None) -> None:
    """A reader who went away does not stop the switch."""
    try:
        print(line, file=stream or sys.stdout, flush=True)
    except BrokenPipeError:
        # The rest of the stream's buffer would raise again at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or sys.stdout).fileno())
        os.close(nowhere)


class _Report:
    """Prints a switch's events: JSON lines, or text with the warnings on standard error, each once."""

    def __init__(self, args: argparse.Namespace, switch: Switch | P4Switch) -> None:
        self._args, self._switch = args, switch
        self._warned: set[str] = set()

    def ready(self, jobs: list[int]) -> None:
        from switchagg.emulator.switch import Switch

        switch = self._switch
        ip, port = switch.address
        way = (
            " and ".join(name for name, on in (("GSO", switch.gso), ("GRO", switch.gro)) if on)
            or "no offload"
        )
        if isinstance(switch, Switch) and switch.transport_details:
            way = f"{'AF_XDP on ' if switch.transport == 'xdp' else ''}{switch.transport_details}"
        if isinstance(switch, Switch) and switch.threads > 1:
            way += f", {switch.threads} threads"
        lines = [
            f"switch ready on {show_address(ip, port)}, {self._args.capacity} slots, {len(jobs)} jobs, "
            f"receive buffer {switch.receive_buffer / 2**20:.1f} MB, {way}"
        ]
        if switch.rate:
            lines.append(f"links: {switch.rate} each way, a queue of {switch.rate.queue:,} bytes at each end")
        if switch.faults:
            lines.append(f"faults: {switch.faults}")
        self._event(
            "ready",
            lines,
            address=ip,
            port=port,
            pid=os.getpid(),
            engine=self._args.engine,
            capacity=self._args.capacity,
            jobs=jobs,
            receive_buffer=switch.receive_buffer,
            gso=switch.gso,
            gro=switch.gro,
            rate=switch.rate.bits_per_second if switch.rate else None,
            seed=switch.faults.seed if switch.faults else None,
        )

    def stats(self) -> None:
        groups = _counters(self._switch)
        counters, port = groups["counters"], groups["port"]
        line = (
            f"in {port['packets_in']} packets, {port['bytes_in']} bytes; out {port['packets_out']} packets, "
            f"{port['bytes_out']} bytes; accepted {counters['accepted']}, results {counters['results']}, "
            f"repeats answered {counters['duplicates_answered']}"
        )
        self._event("stats", [line], **groups)

    def stopped(self) -> None:
        lines = ["switch stopped"]
        groups = _counters(self._switch)
        for group, counters in groups.items():
            # Zero says nothing here, except of what the switch is for.
            shown = [f"{name} {n}" for name, n in counters.items() if n or name in ("received", "results")]
            if shown:
                lines.append(f"{group}: {', '.join(shown)}")
        self._event("stopped", lines, **groups)

    def _event(self, event: str, lines: list[str], **values: Any) -> None:
        warnings = self._switch.warnings
        if self._args.json:
            _print(json.dumps({"event": event, **values, "warnings": warnings}))
            return
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _print(f"switchagg switch: warning: {warning}", sys.stderr)
        for line in lines:
            _print(line)
