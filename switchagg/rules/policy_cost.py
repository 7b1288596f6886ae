"""Densities of a tensor, and the cost of an element under any skip policy; see `rules.policy`.

The filter: R. E. Kalman, *A New Approach to Linear Filtering and Prediction Problems*, 1960. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.rules.planner import SkipPolicy
from switchagg.wire.heartbeat import SAMPLED_SIZES

BLOCKS: Final = (16, 64, 256, 1024)  # the block sizes that a tuner chooses from

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Densities:
    """Shares of blocks that are not zero, one for each of `SAMPLED_SIZES`.

    Attributes:
        own: on one rank, averaged over ranks.
        union: on any rank.
    """

    own: tuple[float, ...]
    union: tuple[float, ...]

    def at(self, block: int) -> float:
        """The union's density in blocks of one of `BLOCKS`."""
        return self.union[SAMPLED_SIZES.index(block)]

    def runs(self, block: int) -> float:
        """Borders an element between blocks that are treated differently: sent or not, with words or zeros.

        Two neighbours differ where the pair that they make is non-zero and one of them is zero. What lies in
        larger pieces than a pair has its borders between pairs, so coarser sizes count too.
        """
        first = SAMPLED_SIZES.index(block)
        borders = 0.0
        for shares in (self.own, self.union):
            differ = [2 * (b - a) for a, b in pairwise(shares)]
            differ.append(2 * shares[-1] * (1 - shares[-1]))  # the largest, as if they lay independently
            borders += max(d / 2**i for i, d in enumerate(differ[first:]))
        return max(0.0, borders) / 2 / block


_BASE: Final = 4  # coefficients: scan, wire, arithmetic, runs
_SPECIAL: Final = ("dense", *BLOCKS, 16.5, 8.5)  # what the base may be wrong about; the last two are lanes
_SHARES: Final = np.array([0.35, 0.35, 0.30, 0.65])  # of a dense collective's cost, before anything is known
_SETTLED: Final = 3  # windows under one policy after which a surprise is no longer put down to it
_RUN: Final = 40.0  # elements that cost as much as a border between runs


class CostModel:
    """The cost of an element under any policy, learned from its cost under those that were in force.

        cost = (scan + wire * words + arithmetic * union + runs * borders) * (1 + what is special to a policy)

    A Kalman filter over these coefficients. The machine may become slower or faster as a whole at any time;
    what is special to a block size, to dense or to narrow lanes hardly changes. So a surprise that comes with
    a change of the policy is put down to the policy, and one that comes without to the machine.
    """

    def __init__(self) -> None:
        self._mean: Vector | None = None
        self._spread: Vector = np.empty(0)
        self._last: SkipPolicy | None = None
        self._settled = 0  # windows since the policy changed
        self._astray = 0.0  # the last window's surprise, if it was past belief

    @property
    def ready(self) -> bool:
        """True if anything has been learned."""
        return self._mean is not None

    def learn(self, policy: SkipPolicy, densities: Densities, cost: float) -> None:
        """Takes in that an element has cost `cost` nanoseconds on average."""
        if self._mean is None:
            scale = cost / float(_shape(policy, densities) @ _SHARES)
            special = len(_SPECIAL)
            self._mean = np.concatenate([scale * _SHARES, np.zeros(special)])
            self._spread = np.diag(np.concatenate([(0.4 * scale * _SHARES) ** 2, np.full(special, 0.2**2)]))
            return
        base = self._mean[:_BASE]
        drift = np.zeros_like(self._spread)
        drift[:_BASE, :_BASE] = 0.03**2 * np.outer(base, base) + np.diag((0.01 * base) ** 2)
        drift[_BASE:, _BASE:] = np.diag(np.full(len(_SPECIAL), 1e-5))
        self._spread = self._spread + drift
        row, expected = self._row(policy, densities)
        noise = (0.08 * expected) ** 2
        variance = float(row @ self._spread @ row) + noise
        surprise = cost - expected
        limit = 3 * variance**0.5
        self._settled = self._settled + 1 if policy == self._last else 0
        self._last = policy
        if abs(surprise) > limit and self._settled >= _SETTLED:
            # Once, it is a stall and teaches nothing. Twice, it is another machine.
            if self._astray * surprise > 0:
                self._rescale(cost / expected)
            self._astray = surprise
            return
        self._astray = 0.0
        gain = self._spread @ row / variance
        self._mean = self._mean + gain * float(np.clip(surprise, -limit, limit))
        self._spread = self._spread - np.outer(gain, row @ self._spread)
        # No step makes anything faster than free.
        self._mean[:_BASE] = np.maximum(self._mean[:_BASE], 0.02 * float(self._mean[:_BASE].sum()) * _SHARES)
        self._mean[_BASE:] = np.clip(self._mean[_BASE:], -0.6, 3.0)

    def _rescale(self, factor: float) -> None:
        assert self._mean is not None
        by = np.ones_like(self._mean)
        by[:_BASE] = factor
        self._mean = self._mean * by
        self._spread = self._spread * np.outer(by, by)

    def predict(self, policy: SkipPolicy, densities: Densities) -> float:
        """Nanoseconds an element."""
        return self._row(policy, densities)[1]

    def doubt(self, policy: SkipPolicy, other: SkipPolicy, densities: Densities) -> float:
        """Standard deviation of the difference between two policies' costs."""
        row = self._row(policy, densities)[0] - self._row(other, densities)[0]
        return float(max(0.0, float(row @ self._spread @ row)) ** 0.5)

    def _row(self, policy: SkipPolicy, densities: Densities) -> tuple[Vector, float]:
        """The derivatives of the cost by the coefficients, and the cost."""
        assert self._mean is not None
        shape = _shape(policy, densities)
        plain = float(shape @ self._mean[:_BASE])
        row = np.zeros(_BASE + len(_SPECIAL))
        factor = 1.0
        for name in _specials(policy):
            at = _BASE + _SPECIAL.index(name)
            row[at] = plain
            factor += float(self._mean[at])
        row[:_BASE] = shape * factor
        return row, plain * max(0.1, factor)


def _shape(policy: SkipPolicy, densities: Densities) -> Vector:
    """The factors of the base coefficients, per element."""
    narrow = 1.0 if policy.bits is None else policy.bits / 32
    if policy.dense:
        return np.array([1.0, narrow, 1.0, 0.0])
    union = densities.at(policy.block)
    bitmap = 1 / (32 * policy.block)
    return np.array([1.0, union * narrow + bitmap, union, _RUN * densities.runs(policy.block)])


def _specials(policy: SkipPolicy) -> list[str | float]:
    found: list[str | float] = ["dense" if policy.dense else nearest(policy.block)]
    if policy.bits in (16, 8):
        found.append(policy.bits + 0.5)
    return found


def nearest(block: int) -> int:
    return min(BLOCKS, key=lambda each: abs(np.log2(each / block)))
