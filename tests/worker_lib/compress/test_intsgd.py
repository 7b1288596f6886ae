"""IntSGD: the scale that all ranks work out for themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import IntSGD, Round
from worker_lib.compress.intsgd import square_of, square_of_integers

from .table import Table, right_on_average


def test_the_scale_is_the_papers() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    n, d, beta = 4, 500, 0.7
    cs = [IntSGD(bits=16, beta=beta) for _ in range(n)]
    table = Table(cs)
    r = None
    for t in range(8):
        xs = [rng.standard_normal(d) * (1 + t) for _ in range(n)]
        if r is not None:
            unit = math.sqrt((2 * n * r + 1e-16) / d)  # 1 / alpha
            assert cs[0].unit(d, Round(0, n)) == pytest.approx(unit, rel=1e-3)
        total, _ = table.round(xs)
        square = float(np.square(total / n).sum())
        r = square if r is None else beta * r + (1 - beta) * square
        assert len({c.scalars()["square"] for c in cs}) == 1  # to the bit


def test_the_first_round_goes_in_full_and_the_next_are_unbiased() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    n, d, trials = 3, 50, 1500
    xs = [rng.standard_normal(d) for _ in range(n)]
    table = Table([IntSGD(bits=12, seed=int(rng.integers(1 << 30))) for _ in range(n)])
    total, _ = table.round(xs)
    assert np.array_equal(total, xs[0] + xs[1] + xs[2])
    assert table.messages[0].values.dtype == np.float64
    state = [c.state_dict() for c in table.compressors]
    unit = table.compressors[0].unit(d, Round(0, n))  # type: ignore[attr-defined]
    draws = np.empty((trials, n, d))
    for i in range(trials):
        for c, s in zip(table.compressors, state, strict=True):
            c.restore_scalars(s["scalars"])  # the same scale each time, other draws
        total, owns = table.round(xs)
        draws[i] = owns
        if i == 0:
            assert np.allclose(total, np.sum(owns, axis=0), rtol=1e-13)
    for rank, x in enumerate(xs):
        right_on_average(draws[:, rank], x, unit)
        assert np.square(draws[:, rank] - x).sum(axis=1).mean() <= d * unit**2 / 4 * 1.3


def test_what_does_not_fit_is_cut_and_counted_by_all() -> None:
    cs = [IntSGD(bits=4) for _ in range(3)]  # two units each way
    table = Table(cs)
    x = np.full(100, 1e-3)
    x[3] = 1.0
    table.round([x] * 3)
    assert [c.cut for c in cs] == [0, 0, 0]
    unit = cs[0].unit(100, Round(0, 3))
    total, owns = table.round([x] * 3)
    assert [c.cut for c in cs] == [3, 3, 3]  # that element, at each rank
    assert total[3] == pytest.approx(6 * unit)
    assert np.allclose(total, np.sum(owns, axis=0))


def test_nan_is_everywhere_and_the_scale_forgets_it() -> None:
    cs = [IntSGD() for _ in range(2)]
    table = Table(cs)
    x, bad = np.ones(10), np.array([np.nan] + [1.0] * 9)
    with np.errstate(invalid="ignore"):
        assert np.isnan(table.round([x, bad])[0]).any()  # in full: the session's chunks decide where
    assert cs[0].scalars() == {"square": None}
    table.round([x, x])
    before = cs[0].scalars()
    assert np.isnan(table.round([x, bad])[0]).all()
    assert cs[0].scalars() == before
    assert np.isfinite(table.round([x, x])[0]).all()


def test_zeros_for_ever() -> None:
    table = Table([IntSGD()])
    for _ in range(3):
        assert not table.round([np.zeros(10, np.float32)])[0].any()


def test_squared_norms_are_the_same_in_any_order() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    q = rng.integers(-(2**31), 2**31, 1001).astype(np.int32)
    assert square_of_integers(q) == sum(int(v) ** 2 for v in q)
    x = rng.standard_normal(1001).astype(np.float32)
    assert square_of(x) == square_of(rng.permutation(x))
    assert square_of(x) == pytest.approx(float(x @ x), rel=1e-3)
    assert square_of(np.zeros(3)) == 0
    assert not math.isfinite(square_of(np.array([1.0, np.inf])))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"beta": 1.0}, r"beta is 1\.0; accepted: from 0, less than 1"),
        ({"epsilon": 0}, "epsilon is 0; accepted: a number greater than 0"),
        ({"bits": 1}, "bits is 1; accepted: 2 to 32"),
    ],
)
def test_wrong_parameters(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        IntSGD(**arguments)


def test_bits_that_so_many_cannot_share() -> None:
    with pytest.raises(
        UsageError, match="bits is 5: 16 workers cannot share lanes so narrow; needed: at least 6"
    ):
        IntSGD(bits=5).prepare(10, Round(0, 16))
