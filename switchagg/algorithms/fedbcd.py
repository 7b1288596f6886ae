"""FedBCD: workers hold different features of the same samples; partial outputs are summed, then local steps.

Y. Liu, Y. Kang, X. Zhang, L. Li, Y. Cheng, T. Chen, M. Hong, Q. Yang: *A Communication Efficient
Collaborative Learning Framework for Distributed Features*, arXiv 1912.11187, the parallel form, FedBCD-p.

    all     z = sum over workers of A_k x_k on a batch of samples         one sum of a number a sample
    each    local_steps times:  x_k -= rate * gradient of the loss at z + A_k (x_k - x_k as it was then)

The others' parts of z are as old as the last sum. Outputs are all that is sent, as integers in lanes, so the
size of a message is that of the batch and not of the model, and z is the same to the bit at every worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from switchagg.algorithms.base import Array, Log, checked_at_least, checked_batch, checked_step
from switchagg.algorithms.problems import checked_samples
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from worker_lib.session import Session

LOSSES: Final = ("ridge", "logistic")


@dataclass(frozen=True, eq=False)
class VerticalShare:
    """One worker's features of all samples.

    All workers together have f(x) = mean over samples of loss(sum_k a_k . x_k, b) + l2/2 ||x||^2.

    Args:
        features: (N, d_k), this worker's columns.
        targets: (N,), which every worker has; for ``"logistic"`` -1 or 1.
        loss: ``"ridge"``, (z - b)^2 / 2, or ``"logistic"``, log(1 + exp(-b z)).
        l2: 0 and up.

    Raises:
        UsageError: shapes do not fit, or a value cannot be.
    """

    features: Array
    targets: Array
    loss: str = "ridge"
    l2: float = 0.0
    smoothness: float = field(init=False)

    def __post_init__(self) -> None:
        a, b = checked_samples(self.features, self.targets)
        require(self.loss in LOSSES, "loss", repr(self.loss), ", ".join(map(repr, LOSSES)))
        if self.loss == "logistic" and not np.isin(b, (-1.0, 1.0)).all():
            raise UsageError("targets are not all -1 or 1, as logistic regression needs")
        require(0 <= self.l2 < np.inf, "l2", repr(self.l2), "0 and up")
        curvature = 1.0 if self.loss == "ridge" else 0.25
        largest = float(np.linalg.norm(a, 2)) ** 2 / len(a)
        object.__setattr__(self, "features", a)
        object.__setattr__(self, "targets", b)
        object.__setattr__(self, "smoothness", curvature * largest + self.l2)

    @property
    def dim(self) -> int:
        """d_k."""
        return int(self.features.shape[1])

    @property
    def samples(self) -> int:
        """N."""
        return int(self.features.shape[0])

    def outputs(self, x: Array, indices: NDArray[np.int64]) -> Array:
        """A_k x_k on these samples; (len(indices),)."""
        return np.asarray(self.features[indices] @ x)

    def gradient(self, x: Array, z: Array, indices: NDArray[np.int64]) -> Array:
        """This block's part of the gradient where all blocks together give outputs z; (d_k,)."""
        b = self.targets[indices]
        slopes = z - b if self.loss == "ridge" else -b * np.exp(-np.logaddexp(0.0, b * z))
        return np.asarray(self.features[indices].T @ slopes / len(indices) + self.l2 * x)

    def loss_of(self, z: Array) -> float:
        """Mean loss of all samples at these outputs, without l2."""
        if self.loss == "ridge":
            return float(np.square(z - self.targets).mean() / 2)
        return float(np.logaddexp(0.0, -self.targets * z).mean())


def largest_rate(smoothness: list[float], local_steps: int) -> float:
    """Largest rate at which full batches of a quadratic loss cannot diverge.

    With A the Hessian and D its diagonal blocks, a round multiplies the error by I - M A, where M is
    (I - (I - rate D)^Q) / D, at most 1 / D where rate <= 1 / max L_k, and at most Q rate. A is at most n D,
    so that two workers may take that rate; it is at most sum L_k, so that more may take 1 / (Q sum L_k).

    Args:
        smoothness: L_k of every worker.
        local_steps: Q.
    """
    alone = 1 / max(smoothness)
    if len(smoothness) <= 2:
        return alone
    return min(alone, 1 / (local_steps * sum(smoothness)))


def run(
    problem: VerticalShare,
    session: Session,
    *,
    steps: int,
    local_steps: int = 1,
    rate: float | None = None,
    batch: int | None = None,
    bits: int | None = None,
    seed: int = 0,
    log: Log | None = None,
    x0: ArrayLike | None = None,
) -> Array:
    """Runs FedBCD-p.

    Args:
        problem: this worker's features.
        steps: sums.
        local_steps: Q, of each worker between two sums.
        rate: of a local step, at most `largest_rate`, which it is by default.
        batch: samples of a step, the same at all workers, drawn with `seed`; None for all.
        bits: of lanes of the summed outputs: 64 (the default), 32, 16 or 8.
        log: of this worker's block of x; its optimum is that block's. All steps are taken, whatever its
            target.
        x0: where this worker's block starts.

    Returns:
        This worker's block of x; (d_k,).
    """
    checked_at_least("steps", steps, 1)
    checked_at_least("local_steps", local_steps, 1)
    checked_batch(batch, problem.samples)
    x = np.zeros(problem.dim) if x0 is None else np.array(x0, np.float64)
    if x.shape != (problem.dim,):
        raise UsageError(f"x0 has shape {x.shape}; needed: ({problem.dim},)")
    constants = session.allgather(np.array([problem.smoothness]))[:, 0].tolist()
    bound = largest_rate(constants, local_steps)
    why = "1 / the largest L_k" if len(constants) <= 2 else "1 / (local_steps * the sum of all L_k)"
    rate = checked_step("rate", bound if rate is None else rate, bound, why, bound)
    random = np.random.default_rng((seed, 6))
    indices = np.arange(problem.samples)
    if log is not None:
        log.begin(x, session)
    for step in range(1, steps + 1):
        if batch is not None:
            indices = np.sort(random.choice(problem.samples, batch, replace=False))
        mine = problem.outputs(x, indices)
        z = session.allreduce(mine.copy(), bits=bits, blocks="dense")
        others = z - mine
        for _ in range(local_steps):
            x = x - rate * problem.gradient(x, others + problem.outputs(x, indices), indices)
        if log is not None:
            log.payload((bits or 64) * indices.size)
            log.step(step, x, last=step == steps)
    return x
