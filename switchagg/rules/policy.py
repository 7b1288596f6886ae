"""The skip policy of a job, tuned while it runs: block size, sparse or dense, lanes.

    heartbeats --Report a rank--> SkipTuner.observe --Decision(policy, why)--> rank 0's headers --> all ranks

Workers report two kinds of things. *Densities*: a small sample of the tensors, before and after they are
summed, in blocks of 16 to 1,024 elements (`native/worker/density.h`), which does not depend on the policy in
force; so what another block size would skip is known without trying it, and a dense job still sees when zeros
appear. *Cost*: the time of collectives from the moment when all ranks were there. `CostModel` learns
from both what an element costs under any policy; the tuner takes the cheapest.

It does not swing: another policy must promise a gain of 3 % (`_MARGIN`), for two windows unless the gain is
large; what was measured of a policy is remembered; and trying one out, where the model is not sure, takes at
most 3 % of the time. A window is the time in which every rank reports once.

Zero blocks and their union: OmniReduce (SIGCOMM'21). The filter of the cost model: R. E. Kalman, *A New
Approach to Linear Filtering and Prediction Problems*, 1960. No I/O; the time comes in as `now`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.wire.heartbeat import SAMPLED_SIZES, Report

BLOCKS: Final = (16, 64, 256, 1024)  # the block sizes that a tuner chooses from
WIDTHS: Final = (None, 16, 8)  # lanes to choose from, if calls leave them to the job and allow them

_GROUP: Final = 1024  # elements that are sampled together; switchagg/native/worker/density.h
_ENOUGH: Final = 48  # groups a rank from which a density is believed
_MEMORY: Final = 256  # groups a rank after which older ones are forgotten
_MARGIN: Final = 0.03  # gain for which a policy is changed
_CLEAR: Final = 0.25  # gain for which it is changed after a single window
_PROBING: Final = 0.03  # share of the time that may go into trying what is probably no better
_RETRY: Final = 5.0  # seconds after which a decision that rank 0 has not carried out is said again

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


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy for a job from now on, and a sentence on why."""

    policy: SkipPolicy
    why: str


class _Sampled:
    """Counts of sampled blocks over a while, older ones fading, and what they say."""

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}
        self._own: dict[int, Vector] = {}
        self._sums = 0.0
        self._sum = np.zeros(len(SAMPLED_SIZES))
        # Used while sums say nothing: 0 if all ranks have the same blocks, 1 if independent, more if apart.
        self._overlap = np.ones(len(SAMPLED_SIZES))

    def add(self, reports: Mapping[int, Report]) -> None:
        sums, summed = 0.0, np.zeros(len(SAMPLED_SIZES))
        for rank, report in reports.items():
            groups = report.sampled_blocks * SAMPLED_SIZES[0] / _GROUP
            keep = max(0.0, 1 - groups / _MEMORY)
            own = np.array(report.sampled_own_by_size, np.float64)
            self._groups[rank] = self._groups.get(rank, 0.0) * keep + groups
            self._own[rank] = self._own.get(rank, np.zeros(len(SAMPLED_SIZES))) * keep + own
            sums += report.sampled_sums * SAMPLED_SIZES[0] / _GROUP
            summed += np.array(report.sampled_sum_by_size, np.float64)
        keep = max(0.0, 1 - sums / _MEMORY)
        self._sums, self._sum = self._sums * keep + sums, self._sum * keep + summed

    def densities(self) -> Densities | None:
        """None as long as too little was seen."""
        if not self._groups or min(self._groups.values()) < _ENOUGH:
            return None
        blocks = _GROUP / np.array(SAMPLED_SIZES)
        own = np.array([self._own[rank] / (self._groups[rank] * blocks) for rank in self._groups])
        own = np.clip(own, 0.0, 1.0)
        most, apart = own.max(axis=0), 1 - np.prod(1 - own, axis=0)
        room = apart - most
        if self._sums >= _ENOUGH:
            union = np.clip(np.maximum(self._sum / (self._sums * blocks), most), 0.0, 1.0)
            known = room > 0.02
            self._overlap[known] = np.clip((union - most)[known] / room[known], 0.0, 4.0)
        else:
            union = np.clip(most + self._overlap * room, most, np.minimum(1.0, own.sum(axis=0)))
        return Densities(tuple(own.mean(axis=0).tolist()), tuple(union.tolist()))


