"""Modular quantization: its range, what is found beyond it, and references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference import lanes as reference_lanes
from tests.reference.lanes import checks
from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import Modular, RangeError, Round, TopBlocks, chain, lanes
from worker_lib.compress.lanes import CHECK_BLOCK, FACTORS

from .table import Table, right_on_average


def with_reference(n: int, reference: Any, **arguments: Any) -> Table:
    cs = [Modular(**arguments) for _ in range(n)]
    for c in cs:
        c.refer(reference)
    return Table(cs)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("n", [1, 5, 32])
def test_exactly_the_range(bits: int, n: int) -> None:
    half = 1 << (bits - 1)
    # Integers, so that nothing is rounded: each sum is `off` units from n times the reference.
    for off in {-half, -half + 1, 0, half - 1}:
        table = with_reference(n, np.zeros(9), unit=1.0, bits=bits)
        xs = [np.zeros(9) for _ in range(n)]
        xs[-1][4] = off
        assert np.array_equal(table.round(xs)[0], np.sum(xs, axis=0))
    for off in (-half - 1, half, half + 1, 2 * half, -2 * half, 123456):
        for at in range(9):
            table = with_reference(n, np.zeros(9), unit=1.0, bits=bits)
            xs = [np.zeros(9) for _ in range(n)]
            xs[-1][at] = off
            with pytest.raises(RangeError, match=f"more than {half} units of 1 from {n} times the reference"):
                table.round(xs)


def test_workers_may_be_anywhere_while_their_sum_is_not() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for dtype in (np.float32, np.float64):
        xs = [rng.integers(-1_000_000, 1_000_000, 5000).astype(dtype) for _ in range(31)]
        mean = np.sum(xs, axis=0, dtype=np.float64) / 32
        xs.append(np.zeros(5000, dtype))
        table = with_reference(32, mean + rng.uniform(-3, 3, 5000), unit=1.0)
        total, owns = table.round(xs)
        exact = np.sum(xs, axis=0, dtype=np.float64)
        assert np.array_equal(total, exact.astype(dtype))
        assert np.array_equal(np.sum(owns, axis=0, dtype=np.float64), exact)
        assert table.messages[0].values.size == 1250 + 2 + 1  # bytes, checks, guard


def test_unbiased() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    x = rng.uniform(99, 101, 40)
    table = with_reference(1, np.full(40, 100.0), unit=0.1, seed=int(rng.integers(1 << 30)))
    draws = []
    for _ in range(1500):
        table.compressors[0].refer(np.full(40, 100.0))  # type: ignore[attr-defined]
        draws.append(table.round([x])[0])
    right_on_average(np.array(draws), x, 0.1)


def test_an_error_comes_at_all_ranks_and_the_next_round_goes_in_full() -> None:
    xs = [np.full(10_000, 100.0) for _ in range(3)]
    xs[1][5000] += 1000
    cs = [Modular(unit=1.0) for _ in xs]
    rounds = [Round(rank, 3) for rank in range(3)]
    for c in cs:
        c.refer(np.full(10_000, 100.0))
    messages = [c.encode(x, None, r) for c, x, r in zip(cs, xs, rounds, strict=True)]
    total = np.add.reduce([m.values for m in messages], dtype=np.int32)
    for c, m, r in zip(cs, messages, rounds, strict=True):
        with pytest.raises(
            RangeError, match=r"1 blocks of 4096 elements, the first at element 4096.*goes in full"
        ):
            c.decode(total, m, None, r)
    table = Table(cs)
    assert np.array_equal(table.round(xs)[0], np.sum(xs, axis=0))
    assert table.messages[0].values.dtype == np.float64
    assert np.array_equal(table.round(xs)[0], np.sum(xs, axis=0))  # and then against that
    assert table.messages[0].values.dtype == np.int32


def test_the_unit_follows_how_far_sums_move() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(1000) for _ in range(4)]
    cs = [Modular(margin=4) for _ in xs]
    table = Table(cs)
    assert cs[0].unit is None
    errors = []
    for _ in range(14):
        total, _ = table.round(xs)
        assert len({c.unit for c in cs}) == 1
        errors.append(float(np.abs(total - np.sum(xs, axis=0)).max()))
    assert errors[0] == 0
    assert errors[-1] < errors[1] / 10  # the vectors do not move, so the grid becomes finer
    xs = [x * 3 for x in xs]
    with pytest.raises(RangeError):
        table.round(xs)


def test_each_against_its_own() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    models = 1000 + rng.standard_normal(400)
    xs = [models + 0.1 * rng.standard_normal(400) for _ in range(4)]
    cs = [Modular(unit=0.05, reference="own") for _ in xs]
    for _ in range(2):
        total, _ = Table(cs).round(xs)
        assert np.abs(total - np.sum(xs, axis=0)).max() <= 4 * 0.05
        assert not cs[0].memories()


def test_nan_is_everywhere_and_the_reference_stays() -> None:
    table = with_reference(2, np.zeros(8), unit=1.0)
    bad = np.array([1.0, np.inf] * 4)
    assert np.isnan(table.round([np.ones(8), bad])[0]).all()
    assert np.array_equal(table.round([np.ones(8), np.ones(8)])[0], np.full(8, 2.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 10, 16])
def test_the_native_form_gives_the_same_bits(dtype: Any, bits: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for size in (1, 5, 4095, 4097, 70_001):
        n, unit = 3, 0.37
        reference = rng.uniform(-1e6, 1e6, size)
        total = np.zeros(lanes.residue_size(size, bits), np.int32)
        for _ in range(n):
            x = (reference + unit * rng.uniform(-0.5, 0.5, size) * 2 ** (bits - 1)).astype(dtype)
            if size > 5:
                x[3:6] = np.nan, np.inf, 1e30
            key = (int(rng.integers(1 << 32)), int(rng.integers(1 << 32)))
            words, unusable = lanes.to_residues(x, unit, bits, key)
            expected, its = reference_lanes.to_residues(x, unit, bits, key)
            assert unusable == its
            assert np.array_equal(words, expected)
            q, _ = reference_lanes.integers(x, unit, key)
            assert np.array_equal(lanes.own_values(x, unit, key), (q * unit).astype(dtype))
            total += words
        for factor in (1.0, 1.0001):  # near, and too far
            ours = lanes.to_sums(total, unit, bits, reference * factor, n, np.dtype(dtype))
            theirs = reference_lanes.to_sums(total, unit, bits, reference * factor, n, np.dtype(dtype))
            assert ours.sums.dtype == dtype
            assert np.array_equal(ours.sums, theirs.sums)
            assert np.array_equal(ours.means, theirs.means)
            assert ours.farthest == theirs.farthest
            assert np.array_equal(ours.wrong, theirs.wrong)


def test_checks_are_linear_and_find_errors() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    q = rng.integers(-(2**31), 2**31, (3, 10_000)).astype(np.int32)
    total = np.add.reduce(q, dtype=np.int32)
    assert np.array_equal(np.add.reduce([checks(row) for row in q], dtype=np.int32), checks(total))
    # One wrong element, by any multiple of 2^8 that 32 bits hold.
    for k in (1, -1, 2, 3, 1 << 10, (1 << 24) - 1):
        wrong = total.copy()
        wrong[int(rng.integers(10_000))] += np.int32(k << 8 if k < 1 << 23 else -(1 << 8))
        assert (checks(wrong) != checks(total)).sum() == 1
    # Two of one unit of 2^8 never cancel: the factors differ, and so do their negatives.
    low = {int(f) & 0xFFFFFF for f in FACTORS}
    assert len(low) == CHECK_BLOCK
    assert not low & {-f & 0xFFFFFF for f in low}
    assert all(f & 1 for f in low)


def test_many_wrong_lanes_are_found() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    missed = 0
    for _ in range(300):
        reference = rng.integers(-500, 500, 64).astype(np.float64)
        table = with_reference(1, reference, unit=1.0, bits=4)
        x = reference + rng.integers(-7, 8, 64)
        wrong = rng.choice(64, int(rng.integers(1, 64)), replace=False)
        x[wrong] += rng.choice([-16, 16, 32, 48], wrong.size)
        try:
            missed += not np.array_equal(table.round([x])[0], x)
        except RangeError:
            continue
        raise AssertionError("sums beyond the range were decoded")
    assert missed == 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"unit": 0}, "unit is 0; accepted: a number greater than 0, or None"),
        ({"bits": 17}, "bits is 17; accepted: 2 to 16"),
        ({"bits": 1}, "bits is 1"),
        ({"reference": "mine"}, "reference is 'mine'; accepted: 'last', 'own'"),
        ({"reference": "own"}, "unit is None with reference='own'"),
        ({"margin": 0.5}, r"margin is 0\.5; accepted: a number from 1"),
    ],
)
def test_wrong_parameters(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Modular(**arguments)


def test_references_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="no round has set one; give a unit"):
        Modular().refer(np.zeros(3))
    c = Modular(unit=1.0)
    c.refer(np.zeros(3))
    with pytest.raises(UsageError, match="the reference has 3 elements, and x has 4"):
        c.prepare(4, Round(0, 2))
    with pytest.raises(UsageError, match="remembers every element"):
        chain(TopBlocks(k=1), Modular(unit=1.0))


def test_a_state_goes_on() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(300) for _ in range(3)]
    table = Table([Modular() for _ in xs])
    for _ in range(3):
        table.round(xs)
    fresh = Table([Modular() for _ in xs])
    for c, other in zip(fresh.compressors, table.compressors, strict=True):
        c.load_state_dict(other.state_dict())
    for _ in range(3):
        assert np.array_equal(fresh.round(xs)[0], table.round(xs)[0])
