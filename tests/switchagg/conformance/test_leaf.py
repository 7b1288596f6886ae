"""A leaf switch: the packets it sends to its parent, and the parent's packets it forwards to workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from switchagg.errors import UsageError
from switchagg.rules.slots import JobEntry, Out, ParentEntry, WorkerEntry
from switchagg.wire.header import Flag, Header, Op, encode
from tests.reference.slots import SlotTable

from .engines import Engine
from .scenario import RESULT_TOKEN, Words, words

JOB, BASE, SLOTS, SIZE = 7, 8, 4, 16
PARENT = ParentEntry("10.0.9.1", 48879, 0xB0B0B0B0, 40, 0xCAFECAFE)
WORKERS = (WorkerEntry(0, "10.0.0.1", 4000, 0xA0000000), WorkerEntry(5, "10.0.0.6", 4005, 0xA0000005))


class Leaf:
    """Job 7 with workers 0 and 5, four slots from 8 here and from 40 at the parent; its slots initialised."""

    def __init__(self, engine: Engine, members: tuple[WorkerEntry, ...] = WORKERS) -> None:
        self.engine = engine
        self.entry = JobEntry(JOB, BASE, SLOTS, SIZE, RESULT_TOKEN, members, parent=PARENT)
        engine.add_job(self.entry)
        for seq in range(SLOTS):
            init = encode(Header(Op.INIT, 0, JOB, 0, (seq - SLOTS) % 2**32, BASE + seq))
            assert engine.receive(init, None) == [(None, init)]

    def send(
        self,
        bit: int,
        seq: int,
        payload: Words | None = None,
        op: Op = Op.SUM,
        *,
        again: bool = False,
        reader: int = 0,
        ecn: int = 0,
    ) -> list[Out]:
        worker = next(each for each in self.entry.workers if each.bit == bit)
        flags = ecn | (Flag.RETRANSMISSION if again else 0) | (Flag.DIRECTED if reader else 0)
        header = Header(op, flags, JOB, worker.token, seq, BASE + seq % SLOTS, reader)
        return self.engine.receive(encode(header, payload), worker.address)

    def down(self, packet: bytes) -> list[Out]:
        """Sends a packet from the parent and returns the output."""
        return self.engine.receive(packet, PARENT.address)

    def full(self, seq: int) -> None:
        """Makes a slot full: 11 in every word."""
        assert self.send(0, seq, words(1)) == []
        assert self.send(5, seq, words(10)) == up(seq, words(11))


def up(seq: int, payload: Words | None, op: Op = Op.SUM, *, reply: int = 0, flags: int = 0) -> list[Out]:
    """The leaf's contribution to its parent."""
    header = Header(op, flags, JOB, PARENT.token, seq, PARENT.base + seq % SLOTS, reply)
    return [(PARENT.address, encode(header, payload))]


def result(seq: int, payload: Words | None, reply: int = 0, **wrong: Any) -> bytes:
    """The parent's RESULT to this leaf."""
    header = Header(Op.RESULT, 0, JOB, PARENT.result_token, seq, PARENT.base + seq % SLOTS, reply)
    return encode(replace(header, **wrong), payload)


def to_worker(seq: int, payload: Words | None, *bits: int, flags: int = 0) -> list[Out]:
    """The RESULT as workers get it, with nothing of the parent in it."""
    packet = encode(Header(Op.RESULT, flags, JOB, RESULT_TOKEN, seq, BASE + seq % SLOTS), payload)
    return [(worker.address, packet) for worker in WORKERS if worker.bit in bits]


def test_a_full_slot_goes_up_byte_for_byte(engine: Engine) -> None:
    leaf = Leaf(engine)
    assert leaf.send(0, 2, words(1, 0xFFFFFFFF)) == []
    packet = bytes.fromhex("10 01 0007 b0b0b0b0 00000002 002a 0000" + "0000000b 00000001" * 8)
    assert leaf.send(5, 2, words(10, 2)) == [(PARENT.address, packet)]


def test_the_parents_result_comes_down_byte_for_byte(engine: Engine) -> None:
    leaf = Leaf(engine)
    leaf.full(2)
    above = bytes.fromhex("12 01 0007 cafecafe 00000002 002a 0000" + "0000006f 00000006" * 8)
    below = bytes.fromhex("12 01 0007 feedf00d 00000002 000a 0000" + "0000006f 00000006" * 8)
    assert leaf.down(above) == [(worker.address, below) for worker in WORKERS]


def test_skips_and_ors_go_up_as_what_they_are(engine: Engine) -> None:
    leaf = Leaf(engine)
    leaf.send(0, 0, words(0x81), Op.OR)
    assert leaf.send(5, 0, words(0x18), Op.OR) == up(0, words(0x99), Op.OR)
    leaf.send(5, 1)
    assert leaf.send(0, 1, None, Op.OR) == up(1, None, Op.OR)
    assert leaf.down(result(1, None)) == to_worker(1, None, 0, 5)
    leaf.send(5, 3, words(4))
    assert leaf.send(0, 3) == up(3, words(4))