class SkipTuner:
    """Decides on one job's skip policy.

    Args:
        workers: in the job.
        policy: in force.

    Attributes:
        policy: the one decided upon last.
        why: a sentence on it.
    """

    def __init__(self, workers: int, policy: SkipPolicy | None = None) -> None:
        if workers < 1:
            raise UsageError(f"workers is {workers}; accepted: 1 and up")
        self.policy = policy or SkipPolicy()
        self.why = "set at admission"
        self.model = CostModel()
        self._workers = workers
        self._sampled = _Sampled()
        self._window: dict[int, Report] = {}
        self._words: set[int] = set()
        self._began: float | None = None
        self._opened = 0.0
        self._said = 0.0
        self._wanted: SkipPolicy | None = None  # what the last window found better
        self._probing = False
        self._probed = 0.0
        self._tried: dict[SkipPolicy, tuple[float, float]] = {}  # when last, and how long to leave it

    @property
    def densities(self) -> Densities | None:
        """The known facts of the job's tensors."""
        return self._sampled.densities()

    def observe(self, now: float, reports: Mapping[int, Report]) -> Decision | None:
        """Takes in what ranks have reported.

        Args:
            now: seconds, of any clock that only grows.
            reports: by rank, what has been added to each counter since that rank's last report
                (`Report.since`).

        Returns:
            A new policy for the job, or the last one once more if rank 0 has not begun to say it; None to
            leave it as it is.
        """
        if self._began is None:
            self._began = self._opened = now
        for rank, report in reports.items():
            if report.policy_elements == 0:
                continue
            before = self._window.get(rank)
            self._window[rank] = report if before is None else before.plus(report)
            if report.policy_word == self.policy.word() or len(self._words) < 2:
                self._words.add(report.policy_word)  # more would say no more
        if len(self._window) < self._workers:
            return None
        window, words, length = self._window, self._words, now - self._opened
        self._window, self._words, self._opened = {}, set(), now
        return self._close(now, window, words, length)

    def _close(
        self, now: float, window: Mapping[int, Report], words: set[int], length: float
    ) -> Decision | None:
        self._sampled.add(window)
        densities = self._sampled.densities()
        if words != {self.policy.word()}:
            # Still, or for a part of the window, another one.
            late = self.policy.word() not in words and now - self._said > _RETRY
            if late:
                self._said = now
            return Decision(self.policy, self.why) if late else None
        if densities is None:
            return None
        floor = max((report.policy_lanes for report in window.values()), default=0)
        # A stall of one rank holds up all, and says nothing of the policy: the median.
        costs = [report.policy_ns / report.policy_elements for report in window.values()]
        cost = float(np.median(costs))
        if cost <= 0:
            return None  # no collective takes no time: such reports teach nothing
        self.model.learn(self._effective(self.policy, floor), densities, cost)
        return self._choose(now, densities, floor, length)

    def _choose(self, now: float, densities: Densities, floor: int, length: float) -> Decision | None:
        current = self._effective(self.policy, floor)
        costs = {
            policy: self.model.predict(policy, densities)
            for policy in {*_candidates(floor, self.policy.block), current}
        }
        here = costs[current]
        best = min(costs, key=lambda policy: (costs[policy], policy != current))
        gain = 1 - costs[best] / here
        if self._probing:
            self._probed += length
            self._probing = False
            kept = gain < _MARGIN
            last = self._tried[self.policy]
            self._tried[self.policy] = (now, 10.0 if kept else 2 * last[1])
            if not kept:
                return self._decide(now, best, _reason(best, current, densities, gain, "after a trial"))
            return None
        if gain > _MARGIN:
            sure = gain > _CLEAR or self._wanted == best
            self._wanted = best
            if not sure:
                return None
            self._wanted = None
            return self._decide(now, best, _reason(best, current, densities, gain, ""))
        self._wanted = None
        return self._probe(now, costs, current, densities)

    def _probe(
        self, now: float, costs: Mapping[SkipPolicy, float], current: SkipPolicy, densities: Densities
    ) -> Decision | None:
        """Tries a policy that may well be better, if the time allows."""
        assert self._began is not None
        here = costs[current]
        hopes = {}
        for policy, cost in costs.items():
            when, leave = self._tried.get(policy, (-np.inf, 10.0))
            if policy == current or now - when < leave:
                continue
            hope = 1 - (cost - self.model.doubt(policy, current, densities)) / here
            # The expected gain must be worth the risk.
            if hope > 0.1 and cost < 1.25 * here:
                hopes[policy] = hope
        if not hopes or self._probed > _PROBING * (now - self._began):
            return None
        best = max(hopes, key=lambda policy: hopes[policy])
        self._probing = True
        self._tried[best] = (now, self._tried.get(best, (0.0, 10.0))[1])
        return self._decide(now, best, f"a trial: {_densities(best, densities)}")

    def _decide(self, now: float, policy: SkipPolicy, why: str) -> Decision:
        self.policy, self.why, self._said = policy, why, now
        return Decision(policy, why)

    def _effective(self, policy: SkipPolicy, floor: int) -> SkipPolicy:
        """The policy as it comes out for the job's calls."""
        if policy.bits is None or floor == 0:
            return replace(policy, bits=None)
        width = max(policy.bits, floor)
        return replace(policy, bits=width if width in WIDTHS else None)


def _candidates(floor: int, block: int) -> list[SkipPolicy]:
    widths = [w for w in WIDTHS if w is None or 0 < floor <= w]
    shapes = [SkipPolicy(each) for each in BLOCKS] + [SkipPolicy(block, dense=True)]
    return [replace(shape, bits=width) for shape in shapes for width in widths]


def _densities(policy: SkipPolicy, densities: Densities) -> str:
    block = policy.block if policy.block in SAMPLED_SIZES else nearest(policy.block)
    share = densities.at(block)
    return f"{share:.{0 if share >= 0.1 else 1}%} of blocks of {block} are non-zero at some rank"


def _reason(best: SkipPolicy, current: SkipPolicy, densities: Densities, gain: float, when: str) -> str:
    text = f"{_densities(best, densities)}; {best} is {gain:.0%} faster than {current}"
    return f"{text}, {when}" if when else text
