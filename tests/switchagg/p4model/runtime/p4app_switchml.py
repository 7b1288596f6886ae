"""SwitchML's own TNA program (github.com/p4lang/p4app-switchML) in the model, with workers.

    open_switchml()   the program with the table entries that its controller writes
    run()             workers, and FIFO links that lose packets

The program is not part of this repository: P4APP_SWITCHML names a checkout of it (written for b5c74a04).
Entries, ports and the order of priorities are those of dev_root/controller.
"""

from __future__ import annotations

import os
import random
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.p4entities.matches import Exact, Ternary
from switchagg.p4model.runtime.open import open_switch
from switchagg.p4model.runtime.tna import TofinoSwitch

VARIABLE: Final = "P4APP_SWITCHML"
SWITCH_MAC, SWITCH_IP = 0x001122334455, 0x0A0000FE
UDP_PORT: Final = 0xBEE0
# One for all workers: the switch answers all of them at the port that its last packet came from.
WORKER_PORT: Final = 4000
# The recirculation port before each harvest pass of a packet with 256 words.
CONTROLLER_PORTS: Final = {1: 452, 2: 324, 3: 448, 4: 196, 5: 192, 6: 64, 7: 68}
_LOOPBACK: Final = [64, 192, 448, *(pipe << 7 | port for pipe in (1, 2, 3) for port in range(0, 64, 4))]
_HEADERS: Final = struct.Struct(">6s6sH BBHHHBBHII HHHH BBIH bb")
_CONSUME, _HARVEST = 4, 8  # packet types
_LOWEST: Final = 1 << 24

Words = npt.NDArray[np.uint32]


def program() -> Path:
    """Returns the program's path; skips the test that asks for it where there is none."""
    checkout = os.environ.get(VARIABLE)
    if checkout is None:
        pytest.skip(f"{VARIABLE} names no checkout of github.com/p4lang/p4app-switchML")
    return Path(checkout) / "dev_root/p4/switchml.p4"


def mac(worker: int) -> int:
    return 0x020000000000 | worker


def ip(worker: int) -> int:
    return 0x0A000001 + worker


def port(worker: int) -> int:
    return 4 * worker


def open_switchml(
    workers: int, *, folded: bool = False, harvest: dict[int, int] | None = None
) -> TofinoSwitch:
    """Returns the switch as its controller sets it up, and a session with these workers on ports 0, 4, 8, ...

    Args:
        folded: with the entries for packets of 256 words, and the ports in loopback that these need.
        harvest: the recirculation ports of the harvest passes, by number; None for the controller's.
    """
    switch = open_switch(program())
    assert isinstance(switch, TofinoSwitch)
    _set_switch_address(switch)
    _set_next_steps(switch, harvest or CONTROLLER_PORTS, folded=folded)
    if folded:
        switch.recirculation_ports.update(_LOOPBACK)
    forward = switch.table("forwarder.forward")
    forward.add({"hdr.ethernet.dst_addr": Exact(0xFFFFFFFFFFFF)}, "flood", {"flood_mgid": 0x8000})
    forward.set_default("flood", {"flood_mgid": 0x8000})
    engine = switch.replication
    engine.add_group(0x8000)
    # There is one session, number 0, and that is the number of its multicast group.
    engine.add_group(0)
    for worker in range(workers):
        place = port(worker)
        forward.add({"hdr.ethernet.dst_addr": Exact(mac(worker))}, "set_egress_port", {"egress_port": place})
        engine.associate(0x8000, engine.add_node(0x8000 + place, [place], 0x8000 + place))
        engine.associate(0, engine.add_node(worker, [place], worker))
        switch.table("receive_udp").add(
            {
                "hdr.ethernet.src_addr": Ternary(mac(worker), 0xFFFFFFFFFFFF),
                "hdr.ethernet.dst_addr": Ternary(SWITCH_MAC, 0xFFFFFFFFFFFF),
                "hdr.ipv4.src_addr": Ternary(ip(worker), 0xFFFFFFFF),
                "hdr.ipv4.dst_addr": Ternary(SWITCH_IP, 0xFFFFFFFF),
                "hdr.udp.dst_port": Ternary(UDP_PORT, 0xFFF0),
            },
            "set_bitmap",
            {
                "mgid": 0,
                "worker_type": 1,
                "worker_id": worker,
                "num_workers": workers,
                "worker_bitmap": 1 << worker,
            },
            _LOWEST - 10,
        )
        switch.table("udp_sender.dst_addr").add(
            {"eg_md.switchml_md.worker_id": Exact(worker)},
            "set_dst_addr",
            {"eth_dst_addr": mac(worker), "ip_dst_addr": ip(worker)},
        )
    return switch


