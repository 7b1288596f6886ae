"""Rounding at random to a fixed grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference import lanes as reference_lanes
from tests.reference.lanes import drawn, round_at_random
from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import RangeError, Round, StochasticRounding, lanes
from worker_lib.compress.lanes import from_words, square_of_words, to_words

from .table import Table, hoeffding, right_on_average


def test_only_neighbours_on_the_grid_and_zero_stays_zero() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    x = rng.uniform(-50, 50, 4000).astype(np.float32)
    x[::7] = 0
    x[1::7] = np.rint(x[1::7] / 0.25) * 0.25  # on the grid: exact
    q, cut = round_at_random(x, np.float32(0.25), 1 << 20, (1, 2))
    assert cut == 0
    assert (np.abs(q * 0.25 - x) < 0.25).all()
    assert (q[::7] == 0).all()
    assert np.array_equal(q[1::7] * np.float32(0.25), x[1::7])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [2, 4, 5, 8, 12, 16, 20, 32])
def test_the_native_form_gives_the_same_bits(dtype: Any, bits: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    top = lanes.top(bits, 1)
    for size, block in ((1, 1), (7, 3), (1000, 1000), (40_003, 64), (70_000, 70_000)):
        blocks = -(-size // block)
        units = np.exp2(rng.uniform(-20, 5, blocks)).astype(dtype)
        each = np.repeat(units, block)[:size]
        reach = min(top, 1 << 20) * 1.01
        x = (rng.uniform(-reach, reach, size) * each).astype(dtype)
        x[::11] = 0
        key = (int(rng.integers(1 << 32)), int(rng.integers(1 << 32)))
        q, cut = round_at_random(x, each, top, key)
        words, its = to_words(x, units, block, bits, top, key)
        assert its == cut
        assert np.array_equal(words, reference_lanes.pack(q, bits))
        back = from_words(words, size, bits, units, block)
        assert back.dtype == dtype
        assert np.array_equal(back, reference_lanes.unpack(words, bits, size).astype(dtype) * each)
        if bits <= 16:
            assert square_of_words(words, size, bits) == sum(int(v) ** 2 for v in q)


def test_units_that_cannot_be_used_make_zeros() -> None:
    x = np.ones(12, np.float32)
    units = np.array([0, np.nan, np.inf, 0.5], np.float32)
    words, cut = to_words(x, units, 3, 8, 127, (3, 4))
    assert cut == 0
    assert reference_lanes.unpack(words, 8, 12).tolist() == [0] * 9 + [2] * 3


def test_draws_are_uniform_and_keys_make_others() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    index = np.arange(1 << 16, dtype=np.uint32)
    keys = [(int(a), int(b)) for a, b in rng.integers(0, 1 << 32, (40, 2))]
    bits = np.array([drawn(index, key) for key in keys])
    # Each of 32 bits: 2^16 fair coins a key, 6.5 standard deviations at most (one run in 10^7 fails).
    for bit in range(32):
        ones = (bits >> np.uint32(bit) & np.uint32(1)).sum(axis=1, dtype=np.int64)
        assert (np.abs(ones - (1 << 15)) <= 6.5 * 128).all()
    # Neighbours, and the same element under other keys, are not alike.
    u = bits * 2.0**-32 - 0.5
    for a, b in ((u[:, :-1], u[:, 1:]), (u[:-1], u[1:])):
        correlations = 12 * (a * b).mean(axis=1)
        assert (np.abs(correlations) <= 6.5 / np.sqrt(a.shape[1])).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unbiased_and_variance(dtype: Any) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    unit, trials = 0.5, 3000
    x = rng.uniform(-3, 3, 60).astype(dtype)
    x[:4] = 0.25, -0.25, 0.75, -2.75  # half way: the largest variance
    c = StochasticRounding(unit, bits=8, seed=int(rng.integers(1 << 30)))
    draws = np.array([Table([c]).round([x])[0] for _ in range(trials)])
    right_on_average(draws, x.astype(np.float64), unit)
    squares = np.square(draws - x).mean(axis=0)
    assert (squares <= unit**2 / 4 + hoeffding(unit**2, trials, 60)).all()
    assert np.allclose(squares[:4], unit**2 / 4)  # +-unit/2 each time: no chance in it


def test_the_sum_is_the_sum_of_what_each_sent() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(1003).astype(np.float32) for _ in range(5)]
    table = Table([StochasticRounding(2.0**-6, bits=12) for _ in xs])
    total, owns = table.round(xs)
    assert np.array_equal(total, np.sum(owns, axis=0))  # multiples of a power of two: exact
    assert len({own.tobytes() for own in owns}) == 5
    assert table.messages[0].values.size == 502 + 2  # two lanes of 12 bits a word, and the guard


def test_what_does_not_fit_is_an_error_at_all_ranks_and_moves_nothing() -> None:
    reach = 31 * 0.5  # floor(127 / 4) units
    cs = [StochasticRounding(0.5, bits=8) for _ in range(4)]
    xs = [np.full(10, reach, np.float32) for _ in cs]
    assert np.array_equal(Table(cs).round(xs)[0], np.full(10, 4 * reach))
    xs[2][3] = reach + 0.51
    rounds = [Round(rank, 4) for rank in range(4)]
    messages = [c.encode(x, None, r) for c, x, r in zip(cs, xs, rounds, strict=True)]
    total = np.add.reduce([m.values for m in messages], dtype=np.int32)
    for c, m, r in zip(cs, messages, rounds, strict=True):
        with pytest.raises(RangeError, match=r"1 elements are beyond \+-15.5.* 4 workers .* 8 bits"):
            c.decode(total, m, None, r)
        assert c.step == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"unit": 0}, "unit is 0; accepted: a number greater than 0"),
        ({"unit": -1.0}, "unit is -1.0"),
        ({"unit": float("nan")}, "unit is nan"),
        ({"unit": 1.0, "bits": 1}, "bits is 1; accepted: 2 to 32"),
        ({"unit": 1.0, "seed": -1}, "seed is -1"),
    ],
)
def test_wrong_parameters(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        StochasticRounding(**arguments)


def test_lanes_too_narrow_for_so_many_are_refused_before_anything_is_sent() -> None:
    c = StochasticRounding(1.0, bits=4)
    c.prepare(10, Round(0, 7))
    with pytest.raises(UsageError, match="8 workers cannot share lanes so narrow; needed: at least 5"):
        c.prepare(10, Round(0, 8))
