"""scikit-learn's bundled data sets as convex problems; nothing is downloaded.

    diabetes        442 patients, 10 features      ridge regression on the progression of the disease
    breast cancer   569 tumours, 30 features       logistic regression, malignant or benign
    digits          1,797 images, 64 pixels        logistic regression, 0-4 or 5-9; or ridge on the digit

`pairs=` widens the features by products of two of them, for problems of more than a packet.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from switchagg.algorithms.problems import LogisticRegression, Regression, RidgeRegression
from switchagg.errors import UsageError, require

SETS: Final = ("diabetes", "breast_cancer", "digits")

_Samples = tuple[NDArray[np.float64], NDArray[np.float64]]


def problem(
    name: str,
    *,
    loss: str = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    pairs: int = 0,
    standard: bool = True,
    seed: int = 0,
) -> Regression:
    """A data set as one problem with all its samples.

    Features have mean 0 and, unless told, variance 1; pixels that never change are left out, a feature of
    ones comes last, and all is scaled so that the mean squared length of a sample is 1. Targets of ridge
    regression have mean 0 and variance 1.

    Args:
        name: ``"diabetes"``, ``"breast_cancer"`` or ``"digits"``.
        loss: ``"logistic"`` (labels -1 and 1; diabetes: above the median or not) or ``"ridge"``.
        pairs: how many products of two features, drawn with `seed`, to add.
        standard: give each feature variance 1; otherwise they keep their scales and are put in the order of
            their variance, so that most of a gradient's energy is in few blocks.

    Raises:
        UsageError: no such data set or loss, or scikit-learn is not installed.
    """
    require(loss in ("logistic", "ridge"), "loss", repr(loss), "'logistic', 'ridge'")
    raw, target = _load(name)
    raw = _standard(raw, standard)
    if pairs:
        require(pairs >= 0, "pairs", pairs, "0 and up")
        rng = np.random.default_rng(seed)
        left, right = rng.integers(0, raw.shape[1], (2, pairs))
        raw = np.concatenate([raw, _standard(raw[:, left] * raw[:, right], standard)], axis=1)
    if not standard:
        raw = raw[:, np.argsort(-raw.var(axis=0), kind="stable")]
    features = np.concatenate([raw, np.ones((len(raw), 1))], axis=1)
    features /= np.sqrt(np.square(features).sum(axis=1).mean())
    if loss == "ridge":
        return RidgeRegression(features, (target - target.mean()) / target.std(), l2, l1)
    middle = 0.5 if name == "breast_cancer" else float(np.median(target))
    return LogisticRegression(features, np.where(target > middle, 1.0, -1.0), l2, l1)


def _standard(x: NDArray[np.float64], scaled: bool) -> NDArray[np.float64]:
    """Features that vary, with mean 0 and, if asked for, variance 1; else all by one factor."""
    deviation = x.std(axis=0)
    varies = deviation > 0
    by = deviation[varies] if scaled else np.sqrt(np.square(deviation).mean())
    return np.asarray((x - x.mean(axis=0))[:, varies] / by)


@cache
def _load(name: str) -> _Samples:
    if name not in SETS:
        raise UsageError(f"data set is {name!r}; accepted: {', '.join(SETS)}")
    try:
        from sklearn import datasets
    except ImportError:
        raise UsageError(
            "the data sets come with scikit-learn, which is not installed: pip install "
            "'switchagg[experiments]'"
        ) from None
    found: Any = getattr(datasets, f"load_{name}")()
    return np.asarray(found.data, np.float64), np.asarray(found.target, np.float64)
