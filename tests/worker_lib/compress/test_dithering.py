"""Random dithering under norms that all ranks share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import Dithering, Round

from .table import Table, hoeffding, right_on_average, variance

GRIDS = [
    {"levels": 1},
    {"levels": 4, "p": 2},
    {"levels": 8, "block": 16},
    {"bits": 8, "p": 2, "block": 7},
    {"levels": 3, "norm_bits": 0},
]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unbiased_and_within_omega(grid: dict[str, Any], dtype: Any) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    trials, d, n = 600, 40, 3
    xs = [(rng.standard_normal(d) * scale).astype(dtype) for scale in (1.0, 0.5, 0.9)]
    cs = [Dithering(**grid, seed=int(rng.integers(1 << 30))) for _ in range(n)]
    table = Table(cs)
    draws = np.array([table.round(xs)[1] for _ in range(trials)])
    levels = cs[0].levels or 127 // n
    width = cs[0].block or d
    blocks = [slice(i, i + width) for i in range(0, d, width)]
    slack = 1 + 2.0 ** -cs[0].norm_bits
    omega = cs[0].omega(d, n)
    assert omega is not None
    order = 2 if cs[0].p == 2 else np.inf
    units = np.empty(d)
    largest = 0.0
    for b in blocks:
        norms = [np.linalg.norm(x[b].astype(np.float64), order) for x in xs]
        units[b] = slack * max(norms) / levels
        largest += max(float(np.square(x[b], dtype=np.float64).sum()) for x in xs)
    for rank, x in enumerate(xs):
        right_on_average(draws[:, rank], x.astype(np.float64), units)
        spread = float(np.square(draws[:, rank] - x).sum(axis=1).mean())
        room = float(hoeffding(float(np.square(units).sum()), trials, n))
        # Of a norm other than the Euclidean one, the largest rank's; its square, a block at a time.
        if order == 2:
            assert spread <= omega * largest + room
        else:
            assert (
                spread
                <= sum(
                    min(width * m**2 / 4, m * float(np.abs(x[b]).sum())) if m else 0.0
                    for b in blocks
                    for m in [float(units[b][0])]
                )
                + room
            )


def test_omega_is_reached() -> None:
    # One element just on a power of two is half of its norm rounded up: as far from both levels as can be.
    c = Dithering(levels=1, norm_bits=0)
    x = np.array([2.0], np.float32)
    draws = np.array([Table([c]).round([x])[0] for _ in range(50)])
    assert set(draws.reshape(-1)) <= {0.0, 4.0}
    assert variance(draws, x) == c.omega(1) == 1.0


def test_of_one_worker_the_bound_holds_for_random_vectors() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for grid in GRIDS:
        c = Dithering(**grid)
        for d in (1, 5, 64):
            x = rng.standard_normal(d) * np.exp(rng.standard_normal(d))
            draws = np.array([Table([c.fork(i)]).round([x])[0] for i in range(150)])
            unit = float(np.abs(draws).max()) if draws.any() else 1.0
            room = float(hoeffding(d * unit**2, 150)) / float(x @ x)
            assert variance(draws, x) <= c.omega(d) + room  # type: ignore[operator]


@pytest.mark.parametrize("norm_bits", [0, 1, 3, 7])
def test_the_shared_norm_is_the_largest_rounded_up(norm_bits: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    norms = np.exp2(rng.uniform(-148, 127, (3, 300)))
    norms[:, :4] = [[1.0], [1.0], [2.0**-149]] * np.ones(4)
    norms[:, 5] = 0
    cs = [Dithering(levels=1, block=1, norm_bits=norm_bits) for _ in range(3)]
    rounds = [Round(rank, 3) for rank in range(3)]
    words = [c.share(x, r) for c, x, r in zip(cs, norms, rounds, strict=True)]
    shared = np.bitwise_or.reduce([w for w in words if w is not None])
    got = cs[0]._units(shared, 1, np.dtype(np.float64))
    largest = norms.max(axis=0)
    normal = largest >= 2.0**-126
    assert (got[normal] > largest[normal]).all()
    assert (got[normal] <= largest[normal] * (1 + 2.0**-norm_bits) * (1 + 1e-6)).all()
    assert (got[~normal] >= largest[~normal]).all()
    assert got[5] == 0


def test_the_sum_is_the_sum_of_what_each_sent() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for grid in GRIDS:
        xs = [rng.standard_normal(1003) for _ in range(4)]
        total, owns = Table([Dithering(**grid) for _ in xs]).round(xs)
        assert np.allclose(total, np.sum(owns, axis=0), rtol=1e-14, atol=1e-14)


def test_lanes_are_as_narrow_as_the_sum_allows() -> None:
    xs = [np.ones(960, np.float32)] * 5
    for levels, bits in ((1, 4), (3, 5), (25, 8), (26, 9)):
        table = Table([Dithering(levels=levels, norm_bits=3) for _ in xs])
        total, _ = table.round(xs)
        assert table.messages[0].values.size == -(-960 // (32 // bits))
        assert np.abs(total - 5).max() <= 5 * 9 / 8


def test_zeros_and_values_of_all_sizes() -> None:
    for dtype in (np.float32, np.float64):
        zero = np.zeros(10, dtype)
        assert not Table([Dithering(levels=3)]).round([zero])[0].any()
        tiny = np.full(3, 1e-44, dtype)  # a float32 has nothing between 0 and a seventh of it
        assert (np.abs(Table([Dithering(levels=64)]).round([tiny])[0]) <= 2e-44).all()
        for scale in (1e-38, 1e30, 3.4e38):
            x = (np.array([1.0, -1.0, 0.5, 0.0]) * scale).astype(dtype)
            total, _ = Table([Dithering(levels=64), Dithering(levels=64)]).round([x, x])
            with np.errstate(over="ignore"):
                assert np.isfinite(total).all() or scale > 1e38
                near = np.abs(total.astype(np.float64) - 2 * x.astype(np.float64)) <= 2.3 * scale / 64
            assert near[np.isfinite(total)].all()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "neither levels nor bits"),
        ({"levels": 0}, "levels is 0; accepted: an integer from 1"),
        ({"bits": 40}, "bits is 40; accepted: 2 to 32"),
        ({"levels": 1, "p": 1}, "p is 1; accepted: 2, math.inf"),
        ({"levels": 1, "block": 0}, "block is 0"),
        ({"levels": 1, "norm_bits": 8}, "norm_bits is 8; accepted: 0 to 7"),
    ],
)
def test_wrong_parameters(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Dithering(**arguments)


def test_levels_that_so_many_workers_cannot_share_are_refused() -> None:
    Dithering(levels=31, bits=8).prepare(10, Round(0, 4))
    with pytest.raises(
        UsageError, match="levels is 32: the sum of 4 workers needs lanes of 9 bits, and bits is 8"
    ):
        Dithering(levels=32, bits=8).prepare(10, Round(0, 4))
    with pytest.raises(UsageError, match="34 bits, and bits is at most 32"):
        Dithering(levels=1 << 30).prepare(10, Round(0, 4))
    with pytest.raises(UsageError, match="at least 7"):
        Dithering(bits=6).prepare(10, Round(0, 40))


def test_omega_of_known_cases() -> None:
    assert Dithering(levels=1, norm_bits=7, p=2).omega(100) == pytest.approx((1 + 2**-7) * 10)
    assert Dithering(levels=100, norm_bits=7, p=2).omega(100) == pytest.approx(100 * (1 + 2**-7) ** 2 / 40000)
    assert Dithering(levels=1, norm_bits=7, block=9).omega(1000) == pytest.approx(
        min(9 / 4 * (1 + 2**-7) ** 2, (1 + 2**-7) * 2)
    )
    assert math.isinf(Dithering(levels=1).p)