def _set_switch_address(switch: TofinoSwitch) -> None:
    address = {"switch_mac": SWITCH_MAC, "switch_ip": SWITCH_IP}
    arp = {"hdr.arp_ipv4.$valid$": Exact(1), "hdr.icmp.$valid$": Exact(0)}
    arp_fields = {
        "hdr.arp.opcode": Ternary(1, 0xFFFF),
        "hdr.arp_ipv4.dst_proto_addr": Ternary(SWITCH_IP, 0xFFFFFFFF),
    }
    icmp = {"hdr.arp_ipv4.$valid$": Exact(0), "hdr.icmp.$valid$": Exact(1)}
    icmp_fields = {"hdr.icmp.msg_type": Ternary(8, 0xFF), "hdr.ipv4.dst_addr": Ternary(SWITCH_IP, 0xFFFFFFFF)}
    table = switch.table("arp_icmp_responder.arp_icmp")
    table.add(arp | arp_fields, "send_arp_reply", address, 2)
    table.add(icmp | icmp_fields, "send_icmp_echo_reply", address, 1)
    rest = {"message_length": 0, "first_last_mask": 0}
    switch.table("rdma_sender.switch_mac_and_ip").set_default("set_switch_mac_and_ip", address | rest)
    switch.table("udp_sender.switch_mac_and_ip").set_default("set_switch_mac_and_ip", address)


def _set_next_steps(switch: TofinoSwitch, harvest: dict[int, int], *, folded: bool) -> None:
    """The entries of next_step_selector.py: size, worker, type, first or last, seen before, action, port."""
    consume = [_CONSUME + number for number in range(4)]
    last_pass = _HARVEST + 7
    rows: list[tuple[int | None, int | None, int | None, int | None, int | None, str, int | None]] = [
        (0, None, None, None, None, "drop", None),
        (1, None, consume[0], 1, None, "recirculate_for_HARVEST7", harvest[7]),
        (1, None, consume[0], None, 0, "finish_consume", None),
        (1, None, consume[0], 0, None, "recirculate_for_HARVEST7", harvest[7]),
        (1, None, consume[0], None, None, "drop", None),
        (2, None, None, None, None, "drop", None),
    ]
    if folded:
        for flag, seen in ((None, 0), (0, None)):
            for worker in range(16):
                target = 128 + 4 * worker
                rows.append((3, worker, consume[0], flag, seen, "recirculate_for_CONSUME1", target))
        rows += [
            (3, None, consume[0], None, None, "drop", None),
            (3, None, consume[1], None, None, "recirculate_for_CONSUME2_same_port_next_pipe", None),
            (3, None, consume[2], None, None, "recirculate_for_CONSUME3_same_port_next_pipe", None),
            (3, None, consume[3], 1, None, "recirculate_for_HARVEST1", harvest[1]),
            (3, None, consume[3], None, 0, "finish_consume", None),
            (3, None, consume[3], 0, None, "recirculate_for_HARVEST1", harvest[1]),
            (3, None, consume[3], None, None, "drop", None),
        ]
        for number in range(7):
            action = f"recirculate_for_HARVEST{number + 1}"
            rows.append((3, None, _HARVEST + number, None, None, action, harvest[number + 1]))
    rows += [
        (None, None, last_pass, 1, 0, "broadcast", None),
        (None, None, last_pass, 0, 0, "drop", None),
        (None, None, last_pass, 0, None, "retransmit", None),
        (None, None, last_pass, None, None, "drop", None),
    ]
    names = ("packet_size", "worker_id", "packet_type", "first_last_flag", "map_result")
    masks = (0x7, 0xFFFF, 0xF, 0xFF, 0xFFFFFFFF)
    for place, (*values, action, target_port) in enumerate(rows):
        matches = {
            f"ig_md.switchml_md.{name}": Ternary(value, mask)
            for name, mask, value in zip(names, masks, values, strict=True)
            if value is not None
        }
        arguments = {} if target_port is None else {"recirc_port": target_port}
        switch.table("next_step").add(matches, action, arguments, _LOWEST - place)


@dataclass(frozen=True)
class Result:
    """A result packet."""

    slot: int
    half: int
    number: int
    words: Words
    exponents: tuple[int, int]


