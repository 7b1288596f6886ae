"""Small problems that need no data set, their exact optima, and a way to run a method on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from switchagg.algorithms.base import Array, Log
from switchagg.algorithms.problems import (
    LogisticRegression,
    Regression,
    RidgeRegression,
    optimum,
    sharing_minimizer,
    split,
)
from switchagg.control.embedded import EmbeddedController
from tests.worker_lib.harness import together
from worker_lib import Session

WORKERS = 3


def shares(
    seed: int,
    *,
    kind: type[Regression] = RidgeRegression,
    dim: int = 24,
    l2: float = 0.1,
    l1: float = 0.0,
    order: str = "sorted",
    shared_minimizer: bool = False,
) -> tuple[list[Regression], Array]:
    """Each worker's problem, and x*."""
    rng = np.random.default_rng((seed, dim))
    a = rng.standard_normal((90, dim)) / np.sqrt(dim)
    score = a @ rng.standard_normal(dim) * 2 + 0.3 * rng.standard_normal(90)
    whole: Regression
    if kind is LogisticRegression:
        whole = LogisticRegression(a, np.where(score > 0, 1.0, -1.0), l2, l1)
    else:
        whole = RidgeRegression(a, score, l2, l1)
    if shared_minimizer:
        assert isinstance(whole, RidgeRegression)
        x = rng.standard_normal(dim)
        return split(sharing_minimizer(whole, x), WORKERS, order=order), x
    parts = split(whole, WORKERS, order=order)
    return parts, optimum(parts, tolerance=1e-10)


def solve(
    host: EmbeddedController,
    run: Callable[..., Array],
    problems: Sequence[Regression],
    optimum: Array,
    **arguments: Any,
) -> Log:
    """Runs a method at all workers; its x is the same to the bit everywhere. Returns rank 0's log."""

    def call(session: Session) -> tuple[Array, Log]:
        log = Log(every=max(1, arguments["steps"] // 10), optimum=optimum)
        return run(problems[session.rank], session, log=log, **arguments), log

    found = together(host.url, len(problems), call, words=64)
    assert all(x.tobytes() == found[0][0].tobytes() for x, _ in found)
    log: Log = found[0][1]
    assert log.records[-1].distance == pytest.approx(np.linalg.norm(found[0][0] - optimum))
    return log


def distances(log: Log) -> list[float]:
    """Of all records."""
    found = [record.distance for record in log.records]
    assert all(d is not None for d in found)
    return [d for d in found if d is not None]
