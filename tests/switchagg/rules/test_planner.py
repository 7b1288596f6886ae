"""Schedules against a plain list of elements, and the arithmetic of skipping."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from switchagg.errors import UsageError
from switchagg.rules.planner import (
    DEFAULT_BLOCK,
    DEFAULT_SLOTS,
    DEFAULT_WORDS,
    DENSE_SEGMENT,
    LEAD,
    SPARSE_SEGMENT,
    Overlap,
    Placement,
    Run,
    Schedule,
    SkipPolicy,
    StepKind,
    dense_traffic,
    elements_per_packet,
    ring_traffic,
    segment_elements,
    steps,
    union_density,
    zero_skip_traffic,
)
from switchagg.wire.header import max_words
from tests.seeds import seed_of_this_run


@pytest.fixture
def rng() -> np.random.Generator:
    seed = seed_of_this_run()
    return np.random.default_rng(seed)


def test_elements_per_packet() -> None:
    assert [elements_per_packet(352, bits) for bits in (64, 32, 16, 8)] == [117, 352, 704, 1408]
    assert elements_per_packet(16, 64) == 5
    with pytest.raises(UsageError, match="bits is 12"):
        elements_per_packet(352, 12)
    with pytest.raises(UsageError, match="words is 15"):
        elements_per_packet(15, 32)


def test_defaults_fit_an_ethernet_frame() -> None:
    assert max_words(1500) >= DEFAULT_WORDS
    assert DEFAULT_SLOTS & (DEFAULT_SLOTS - 1) == 0
    assert SkipPolicy() == SkipPolicy(DEFAULT_BLOCK, dense=False)


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


def test_schedule_is_the_unions_elements_in_order(rng: np.random.Generator) -> None:
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
            assert [r.position + i for r in runs for i in range(r.count)] == list(range(len(part)))
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


def test_policy_word() -> None:
    lanes = [SkipPolicy(100, bits=bits) for bits in (8, 16, 32, 64)]
    for policy in (SkipPolicy(), SkipPolicy(1), SkipPolicy(65536, dense=True), *lanes):
        assert SkipPolicy.from_word(policy.word()) == policy
    assert SkipPolicy(64, dense=True).word() == 0xC0000040
    assert SkipPolicy(64, bits=16).word() == 0x80200040
    assert SkipPolicy.from_word(0) is None
    assert SkipPolicy.from_word(64) is None
    for block in (0, 65537):
        with pytest.raises(UsageError, match=f"block is {block}; accepted: 1 to 65536"):
            SkipPolicy(block)


def test_steps_of_the_picture_in_the_docstring() -> None:
    names = [kind.value if kind is StepKind.HEADER else f"{kind.value} {i}" for kind, i in steps(4, 2)]
    assert names == [
        "header", "plan 0", "plan 1", "stream 0", "plan 2", "stream 1", "plan 3", "stream 2", "stream 3",
    ]  # fmt: skip


def test_plans_run_ahead_of_streams_by_the_lead() -> None:
    for segments in range(12):
        for lead in range(1, 14):
            order = steps(segments, lead)
            assert order[0] == (StepKind.HEADER, 0)
            assert len(order) == 1 + 2 * segments
            for kind in (StepKind.PLAN, StepKind.STREAM):
                assert [i for k, i in order if k is kind] == list(range(segments))
            for i in range(segments):
                before = order[: order.index((StepKind.STREAM, i))]
                assert sum(k is StepKind.PLAN for k, _ in before) == min(segments, i + lead)


def test_steps_refuses_what_is_out_of_range() -> None:
    with pytest.raises(UsageError, match="-1 segments"):
        steps(-1)
    with pytest.raises(UsageError, match="lead 0"):
        steps(1, 0)


def test_segments_are_whole_words_of_the_bitmap() -> None:
    assert segment_elements(64, sparse=False) == DENSE_SEGMENT
    assert segment_elements(64, sparse=True) == SPARSE_SEGMENT
    assert segment_elements(65536, sparse=False) == 32 * 65536
    for block in (1, 3, 7, 1000):
        for sparse in (False, True):
            size = segment_elements(block, sparse=sparse)
            assert size % (32 * block) == 0
            assert 0 <= size - (SPARSE_SEGMENT if sparse else DENSE_SEGMENT) < 32 * block


def test_the_engine_has_the_same_constants() -> None:
    engine = Path(__file__).parents[3] / "switchagg" / "native" / "worker" / "engine.cpp"
    source = engine.read_text()
    found = {
        name: eval(value, {})
        for name, value in re.findall(r"\b(kDenseSegment|kSparseSegment|kLead) = ([0-9 <]+)[,;]", source)
    }
    assert found == {"kDenseSegment": DENSE_SEGMENT, "kSparseSegment": SPARSE_SEGMENT, "kLead": LEAD}


def test_union_density() -> None:
    assert union_density(0.01, 4, Overlap.ALL) == 0.01
    assert union_density(0.01, 4, Overlap.NONE) == 0.04
    assert union_density(0.4, 4, Overlap.NONE) == 1
    assert union_density(0.01, 4, Overlap.RANDOM) == pytest.approx(1 - 0.99**4)
    with pytest.raises(UsageError, match=r"density is 1\.5"):
        union_density(1.5, 4, Overlap.ALL)


def test_union_density_of_random_bitmaps(rng: np.random.Generator) -> None:
    bitmaps = rng.random((6, 200_000)) < 0.05
    assert bitmaps.any(axis=0).mean() == pytest.approx(union_density(0.05, 6, Overlap.RANDOM), rel=0.05)


def test_traffic() -> None:
    n, elements = 4, 352 * 1000
    ring, dense = ring_traffic(elements, n), dense_traffic(elements)
    assert ring.words_sent == ring.words_received == 1.5 * elements
    assert dense.words_sent == elements
    assert dense.bytes_sent == 1000 * (4 * 352 + 44)
    assert dense_traffic(elements, bits=8).words_sent == elements / 4
    full = zero_skip_traffic(elements, n, 1.0, Overlap.ALL)
    assert (full.words_sent, full.words_received) == (dense.words_sent, dense.words_received)
    assert zero_skip_traffic(elements, n, 0.0, Overlap.RANDOM).bytes_sent == 0


def test_traffic_of_skipping_matches_schedules(rng: np.random.Generator) -> None:
    n, blocks, block, density = 4, 20_000, 64, 0.02
    own = rng.random((n, blocks)) < density
    plan = Schedule(blocks * block, block, elements_per_packet(352, 32), np.asarray(own.any(axis=0)))
    model = zero_skip_traffic(blocks * block, n, density, Overlap.RANDOM)
    assert plan.packets * 352 == pytest.approx(model.words_received, rel=0.1)
    sent = np.mean([(~plan.skips(bitmap)).sum() * 352 for bitmap in own])
    assert sent == pytest.approx(model.words_sent, rel=0.1)
