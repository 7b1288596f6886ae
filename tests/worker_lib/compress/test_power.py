"""PowerSGD: what a power iteration of low rank gives, sums of it, and its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import ErrorFeedback, PowerSGD, Round
from worker_lib.compress.power import orthonormal

from .table import Array, Table

SHAPES = [(40, 30), (30,), (8, 5, 5), (), (2, 2)]
SIZE = 1200 + 30 + 200 + 1 + 4


def test_a_matrix_of_low_rank_is_found_and_the_rest_is_sent_in_full() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    full = rng.standard_normal(SIZE)
    full[:1200] = (rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))).reshape(-1)
    full[1230:1430] = np.outer(rng.standard_normal(8), rng.standard_normal(25)).reshape(-1)
    xs = [full * share for share in (0.5, 0.2, 0.3)]
    table = Table([PowerSGD(rank=2, shapes=SHAPES) for _ in xs])
    total, owns = table.round(xs)
    assert np.allclose(total, full, atol=1e-6)  # one iteration is exact on what has this rank
    assert np.allclose(np.sum(owns, axis=0), total, atol=1e-9)
    # (40 + 30) 2 numbers in place of 1,200, (8 + 25) 2 in place of 200
    assert table.messages[0].values.size == 30 * 2 + 25 * 2 + 30 + 1 + 4


def test_iterations_come_near_the_best_approximation() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    u, _ = np.linalg.qr(rng.standard_normal((50, 50)))
    v, _ = np.linalg.qr(rng.standard_normal((50, 50)))
    values = 2.0 ** -np.arange(50.0)
    x = (u * values @ v.T).reshape(-1)
    table = Table([PowerSGD(rank=3, shapes=[(50, 50)], seed=4)])
    errors = [float(np.linalg.norm(table.round([x])[0] - x)) for _ in range(12)]
    best = float(np.linalg.norm(values[3:]))
    assert errors[-1] < 1.001 * best
    assert errors[-1] <= errors[0]


@pytest.mark.parametrize("bits", [None, 32, 16, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_with_error_feedback_everything_arrives(bits: int | None, dtype: Any) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs = [rng.standard_normal(1000).astype(dtype) for _ in range(3)]
    exact = np.sum(xs, axis=0, dtype=np.float64)
    table = Table([ErrorFeedback(PowerSGD(rank=4, bits=bits)) for _ in xs])
    rounds, total = 150, np.zeros(1000)
    for _ in range(rounds):
        total += table.round(xs)[0]
    assert np.linalg.norm(total / rounds - exact) < 0.25 * np.linalg.norm(exact)


def test_the_basis() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    p = rng.standard_normal((77, 5)) * 10.0 ** rng.integers(-20, 20, 5)
    q = orthonormal(p)
    assert np.allclose(q.T @ q, np.eye(5), atol=1e-12)
    assert np.allclose(q @ (q.T @ p), p, rtol=1e-9)
    p[:, 3] = p[:, 1] * 2  # spanned
    p[:, 4] = 0
    q = orthonormal(p)
    assert not q[:, 3:].any()
    assert np.isnan(orthonormal(np.full((4, 1), np.nan))).all()


def test_what_is_not_finite_does_not_stay() -> None:
    xs = [np.ones(400, np.float32), np.ones(400, np.float32)]
    table = Table([ErrorFeedback(PowerSGD(rank=1)) for _ in xs])
    table.round(xs)
    xs[1][7] = np.nan
    assert np.isnan(table.round(xs)[0]).any()
    assert np.allclose(table.round([np.ones(400, np.float32)] * 2)[0], 2, atol=1e-3)


def test_state_goes_on() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    xs: list[Array] = [rng.standard_normal(SIZE) for _ in range(6)]
    first = ErrorFeedback(PowerSGD(rank=2, shapes=SHAPES))
    table = Table([first])
    for x in xs[:3]:
        table.round([x])
    other = ErrorFeedback(PowerSGD(rank=2))
    other.load_state_dict(first.state_dict())
    for x in xs[3:]:
        assert np.array_equal(table.round([x])[0], Table([other]).round([x])[0])
    fresh, forgetful = ErrorFeedback(PowerSGD(rank=2, shapes=SHAPES)), first.fork(0)
    assert np.array_equal(Table([fresh]).round([xs[0]])[0], Table([forgetful]).round([xs[0]])[0])


def test_nothing_is_worth_factors() -> None:
    x = np.arange(10.0)
    assert np.array_equal(Table([PowerSGD(rank=4, shapes=[(10,)])]).round([x])[0], x)
    assert np.array_equal(Table([PowerSGD(rank=9)]).round([x])[0], x)


def test_what_is_refused() -> None:
    for rank in (0, 65, 1.5, True):
        with pytest.raises(UsageError, match=r"rank is .*; accepted: 1 to 64"):
            PowerSGD(rank=rank)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bits is 12"):
        PowerSGD(bits=12)
    with pytest.raises(UsageError, match="shapes have 12 elements in all, and x has 13"):
        PowerSGD(shapes=[(3, 4)]).prepare(13, Round(0, 2))