def test_a_repeat_goes_up_again_with_who_asked(engine: Engine) -> None:
    leaf = Leaf(engine)
    leaf.full(2)
    assert leaf.send(5, 2, words(10), again=True) == up(2, words(11), reply=6, flags=Flag.RETRANSMISSION)
    assert leaf.send(0, 2) == up(2, words(11), reply=1)
    assert engine.job_counters(JOB)["duplicates_answered"] == 2
    assert engine.job_counters(JOB)["retransmissions"] == 1


def test_a_directed_contribution_goes_up_as_one_and_a_bare_result_down(engine: Engine) -> None:
    leaf = Leaf(engine)
    for seq, (reader, payload) in enumerate([(3, words(10)), (40, None)]):
        leaf.send(0, seq, words(1), reader=9)
        total = words(1) if payload is None else words(11)
        outs = leaf.send(5, seq, payload, reader=reader)
        assert outs == up(seq, total, reply=reader, flags=Flag.DIRECTED)
        bare = result(seq, None, flags=Flag.DIRECTED)
        assert leaf.down(bare) == to_worker(seq, None, 0, 5, flags=Flag.DIRECTED)
        assert leaf.down(result(seq, total)) == to_worker(seq, total, 0, 5)
        assert leaf.send(0, seq, words(1), reader=reader) == up(seq, total, reply=1)
    leaf.send(0, 3, words(1), reader=3)
    assert leaf.send(5, 3, words(1), again=True, reader=3) == up(3, words(2), flags=Flag.RETRANSMISSION)


def test_marks_go_up_and_down(engine: Engine) -> None:
    leaf, marked = Leaf(engine), Flag.CE | Flag.ECT
    leaf.send(0, 2, words(1), ecn=marked)
    assert leaf.send(5, 2, words(10), ecn=Flag.ECT) == up(2, words(11), flags=marked)
    again = leaf.send(5, 2, words(10), again=True)
    assert again == up(2, words(11), reply=6, flags=Flag.RETRANSMISSION | marked)
    leaf.send(0, 3, words(1), reader=3, ecn=marked)
    assert leaf.send(5, 3, None, reader=3) == up(3, words(1), reply=3, flags=Flag.DIRECTED | marked)
    assert leaf.down(result(2, words(11), flags=marked)) == to_worker(2, words(11), 0, 5, flags=marked)
    bare = result(2, None, flags=Flag.DIRECTED | Flag.ECT)
    assert leaf.down(bare) == to_worker(2, None, 0, 5, flags=Flag.DIRECTED | Flag.ECT)


def test_a_repeat_before_the_slot_is_full_goes_nowhere(engine: Engine) -> None:
    leaf = Leaf(engine)
    leaf.send(0, 2, words(1))
    assert leaf.send(0, 2, words(1), again=True) == []
    assert engine.job_counters(JOB)["duplicate"] == 1


def test_an_answer_goes_to_the_worker_that_it_names(engine: Engine) -> None:
    leaf = Leaf(engine)
    leaf.full(2)
    assert leaf.down(result(2, words(9), reply=6)) == to_worker(2, words(9), 5)
    assert leaf.down(result(2, None, reply=1)) == to_worker(2, None, 0)
    assert leaf.down(result(2, words(9))) == to_worker(2, words(9), 0, 5)
    assert engine.counters()["delivered"] == 3


def test_the_slot_is_not_looked_at_when_a_result_comes_down(engine: Engine) -> None:
    """A worker asks for a RESULT it lacks, though the next round of the slot may have begun."""
    leaf = Leaf(engine)
    leaf.full(2)
    leaf.send(0, 6, words(5))
    before = engine.slot(BASE + 2)
    assert leaf.down(result(2, words(9))) == to_worker(2, words(9), 0, 5)
    after = engine.slot(BASE + 2)
    assert (after.seq, after.seen, after.filled) == (before.seq, before.seen, before.filled)
    assert leaf.send(5, 6, words(6)) == up(6, words(11))


def test_one_worker_below_sends_everything_up(engine: Engine) -> None:
    leaf = Leaf(engine, WORKERS[1:])
    assert leaf.send(5, 0, words(3)) == up(0, words(3))
    assert leaf.send(5, 1) == up(1, None)
    assert leaf.send(5, 0, words(3), again=True) == up(0, words(3), reply=6, flags=Flag.RETRANSMISSION)


def test_a_fenced_worker_contributes_nothing_and_still_gets_results(engine: Engine) -> None:
    leaf = Leaf(engine)
    leaf.full(1)
    engine.fence(JOB, 1)
    assert leaf.send(0, 2, words(1)) == []
    assert engine.job_counters(JOB)["source"] == 1
    assert leaf.down(result(1, words(2))) == to_worker(1, words(2), 0, 5)


