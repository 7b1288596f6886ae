"""Distributed S-LSR1: trust-region steps against brute force, one reduction a step, and the optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.algorithms import slsr1
from switchagg.algorithms.base import Array
from switchagg.algorithms.problems import LogisticRegression
from switchagg.algorithms.slsr1 import Slsr1, trust_region_step
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session

from .problems_for_tests import WORKERS, distances, shares, solve


def matrix(hessian: Array, sample: Array, initial: float) -> Array:
    """SR1's B, by the book: one secant pair after the other."""
    b = initial * np.eye(len(hessian))
    for s in sample.T:
        r = hessian @ s - b @ s
        b = b + np.outer(r, r) / (r @ s)
    return b


@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("radius", [0.01, 1.0, 100.0])
def test_the_step_minimizes_the_model(definite: bool, radius: float) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for _ in range(20):
        root = rng.standard_normal((9, 9))
        hessian = root @ root.T / 9 if definite else (root + root.T) / 2
        initial = 1.1 * float(np.linalg.eigvalsh(hessian)[-1])
        sample = np.linalg.qr(rng.standard_normal((9, 4)))[0]
        gradient = rng.standard_normal(9)
        b = matrix(hessian, sample, initial)
        assert np.allclose(b @ sample, hessian @ sample)
        assert np.linalg.eigvalsh(b - hessian).min() > -1e-9  # no smaller than the Hessian anywhere

        def model(p: Array, g: Array = gradient, b: Array = b) -> float:
            return float(g @ p + p @ b @ p / 2)

        step, predicted = trust_region_step(gradient, sample, hessian @ sample, initial, radius)
        size = float(np.linalg.norm(step))
        assert size <= radius * (1 + 1e-9)
        assert predicted == pytest.approx(-model(step), rel=1e-7)
        if size < radius * (1 - 1e-6):
            assert np.abs(gradient + b @ step).max() < 1e-7
        for _ in range(300):
            other = step + rng.standard_normal(9) * 10 ** rng.uniform(-4, 0) * max(size, 1e-3)
            other *= min(1.0, radius / float(np.linalg.norm(other)))
            assert model(other) >= model(step) - 1e-9 * abs(model(step))


def test_negative_curvature_that_the_gradient_does_not_see() -> None:
    hessian = np.diag([-1.0, 2.0, 3.0])
    sample = np.eye(3)[:, :2]
    step, predicted = trust_region_step(np.array([0, 0.1, 0.1]), sample, hessian @ sample, 3.0, 2.0)
    assert np.linalg.norm(step) == pytest.approx(2.0)
    assert abs(step[0]) > 1.9
    assert predicted > 1.9


def test_nothing_to_do_at_the_optimum() -> None:
    step, predicted = trust_region_step(np.zeros(3), np.eye(3)[:, :1], np.eye(3)[:, :1], 2.0, 1.0)
    assert not step.any()
    assert predicted == 0


@pytest.mark.parametrize("kind", [LogisticRegression, None])
def test_it_reaches_the_optimum(host: EmbeddedController, kind: Any) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed, l2=0.01) if kind is None else shares(seed, kind=kind, l2=0.01)
    log = solve(host, slsr1.run, problems, x, steps=120, memory=8, seed=seed)
    assert distances(log)[-1] < 1e-6
    assert log.records[-1].payload_bits == log.records[-1].step * (1 + 24 * 9) * 64


def test_one_reduction_a_step(host: EmbeddedController) -> None:
    problems, _ = shares(seed_of_this_run(), kind=LogisticRegression, l2=0.01)

    def call(session: Session) -> None:
        me = Slsr1(problems[session.rank], session, memory=4, radius=1e3, seed=1, bits=64, x0=None)
        loss = me.loss
        for _ in range(15):
            before = session.stats()["collectives"]
            me.step()
            assert session.stats()["collectives"] == before + 1
            assert me.loss <= loss + 1e-12
            loss = me.loss

    together(host.url, WORKERS, call)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"memory": 25}, "memory is 25; accepted: 1 to 24, the problem's dimension"),
        ({"memory": 0}, "memory is 0"),
        ({"radius": 0.0}, "radius is 0.0; accepted: greater than 0"),
        ({"bits": 16}, "bits is 16; accepted: 64, 32"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_is_refused(host: EmbeddedController, arguments: dict[str, Any], words: str) -> None:
    problems, _ = shares(7)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            slsr1.run(problems[session.rank], session, **{"steps": 1, **arguments})

    together(host.url, WORKERS, call)