def packet(
    worker: int, slot: int, half: int, number: int, words: Words, exponents: tuple[int, int] = (0, 0)
) -> bytes:
    """Returns the frame with a worker's words for a slot, in one of its two halves. `number` comes back."""
    data = words.astype(">u4").tobytes()
    length = 8 + 8 + 2 + len(data)
    size = {64: 1, 256: 3}[len(words)]
    return (
        _HEADERS.pack(
            SWITCH_MAC.to_bytes(6, "big"), mac(worker).to_bytes(6, "big"), 0x0800,
            0x45, 0, 20 + length, 0, 0, 64, 17, 0, ip(worker), SWITCH_IP,
            WORKER_PORT, UDP_PORT, length, 0,
            size, 7, number, half << 15 | slot, *exponents,
        )
        + data
    )  # fmt: skip


def result(worker: int, frame: bytes) -> Result:
    """Returns the result in a frame to a worker. Asserts that its headers are right."""
    fields = _HEADERS.unpack_from(frame)
    data = frame[_HEADERS.size :]
    length = len(frame) - 34
    size = {256: 1, 1024: 3}[len(data)]
    assert fields[:3] == (mac(worker).to_bytes(6, "big"), SWITCH_MAC.to_bytes(6, "big"), 0x0800)
    assert fields[3:10] == (0x45, 0, 20 + length, 0, 0, 64, 17)
    assert fields[11:13] == (SWITCH_IP, ip(worker))
    assert fields[13:17] == (UDP_PORT, WORKER_PORT, length, 0)
    assert fields[17:19] == (1 << 4 | size, 7)
    number, place, *exponents = fields[19:]
    return Result(
        place & 0x3FFF, place >> 15, number, np.frombuffer(data, ">u4").astype(np.uint32),
        (exponents[0], exponents[1]),
    )  # fmt: skip


def exchange(switch: TofinoSwitch, worker: int, frame: bytes) -> list[tuple[int, Result]]:
    """Sends a frame of a worker; returns (worker, result) of all that come out, in order."""
    return [(out // 4, result(out // 4, data)) for out, data in switch.process(port(worker), frame)]


@dataclass
class Worker:
    """Sends its vectors, one a round and slot, and keeps the sums; retransmits what has no result."""

    rank: int
    vectors: Words
    """of shape (rounds, slots, words)"""
    sums: Words = field(init=False)
    rounds: list[int] = field(init=False)
    outgoing: deque[bytes] = field(default_factory=deque)
    incoming: deque[Result] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.sums = np.zeros_like(self.vectors)
        self.rounds = [0] * self.vectors.shape[1]
        for slot in range(len(self.rounds)):
            self.send(slot)

    @property
    def unfinished(self) -> list[int]:
        return [slot for slot, round_ in enumerate(self.rounds) if round_ < len(self.vectors)]

    def send(self, slot: int) -> None:
        """Sends the packet of a slot's present round, for the first time or again."""
        round_ = self.rounds[slot]
        words = self.vectors[round_, slot]
        self.outgoing.append(packet(self.rank, slot, round_ & 1, round_ << 16 | slot, words))

    def take(self, got: Result) -> None:
        """Takes a result; one of an earlier round is old news."""
        round_ = self.rounds[got.slot]
        if got.half != round_ & 1 or round_ == len(self.vectors):
            return
        self.sums[round_, got.slot] = got.words
        self.rounds[got.slot] += 1
        if self.rounds[got.slot] < len(self.vectors):
            self.send(got.slot)


def run(switch: TofinoSwitch, workers: Sequence[Worker], loss: float, generator: random.Random) -> int:
    """Runs until every worker has all sums; returns the packets lost. Links keep order."""
    lost = 0
    while any(worker.unfinished for worker in workers):
        busy = [worker for worker in workers if worker.outgoing or worker.incoming]
        if not busy:
            for worker in workers:
                for slot in worker.unfinished:
                    worker.send(slot)
            continue
        chosen = generator.choice(busy)
        if chosen.incoming and (not chosen.outgoing or generator.random() < 0.5):
            chosen.take(chosen.incoming.popleft())
            continue
        frame = chosen.outgoing.popleft()
        if generator.random() < loss:
            lost += 1
            continue
        for receiver, got in exchange(switch, chosen.rank, frame):
            if generator.random() < loss:
                lost += 1
            else:
                workers[receiver].incoming.append(got)
    return lost


def numbers(generator: random.Random, *shape: int) -> Words:
    """Returns random words of this shape, whose sums wrap."""
    whole = np.random.default_rng(generator.getrandbits(64))
    return whole.integers(0, 1 << 32, shape, np.uint32)
