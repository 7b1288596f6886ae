"""Scenarios of `test_xdp` in namespaces of their own; each prints what was seen, as JSON.

python -m tests.switchagg.devices.xdp_scenarios jobs|frames|refusals SEED
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from scapy.layers.inet import ICMP, IP, UDP, fragment
from scapy.layers.l2 import Dot1Q, Ether

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.switch import Switch
from switchagg.rules.slots import JobEntry, WorkerEntry
from switchagg.wire.header import Flag, Header, Op, decode, encode
from tests.switchagg.devices.networks import MAC, Rack, far_socket, ip, near_mac, pair
from worker_lib import _native

SWITCH = "10.0.0.254"
WORKER = "10.0.0.1"
_WAIT = 60.0


def jobs(seed: int) -> dict[str, Any]:
    """Four workers with 2 % loss: all by AF_XDP, and half of them by UDP; then two with each other fault,
    and three of a switch with two threads."""
    rack = Rack(5)
    try:
        loss = ["--transport", "xdp", "--loss", "0.02", "--seed", str(seed)]
        announced = rack.start_switch(*loss)
        url = announced["controller"]
        found = {
            "announced": announced,
            "xdp": rack.run_workers(url, ["xdp"] * 4, job="one"),
            "mixed": rack.run_workers(url, ["xdp", "xdp", "udp", "udp"], job="two"),
        }
        faults = ["--duplicate", "0.05", "--reorder", "0.05", "--delay", "0.0003", "--jitter", "0.0005"]
        url = rack.start_switch(*loss, *faults)["controller"]
        found["faults"] = rack.run_workers(url, ["xdp"] * 2, job="three")
        ip("link", "set", "sw5", "down")
        rack.hosts[-1].run("ethtool", "-L", "data", "rx", "2", "tx", "2")
        ip("link", "set", "sw5", "up")
        found["announced threads"] = announced = rack.start_switch("--transport", "xdp", "--threads", "2")
        return found | {"threads": rack.run_workers(announced["controller"], ["xdp"] * 3, job="four")}
    finally:
        rack.close()


def _mac(number: int) -> str:
    return ":".join(f"{byte:02x}" for byte in number.to_bytes(6, "big"))


class Peer:
    """The far end as a worker that makes its frames with scapy."""

    def __init__(self) -> None:
        self.socket = far_socket()
        self.near = _mac(near_mac())

    def to(self, port: int, payload: bytes, sport: int = 7000, **ip: Any) -> Any:
        headers = Ether(src=_mac(MAC), dst=self.near) / IP(src=WORKER, dst=SWITCH, **ip)
        return headers / UDP(sport=sport, dport=port) / payload

    def send(self, packet: Any) -> None:
        self.socket.send(bytes(packet))

    def next(self, wanted: Callable[[Any], bool], seconds: float = _WAIT) -> Any:
        """The next frame that is wanted; None after the time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            with contextlib.suppress(TimeoutError):
                packet = Ether(self.socket.recv(65536))
                if wanted(packet):
                    return packet
        return None


def _checked(packet: Any) -> dict[str, Any]:
    """Returns the fields of a frame, and True as `same` if scapy computes the same checksums."""
    again = Ether(bytes(packet))
    del again[IP].chksum, again[UDP].chksum, again[IP].len, again[UDP].len
    again = Ether(bytes(again))
    fields = [
        (packet[IP].chksum, again[IP].chksum), (packet[UDP].chksum, again[UDP].chksum),
        (packet[IP].len, again[IP].len), (packet[UDP].len, again[UDP].len),
    ]  # fmt: skip
    payload = bytes(packet[UDP].payload)[: packet[UDP].len - 8]
    words = decode(payload)[1]
    return {
        "same": all(ours == theirs for ours, theirs in fields),
        "checksum": packet[UDP].chksum,
        "from": [packet[Ether].src, packet[IP].src, packet[UDP].sport],
        "to": [packet[Ether].dst, packet[IP].dst, packet[UDP].dport],
        "sum": None if words is None else words.tolist(),
    }


