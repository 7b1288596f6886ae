"""DS-LSR1: B is seeded S-LSR1's without Y ever being summed; Steihaug's steps; the optimum; volume."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.algorithms import dslsr1
from switchagg.algorithms.base import Array
from switchagg.algorithms.dslsr1 import DsLsr1, steihaug
from switchagg.algorithms.problems import LogisticRegression
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session

from .problems_for_tests import WORKERS, distances, shares, solve
from .test_slsr1 import matrix


@pytest.mark.parametrize("definite", [True, False])
def test_conjugate_gradients_in_a_trust_region(definite: bool) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for radius in (0.01, 0.5, 100.0):
        root = rng.standard_normal((9, 9))
        b = root @ root.T / 9 + np.eye(9) if definite else (root + root.T) / 2
        gradient = rng.standard_normal(9)

        def model(p: Array, g: Array = gradient, b: Array = b) -> float:
            return float(g @ p + p @ b @ p / 2)

        move, predicted = steihaug(gradient, lambda v, b=b: b @ v, radius, 50, 1e-10)  # type: ignore[misc]
        size = float(np.linalg.norm(move))
        assert size <= radius * (1 + 1e-9)
        assert predicted == pytest.approx(-model(move), rel=1e-9)
        # Never worse than the best point along the gradient (Cauchy's).
        along = [-t * gradient / np.linalg.norm(gradient) for t in np.linspace(0, radius, 400)]
        assert model(move) <= min(map(model, along)) + 1e-9
        if definite and size < radius * (1 - 1e-6):
            assert np.abs(gradient + b @ move).max() < 1e-7


def test_products_are_with_b(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed)
    hessian = np.mean([p.hessian_product(x, np.eye(24)) for p in problems], axis=0)

    def call(session: Session) -> tuple[Array, Array]:
        me = DsLsr1(problems[session.rank], session, memory=5, seed=seed)
        product = me._product()
        return np.stack([product(v) for v in np.eye(24)]), me._sample

    for products, sample in together(host.url, WORKERS, call, words=64):
        initial = float(np.mean([p.smoothness for p in problems]))
        assert np.allclose(products, matrix(hessian, sample, initial), atol=1e-8)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_it_reaches_the_optimum(host: EmbeddedController, kind: str) -> None:
    seed = seed_of_this_run()
    problems, x = shares(seed, **({"kind": LogisticRegression, "l2": 0.02} if kind == "logistic" else {}))
    log = solve(host, dslsr1.run, problems, x, steps=60, memory=12, tolerance=0.01, products=20, seed=seed)
    assert distances(log)[-1] < 1e-6


def test_numbers_do_not_grow_with_m_d(host: EmbeddedController) -> None:
    problems, _ = shares(seed_of_this_run(), dim=60)

    def call(session: Session) -> list[int]:
        found = []
        for memory in (2, 12):
            me = DsLsr1(
                problems[session.rank], session, memory=memory, products=3, tolerance=1e-6, radius=1e3
            )
            found.append(me.step() // 64)
        return found

    few, many = together(host.url, WORKERS, call)[0]
    assert few == 1 + 60 + 2**2 + 3 * (2 + 60)
    assert many == 1 + 60 + 12**2 + 3 * (12 + 60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"memory": 25}, "memory is 25; accepted: 1 to 24"),
        ({"products": 0}, "products is 0"),
        ({"tolerance": 1.0}, "tolerance is 1.0"),
        ({"radius": 0.0}, "radius is 0.0"),
    ],
)
def test_what_is_refused(host: EmbeddedController, arguments: dict[str, Any], words: str) -> None:
    problems, _ = shares(7)

    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            dslsr1.run(problems[session.rank], session, steps=1, **arguments)
        session.barrier()

    together(host.url, WORKERS, call)
