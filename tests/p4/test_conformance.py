"""The conformance suite on the devices that run the P4 programs."""

from __future__ import annotations

import pytest

from switchagg.rules.slots import Out
from switchagg.wire.header import Flag, encode
from tests.switchagg.conformance import test_leaf, test_slots
from tests.switchagg.conformance.scenario import Job, words
from tests.switchagg.conformance.test_slots import *  # noqa: F403

from .engine import P4Engine

ECT, CE = 2, 3

# These make their engines themselves, or none.
del test_the_smallest_and_the_largest_job  # noqa: F821
del test_capacity_is_checked  # noqa: F821
del test_what_a_job_entry_refuses  # noqa: F821
del test_what_a_worker_entry_refuses  # noqa: F821

# A P4 switch's registers keep what an earlier job left until the INITs of the next come.
del test_the_slots_of_a_new_job_hold_zeros  # noqa: F821


@pytest.mark.parametrize("marked", [0, 1])
def test_ce_in_the_ip_header_is_in_the_result(engine: P4Engine, marked: int) -> None:
    job = Job(engine)

    def round_(seq: int, *ecn: int, flags: int) -> list[Out]:
        for worker, entry in enumerate(job.entry.workers):
            packet = encode(job.header(worker, seq, flags=flags), words(1))
            outs = engine.receive(packet, entry.address, ecn=ecn[worker])
        return outs

    ecn = (CE, ECT) if marked == 0 else (ECT, CE)
    both = Flag.CE | Flag.ECT
    assert round_(0, *ecn, flags=Flag.ECT) == job.multicast(seq=0, slot=8, payload=words(2), ecn=both)
    assert engine.ecn in (ECT, CE), "a queue on the way back may mark it"
    assert job.send(0, 0, words(1), again=True) == job.unicast(0, seq=0, slot=8, payload=words(2), ecn=both)
    expected = job.multicast(seq=4, slot=8, payload=words(2), ecn=Flag.ECT)
    assert round_(4, ECT, ECT, flags=Flag.ECT) == expected
    assert engine.ecn == ECT
    assert round_(8, 0, 0, flags=0) == job.multicast(seq=8, slot=8, payload=words(2))
    assert engine.ecn == 0


def test_ce_in_the_ip_header_of_a_parents_result_goes_down(engine: P4Engine) -> None:
    leaf = test_leaf.Leaf(engine)
    leaf.full(2)
    both = Flag.CE | Flag.ECT
    packet = test_leaf.result(2, words(11), flags=Flag.ECT)
    outs = engine.receive(packet, test_leaf.PARENT.address, ecn=CE)
    assert outs == test_leaf.to_worker(2, words(11), 0, 5, flags=both)
    assert engine.ecn in (ECT, CE)


def test_the_suite_is_here() -> None:
    ours = {name for name in globals() if name.startswith("test_") and name != "test_leaf"}
    theirs = {name for name in vars(test_slots) if name.startswith("test_")}
    assert len(theirs - ours) == 5
