"""Regressions: derivatives against differences, constants against samples, and the exact optimum."""

from __future__ import annotations

import numpy as np
import pytest

from switchagg.algorithms.base import Array, Problem, mean_gradient, objective
from switchagg.algorithms.problems import (
    LogisticRegression,
    Regression,
    RidgeRegression,
    optimum,
    sharing_minimizer,
    split,
)
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run


def random_problem(
    kind: type[Regression], *, samples: int = 60, dim: int = 7, l2: float = 0.1, l1: float = 0.0
) -> tuple[Regression, np.random.Generator]:
    rng = np.random.default_rng(seed_of_this_run())
    a = rng.standard_normal((samples, dim)) * np.linspace(0.3, 2, dim)
    b = rng.standard_normal(samples)
    targets = b if kind is RidgeRegression else np.where(b + a[:, 0] > 0, 1.0, -1.0)
    return kind(a, targets, l2, l1), rng


@pytest.mark.parametrize("kind", [RidgeRegression, LogisticRegression])
@pytest.mark.parametrize("samples", [60, 4])  # more and fewer than features
def test_derivatives_and_constants(kind: type[Regression], samples: int) -> None:
    p, rng = random_problem(kind, samples=samples)
    assert isinstance(p, Problem)
    x, step = rng.standard_normal(p.dim), 1e-5
    numeric = [(p.loss(x + step * e) - p.loss(x - step * e)) / (2 * step) for e in np.eye(p.dim)]
    assert np.allclose(p.gradient(x), numeric, atol=1e-8)
    directions = rng.standard_normal((p.dim, 3))
    columns = [(p.gradient(x + step * v) - p.gradient(x - step * v)) / (2 * step) for v in directions.T]
    assert np.allclose(p.hessian_product(x, directions), np.stack(columns, axis=1), atol=1e-7)
    assert np.allclose(p.hessian_product(x, directions[:, 0]), columns[0], atol=1e-7)
    each = [p.batch_gradient(x, np.array([i])) for i in range(p.samples)]
    assert np.allclose(np.mean(each, axis=0), p.gradient(x), atol=1e-12)
    for _ in range(50):
        y = x + rng.standard_normal(p.dim) * 10 ** rng.uniform(-3, 1)
        moved, change = np.linalg.norm(y - x), p.gradient(y) - p.gradient(x)
        assert np.linalg.norm(change) <= p.smoothness * moved * (1 + 1e-9)
        assert change @ (y - x) >= p.strong_convexity * moved**2 * (1 - 1e-9)
        one = np.array([rng.integers(p.samples)])
        single = p.batch_gradient(y, one) - p.batch_gradient(x, one)
        assert np.linalg.norm(single) <= p.sample_smoothness * moved * (1 + 1e-9)


def test_block_constants_hold_and_are_reached() -> None:
    p, rng = random_problem(RidgeRegression)
    bounds = p.block_smoothness(3)
    assert bounds.shape == (3,)
    assert bounds.max() <= p.smoothness
    x = rng.standard_normal(p.dim)
    for b, bound in enumerate(bounds):
        part = slice(3 * b, 3 * b + 3)
        ratios = []
        for _ in range(300):
            step = np.zeros(p.dim)
            step[part] = rng.standard_normal(len(step[part]))
            change = (p.gradient(x + step) - p.gradient(x))[part]
            ratios.append(np.linalg.norm(change) / np.linalg.norm(step))
        assert 0.8 * bound <= max(ratios) <= bound * (1 + 1e-9)


def test_soft_thresholding_minimizes_what_it_says() -> None:
    p, rng = random_problem(RidgeRegression, l1=0.7)
    x, step = rng.standard_normal(p.dim), 0.4
    found = p.prox(x, step)

    def value(y: Array) -> float:
        return p.regularizer(y) + float(np.square(y - x).sum()) / (2 * step)

    for _ in range(200):
        assert value(found) <= value(found + rng.standard_normal(p.dim) * 0.01)


@pytest.mark.parametrize("kind", [RidgeRegression, LogisticRegression])
@pytest.mark.parametrize("order", ["shuffled", "sorted"])
@pytest.mark.parametrize("l1", [0.0, 0.05])
def test_the_optimum_is_one(kind: type[Regression], order: str, l1: float) -> None:
    whole, rng = random_problem(kind, samples=61, l1=l1)
    parts = split(whole, 4, order=order, seed=3)
    x = optimum(parts)
    slope = mean_gradient(parts, x)
    if l1:
        zero = x == 0
        assert (np.abs(slope[zero]) <= l1).all()
        assert np.abs(slope[~zero] + l1 * np.sign(x[~zero])).max() < 1e-11
    else:
        assert np.abs(slope).max() < 1e-11
    value = objective(parts)
    for scale in (1e-1, 1e-3):
        for _ in range(20):
            assert value(x) < value(x + scale * rng.standard_normal(x.size))


def test_ridge_has_a_closed_form() -> None:
    p, _ = random_problem(RidgeRegression)
    normal = p.features.T @ p.features / p.samples + p.l2 * np.eye(p.dim)
    assert np.allclose(
        optimum([p]), np.linalg.solve(normal, p.features.T @ p.targets / p.samples), atol=1e-12
    )


def test_splits() -> None:
    p, _ = random_problem(RidgeRegression, samples=64)
    for order in ("shuffled", "sorted"):
        parts = split(p, 4, order=order, seed=1)
        assert [q.samples for q in parts] == [16] * 4
        assert sorted(np.concatenate([q.targets for q in parts])) == sorted(p.targets)
        x = np.arange(p.dim) / 3
        assert np.allclose(mean_gradient(parts, x), p.gradient(x))
    means = [q.targets.mean() for q in split(p, 4, order="sorted")]
    assert means == sorted(means)
    assert means[0] < means[-1]


def test_a_shared_minimizer_is_every_workers() -> None:
    p, rng = random_problem(RidgeRegression)
    x = rng.standard_normal(p.dim)
    assert isinstance(p, RidgeRegression)
    for q in split(sharing_minimizer(p, x), 5, order="sorted"):
        assert np.abs(q.gradient(x)).max() < 1e-13


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RidgeRegression(np.ones((3, 2)), np.ones(2)), r"features \(3, 2\), targets \(2,\)"),
        (lambda: RidgeRegression(np.full((3, 2), np.nan), np.ones(3)), "NaN or infinity"),
        (lambda: RidgeRegression(np.ones((3, 2)), np.ones(3), l2=-1), "l2 is -1; accepted: 0 and up"),
        (lambda: RidgeRegression(np.ones((3, 2)), np.ones(3), l1=np.inf), "l1 is inf"),
        (lambda: RidgeRegression(np.ones((3, 2)), np.ones(3), center=np.ones(3)), r"needed: \(2,\)"),
        (lambda: LogisticRegression(np.ones((3, 2)), np.array([1, -1, 0])), "accepted .* -1 and 1"),
        (lambda: split(RidgeRegression(np.ones((3, 2)), np.ones(3)), 4), "4 workers for 3 samples"),
        (lambda: split(RidgeRegression(np.ones((3, 2)), np.ones(3)), 2, order="up"), "'shuffled', 'sorted'"),
        (lambda: optimum([RidgeRegression(np.ones((3, 2)), np.ones(3))]), "not strongly convex"),
    ],
)
def test_what_is_refused(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError, match=words):
        make()


def test_a_tolerance_that_cannot_be_had_is_refused() -> None:
    p, _ = random_problem(LogisticRegression)
    with pytest.raises(UsageError, match="tolerance is 1e-40; reached"):
        optimum([p], tolerance=1e-40)
