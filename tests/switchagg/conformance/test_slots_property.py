"""Thousands of random packet sequences: every engine sends what the reference sends, packet for packet.

SWITCHAGG_TEST_SEED repeats a run.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from switchagg.emulator import _native
from switchagg.rules.slots import Out
from switchagg.wire.header import COUNTERS, Flag, Header
from tests.reference.slots import SlotTable
from tests.seeds import seed_of_this_run

from .engines import ENGINES, SEQUENCES, Engine
from .traffic import HARMLESS, HOSTILE, Packet, Traffic

PACKETS = 80  # at most, in a sequence
CAPACITY = 64


def _seed() -> int:
    return seed_of_this_run()


def _open(engine: Engine, traffic: Traffic) -> None:
    for sender in traffic.senders:
        engine.add_job(sender.job)
        for payload, source in sender.inits():
            assert engine.receive(payload, source) == [(None, payload)]


def _assert_same(engine: Engine, reference: Engine, traffic: Traffic) -> None:
    assert engine.counters() == reference.counters()
    for sender in traffic.senders:
        job = sender.job
        assert engine.job_counters(job.job) == reference.job_counters(job.job)
        for index in range(job.base, job.base + job.slots):
            ours, theirs = engine.slot(index), reference.slot(index)
            assert (ours.seq, ours.seen, ours.filled) == (theirs.seq, theirs.seen, theirs.filled)
            assert (ours.words is None) == (theirs.words is None)
            assert ours.words is None or (ours.words == theirs.words).all()


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"reference"}))
def test_an_engine_agrees_with_the_reference(name: str) -> None:
    seed = _seed()
    hits: Counter[str] = Counter()
    tricks: Counter[str] = Counter()
    following = adversarial = finished = flushes = answers = bare = 0
    for number in range(SEQUENCES):
        rng = Random(f"{seed}/{number}")
        hostile = number % 3 == 0
        traffic = Traffic(rng, hostile=hostile, ecn=name != "shared")
        reference, engine = SlotTable(CAPACITY), ENGINES[name](CAPACITY)
        _open(reference, traffic)
        _open(engine, traffic)
        history: list[Packet] = []
        sent: list[Out] = []
        for payload, source in traffic.packets(PACKETS):
            history.append((payload, source))
            outs = reference.receive(payload, source)
            assert engine.receive(payload, source) == outs, f"sequence {number}, packet {len(history)}"
            traffic.answer(outs)
            sent += outs
        _assert_same(engine, reference, traffic)
        if name == "native":
            flushes += _check_zero_copy(rng, traffic, history, sent, reference)
        if not hostile:
            finished += _check_results(traffic)
        hits.update(reference.counters())
        tricks.update(traffic.adversary.used)
        bare += sum(Header.unpack(payload).flags == Flag.DIRECTED for _, payload in sent)
        following += traffic.following
        adversarial += traffic.adversarial
        answers += traffic.answers
    print(f"{following} packets by the window rule, {adversarial} others; {finished=}; {flushes=}; {hits}")
    assert following > adversarial
    assert finished > SEQUENCES // 10
    assert answers > SEQUENCES // 10
    assert bare > SEQUENCES // 10
    assert all(hits[counter] for counter in COUNTERS), hits
    assert set(tricks) == {*HARMLESS, *HOSTILE}
    assert flushes or name != "native"


def _check_results(traffic: Traffic) -> int:
    """Checks that all results of workers are the sums; returns the senders that were done."""
    for sender in traffic.senders:
        for worker in sender.workers:
            for place, result in worker.results.items():
                assert sender.accepts(worker, place, result)
    return sum(sender.done for sender in traffic.senders)


def _check_zero_copy(
    rng: Random, traffic: Traffic, history: list[Packet], sent: list[Out], reference: Engine
) -> int:
    """The same packets in batches whose results are read from slot memory as late as possible."""
    table = _native.SlotTable(CAPACITY)
    _open(table, traffic)
    outs: list[Out] = []
    flushes = at = 0
    while at < len(history):
        batch = history[at : at + rng.choice([1, 5, 64])]
        more, flushed = table.receive_batch(batch)
        outs += more
        flushes += flushed
        at += len(batch)
    assert outs == sent
    _assert_same(table, reference, traffic)
    return flushes


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"reference"}))
def test_an_engine_agrees_while_workers_are_fenced_and_admitted(name: str) -> None:
    seed = _seed()
    changes = 0
    for number in range(SEQUENCES // 10):
        rng = Random(f"{seed}/fence/{number}")
        traffic = Traffic(rng, hostile=number % 3 == 0, ecn=name != "shared")
        reference, engine = SlotTable(CAPACITY), ENGINES[name](CAPACITY)
        _open(reference, traffic)
        _open(engine, traffic)
        for payload, source in traffic.packets(PACKETS):
            if rng.random() < 0.05:
                job = rng.choice(traffic.senders).job
                bits = sum(1 << worker.bit for worker in job.workers if rng.random() < 0.5)
                admits = rng.random() < 0.3
                for each in (reference, engine):
                    (each.admit if admits else each.fence)(job.job, bits)
                changes += 1
            outs = reference.receive(payload, source)
            assert engine.receive(payload, source) == outs, f"sequence {number}"
            traffic.answer(outs)
        _assert_same(engine, reference, traffic)
    assert changes > SEQUENCES // 10
