"""`switchagg bench io`: packets a second, GB/s and processor time a packet of each transport, each way.

    this process --> sender    (a network namespace of its own)  --veth or memif--> receiver (another one)

Both ends run in turn with our port and as a bare loop, the floor: the same system calls or bursts on frames
that were made before, without headers, checksums, neighbours or locks. A sender has no window, so what a
receiver does not take is lost; each end is its own figure.

    python -m switchagg.bench.io     is what an end runs; it gets its part as JSON on standard input
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any, Final

from switchagg.errors import NetworkError, UsageError, require
from switchagg.report.table import Table

TRANSPORTS: Final = ("udp-single", "udp", "xdp", "dpdk-af_packet", "dpdk-memif")
"""Kernel UDP packet by packet and with GSO and GRO; AF_XDP; DPDK on a packet socket and on memif."""
_ADDRESSES: Final = ("10.0.0.1", "10.0.0.2")
_NAMES: Final = ("io0", "io1")
_ALONE: Final = "--no-huge --no-pci"
_HEADER: Final = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """Transports, sizes and times to measure.

    Attributes:
        transports: of `TRANSPORTS`.
        words: of a packet.
        seconds: that an end measures for.
        repeat: times that everything is measured; the table has medians.
    """

    transports: tuple[str, ...] = TRANSPORTS
    words: int = 352
    seconds: float = 0.5
    repeat: int = 3

    def __post_init__(self) -> None:
        for name in self.transports:
            require(name in TRANSPORTS, "transport", name, ", ".join(TRANSPORTS))
        require(16 <= self.words <= 364, "words", self.words, "16 to 364, which Ethernet carries")
        require(0.05 <= self.seconds <= 30, "seconds", self.seconds, "0.05 to 30")
        require(1 <= self.repeat <= 100, "repeat", self.repeat, "1 to 100")


@dataclass(frozen=True, slots=True)
class Figure:
    """One end's measurement: packets and bytes that it sent or took, and seconds of both kinds."""

    transport: str
    direction: str
    floor: bool
    packets: int
    bytes: int
    seconds: float
    processor: float

    @property
    def rate(self) -> float:
        return self.packets / self.seconds if self.seconds else 0.0

    @property
    def nanoseconds(self) -> float:
        """Processor time a packet."""
        return 1e9 * self.processor / self.packets if self.packets else 0.0


def measure(settings: Settings) -> tuple[list[Figure], dict[str, str]]:
    """Returns all figures, and of each transport that does not work here the reason.

    Raises `UsageError` where this process may not make namespaces.
    """
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        raise UsageError("bench io makes network namespaces: run it as root, with ip and unshare")
    figures: list[Figure] = []
    missing: dict[str, str] = {}
    with _cable() as holders, TemporaryDirectory() as folder:
        for _ in range(settings.repeat):
            for transport in settings.transports:
                for floor in (False, True):
                    if transport in missing:
                        continue
                    try:
                        figures += _one(settings, transport, floor, holders, folder)
                    except NetworkError as error:
                        missing[transport] = str(error)
    return figures, missing


def table(figures: list[Figure], missing: dict[str, str]) -> Table:
    """Medians by transport and direction, with the floor beside them."""
    keys = sorted(
        {(TRANSPORTS.index(each.transport), each.direction) for each in figures},
        key=lambda k: (k[0], k[1] != "send"),
    )

    def median(of: Callable[[Figure], float], transport: str, direction: str, *, floor: bool) -> float:
        key = (transport, direction, floor)
        same = [each for each in figures if (each.transport, each.direction, each.floor) == key]
        return statistics.median([of(each) for each in same if each.packets] or [0.0])

    rows = []
    for index, direction in keys:
        where = TRANSPORTS[index], direction
        ns, floor_ns = (median(lambda each: each.nanoseconds, *where, floor=floor) for floor in (False, True))
        rate, floor_rate = (median(lambda each: each.rate, *where, floor=floor) for floor in (False, True))
        gigabytes = median(lambda each: each.bytes / each.seconds / 1e9, *where, floor=False)
        a_core = 1e9 / ns if ns else 0.0
        rows.append((*where, round(rate), round(floor_rate), gigabytes, round(ns), round(floor_ns), a_core))
    headings = (
        "transport",
        "direction",
        "packets/s",
        "floor",
        "GB/s",
        "cpu ns",
        "floor ns",
        "packets/s a core",
    )
    note = "; ".join(f"{name}: {why}" for name, why in missing.items())
    return Table("packets past one end", headings, rows, note)


def as_json(figures: list[Figure]) -> list[dict[str, Any]]:
    """Returns every measurement, for a file."""
    return [asdict(each) for each in figures]


