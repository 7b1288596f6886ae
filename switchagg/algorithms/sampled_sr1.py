"""The parts that methods of sampled SR1 curvature share: `slsr1` and `dslsr1` are made of them.

reduce what the next model needs, at the trial point x + p, for directions S that a shared seed draws
accept or reject by  (F(x) - F(x+p)) / predicted
p = argmin  grad' p + p' B p / 2   over ||p|| <= radius, B being SR1's with the m secant equations of S
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike

from switchagg.algorithms.base import Array, Problem, checked_at_least, checked_start, constants
from switchagg.algorithms.blocks import checked_lanes
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from worker_lib.session import Session

SKIP: Final = 1e-8  # SR1's rule: curvature so small against its vectors is left out
_ACCEPT: Final = 1e-4  # of the predicted decrease
_GOOD: Final = 0.75
_POOR: Final = 0.25


class SampledSr1:
    """One worker's part; a method says what it sums, and how it minimizes the model.

    Args:
        problem: smooth, with Hessian-vector products.
        memory: m, directions in which curvature is sampled, 1 to d.
        radius: of the trust region at first.
        seed: of the directions.
        bits: lanes on the wire, 64 or 32.

    Attributes:
        x: the iterate.
        loss: F(x), as the sum gave it.
        gradient: of F at x.
        radius: of the trust region.
        rejected: trial points so far that were no better.
    """

    _method: ClassVar[str]

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        memory: int = 8,
        radius: float = 1.0,
        seed: int = 0,
        bits: int = 64,
        x0: ArrayLike | None = None,
    ) -> None:
        if checked_at_least("memory", memory, 1) > problem.dim:
            raise UsageError(f"memory is {memory}; accepted: 1 to {problem.dim}, the problem's dimension")
        require(0 < radius < np.inf, "radius", repr(radius), "greater than 0")
        if getattr(problem, "l1", 0.0):
            raise UsageError(f"the problem has an l1 term, which {self._method} does not treat; use DIANA")
        checked_at_least("seed", seed, 0)
        self.x = checked_start(problem, x0)
        self.radius = float(radius)
        self.rejected = 0
        self._problem, self._session, self._memory = problem, session, memory
        self._bits = checked_lanes(bits)
        self._rng = np.random.default_rng((seed, 0))
        self._initial = constants(problem, session).mean_smoothness
        self._numbers = 0  # that this worker has given to the switch in this step
        self._sample = self._draw()
        self.loss, self.gradient, self._curvature = self._reduce(self.x)

    def step(self) -> int:
        """One trial point. Returns the bits of payload that this worker gave to the switch."""
        self._numbers = 0
        move, predicted = self._minimizer()
        if not predicted > 0:  # the gradient is zero
            return 0
        sample, self._sample = self._sample, self._draw()
        loss, gradient, curvature = self._reduce(self.x + move)
        # Differences of nearly equal losses say nothing: there the model is as good as the loss.
        noise = 1e-12 * max(abs(self.loss), abs(loss))
        ratio = (self.loss - loss + noise) / (predicted + noise)
        self.radius = _next_radius(ratio, float(np.linalg.norm(move)), self.radius)
        if ratio > _ACCEPT:
            self.x = self.x + move
            self.loss, self.gradient, self._curvature = loss, gradient, curvature
        else:
            self._sample = sample
            self.rejected += 1
        return self._numbers * self._bits

    def _draw(self) -> Array:
        """S: orthonormal columns, equal at all workers."""
        return np.linalg.qr(self._rng.standard_normal((self.x.size, self._memory)))[0]

    def _average(self, message: Array) -> Array:
        self._numbers += message.size
        self._session.allreduce(message, op="avg", bits=self._bits, blocks="dense")
        return message

    def _reduce(self, x: Array) -> tuple[float, Array, Any]:
        """F and its gradient at x, and what the method keeps of the curvature there."""
        raise NotImplementedError

    def _minimizer(self) -> tuple[Array, float]:
        """p, and the decrease that the model predicts."""
        raise NotImplementedError


def _next_radius(ratio: float, size: float, radius: float) -> float:
    """The trust region's next radius, from a step's size and its decrease over the predicted one."""
    if ratio < _POOR:
        return size / 4
    return 2 * radius if ratio > _GOOD and size > 0.8 * radius else radius
