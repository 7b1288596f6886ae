"""Scenarios of `test_ether_switch` between real interfaces: a process of a namespace of its own.

    python -m tests.switchagg.emulator.ether_scenarios FOLDER     prints what was seen, as JSON

The hosts are the far ends h1, h2, h3 of veth pairs whose near ends sw1, sw2, sw3 are the switch's ports.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from switchagg.control.jobs.job import init_packets
from switchagg.emulator.ether_switch import EtherSwitch, fill_frame_tables
from switchagg.emulator.faults import Faults
from switchagg.emulator.packet_socket import open_interface, receive
from switchagg.p4program import entries as p4_entries
from switchagg.p4program import program as p4_program
from switchagg.p4program.frames import frame
from switchagg.p4program.program import JobPlace, Station, SwitchAddress
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Header, Op, decode, encode

OWN: Final = SwitchAddress(0x0200000000FE, "10.0.0.254")
HOSTS: Final = (1, 2, 3)
_WAIT: Final = 60.0
_SILENCE: Final = 0.1
_VNET_HDR: Final = 15  # PACKET_VNET_HDR


def mac(host: int) -> int:
    """The MAC of a host."""
    return 0x020000000000 + host


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _pair(host: int) -> None:
    _ip("link", "add", f"sw{host}", "type", "veth", "peer", "name", f"h{host}")
    for name in (f"sw{host}", f"h{host}"):
        # No host of the kernel's talks here: only we do.
        Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1", encoding="ascii")
        _ip("link", "set", name, "up")


def _settled(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + _WAIT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Far:
    """The far end of a port: frames in and out."""

    def __init__(self, host: int) -> None:
        self._socket = open_interface(f"h{host}")

    def send(self, data: bytes) -> None:
        self._socket.send(data)

    def got(self, count: int, wait: float = _WAIT) -> list[str]:
        """The next frames in hexadecimal, fewer where no more come; what comes beside them is there too."""
        found: list[str] = []
        while True:
            self._socket.settimeout(wait if len(found) < count else _SILENCE)
            try:
                data = receive(self._socket)
            except TimeoutError:
                return found
            if data is not None:
                found.append(data.hex())

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def _rack(**options: Any) -> Iterator[tuple[EtherSwitch, dict[int, Far]]]:
    """A switch that knows hosts 1 and 2, and the far ends of all its ports."""
    with EtherSwitch({host: f"sw{host}" for host in HOSTS}, **options) as switch:
        entries = p4_entries.switch_entries(p4_program.v1model(), OWN, switch.ports)
        fill_frame_tables(switch, entries, [Station(host, mac(host)) for host in (1, 2)])
        far = {host: Far(host) for host in HOSTS}
        yield switch, far
        for each in far.values():
            each.close()


def _datagram(source: int, destination: int, payload: bytes = b"x" * 50) -> bytes:
    return frame(
        payload,
        (mac(source), f"10.0.0.{source}", 5000),
        (mac(destination), f"10.0.0.{destination}", 6000),
    )


def frames() -> dict[str, Any]:
    """Forwarding, flooding, tags, and nothing of what claims to be the switch."""
    with _rack() as (switch, far):
        known, unknown = _datagram(1, 2), _datagram(1, 9)
        tagged = known[:12] + bytes.fromhex("8100a005") + known[12:]
        forged = frame(b"x" * 50, (OWN.mac, OWN.ip, 48879), (mac(2), "10.0.0.2", 6000))
        for each in (known, tagged, unknown, forged):
            far[1].send(each)
        seen = {str(host): far[host].got({1: 0, 2: 3, 3: 1}[host]) for host in HOSTS}
        return {
            "known": known.hex(),
            "tagged": tagged.hex(),
            "unknown": unknown.hex(),
            "seen": seen,
            "counters": switch.ether_counters(),
            "interfaces": switch.interface_counters(),
        }


def sums() -> dict[str, Any]:
    """Two workers' sum, and what a foreign host can do about it."""
    words = np.arange(16, dtype=np.uint32)
    members = tuple(WorkerEntry(bit, f"10.0.0.{bit + 1}", 7000, 90 + bit) for bit in range(2))
    entry = JobEntry(5, 0, 4, 16, 77, members)

    def packet(bit: int, payload: Any) -> bytes:
        header = Header(Op.SUM, 0, 5, 90 + bit, 0, 0)
        source = (mac(bit + 1), f"10.0.0.{bit + 1}", 7000)
        return frame(encode(header, payload), source, (OWN.mac, OWN.ip, OWN.udp_port))

    with _rack() as (switch, far):
        switch.add_job(entry, JobPlace(0, {bit: Station(bit + 1, mac(bit + 1)) for bit in range(2)}))
        for init in init_packets(entry, 0).values():
            assert switch.packet_out(init) == [init]
        far[3].send(packet(0, words + 1000))  # worker 0's own packet, by another port
        far[1].send(packet(0, words))
        assert _settled(lambda: switch.job_counters(5)["accepted"] == 1)
        far[2].send(packet(1, 2 * words))
        results = []
        for host in (1, 2):
            (data,) = (bytes.fromhex(each) for each in far[host].got(1))
            _, got = decode(data[42:])
            assert got is not None
            to = (mac(host), f"10.0.0.{host}", 7000)
            plain = frame(data[42:], (OWN.mac, OWN.ip, OWN.udp_port), to)
            results.append({"words": got.tolist(), "whole": data == plain})
        counters = switch.job_counters(5)
    return {"results": results, "expected": (3 * words).tolist(), "counters": counters}


