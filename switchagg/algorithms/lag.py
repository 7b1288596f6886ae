"""LAG: a worker sends its gradient's change only when that is large against the last steps; else it is lazy.

Chen, Giannakis, Sun, Yin, "LAG: Lazily Aggregated Gradient for Communication-Efficient Distributed Learning"
(NeurIPS 2018, arXiv 1805.09965), the workers' rule (LAG-WK):

    d_i = grad f_i(x_k) - sent_i
    send d_i if ||d_i||^2 > (1 / gamma^2) sum over the last D steps of xi ||x_(k+1-d) - x_(k-d)||^2
    g <- g + mean of what was sent,   x <- x - gamma g

The paper's rule has M^2 beside gamma^2, M being the number of workers, for a sum of losses; here F is a mean.
A lazy worker is a SKIP in every slot: headers without words. Where all are lazy, only the plan travels.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from switchagg.algorithms.base import (
    Array,
    Problem,
    checked_at_least,
    checked_gamma,
    checked_start,
    constants,
    runner,
)
from switchagg.algorithms.blocks import checked_lanes, mean_of_blocks
from switchagg.errors import UsageError, require
from switchagg.rules.planner import MAX_BLOCK

if TYPE_CHECKING:
    from worker_lib.session import Session


class Lag:
    """One worker's part.

    Args:
        problem: smooth, without a regularizer R.
        step: gamma; by default 1 / L, L being that of F or its bound, the mean L_i; and at most 2 / L.
        window: D, steps that the rule looks back on; 10 in the paper's experiments.
        xi: weight of each; 0.1 there. The paper proves linear convergence for strongly convex F with
            gamma = (1 - sqrt(D xi)) / L and xi < 1 / D; the paper's experiments, and the defaults, go beyond.
        bits: lanes on the wire, 64 or 32.

    Attributes:
        x: the iterate, the same to the bit at all workers.
        gamma: the step size.
        sendings: steps in which this worker sent.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        step: float | None = None,
        window: int = 10,
        xi: float = 0.1,
        bits: int = 64,
        x0: ArrayLike | None = None,
    ) -> None:
        if getattr(problem, "l1", 0.0):
            raise UsageError("the problem has an l1 term, which LAG does not treat; use DIANA")
        require(0 <= xi < np.inf, "xi", repr(xi), "0 and up; 0 sends always")
        self.x = checked_start(problem, x0)
        self._problem, self._session = problem, session
        self._bits, self._xi = checked_lanes(bits), float(xi)
        smoothness = constants(problem, session).mean_smoothness
        self.gamma = checked_gamma(step, smoothness, 1 / smoothness)
        self._moves: deque[float] = deque(maxlen=checked_at_least("window", window, 1))
        self._sent: Array | None = None  # nothing: the first step sends everything
        self._gradient = np.zeros(problem.dim)  # the mean of what all have sent last
        self._block = min(problem.dim, MAX_BLOCK)
        self.sendings = 0

    def step(self) -> int:
        """One step; one collective, in which a lazy worker has no words."""
        gradient = self._problem.gradient(self.x)
        change = gradient if self._sent is None else gradient - self._sent
        allowed = self._xi * sum(self._moves) / self.gamma**2
        send = self._sent is None or float(change @ change) > allowed
        blocks = -(-change.size // self._block)
        mask = np.full(blocks, send, np.bool_)
        mean, _ = mean_of_blocks(self._session, change, mask, self._block, shared=False, bits=self._bits)
        if send:
            self._sent = gradient
            self.sendings += 1
        self._gradient += mean
        move = self.gamma * self._gradient
        self.x = self.x - move
        self._moves.append(float(move @ move))
        return self._bits * change.size if send else 0


run = runner(Lag)
