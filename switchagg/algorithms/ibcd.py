"""IBCD: each worker sends a random share tau of the blocks of its gradient, and nothing else.

Mishchenko, Hanzely, Richtarik, "99% of Worker-Master Communication in Distributed Optimization Is Not Needed"
(arXiv 1901.09437).

    x <- x - gamma (1/n) sum_i (grad f_i(x))_{U_i}        U_i: k of m blocks, tau = k / m

With independent draws the mean has the gradients' differences in it as noise. Where all f_i share a minimizer
the noise vanishes there, and tau = 1/n costs only a factor of two in steps; elsewhere the method stops at a
distance that does not shrink (`isega` cures that). With one draw for all workers it is block coordinate
descent on F, which needs no shared minimizer, but makes only a share tau of the progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from switchagg.algorithms.base import Problem, checked_start, checked_step, constants, runner
from switchagg.algorithms.blocks import BlockDraws, checked_lanes, mean_of_blocks
from switchagg.errors import UsageError

if TYPE_CHECKING:
    from worker_lib.session import Session


class Ibcd:
    """One worker's part.

    Args:
        problem: smooth.
        tau: share of the blocks that each worker sends, in (0, 1].
        block: elements a block.
        draw: ``"independent"`` draws at every worker, as in the paper, or one ``"shared"`` by all.
        step: gamma; by default the largest with a guarantee, and at most twice that.
        seed: of the draws.
        bits: lanes on the wire, 64 or 32.

    Attributes:
        x: the iterate, the same to the bit at all workers.
        gamma: the step size.
        gamma_bound: the largest for which convergence is proved.
        rate: 1 - rate is the factor by which the expected error shrinks, at least, in each step; for
            independent draws ||x - x*||^2 and a shared minimizer, for shared ones F(x) - F*.
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
        if getattr(problem, "l1", 0.0):
            raise UsageError("the problem has an l1 term, which IBCD does not treat; use ISEGA or DIANA")
        self.x = checked_start(problem, x0)
        self._problem, self._session = problem, session
        n = session.world_size
        self._draws = BlockDraws(problem.dim, block=block, tau=tau, draw=draw, seed=seed, rank=session.rank)
        self._bits = checked_lanes(bits)
        known = constants(problem, session)
        tau = self._draws.tau
        if self._draws.shared:
            self.gamma_bound = 1 / sampled_smoothness(problem, session, self._draws, known.mean_smoothness)
            why = "1 / v, v being F's smoothness along k random blocks"
        else:
            self.gamma_bound = n / ((tau * n + 1 - tau) * known.smoothness)
            why = "n / ((tau n + 1 - tau) L)"
        self.gamma = checked_step("step", step, 2 * self.gamma_bound, "2 " + why, self.gamma_bound)
        self.rate = self.gamma * tau * known.strong_convexity

    def step(self) -> int:
        """One step; one collective."""
        mean, bits = mean_of_blocks(
            self._session, self._problem.gradient(self.x), self._draws.next(), self._draws.block,
            shared=self._draws.shared, bits=self._bits,
        )  # fmt: skip
        self.x = self.x - self.gamma * mean
        return bits


def sampled_smoothness(problem: Problem, session: Session, draws: BlockDraws, smoothness: float) -> float:
    """v of E F(x + h_U) <= F(x) + tau (grad F . h + v/2 ||h||^2), U being k random blocks of m.

    With M bounding F's Hessian, E h_U' M h_U is k/m times a mean of h' blockdiag(M) h, with weight
    (m - k) / (m - 1), and h' M h (Qu and Richtarik, arXiv 1412.8063, on expected separable
    overapproximation). Problems that know no `block_smoothness` get `smoothness`. One collective.
    """
    find = getattr(problem, "block_smoothness", None)
    if find is None or draws.blocks == 1:
        return smoothness
    parts = np.array(find(draws.block), np.float64)
    session.allreduce(parts, op="avg")
    m, k = draws.blocks, draws.chosen
    return float(((m - k) * min(float(parts.max()), smoothness) + (k - 1) * smoothness) / (m - 1))


run = runner(Ibcd)
