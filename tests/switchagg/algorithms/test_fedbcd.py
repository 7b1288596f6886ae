"""FedBCD: blocks of features come to the optimum of them all, and only outputs travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.algorithms import fedbcd
from switchagg.algorithms.base import Array, Log
from switchagg.algorithms.fedbcd import VerticalShare, largest_rate
from switchagg.algorithms.problems import LogisticRegression, RidgeRegression, optimum
from switchagg.control.embedded import EmbeddedController
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session


def blocks(
    seed: int, workers: int, loss: str, dim: int = 9, orthogonal: bool = False
) -> tuple[list[VerticalShare], list[Array]]:
    """Workers' features, and each one's part of x*, which Newton's method finds on the whole."""
    rng = np.random.default_rng((seed, workers))
    features = rng.standard_normal((80, dim)) / np.sqrt(dim) + 0.2 * rng.standard_normal((80, 1))
    if orthogonal:
        features = np.linalg.qr(features)[0] * np.tile([3.0, 4.0, 6.0], dim // 3)
    margins = features @ rng.standard_normal(dim) + 0.3 * rng.standard_normal(80)
    targets = np.where(margins > 0, 1.0, -1.0) if loss == "logistic" else margins
    whole = (LogisticRegression if loss == "logistic" else RidgeRegression)(features, targets, 0.05)
    best = optimum([whole])
    columns = np.array_split(np.arange(dim), workers)
    return [VerticalShare(features[:, c], targets, loss, 0.05) for c in columns], [best[c] for c in columns]


@pytest.mark.parametrize("loss", ["ridge", "logistic"])
@pytest.mark.parametrize(("workers", "local_steps"), [(2, 1), (2, 5), (3, 1), (4, 4)])
def test_blocks_come_to_the_optimum_of_the_whole(
    host: EmbeddedController, workers: int, local_steps: int, loss: str
) -> None:
    shares, best = blocks(seed_of_this_run(), workers, loss)

    def call(session: Session) -> float:
        x = fedbcd.run(shares[session.rank], session, steps=1200, local_steps=local_steps)
        return float(np.linalg.norm(x - best[session.rank]))

    reach = np.linalg.norm(np.concatenate(best))
    assert max(together(host.url, workers, call)) < 1e-6 * reach


def test_local_steps_save_sums(host: EmbeddedController) -> None:
    """Q local steps on orthogonal blocks are Q rounds of one step. On others they may save nothing."""
    shares, best = blocks(seed_of_this_run(), 2, "ridge", orthogonal=True)

    def call(session: Session) -> list[int]:
        needed = []
        for local_steps in (1, 8):
            log = Log(optimum=best[session.rank])
            fedbcd.run(shares[session.rank], session, steps=600, local_steps=local_steps, log=log)
            record = log.first(distance=1e-3)
            assert record is not None
            assert record.payload_bits == record.step * 64 * 80
            needed.append(record.step)
        return needed

    for one, eight in together(host.url, 2, call):
        assert eight == -(-one // 8)


def test_batches_and_narrow_lanes_come_near(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    shares, best = blocks(seed, 3, "ridge")

    def call(session: Session) -> tuple[float, int]:
        log = Log(every=400)
        x = fedbcd.run(
            shares[session.rank], session, steps=400, local_steps=2, batch=40, bits=16, seed=seed, log=log
        )
        return float(np.linalg.norm(x - best[session.rank])), log.records[-1].payload_bits

    reach = np.linalg.norm(np.concatenate(best))
    for distance, payload in together(host.url, 3, call):
        assert distance < 0.3 * reach
        assert payload == 400 * 16 * 40


def test_the_bound_on_the_rate_keeps_quadratics_from_diverging() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    for _ in range(60):
        n, width, q = int(rng.integers(1, 6)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
        factor = rng.standard_normal((n * width, n * width + 3))
        hessian = factor @ factor.T
        parts = [slice(i * width, (i + 1) * width) for i in range(n)]
        rate = largest_rate([float(np.linalg.norm(hessian[p, p], 2)) for p in parts], q)
        step = np.eye(n * width)  # what a round does to the error
        for p in parts:
            local = np.eye(width) - rate * hessian[p, p]
            step[p] -= rate * sum(np.linalg.matrix_power(local, i) for i in range(q)) @ hessian[p]
        assert np.abs(np.linalg.eigvals(step)).max() < 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"local_steps": 0}, "local_steps is 0"),
        ({"rate": 1e9}, "rate is 1000000000.0; accepted: greater than 0, at most .* L_k"),
        ({"batch": 0}, "batch is 0; accepted: 1 to 80 samples"),
        ({"bits": 12}, "bits is 12; accepted for float64: 64, 32, 16, 8"),
        ({"x0": np.zeros(2)}, r"x0 has shape \(2,\); needed: \(9,\)"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict[str, Any], said: str) -> None:
    shares, _ = blocks(1, 1, "ridge")
    with worker_lib.connect(rank=0, world_size=1) as session, pytest.raises(UsageError, match=said):
        fedbcd.run(shares[0], session, **{"steps": 1, **arguments})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((np.ones(3), np.ones(3)), r"features \(3,\)"),
        ((np.ones((3, 1)), np.ones(2)), r"targets \(2,\)"),
        ((np.full((3, 1), np.nan), np.ones(3)), "NaN"),
        ((np.ones((3, 1)), np.ones(3), "hinge"), "loss is 'hinge'; accepted: 'ridge', 'logistic'"),
        ((np.ones((3, 1)), np.zeros(3), "logistic"), "not all -1 or 1"),
        ((np.ones((3, 1)), np.ones(3), "ridge", -1.0), r"l2 is -1\.0"),
    ],
)
def test_shares_that_cannot_be(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        VerticalShare(*arguments)
