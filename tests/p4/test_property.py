"""Random packet sequences: devices send what the reference sends, packet for packet.

SWITCHAGG_TEST_SEED repeats a run.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np

from switchagg.p4program.program import Entries
from switchagg.wire.header import COUNTERS
from tests.reference.slots import SlotTable
from tests.seeds import seed_of_this_run
from tests.switchagg.conformance.traffic import Traffic

from .device_under_test import DeviceUnderTest
from .engine import P4Engine

SEQUENCES = 40
PACKETS = 80  # at most, in a sequence
CAPACITY = 64


def test_a_device_agrees_with_the_reference(installed: tuple[DeviceUnderTest, Entries]) -> None:
    dut, common = installed
    seed = seed_of_this_run()
    hits: Counter[str] = Counter()
    number = done = 0
    while done < SEQUENCES:
        number += 1
        traffic = Traffic(Random(f"{seed}/{number}"), hostile=number % 3 == 0)
        if any(sender.job.words != dut.target.words for sender in traffic.senders):
            continue
        done += 1
        reference, engine = SlotTable(CAPACITY), P4Engine(dut, common, CAPACITY)
        for sender in traffic.senders:
            for each in (reference, engine):
                each.add_job(sender.job)
            for payload, source in sender.inits():
                for each in (reference, engine):
                    assert each.receive(payload, source) == [(None, payload)]
        for at, (payload, source) in enumerate(traffic.packets(PACKETS)):
            outs = reference.receive(payload, source)
            assert engine.receive(payload, source) == outs, f"sequence {number}, packet {at}"
            traffic.answer(outs)
        assert engine.counters() == reference.counters()
        for sender in traffic.senders:
            job = sender.job
            assert engine.job_counters(job.job) == reference.job_counters(job.job)
            for index in range(job.base, job.base + job.slots):
                ours, theirs = engine.slot(index), reference.slot(index)
                assert (ours.seq, ours.seen, ours.filled) == (theirs.seq, theirs.seen, theirs.filled)
                assert (ours.words is None) == (theirs.words is None)
                if ours.words is not None and theirs.words is not None:
                    assert np.array_equal(ours.words, theirs.words)
        hits.update(reference.counters())
        engine.close()
    print(hits)
    assert all(hits[counter] for counter in COUNTERS), hits
