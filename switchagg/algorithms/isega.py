"""ISEGA: random blocks of the gradient's difference to a memory; converges without a shared minimizer.

Mishchenko, Hanzely, Richtarik (arXiv 1901.09437); the variance reduction is SEGA's (arXiv
1809.03054).

    d_i = (grad f_i(x) - h_i)_{U_i}        what worker i sends: k of m blocks, tau = k / m
    g   = h + (1/tau) mean d_i             unbiased, with a variance that vanishes at x*
    x  <- prox(x - gamma g),  h_i <- h_i + d_i,  h <- h + mean d_i

h is the mean of the h_i, which every worker keeps beside its own. This is DIANA with random blocks as its
quantizer (omega = 1/tau - 1, alpha = tau), which gives the step size for any convex f_i and any convex R.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from switchagg.algorithms.base import Problem, checked_gamma, checked_start, constants, runner
from switchagg.algorithms.blocks import BlockDraws, checked_lanes, mean_of_blocks

if TYPE_CHECKING:
    from worker_lib.session import Session


class Isega:
    """One worker's part.

    The memory that all workers keep, h, has to stay the mean of their own: lanes of 64 bits keep it so within
    2^-62 of each difference. With 32 bits the rounding errors of all steps, 2^-28 of each difference, stay in
    h, and x ends up as far from x* as that gives.

    Args:
        tau, block, draw, seed, bits: as for `ibcd.Ibcd`.
        step: gamma; by default 1 / (L (1 + 6 omega / n)), which has a guarantee (for shared draws with 1 in
            place of n), and at most 2 / L.

    Attributes:
        x: the iterate, the same to the bit at all workers.
        own_memory: h_i.
        memory: h, the mean of all h_i, the same to the bit at all workers.
        gamma, gamma_bound: the step size, and the largest for which convergence is proved.
        rate: 1 - rate is the factor by which the expected error shrinks, at least, in each step.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        tau: float,
        block: int = 16,
        draw: str = "independent",
        step: float | None = None,
        seed: int = 0,
        bits: int = 64,
        x0: ArrayLike | None = None,
    ) -> None:
        self.x = checked_start(problem, x0)
        self._problem, self._session = problem, session
        self._draws = BlockDraws(problem.dim, block=block, tau=tau, draw=draw, seed=seed, rank=session.rank)
        self._bits = checked_lanes(bits)
        known = constants(problem, session)
        # With one draw for all, the noise is that of one worker who has all of F.
        averaged = 1 if self._draws.shared else session.world_size
        smoothness = known.mean_smoothness if self._draws.shared else known.smoothness
        omega = self._draws.omega
        self.gamma_bound = 1 / (smoothness * (1 + 6 * omega / averaged))
        self.gamma = checked_gamma(step, smoothness, self.gamma_bound)
        self.rate = min(self.gamma * known.strong_convexity, self._draws.tau / 2)
        self.own_memory = np.zeros(problem.dim)
        self.memory = np.zeros(problem.dim)

    def step(self) -> int:
        """One step; one collective."""
        draws = self._draws
        mask = draws.next()
        difference = self._problem.gradient(self.x) - self.own_memory
        difference[~draws.elements(mask)] = 0
        mean, bits = mean_of_blocks(
            self._session, difference, mask, draws.block, shared=draws.shared, bits=self._bits
        )
        estimate = self.memory + mean / draws.tau
        self.x = self._problem.prox(self.x - self.gamma * estimate, self.gamma)
        self.own_memory += difference
        self.memory += mean
        return bits


run = runner(Isega)
