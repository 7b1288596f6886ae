"""A leaf switch adds for its rack and sends one contribution up; the root's RESULT comes down through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from switchagg.p4program.entries import job_entries
from switchagg.p4program.frames import frame, packet_in, packet_out
from switchagg.p4program.program import Entries, JobPlace, Parent, Station, TableEntry
from switchagg.rules.slots import JobEntry, Out, WorkerEntry
from switchagg.wire.header import Header, Op, decode, encode
from tests.reference.slots import SlotTable
from tests.switchagg.conformance.scenario import Words, words

from .device_under_test import DeviceUnderTest
from .engine import ADDRESS, mac_of
from .native import EtherSwitchDevice

JOB, SLOTS, BASE, ROOT_BASE = 5, 4, 16, 40
RESULT_TOKEN, ROOT_RESULT_TOKEN, LEAF_TOKEN = 0x11111111, 0x22222222, 0x33333333
UPLINK = 40
ROOT_IP, ROOT_PORT = "10.0.255.253", 48879
OTHER_LEAF = WorkerEntry(1, "10.0.255.252", 48879, 0x44444444)
WORKERS = tuple(WorkerEntry(bit, f"10.0.3.{bit + 1}", 7000 + bit, 0x900 + bit) for bit in (0, 5))


@dataclass
class Leaf:
    """The device as a leaf with workers 0 and 5; its parent is the reference, where it is worker 0 of two."""

    dut: DeviceUnderTest
    root: SlotTable
    entries: tuple[TableEntry, ...]

    def send(self, bit: int, seq: int, payload: Words | None, *, op: Op = Op.SUM) -> list[bytes]:
        """Sends a worker's packet; returns what goes up to the parent."""
        worker = next(each for each in WORKERS if each.bit == bit)
        slot = BASE + seq % SLOTS
        packet = encode(Header(op, 0, JOB, worker.token, seq, slot), payload)
        source = mac_of(worker.ip), worker.ip, worker.port
        own = ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port
        outs = self.dut.send(10 + bit, frame(packet, source, own))
        up = []
        for port, data in outs:
            assert port == UPLINK
            assert data[:6] == mac_of(ROOT_IP).to_bytes(6, "big")
            assert data[6:12] == ADDRESS.mac.to_bytes(6, "big")
            body = data[42 : 34 + int.from_bytes(data[38:40], "big")]
            root = mac_of(ROOT_IP), ROOT_IP, ROOT_PORT
            assert data[: 42 + len(body)] == frame(body, own, root, pad=False)
            up.append(body)
        return up

    def above(self, packet: bytes) -> list[Out]:
        """Hands the root what a leaf sent; returns what it answers to this leaf."""
        source = ADDRESS.ip, ADDRESS.udp_port
        return [out for out in self.root.receive(packet, source) if out[0] == source]

    def other(self, seq: int, payload: Words | None) -> list[Out]:
        """The other leaf's contribution; returns what the root answers to this leaf."""
        header = Header(Op.SUM, 0, JOB, OTHER_LEAF.token, seq, ROOT_BASE + seq % SLOTS)
        outs = self.root.receive(encode(header, payload), OTHER_LEAF.address)
        return [out for out in outs if out[0] == (ADDRESS.ip, ADDRESS.udp_port)]

    def down(self, packet: bytes, *, port: int = UPLINK) -> list[tuple[str, int, bytes]]:
        """Hands the leaf a packet from the root; returns what its workers get."""
        root = mac_of(ROOT_IP), ROOT_IP, ROOT_PORT
        own = ADDRESS.mac, ADDRESS.ip, ADDRESS.udp_port
        got = []
        for port_out, data in self.dut.send(port, frame(packet, root, own)):
            worker = WORKERS[(10, 15).index(port_out)]
            body = data[42 : 34 + int.from_bytes(data[38:40], "big")]
            to = mac_of(worker.ip), worker.ip, worker.port
            assert data[: 42 + len(body)] == frame(body, own, to, pad=False)
            got.append((worker.ip, worker.port, body))
        return sorted(got)


def _result(seq: int, payload: Words | None) -> bytes:
    return encode(Header(Op.RESULT, 0, JOB, RESULT_TOKEN, seq, BASE + seq % SLOTS), payload)


def _everybody(packet: bytes) -> list[tuple[str, int, bytes]]:
    return [(worker.ip, worker.port, packet) for worker in WORKERS]


@pytest.fixture
def leaf(installed: tuple[DeviceUnderTest, Entries]) -> Iterator[Leaf]:
    dut, _ = installed
    size = dut.target.words
    parent = Parent(
        Station(UPLINK, mac_of(ROOT_IP)), ROOT_IP, LEAF_TOKEN, ROOT_BASE, ROOT_RESULT_TOKEN, ROOT_PORT
    )
    place = JobPlace(9, {each.bit: Station(10 + each.bit, mac_of(each.ip)) for each in WORKERS}, parent)
    entries = job_entries(dut.target, JobEntry(JOB, BASE, SLOTS, size, RESULT_TOKEN, WORKERS), place)
    for entry in entries.tables:
        dut.insert(entry)
    for group in entries.groups:
        dut.insert_group(group)
    root = SlotTable(64)
    this_leaf = WorkerEntry(0, ADDRESS.ip, ADDRESS.udp_port, LEAF_TOKEN)
    root.add_job(JobEntry(JOB, ROOT_BASE, SLOTS, size, ROOT_RESULT_TOKEN, (this_leaf, OTHER_LEAF)))
    for seq in range(SLOTS):
        init = encode(Header(Op.INIT, 0, JOB, 0, (seq - SLOTS) % 2**32, BASE + seq))
        outs = dut.send(dut.target.controller_port, packet_out(dut.target, ADDRESS, init))
        assert [(port, packet_in(data)) for port, data in outs] == [(dut.target.controller_port, init)]
        root.receive(encode(Header(Op.INIT, 0, JOB, 0, (seq - SLOTS) % 2**32, ROOT_BASE + seq)), None)
    yield Leaf(dut, root, entries.tables)
    for entry in entries.tables:
        dut.delete(entry)
    for group in entries.groups:
        dut.delete_group(group)


