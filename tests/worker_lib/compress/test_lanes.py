"""Lanes in words: sums of words are words of sums."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import lanes as reference_lanes
from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import lanes


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 7, 8, 10, 12, 16, 17, 24, 32])
@pytest.mark.parametrize("workers", [1, 3, 32])
def test_sums_of_words_are_words_of_sums(bits: int, workers: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    if (1 << (bits - 1)) - 1 < workers:
        with pytest.raises(UsageError, match=f"at least {lanes.bits_for(workers)}"):
            lanes.top(bits, workers)
        return
    top = lanes.top(bits, workers)
    for count in (1, 2, 3, 15, 16, 17, 1000):
        q = rng.integers(-top, top, (workers, count), endpoint=True).astype(np.int32)
        q[:, ::3] = top  # sums at the very ends of the range
        q[:, 1::3] = -top
        words = [reference_lanes.pack(row, bits) for row in q]
        assert words[0].size == lanes.words_for(count, bits)
        total = np.add.reduce(words, dtype=np.int32)
        assert np.array_equal(reference_lanes.unpack(total, bits, count), q.sum(axis=0))


def test_the_whole_range_of_a_lane() -> None:
    for bits in range(2, 17):
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        q = np.array([low, high, low, low, high, 0, -1, high], np.int32)
        assert np.array_equal(reference_lanes.unpack(reference_lanes.pack(q, bits), bits, q.size), q)


def test_zeros_are_zero_words_and_neighbours_share_one() -> None:
    q = np.zeros(64, np.int32)
    q[9] = -1
    assert np.flatnonzero(reference_lanes.pack(q, 8)).tolist() == [2]


@pytest.mark.parametrize("bits", [2, 4, 8, 10, 16])
def test_what_is_near_says_which_integer_it_is(bits: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    half = 1 << (bits - 1)
    for workers in (1, 5, 32):
        q = rng.integers(-(1 << 40), 1 << 40, (workers, 333))  # single workers may be anywhere
        total = q.sum(axis=0)
        words = np.add.reduce([reference_lanes.pack(row.astype(np.int32), bits) for row in q], dtype=np.int32)
        off = rng.integers(-half, half, 333)
        off[:2] = -half, half - 1
        assert np.array_equal(reference_lanes.unpack_near(words, bits, total - off), total)


def test_one_unit_beyond_the_range_is_another_integer() -> None:
    for bits in (2, 8, 16):
        half = 1 << (bits - 1)
        words = reference_lanes.pack(np.array([5], np.int32), bits)
        for near, decoded in (
            (5 - half + 1, 5),
            (5 - half, 5 - 2 * half),
            (5 + half, 5),
            (5 + half + 1, 5 + 2 * half),
        ):
            assert reference_lanes.unpack_near(words, bits, np.array([near]))[0] == decoded


@pytest.mark.parametrize("bits", [0, 1, 33, 8.0, None, True])
def test_widths_that_are_refused(bits: object) -> None:
    with pytest.raises(UsageError, match="accepted: 2 to 32"):
        lanes.checked_bits(bits)
