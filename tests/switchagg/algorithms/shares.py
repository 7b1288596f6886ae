"""Small problems for the tests: made up, split over workers, their optimum known."""

from __future__ import annotations

import numpy as np

from switchagg.algorithms.base import Array
from switchagg.algorithms.problems import (
    LogisticRegression,
    Regression,
    RidgeRegression,
    optimum,
    split,
)


def shares(
    seed: int, workers: int, *, loss: str = "logistic", samples: int = 120, dim: int = 7
) -> tuple[list[Regression], Array]:
    """Workers' problems, as different from each other as sorting by target makes them, and x*."""
    rng = np.random.default_rng((seed, workers))
    features = rng.standard_normal((samples, dim)) / np.sqrt(dim)
    margins = features @ rng.standard_normal(dim) + 0.3 * rng.standard_normal(samples)
    whole: Regression
    if loss == "ridge":
        whole = RidgeRegression(features, margins, 0.02)
    else:
        whole = LogisticRegression(features, np.where(margins > 0, 1.0, -1.0), 0.02)
    parts = split(whole, workers, order="sorted")
    return parts, optimum(parts)
