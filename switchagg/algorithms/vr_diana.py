"""VR-DIANA: DIANA with stochastic gradients whose variance is reduced as well; still linear, and to x*.

Horvath, Kovalev, Mishchenko, Richtarik, Stich, "Stochastic Distributed Learning with Gradient Quantization
and Variance Reduction" (arXiv 1904.05115). f_i is a mean of m components f_ij, here batches of
samples that are fixed for the run:

    g_i = grad f_ij(x) - grad f_ij(w_ij) + mean_j grad f_ij(w_ij),   j drawn at random

    lsvrg   one reference point w for all components, set to x with probability 1/m, by a coin that all
            workers toss alike
    saga    a table of gradients, one a component; row j is renewed

and g_i goes the way of `diana`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.algorithms.base import (
    Array,
    Problem,
    checked_at_least,
    checked_gamma,
    checked_start,
    constants,
    runner,
)
from switchagg.algorithms.diana import CompressedAverage, Momentum
from switchagg.errors import UsageError, require
from worker_lib.compress.base import Compressor

if TYPE_CHECKING:
    from worker_lib.session import Session

VARIANCES: Final = ("lsvrg", "saga")


class Components:
    """A problem's samples in m batches; f_i is the mean of the batches' losses.

    Args:
        batch: samples a batch, the last may have fewer.

    Attributes:
        count: m.
    """

    def __init__(self, problem: Problem, batch: int, seed: int, rank: int) -> None:
        size = checked_at_least("batch", batch, 1)
        if size > problem.samples:
            raise UsageError(f"batch is {batch}; accepted: 1 to {problem.samples}, this worker's samples")
        self._problem = problem
        order = np.random.default_rng((seed, 1 + rank, 1)).permutation(problem.samples).astype(np.int64)
        self.count = -(-problem.samples // size)
        self._batches: list[NDArray[np.int64]] = np.array_split(order, self.count)

    def gradient(self, j: int, x: Array) -> Array:
        """Gradient of f_ij, weighted so that the mean over j is exactly f_i's."""
        indices = self._batches[j]
        weight = len(indices) * self.count / self._problem.samples
        return weight * self._problem.batch_gradient(x, indices)

    @property
    def weight(self) -> float:
        """The largest weight of a batch; 1 where m divides the samples."""
        return max(len(b) for b in self._batches) * self.count / self._problem.samples


class _Lsvrg:
    def __init__(self, components: Components, problem: Problem, x: Array, seed: int, chance: float) -> None:
        self._components, self._problem, self._chance = components, problem, chance
        self._coins = np.random.default_rng((seed, 0))
        self._renew(x)

    def _renew(self, x: Array) -> None:
        self._reference, self._full = x.copy(), self._problem.gradient(x)

    def estimate(self, x: Array, j: int) -> Array:
        toss = self._coins.random() < self._chance
        g = self._components.gradient(j, x) - self._components.gradient(j, self._reference) + self._full
        if toss:
            self._renew(x)
        return g


class _Saga:
    def __init__(self, components: Components, x: Array) -> None:
        self._components = components
        self._table = np.stack([components.gradient(j, x) for j in range(components.count)])
        self._mean = self._table.mean(axis=0)

    def estimate(self, x: Array, j: int) -> Array:
        fresh = self._components.gradient(j, x)
        change = fresh - self._table[j]
        g = change + self._mean
        self._table[j] = fresh
        self._mean = self._mean + change / len(self._table)
        return np.asarray(g)


class VrDiana:
    """One worker's part.

    Args:
        compressor, alpha, momentum: as for `diana.Diana`.
        batch: samples of a component.
        variance: ``"lsvrg"`` (a gradient of all samples about every m steps) or ``"saga"`` (a table of m
            gradients).
        step: gamma; by default 1 / (L (1 + 36 (w + 1 / n))), w being `diana.Diana`'s: with independent
            compressors, w = omega / n, the paper's. L is the largest of a sample. At most 2 / L with the
            largest of a worker.
        memory: False to compress the stochastic gradients themselves.
        seed: of samples and coins.

    Attributes:
        x: the iterate, the same to the bit at all workers.
        average: holds the memories.
        gamma, gamma_bound: the step size, and the largest for which convergence is proved.
        components: m, the largest of any worker.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        compressor: Compressor,
        batch: int = 1,
        variance: str = "lsvrg",
        alpha: float | None = None,
        step: float | None = None,
        momentum: float = 0.0,
        memory: bool = True,
        seed: int = 0,
        x0: ArrayLike | None = None,
    ) -> None:
        require(variance in VARIANCES, "variance", repr(variance), ", ".join(map(repr, VARIANCES)))
        checked_at_least("seed", seed, 0)
        self.x = checked_start(problem, x0)
        self._problem = problem
        self._momentum = Momentum(problem.dim, momentum)
        self._components = Components(problem, batch, seed, session.rank)
        self.average = CompressedAverage(session, problem.dim, compressor, alpha, memory=memory)
        known = constants(problem, session)
        sizes = np.array([self._components.count, self._components.weight], np.float64)
        rows: Array = session.allgather(sizes)
        self.components = int(rows[:, 0].max())
        smoothness = known.sample_smoothness * float(rows[:, 1].max())
        scatter = self.average.mean_omega + 1 / session.world_size
        self.gamma_bound = 1 / (smoothness * (1 + 36 * scatter))
        self.gamma = checked_gamma(step, known.smoothness, self.gamma_bound)
        self._draws = np.random.default_rng((seed, 1 + session.rank))
        self._estimator: _Saga | _Lsvrg
        if variance == "saga":
            self._estimator = _Saga(self._components, self.x)
        else:
            self._estimator = _Lsvrg(self._components, problem, self.x, seed, 1 / self.components)

    def step(self) -> int:
        """One step; one collective, or two where the compressor needs a common scale."""
        j = int(self._draws.integers(self._components.count))
        estimate, bits = self.average(self._estimator.estimate(self.x, j))
        self.x = self._momentum.step(self._problem, self.x, estimate, self.gamma)
        return bits


run = runner(VrDiana)
