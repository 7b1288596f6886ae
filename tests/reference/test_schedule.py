"""Schedules against a plain list of elements."""

from __future__ import annotations

import numpy as np
import pytest

from switchagg.errors import UsageError
from tests.reference.schedule import DENSE_SEGMENT, SPARSE_SEGMENT, Placement, Run, Schedule, segment_elements
from tests.seeds import seed_of_this_run


def test_schedule_of_the_picture_in_the_docstring() -> None:
    union = np.array([0, 1, 0, 0, 1, 1, 0, 1], np.bool_)
    plan = Schedule(elements=30, block=4, per_packet=6, union=union)  # the last block has two elements
    assert (plan.blocks, plan.length, plan.packets) == (8, 14, 3)
    assert plan.packet(0) == [Run(1, 0, 4, 4, 0), Run(4, 0, 16, 2, 4)]
    assert plan.packet(1) == [Run(4, 2, 18, 2, 0), Run(5, 0, 20, 4, 2)]
    assert plan.packet(2) == [Run(7, 0, 28, 2, 0)]
    with pytest.raises(UsageError, match="packet 3"):
        plan.packet(3)
    own = np.zeros(8, np.bool_)
    own[5] = True
    assert plan.skips(own).tolist() == [True, False, True]


def test_schedule_is_the_unions_elements_in_order() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for _ in range(200):
        elements = int(rng.integers(0, 400))
        block = int(rng.choice([1, 2, 3, 7, 16, 64, 500]))
        per_packet = int(rng.choice([1, 5, 16, 33, 64]))
        blocks = -(-elements // block)
        union = rng.random(blocks) < rng.random() if rng.random() < 0.8 else None
        own = rng.random(blocks) < 0.2
        chosen = np.ones(blocks, np.bool_) if union is None else union
        expected = [e for e in range(elements) if chosen[e // block]]

        plan = Schedule(elements, block, per_packet, union)
        assert plan.length == len(expected)
        assert plan.stream().tolist() == expected
        assert plan.packets == -(-len(expected) // per_packet)
        skips = plan.skips(own)
        for p in range(plan.packets):
            part = expected[p * per_packet : (p + 1) * per_packet]
            runs = plan.packet(p)
            assert [r.element + i for r in runs for i in range(r.count)] == part
            assert [r.lane + i for r in runs for i in range(r.count)] == list(range(len(part)))
            assert all(r.element == r.block * block + r.offset for r in runs)
            assert bool(skips[p]) == (not any(own[e // block] for e in part))


def test_schedule_refuses_a_bitmap_of_another_shape() -> None:
    with pytest.raises(UsageError, match=r"union is bool of shape \(3,\); needed: bool of shape \(2,\)"):
        Schedule(100, 50, 16, np.ones(3, np.bool_))
    with pytest.raises(UsageError, match="own is int64"):
        Schedule(100, 50, 16).skips(np.ones(2, np.int64))
    with pytest.raises(UsageError, match="at least 1 a block"):
        Schedule(100, 0, 16)


def test_placement_wraps() -> None:
    place = Placement(first_seq=0xFFFFFFFE, base=64, slots=8)
    assert [place.seq(p) for p in range(4)] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    assert [place.slot(p) for p in range(4)] == [70, 71, 64, 65]
    assert place.slot(8) == place.slot(0)


def test_segments_are_whole_words_of_the_bitmap() -> None:
    assert segment_elements(64, sparse=False) == DENSE_SEGMENT
    assert segment_elements(64, sparse=True) == SPARSE_SEGMENT
    assert segment_elements(65536, sparse=False) == 32 * 65536
    for block in (1, 3, 7, 1000):
        for sparse in (False, True):
            size = segment_elements(block, sparse=sparse)
            assert size % (32 * block) == 0
            assert 0 <= size - (SPARSE_SEGMENT if sparse else DENSE_SEGMENT) < 32 * block
