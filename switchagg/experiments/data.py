"""scikit-learn's bundled data, and the standard library's source, as convex problems; nothing is downloaded.

    diabetes        442 patients, 10 features      ridge regression on the progression of the disease
    breast cancer   569 tumours, 30 features       logistic regression, malignant or benign
    digits          1,797 images, 64 pixels        logistic regression, 0-4 or 5-9; or ridge on the digit

    source          1,200 texts of 30 lines, hashed TF-IDF of 1,024 features, sparse; of a package or not

`pairs=` widens the features by products of two of them, for problems of more than a packet.
"""

from __future__ import annotations

import importlib.util
import re
import sysconfig
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from switchagg.algorithms.problems import LogisticRegression, Regression, RidgeRegression
from switchagg.errors import UsageError, require

SETS: Final = ("diabetes", "breast_cancer", "digits")
SOURCE_FEATURES: Final = 1024
_SOURCE_TEXTS: Final = 1200
_LINES: Final = 30

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
        name: ``"diabetes"``, ``"breast_cancer"``, ``"digits"`` or ``"source"``. The features of the last are
            as `tf_idf` makes them.
        loss: ``"logistic"`` (labels -1 and 1; diabetes: above the median or not) or ``"ridge"``.
        pairs: how many products of two features, drawn with `seed`, to add.
        standard: give each feature variance 1; otherwise they keep their scales and are put in the order of
            their variance, so that most of a gradient's energy is in few blocks.

    Raises:
        UsageError: no such data set or loss, or scikit-learn is not installed.
    """
    require(loss in ("logistic", "ridge"), "loss", repr(loss), "'logistic', 'ridge'")
    if name == "source":
        texts, labels = source_texts()
        features = tf_idf(texts, SOURCE_FEATURES)
        require(loss == "logistic" and not pairs, "loss", repr(loss), "'logistic', without pairs, for source")
        return LogisticRegression(features, labels, l2, l1)
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


def digits() -> _Samples:
    """Returns the 1,797 images of digits, shape (1797, 64), pixels from 0 to 16, and the digits, integers.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    pixels, target = _load("digits")
    return pixels, target.astype(int)


def source_texts() -> tuple[list[str], NDArray[np.float64]]:
    """Returns pieces of the standard library's source, and 1 for those of packages, -1 for single modules.

    Half of them are of either kind, taken evenly from all files.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    kinds: list[list[str]] = []
    for pattern in ("*.py", "*/*.py"):
        pieces = []
        for path in sorted(root.glob(pattern)):
            if "site-packages" in path.parts or "test" in str(path.relative_to(root)):
                continue
            lines = path.read_text("utf-8", "replace").splitlines()
            pieces += ["\n".join(lines[i : i + _LINES]) for i in range(0, len(lines), _LINES)]
        chosen = np.linspace(0, len(pieces) - 1, _SOURCE_TEXTS // 2).astype(int)
        kinds.append([pieces[i] for i in chosen])
    labels = np.repeat([-1.0, 1.0], _SOURCE_TEXTS // 2)
    return kinds[0] + kinds[1], labels


def tf_idf(texts: Sequence[str], features: int) -> NDArray[np.float64]:
    """Returns words' counts, hashed to so many features, times their rarity's logarithm; rows of length 1."""
    counts = np.zeros((len(texts), features))
    for row, text in zip(counts, texts, strict=True):
        for word in re.findall(r"[A-Za-z]+", text):
            row[zlib.crc32(word.encode()) % features] += 1
    rarity = np.log((1 + len(texts)) / (1 + np.count_nonzero(counts, axis=0)))
    weighted = counts * rarity
    return np.asarray(weighted / np.maximum(np.linalg.norm(weighted, axis=1, keepdims=True), 1e-12))


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
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise UsageError(
            "the data sets come with scikit-learn, which is not installed: pip install "
            "'switchagg[experiments]'"
        )
    table = Path(found.origin).parent / "datasets" / "data" / f"{name}.csv.gz"
    if name == "digits" and table.exists():  # importing scikit-learn takes a rank a second
        rows = np.loadtxt(table, delimiter=",")
        return np.ascontiguousarray(rows[:, :-1]), rows[:, -1]
    from sklearn import datasets

    loaded: Any = getattr(datasets, f"load_{name}")()
    return np.asarray(loaded.data, np.float64), np.asarray(loaded.target, np.float64)