@pytest.mark.parametrize("first", [True, False])
def test_a_sum_through_two_levels(leaf: Leaf, first: bool) -> None:
    assert leaf.send(0, 2, words(1, 0xFFFFFFFF)) == []
    (up,) = leaf.send(5, 2, words(10, 2))
    assert up == encode(Header(Op.SUM, 0, JOB, LEAF_TOKEN, 2, ROOT_BASE + 2), words(11, 1))
    if first:
        assert leaf.above(up) == []
        ((_, result),) = leaf.other(2, words(100, 5))
    else:
        assert leaf.other(2, words(100, 5)) == []
        ((_, result),) = leaf.above(up)
    assert leaf.down(result) == _everybody(_result(2, words(111, 6)))


def test_ors_and_skips_go_up_as_what_they_are(leaf: Leaf) -> None:
    leaf.send(0, 0, words(0x81), op=Op.OR)
    (up,) = leaf.send(5, 0, words(0x18), op=Op.OR)
    assert up == encode(Header(Op.OR, 0, JOB, LEAF_TOKEN, 0, ROOT_BASE), words(0x99))
    leaf.send(5, 1, None)
    (up,) = leaf.send(0, 1, None)
    assert up == encode(Header(Op.SUM, 0, JOB, LEAF_TOKEN, 1, ROOT_BASE + 1))
    leaf.above(up)
    ((_, result),) = leaf.other(1, None)
    assert leaf.down(result) == _everybody(_result(1, None))
    leaf.send(5, 3, words(4))
    (up,) = leaf.send(0, 3, None)
    assert decode(up)[1] is not None
    assert up[16:] == encode(Header(Op.SUM, 0, 0, 0, 0, 0), words(4))[16:]


def test_a_repeat_is_answered_to_the_worker_that_asked(leaf: Leaf) -> None:
    leaf.send(0, 2, words(1))
    (up,) = leaf.send(5, 2, words(10))
    leaf.above(up)
    leaf.other(2, words(100))  # its RESULT is lost on the way to this leaf
    (again,) = leaf.send(5, 2, words(10))
    assert again == encode(Header(Op.SUM, 0, JOB, LEAF_TOKEN, 2, ROOT_BASE + 2, 6), words(11))
    ((_, result),) = leaf.above(again)
    assert leaf.down(result) == [(WORKERS[1].ip, WORKERS[1].port, _result(2, words(111)))]
    (again,) = leaf.send(0, 2, None)
    assert decode(again)[0].reply == 1


def test_what_nobody_is_known_for_does_not_leave(
    leaf: Leaf, installed: tuple[DeviceUnderTest, Entries]
) -> None:
    """As while a job is taken off: the packet would leave with its sender's token in it."""
    dut, _ = installed
    if isinstance(dut, EtherSwitchDevice):
        pytest.skip("to the native engine a job ends where a receiver of it goes")
    before = dut.cell("SwitchEgress.unaddressed", 0)
    (entry,) = (each for each in leaf.entries if each.action == "to_parent")
    dut.delete(entry)
    leaf.send(0, 2, words(1))
    assert leaf.send(5, 2, words(10)) == []
    assert dut.cell("SwitchEgress.unaddressed", 0) == before + 1
    dut.insert(entry)
    assert len(leaf.send(5, 2, words(10))) == 1


def test_a_contribution_lost_on_the_way_up_is_made_up_for(leaf: Leaf) -> None:
    leaf.send(0, 2, words(1))
    leaf.send(5, 2, words(10))  # lost
    assert leaf.other(2, words(100)) == []
    (again,) = leaf.send(0, 2, words(1))
    ((_, result),) = leaf.above(again)
    assert leaf.down(result) == _everybody(_result(2, words(111)))


def test_results_that_are_not_the_parents_are_dropped(leaf: Leaf) -> None:
    good = Header(Op.RESULT, 0, JOB, ROOT_RESULT_TOKEN, 2, ROOT_BASE + 2)
    assert len(leaf.down(encode(good, words(1)))) == 2
    assert leaf.down(encode(good, words(1)), port=UPLINK - 1) == []
    for wrong in (
        {"token": RESULT_TOKEN},
        {"slot": BASE + 2},
        {"job": JOB + 1},
        {"reply": 2},
        {"op": Op.INIT},
    ):
        fields = {name: getattr(good, name) for name in good.__slots__} | wrong
        assert leaf.down(encode(Header(**fields), words(1))) == []
    assert leaf.down(encode(good, words(1)) + bytes(4)) == []