FORGED: dict[str, tuple[bytes, tuple[str, int]]] = {
    "another host": (result(2, words(1)), ("10.0.9.2", PARENT.port)),
    "another port": (result(2, words(1)), (PARENT.ip, PARENT.port - 1)),
    "a worker": (result(2, words(1)), WORKERS[0].address),
    "the token of the results below": (result(2, words(1), token=RESULT_TOKEN), PARENT.address),
    "the leaf's own token": (result(2, words(1), token=PARENT.token), PARENT.address),
    "a slot here": (result(2, words(1), slot=BASE + 2), PARENT.address),
    "the slot after the last": (result(2, words(1), slot=PARENT.base + SLOTS), PARENT.address),
    "another job": (result(2, words(1), job=JOB + 1), PARENT.address),
    "nobody's reply": (result(2, words(1), reply=2), PARENT.address),
    "a reply past 32": (result(2, words(1), reply=0x101), PARENT.address),
    "other words": (result(2, words(1, count=17)), PARENT.address),
    "a broken word": (result(2, words(1)) + b"x", PARENT.address),
    "words without the flag": (result(2, None) + bytes(64), PARENT.address),
    "an INIT": (result(2, None, op=Op.INIT), PARENT.address),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_result_that_is_not_the_parents_is_dropped(engine: Engine, name: str) -> None:
    leaf = Leaf(engine)
    leaf.full(2)
    before, job_before = engine.counters(), engine.job_counters(JOB)
    packet, source = FORGED[name]
    assert engine.receive(packet, source) == []
    changes = {key: count - before[key] for key, count in engine.counters().items() if count != before[key]}
    assert changes == {"received": 1, "op": 1}
    assert engine.job_counters(JOB) == job_before
    assert leaf.down(result(2, words(9))) == to_worker(2, words(9), 0, 5)


def test_a_contribution_of_the_parent_is_a_strangers(engine: Engine) -> None:
    Leaf(engine)
    packet = encode(Header(Op.SUM, 0, JOB, PARENT.result_token, 2, BASE + 2), words(1))
    assert engine.receive(packet, PARENT.address) == []
    assert engine.job_counters(JOB)["source"] == 1


def test_a_job_without_a_parent_takes_no_results(engine: Engine) -> None:
    engine.add_job(JobEntry(JOB, BASE, SLOTS, SIZE, RESULT_TOKEN, WORKERS))
    assert engine.receive(result(2, words(9)), PARENT.address) == []
    assert engine.counters()["op"] == 1


def test_two_levels_through_the_reference(engine: Engine) -> None:
    """This leaf and another under a root that is the reference; every sum is right."""
    root = SlotTable(64)
    leaf = Leaf(engine)
    here, there = ("10.0.8.1", 48879), ("10.0.8.2", 48879)
    members = (WorkerEntry(0, *here, PARENT.token), WorkerEntry(1, *there, 0xD0D0D0D0))
    root.add_job(JobEntry(JOB, PARENT.base, SLOTS, SIZE, PARENT.result_token, members))
    for seq in range(SLOTS):
        init = Header(Op.INIT, 0, JOB, 0, (seq - SLOTS) % 2**32, PARENT.base + seq)
        assert len(root.receive(encode(init), None)) == 1
    rng = np.random.default_rng(5)
    for seq in range(2 * SLOTS):
        mine, theirs = rng.integers(0, 2**32, (2, 2, SIZE), np.uint32)
        assert leaf.send(0, seq, mine[0]) == []
        ((_, packet),) = leaf.send(5, seq, mine[1])
        assert root.receive(packet, here) == []
        header = Header(Op.SUM, 0, JOB, 0xD0D0D0D0, seq, PARENT.base + seq % SLOTS)
        outs = root.receive(encode(header, theirs.sum(axis=0, dtype=np.uint32)), there)
        total = np.concatenate([mine, theirs]).sum(axis=0, dtype=np.uint32)
        ((_, answer),) = [out for out in outs if out[0] == here]
        assert leaf.down(answer) == to_worker(seq, total, 0, 5)
        ((_, again),) = leaf.send(0, seq, mine[0], again=True)
        ((_, answer),) = root.receive(again, here)
        assert leaf.down(answer) == to_worker(seq, total, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ip": "root"}, "ip is"),
        ({"port": 0}, "port is 0"),
        ({"token": -1}, "token is -1"),
        ({"base": -4}, "base is -4"),
        ({"base": 65536}, "base is 65536"),
        ({"result_token": 2**32}, "result_token is"),
    ],
)
def test_what_a_parent_entry_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(PARENT, **change)


def test_what_a_job_entry_refuses_of_its_parent() -> None:
    good = JobEntry(JOB, BASE, SLOTS, SIZE, RESULT_TOKEN, WORKERS, parent=PARENT)
    with pytest.raises(UsageError, match="base at the parent is 42"):
        replace(good, parent=replace(PARENT, base=42))
    with pytest.raises(UsageError, match="its parent's address"):
        replace(good, parent=replace(PARENT, ip=WORKERS[0].ip, port=WORKERS[0].port))
