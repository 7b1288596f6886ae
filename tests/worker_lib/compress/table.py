"""A table round which n compressors sit, for properties that need thousands of rounds: what a switch does to
their words, ORs and sums mod 2^32, in one process. Through a switch they go in test_switch.py.

Confidence: the bounds are Hoeffding's, which hold for any distribution on an interval; a statement that is
true fails in one run in 1 / `CHANCE` at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from worker_lib.compress import Compressor, Message, Round

Array = npt.NDArray[Any]
CHANCE = 1e-9


class Table:
    """n compressors.

    Args:
        compressors: one a rank.
    """

    def __init__(self, compressors: Sequence[Compressor]) -> None:
        self.compressors = compressors
        self.messages: list[Message] = []

    def round(self, xs: Sequence[Array]) -> tuple[Array, list[Array]]:
        """One reduction: the sum, which all ranks agree on, and each rank's `own`."""
        n = len(xs)
        rounds = [Round(rank, n) for rank in range(n)]
        everyone = list(zip(self.compressors, xs, rounds, strict=True))
        for c, x, r in everyone:
            c.prepare(x.size, r)
        words = [c.share(x, r) for c, x, r in everyone]
        if isinstance(words[0], Message):
            shared = np.sum([w.values for w in words], axis=0, dtype=words[0].values.dtype)
        else:
            shared = None if words[0] is None else np.bitwise_or.reduce(words)
        self.messages = [c.encode(x, shared, r) for c, x, r in everyone]
        total = self.messages[0].values.copy()
        for message in self.messages[1:]:
            total = total + message.values  # int32 wraps, as a switch does
        owns = [c.own(m, shared, r) for (c, _, r), m in zip(everyone, self.messages, strict=True)]
        results = [
            c.decode(total.copy(), m, shared, r) for (c, _, r), m in zip(everyone, self.messages, strict=True)
        ]
        for result in results[1:]:
            assert np.array_equal(result, results[0], equal_nan=True), "ranks disagree"
        return results[0], [np.array(own) for own in owns]


def hoeffding(spans: Array | float, trials: int, questions: int = 1) -> Array | float:
    """Returns the most that a mean of independent draws from intervals may differ from its expectation
    (Hoeffding).

    Args:
        spans: widths.
        trials: draws.
        questions: how many such means are looked at.
    """
    return spans * math.sqrt(math.log(2 * questions / CHANCE) / (2 * trials))


def right_on_average(draws: Array, expected: Array, unit: Array | float) -> None:
    """Checks that draws scatter round what is expected, each within a unit.

    Args:
        draws: shape (trials, d).
        expected: shape (d,).
        unit: width of the interval that a draw of an element lies in.
    """
    trials, d = draws.shape
    off = draws.mean(axis=0, dtype=np.float64) - expected
    spans = np.broadcast_to(np.asarray(unit, np.float64), (d,))
    assert (np.abs(off) <= hoeffding(spans, trials, d) + 1e-12).all()
    # All elements together, by their signs: finds a pull towards or away from zero that no element shows.
    together = float(np.abs(off @ np.sign(expected)))
    limit = math.sqrt(float(spans @ spans)) * math.sqrt(math.log(2 / CHANCE) / (2 * trials))
    assert together <= limit + 1e-12


def variance(draws: Array, x: Array) -> float:
    """E|Q(x) - x|^2 / |x|^2 as measured."""
    return float(np.square(draws - x).sum(axis=1).mean() / np.square(x, dtype=np.float64).sum())