def _super_frame(host: int, data: bytes, kind: int, size: int, start: int, offset: int) -> bool:
    """Sends a super-frame as a host with offloads does; False where this kernel knows none of this kind."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as made:
        made.setsockopt(263, _VNET_HDR, 1)
        made.bind((f"h{host}", 0))
        note = struct.pack("=BBHHHH", 1, kind, start + offset + 2, size, start, offset)
        try:
            made.send(note + data)
        except OSError:
            return False
        return True


def offloads() -> dict[str, Any]:
    """Super-frames of UDP and TCP, and a frame whose checksum is left to a network card."""
    payload = bytes(range(250)) * 4
    udp = bytearray(_datagram(1, 2, payload))
    # The field holds the sum of the pseudo header, as the kernel leaves it.
    udp[40:42] = _pseudo(udp, 17, len(payload) + 8).to_bytes(2, "big")
    tcp = (
        bytearray(udp[:34]) + struct.pack(">HHIIBBHHH", 5000, 6000, 1000, 0, 0x50, 0x19, 512, 0, 0) + payload
    )
    tcp[23] = 6
    tcp[16:18] = (40 + len(payload)).to_bytes(2, "big")
    tcp[24:26] = bytes(2)
    tcp[50:52] = _pseudo(tcp, 6, len(payload) + 20).to_bytes(2, "big")
    with _rack() as (switch, far):
        sent = {
            "udp": _super_frame(1, bytes(udp), 5, 300, 34, 6),
            "tcp": _super_frame(1, bytes(tcp), 1, 300, 34, 16),
            "single": _super_frame(1, bytes(udp), 0, 0, 34, 6),
        }
        count = 4 * sent["udp"] + 4 * sent["tcp"] + sent["single"]
        return {
            "sent": sent,
            "got": far[2].got(count),
            "payload": payload.hex(),
            "interfaces": switch.interface_counters(),
        }


def _pseudo(data: bytes | bytearray, protocol: int, size: int) -> int:
    total = sum(struct.unpack(">4H", data[26:34])) + protocol + size
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def comings_and_goings() -> dict[str, Any]:
    """An interface goes down and up, and another vanishes and comes back."""
    with _rack() as (switch, far):

        def state(host: int) -> dict[str, Any]:
            return switch.interface_counters()[HOSTS.index(host)]

        def reaches(host: int) -> bool:
            far[1].send(_datagram(1, 2 if host == 2 else 9))
            return len(far[host].got(1, 2.0)) == 1

        seen: dict[str, Any] = {"before": _settled(lambda: reaches(2))}
        _ip("link", "set", "sw2", "down")
        seen["down"] = _settled(lambda: not state(2)["up"])
        seen["warnings"] = switch.warnings
        far[1].send(_datagram(1, 2))
        seen["errors"] = _settled(lambda: state(2)["send_errors"])
        _ip("link", "set", "sw2", "up")
        seen["up"] = _settled(lambda: state(2)["up"])
        seen["after"] = _settled(lambda: reaches(2))
        far[3].close()
        _ip("link", "delete", "sw3")
        seen["gone"] = _settled(lambda: not state(3)["up"])
        _pair(3)
        seen["back"] = _settled(lambda: state(3)["up"])
        far[3] = Far(3)
        seen["again"] = _settled(lambda: reaches(3))
        seen["downs"] = [state(2)["downs"], state(3)["downs"]]
        seen["failure"] = switch.failure
        return seen


def devices(folder: Path) -> dict[str, Any]:
    """A capture, faults, and the speed of a link."""
    path = folder / "frames.pcap"
    with _rack(pcap=path) as (_, far):
        far[1].send(_datagram(1, 2))
        far[2].got(1)
    with _rack(faults=Faults(loss=1.0, seed=1)) as (switch, far):
        far[1].send(_datagram(1, 2))
        lost = _settled(lambda: switch.fault_counters()["lost_in"] == 1)
        passed = len(far[2].got(0))
    return {"frame": _datagram(1, 2).hex(), "pcap": path.read_bytes().hex(), "lost": lost, "passed": passed}


def main() -> None:
    """Acts it all out."""
    _ip("link", "set", "lo", "up")
    for host in HOSTS:
        _pair(host)
    seen = {
        "frames": frames(),
        "sums": sums(),
        "offloads": offloads(),
        "comings and goings": comings_and_goings(),
        "devices": devices(Path(sys.argv[1])),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