def frames(seed: int) -> dict[str, Any]:
    """Frames made and read by scapy: RESULTs, what is dropped, and what stays with the kernel."""
    pair()
    found: dict[str, Any] = {}
    peer = Peer()
    rng = Random(seed)
    with Switch(SWITCH, transport="xdp") as switch:
        found["transport"], found["warnings"], found["near"] = switch.transport, switch.warnings, peer.near
        port = switch.address[1]
        found["port"] = port
        switch.add_job(JobEntry(5, 0, 256, 16, 77, (WorkerEntry(0, WORKER, 7000, 90),)))
        for seq in range(64):
            switch.packet_out(encode(Header(Op.INIT, 0, 5, 0, 2**32 - 256 + seq, seq)))
        results, given = [], []
        for seq in range(20):
            words = None if seq % 5 == 4 else np.array([rng.getrandbits(32) for _ in range(16)], np.uint32)
            given.append(None if words is None else words.tolist())
            peer.send(peer.to(port, encode(Header(Op.SUM, 0, 5, 90, seq, seq), words)))
            packet = peer.next(lambda each: UDP in each and each[UDP].dport == 7000)
            results.append(packet and _checked(packet))
        found["results"], found["given"] = results, given
        found["after"] = switch.port_counters()

        def contribution(seq: int) -> bytes:
            return encode(Header(Op.SUM, 0, 5, 90, seq, seq), np.full(16, 3, np.uint32))

        # Dropped: a payload, a UDP length or an IP header that is not as its checksum or length says.
        wrong = []
        for change in ("payload", "length", "header"):
            whole = bytearray(bytes(peer.to(port, contribution(30))))
            at = {"payload": 60, "length": 39, "header": 15}[change]
            whole[at] ^= 0x40
            wrong.append(bytes(whole))
        for each in wrong:
            peer.send(each)
        # Taken: no checksum, and one that a network card was to complete.
        bare = peer.to(port, contribution(31))
        bare[UDP].chksum = 0
        half = Ether(bytes(peer.to(port, contribution(32))))
        pseudo = (
            sum(int.from_bytes(bytes(half[IP])[i : i + 2], "big") for i in range(12, 20, 2))
            + 17
            + half[UDP].len
        )
        while pseudo >> 16:
            pseudo = (pseudo & 0xFFFF) + (pseudo >> 16)
        half[UDP].chksum = pseudo
        for each in (bare, half):
            peer.send(each)
        taken = [peer.next(lambda each: UDP in each and each[UDP].dport == 7000) for _ in range(2)]
        found["taken"] = [packet is not None and _checked(packet)["same"] for packet in taken]
        found["silent"] = peer.next(lambda each: UDP in each and each[UDP].dport == 7000, 0.2) is None
        found["dropped"] = switch.port_counters()

        # CE of an IP header is in the flags of the RESULT, whose own IP header is ECT(0).
        marked = encode(Header(Op.SUM, Flag.ECT, 5, 90, 35, 35), np.full(16, 3, np.uint32))
        peer.send(peer.to(port, marked, tos=3))
        packet = peer.next(lambda each: UDP in each and each[UDP].dport == 7000)
        flags = decode(bytes(packet[UDP].payload)[:80])[0].flags & (Flag.CE | Flag.ECT)
        found["ecn"] = [packet[IP].tos, flags, _checked(packet)["same"]]

        # The kernel's: another port, fragments of a contribution, an echo request, a VLAN.
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        other.bind((SWITCH, 0))
        other.settimeout(_WAIT)
        peer.send(peer.to(other.getsockname()[1], b"for the kernel"))
        found["other port"] = other.recv(100).decode()
        for piece in fragment(peer.to(port, contribution(33)), fragsize=40):
            peer.send(piece)
        packet = peer.next(lambda each: UDP in each and each[UDP].dport == 7000)
        found["fragments"] = packet is not None and decode(bytes(packet[UDP].payload)[:80])[0].seq == 33
        peer.send(
            Ether(src=_mac(MAC), dst=peer.near) / IP(src=WORKER, dst=SWITCH) / ICMP(id=4, seq=9) / b"ping"
        )
        found["echo"] = peer.next(lambda each: ICMP in each and each[ICMP].type == 0) is not None
        tagged = peer.to(port, contribution(34))
        peer.send(Ether(src=_mac(MAC), dst=peer.near) / Dot1Q(vlan=5) / tagged[IP])
        found["tagged"] = peer.next(lambda each: UDP in each and each[UDP].dport == 7000, 0.2) is None
        found["program"] = (
            "xdp"
            in subprocess.run(
                ["ip", "link", "show", "near"], capture_output=True, text=True, check=True
            ).stdout
        )
    found["gone"] = (
        "xdp"
        not in subprocess.run(
            ["ip", "link", "show", "near"], capture_output=True, text=True, check=True
        ).stdout
    )
    return found


def _worker_transport(host: EmbeddedController) -> dict[str, Any]:
    """Two ranks on the switch's own host that ask for AF_XDP; what they got and were told."""
    import threading

    import worker_lib

    said: dict[str, Any] = {"sums": [], "transports": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def rank(number: int) -> None:
            with worker_lib.connect(host.url, "refused", number, 2, transport="xdp", timeout=100) as session:
                mine = np.full(1000, number + 1, np.int32)
                session.allreduce(mine)
                said["sums"].append(bool((mine == 3).all()))
                said["transports"].append(session.transport)

        threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said["warnings"] = sorted({str(each.message) for each in caught})
    return said


def refusals(_seed: int) -> dict[str, Any]:
    """Interfaces that AF_XDP does not take: loopback, a large MTU, one that another process has."""
    found: dict[str, Any] = {}
    pair(mtu=9000)
    with EmbeddedController("127.0.0.1", transport="xdp") as host:
        found["loopback"] = {"switch": host.switch.warnings, **_worker_transport(host)}
    with Switch(SWITCH, transport="xdp") as switch:
        found["mtu"] = [switch.transport, *switch.warnings]
    for name in ("near", "far"):
        subprocess.run(["ip", "link", "set", name, "mtu", "1500"], check=True)
    holder = (
        "from switchagg.emulator.switch import Switch\n"
        "with Switch('10.0.0.254', transport='xdp') as s: print(s.transport, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        found["other"] = other.stdout.readline().strip()
        with Switch(SWITCH, transport="xdp") as switch:
            found["taken"] = [switch.transport, *switch.warnings]
        other.kill()
    # A killed process leaves nothing behind; two switches of one process share the interface.
    with Switch(SWITCH, transport="xdp") as one, Switch(SWITCH, transport="xdp") as two:
        found["shared"] = [one.transport, two.transport, *one.warnings, *two.warnings]
    native = _native.Socket(0x0A0000FE, 0, 65536, True)
    native.use_xdp()
    native.close()
    return found


def permission(_seed: int) -> dict[str, Any]:
    """Root of a user namespace may not load the program."""
    pair()
    with Switch(SWITCH, transport="xdp") as switch:
        return {"transport": switch.transport, "warnings": switch.warnings}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](int(sys.argv[2]))))
