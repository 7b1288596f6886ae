"""The conformance suite and the random packet sequences on a switch that gets and sends real frames.

    python -m tests.switchagg.devices.conformance TRANSPORT MTU [THREADS]

in namespaces of its own; prints JSON.

Each packet of a test becomes a frame, and each frame that comes back a packet. The reference implementation
says only how many to wait for; one that should not have come is found before the next packet is sent.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from switchagg.devices.dpdk import DpdkSettings
from switchagg.emulator.switch import Switch
from switchagg.p4program.frames import frame
from switchagg.rules.slots import Address, JobEntry, Out, SlotState
from tests.reference.slots import SlotTable
from tests.switchagg.conformance import engines
from tests.switchagg.devices.networks import MAC, far_socket, ip, near_mac, pair

SWITCH = "10.0.0.254"
SEQUENCES = 30
_WAIT = 60.0


def _cut(whole: bytes, mtu: int) -> list[bytes]:
    """A frame as it is; as IP fragments if it is larger than the interface carries."""
    if len(whole) - 14 <= mtu:
        return [whole]
    head, rest, each = bytearray(whole[:34]), whole[34:], (mtu - 20) // 8 * 8
    head[18:20] = random.randbytes(2)
    pieces = []
    for at in range(0, len(rest), each):
        piece = rest[at : at + each]
        head[16:18] = (20 + len(piece)).to_bytes(2, "big")
        head[20:22] = (at // 8 | (0x2000 if at + each < len(rest) else 0)).to_bytes(2, "big")
        head[24:26] = bytes(2)
        total = sum(struct.unpack(">10H", head[14:]))
        while total >> 16:
            total = (total & 0xFFFF) + (total >> 16)
        head[24:26] = (total ^ 0xFFFF).to_bytes(2, "big")
        pieces.append(bytes(head) + piece)
    return pieces


class WiredEngine:
    """A switch at the near end of a `pair`, as an `Engine`. Only the newest one is open."""

    transport = "udp"
    socket: Any = None
    near, mtu, threads = 0, 1500, 1
    dpdk: DpdkSettings | None = None
    first: Switch  # keeps the device open from test to test
    last: Switch | None = None

    def __init__(self, capacity: int) -> None:
        cls = type(self)
        self._switch = Switch(
            SWITCH, capacity=capacity, transport=cls.transport, dpdk=cls.dpdk, threads=cls.threads
        )
        self._counts = SlotTable(capacity)
        if cls.last is not None:
            cls.last.close()
        self._switch.start()
        assert self._switch.transport == cls.transport, self._switch.warnings
        cls.last = self._switch
        self._packets = 0

    def add_job(self, job: JobEntry) -> None:
        if type(self).dpdk is not None:
            self._introduce(
                {worker.ip for worker in job.workers} | ({job.parent.ip} if job.parent else set())
            )
        self._switch.add_job(job)
        self._counts.add_job(job)

    def _introduce(self, hosts: set[str]) -> None:
        """Lets the switch know the MAC of hosts that have sent nothing: they send to another of its ports."""
        first = type(self).first
        count = first.port_counters()["packets_in"] + len(hosts)
        for host in hosts:
            type(self).socket.send(frame(b"", (MAC, host, 9), (self.near, *first.address)))
        end = time.monotonic() + _WAIT
        while first.port_counters()["packets_in"] < count:
            assert time.monotonic() < end, "a host is not known"

    def remove_job(self, job_id: int) -> None:
        self._switch.remove_job(job_id)
        self._counts.remove_job(job_id)

    def fence(self, job_id: int, bits: int) -> None:
        self._switch.fence(job_id, bits)
        self._counts.fence(job_id, bits)

    def admit(self, job_id: int, bits: int) -> None:
        self._switch.admit(job_id, bits)
        self._counts.admit(job_id, bits)

    def counters(self) -> dict[str, int]:
        return self._switch.counters()

    def job_counters(self, job_id: int) -> dict[str, int]:
        return self._switch.job_counters(job_id)

    def slot(self, index: int) -> SlotState:
        return self._switch.slot(index)

    def receive(self, payload: bytes, source: Address | None) -> list[Out]:
        order = [to for to, _ in self._counts.receive(payload, source)]
        if source is None:
            return [(None, packet) for packet in self._switch.packet_out(payload)]
        assert self._read() is None, "a packet that nothing asked for"
        own = self._switch.address
        self._packets += 1
        for each in _cut(frame(payload, (MAC, *source), (self.near, *own)), type(self).mtu):
            type(self).socket.send(each)
        end = time.monotonic() + _WAIT
        while self._switch.port_counters()["packets_in"] < self._packets:
            assert time.monotonic() < end, "the packet has not arrived"
        received = self._counts.counters()["received"]
        while self._switch.counters()["received"] < received:  # by the thread that has its slot
            assert time.monotonic() < end, "the packet has not been processed"
        outs: list[Out] = []
        while len(outs) < len(order):
            out = self._read()
            if out is not None:
                outs.append(out)
            assert time.monotonic() < end, f"{len(outs)} of {len(order)} packets"
        # RESULTs with words leave before those without; an engine hands them out by worker.
        return sorted(outs, key=lambda out: order.index(out[0]) if out[0] in order else -1)

    def _read(self) -> Out | None:
        while True:
            try:
                data = type(self).socket.recv(65536)
            except BlockingIOError:
                return None
            if data[12:14] == b"\x08\x00" and data[23] == 17:
                ip, udp = ".".join(map(str, data[30:34])), int.from_bytes(data[36:38], "big")
                return (ip, udp), data[42 : 34 + int.from_bytes(data[38:40], "big")]


class _Results:
    def __init__(self) -> None:
        self.passed = self.failed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.passed += report.when == "call" and report.passed
        self.failed += bool(report.failed)


def main(transport: str, mtu: str, threads: str = "1") -> None:
    pair(mtu=int(mtu), queues=int(threads))
    WiredEngine.transport, WiredEngine.mtu, WiredEngine.threads = transport, int(mtu), int(threads)
    WiredEngine.socket = far_socket()
    WiredEngine.socket.setblocking(False)
    WiredEngine.near = near_mac()
    suite = Path(engines.__file__).parent
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "250"]
    if transport == "dpdk":
        # The kernel has neither the address nor a part in it, and there is nobody to put fragments together.
        ip("address", "flush", "dev", "near")
        vdev = "net_pcap0,rx_iface_in=near,tx_iface=near"  # any MTU, one queue
        if threads != "1":
            vdev = f"net_af_packet0,iface=near,qpairs={threads}"
        WiredEngine.dpdk = DpdkSettings(f"--no-huge --no-pci -m 512 --vdev={vdev}", mtu=int(mtu))
        large = " and not 2239 and not agrees_with_the_reference" if mtu == "1500" else ""
        options += ["-k", f"not oversized{large}"]
    else:
        # A RESULT of so many words comes in fragments, which nobody here puts together.
        options += ["-k", "not 2239"]
    with Switch(
        SWITCH, transport=transport, dpdk=WiredEngine.dpdk, threads=WiredEngine.threads
    ) as WiredEngine.first:
        engines.ENGINES.clear()
        engines.ENGINES[transport] = WiredEngine
        engines.SEQUENCES = SEQUENCES
        results = _Results()
        tests = [str(suite / name) for name in ("test_slots.py", "test_leaf.py", "test_slots_property.py")]
        status = pytest.main([*options, *tests], plugins=[results])
    print()
    print(json.dumps({"status": int(status), "passed": results.passed, "failed": results.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