@contextmanager
def _cable() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two network namespaces with a veth pair between them, kept by processes that sleep."""

    with ExitStack() as stack:
        holders = []
        for _ in _NAMES:
            ready = "ip link set lo up && echo && exec sleep infinity"
            holder = subprocess.Popen(["unshare", "-n", "sh", "-c", ready], stdout=subprocess.PIPE)
            stack.callback(_end, holder)
            assert holder.stdout is not None
            holder.stdout.readline()
            holders.append(holder)
        first, second = (str(holder.pid) for holder in holders)
        enter = [["nsenter", "-t", pid, "-n", "ip"] for pid in (first, second)]
        line = f"link add {_NAMES[0]} type veth peer name {_NAMES[1]} netns {second}".split()
        done = subprocess.run([*enter[0], *line], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UsageError(f"no veth pair can be made: {done.stderr.strip()}")
        for command, name in zip(enter, _NAMES, strict=True):
            subprocess.run([*command, "link", "set", name, "up"], check=True)
        yield holders


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.communicate()


def _one(
    settings: Settings, transport: str, floor: bool, holders: list[subprocess.Popen[bytes]], folder: str
) -> list[Figure]:
    """Runs both ends once."""
    # Abstract sockets end at a namespace, and a socket in a folder outlives its process.
    socket = f"socket={folder}/{time.monotonic_ns()},socket-abstract=no"
    with ExitStack() as stack:
        ends, said = [], []
        for number, holder in enumerate(holders):
            _set_address(holder.pid, number, kernel=transport != "dpdk-af_packet")
            line = [
                "nsenter",
                "-t",
                str(holder.pid),
                "-n",
                sys.executable,
                "-m",
                "switchagg.bench.io",
            ]
            pipe = subprocess.PIPE
            end = subprocess.Popen(line, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            stack.callback(_end, end)
            role = "server" if number == 0 else "client"
            part = {
                "transport": transport, "address": _ADDRESSES[number], "words": settings.words,
                "floor": floor, "ns": int(settings.seconds * 1e9), "sends": number == 1,
                "dpdk": {
                    "dpdk-af_packet": f"{_ALONE} --vdev=net_af_packet0,iface={_NAMES[number]}",
                    "dpdk-memif": f"{_ALONE} --vdev=net_memif0,role={role},{socket}",
                }.get(transport),
            }  # fmt: skip
            assert end.stdin is not None
            end.stdin.write(json.dumps(part) + "\n")
            end.stdin.flush()
            ends.append(end)
            said.append(_line(end))  # the receiver is there before the sender starts
        receiver, sender = ends
        for end in (receiver, sender):
            assert end.stdin is not None
            end.stdin.write(json.dumps(said[0]) + "\n")
            end.stdin.flush()
        figures = []
        for end, direction in ((sender, "send"), (receiver, "receive")):
            packets, size, wall, processor = _line(end)["figures"]
            figures.append(Figure(transport, direction, floor, packets, size, wall / 1e9, processor / 1e9))
        return figures


def _set_address(pid: int, number: int, *, kernel: bool) -> None:
    """Gives an end's interface its address, or takes it, so that the kernel answers nothing for it."""
    ip = ["nsenter", "-t", str(pid), "-n", "ip", "address"]
    subprocess.run([*ip, "flush", "dev", _NAMES[number]], check=True)
    if kernel:
        subprocess.run([*ip, "add", f"{_ADDRESSES[number]}/24", "dev", _NAMES[number]], check=True)


def _line(end: subprocess.Popen[str]) -> dict[str, Any]:
    assert end.stdout is not None
    assert end.stderr is not None
    text = end.stdout.readline()
    if not text:
        lines = end.stderr.read().strip().splitlines()
        raise NetworkError(lines[-1] if lines else "an end has gone")
    said: dict[str, Any] = json.loads(text)
    return said


def _side() -> None:
    """Runs one end, whose part comes on standard input."""
    from worker_lib.transport import bind

    part = json.loads(sys.stdin.readline())
    if part["dpdk"] is not None:
        os.environ["SWITCHAGG_DPDK"] = part["dpdk"]
    way = "dpdk" if part["dpdk"] is not None else "udp"
    native = bind(part["address"], way, offload=part["transport"] != "udp-single").native
    if part["transport"] == "xdp":
        native.use_xdp()
    print(json.dumps({"ip": int(ipaddress.IPv4Address(part["address"])), "port": native.port}), flush=True)
    peer = json.loads(sys.stdin.readline())
    size = _HEADER + 4 * part["words"]
    batch = {"udp-single": 1, "udp": 45}.get(part["transport"], 64)
    to = (peer["ip"], peer["port"]) if part["sends"] else None
    packets, received, wall, processor = native.measure(to, size, batch, part["ns"], part["floor"])
    if not packets:
        packets = received // size  # coalesced by the kernel
    print(json.dumps({"figures": [packets, received, wall, processor]}), flush=True)


if __name__ == "__main__":
    _side()
