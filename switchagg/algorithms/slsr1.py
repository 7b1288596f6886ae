"""Seeded S-LSR1: quasi-Newton steps from sampled curvature, with one reduction an iteration.

Berahas, Jahani, Richtarik, Takac, "Quasi-Newton Methods for Machine Learning: Forget the Past, Just Sample"
(arXiv 1901.09997). Curvature is not collected along the way but sampled anew at every iterate: m directions
S, and Y = Hessian times S. The naive distributed form (Jahani et al., arXiv 1905.13096, section 2) sends S,
then sums gradient, loss and Y in rounds of their own. Here S comes from a seed that all workers share, so
that one sum carries everything. It carries Y, d m numbers; `dslsr1` is that paper's method, which does not:

    reduce [ f_i(x+p), grad f_i(x+p), Hess f_i(x+p) S ]        1 + d + d m numbers, at the trial point
    accept or reject by  (F(x) - F(x+p)) / predicted
    B = g I + (Y - g S) ((Y - g S)' S)^-1 (Y - g S)'           SR1 from g I, all m secant equations at once
    p = argmin  grad' p + p' B p / 2   over ||p|| <= radius

With g at least the largest eigenvalue, B is no smaller than the Hessian in any direction and agrees with it
on S. The trust-region problem is solved exactly, by the eigenvalues of B's low-rank part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike

from switchagg.algorithms.base import Array, Problem, checked_at_least, checked_start, constants, runner
from switchagg.algorithms.blocks import checked_lanes
from switchagg.errors import UsageError, require

if TYPE_CHECKING:
    from worker_lib.session import Session

ACCEPT: Final = 1e-4  # of the predicted decrease
_GOOD: Final = 0.75
_POOR: Final = 0.25
_SKIP: Final = 1e-8  # SR1's rule: curvature so small against its vectors is left out


class Slsr1:
    """One worker's part.

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
            raise UsageError("the problem has an l1 term, which S-LSR1 does not treat; use DIANA")
        checked_at_least("seed", seed, 0)
        self.x = checked_start(problem, x0)
        self.radius = float(radius)
        self.rejected = 0
        self._problem, self._session = problem, session
        self._memory = memory
        self._bits = checked_lanes(bits)
        self._rng = np.random.default_rng((seed, 0))
        self._initial = constants(problem, session).mean_smoothness
        self._sample = self._draw()
        self.loss, self.gradient, self._curved = self._reduce(self.x)

    def step(self) -> int:
        """One trial point; one collective."""
        move, predicted = trust_region_step(
            self.gradient, self._sample, self._curved, self._initial, self.radius
        )
        if not predicted > 0:  # the gradient is zero
            return 0
        sample, self._sample = self._sample, self._draw()
        loss, gradient, curved = self._reduce(self.x + move)
        # Differences of nearly equal losses say nothing: there the model is as good as the loss.
        noise = 1e-12 * max(abs(self.loss), abs(loss))
        ratio = (self.loss - loss + noise) / (predicted + noise)
        self.radius = next_radius(ratio, float(np.linalg.norm(move)), self.radius)
        if ratio > ACCEPT:
            self.x = self.x + move
            self.loss, self.gradient, self._curved = loss, gradient, curved
        else:
            self._sample = sample
            self.rejected += 1
        return (1 + self.x.size * (1 + self._memory)) * self._bits

    def _draw(self) -> Array:
        """S: orthonormal columns, equal at all workers."""
        return np.linalg.qr(self._rng.standard_normal((self.x.size, self._memory)))[0]

    def _reduce(self, x: Array) -> tuple[float, Array, Array]:
        """F, its gradient and its Hessian times S, at x."""
        p, d = self._problem, self.x.size
        message = np.concatenate([[p.loss(x)], p.gradient(x), p.hessian_product(x, self._sample).reshape(-1)])
        self._session.allreduce(message, op="avg", bits=self._bits, blocks="dense")
        return float(message[0]), message[1 : 1 + d].copy(), message[1 + d :].reshape(d, self._memory)


def next_radius(ratio: float, size: float, radius: float) -> float:
    """Returns the trust region's next radius, from a step's size and its decrease over the predicted one."""
    if ratio < _POOR:
        return size / 4
    return 2 * radius if ratio > _GOOD and size > 0.8 * radius else radius


def trust_region_step(
    gradient: Array, sample: Array, curved: Array, initial: float, radius: float
) -> tuple[Array, float]:
    """The minimizer p of gradient' p + p' B p / 2 with ||p|| <= radius, and the decrease that it predicts.

    B is SR1's from initial * I with the m secant equations B sample = curved, without those whose curvature
    is too small against rounding (arXiv 1901.09997, Section 3). Its eigenvalues are `initial`, but for those
    of the low-rank part (Brust, Erway, Marcia, "On solving L-SR1 trust-region subproblems", COAP 2017).

    Args:
        gradient: (d,).
        sample, curved: S and Y, (d, m).
        initial: of B, greater than 0.
        radius: greater than 0.
    """
    residual = curved - initial * sample
    inner = sample.T @ residual
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    kept = np.abs(values) > _SKIP * max(float(np.abs(values).max()), np.finfo(float).tiny)
    basis, triangle = np.linalg.qr(residual @ vectors[:, kept])
    small = triangle / values[kept] @ triangle.T
    curvature, turn = np.linalg.eigh((small + small.T) / 2)
    basis = basis @ turn
    curvature = initial + curvature
    along = basis.T @ gradient
    rest = gradient - basis @ along
    # Eigenvalues, and the squared length of the gradient's part that belongs to each.
    spectrum = np.append(curvature, initial)
    parts = np.append(np.square(along), float(rest @ rest))
    denominators = _shifted(spectrum, parts, radius)
    inverse = np.divide(1.0, denominators, out=np.zeros_like(spectrum), where=denominators > 0)
    move = -(basis @ (along * inverse[:-1]) + rest * inverse[-1])
    lowest = int(np.argmin(spectrum))
    missing = radius**2 - float(move @ move)
    if spectrum[lowest] < 0 and missing > 0:
        # The hard case: no gradient along the most negative curvature, so the boundary is reached along it.
        there = float(basis[:, lowest] @ move)
        more = np.sqrt(there**2 + missing) - abs(there)
        move = move + np.copysign(more, there) * basis[:, lowest]
    turned = basis.T @ move
    bent = initial * float(move @ move) + float(np.square(turned) @ (curvature - initial))
    return np.asarray(move), -float(gradient @ move) - bent / 2


def _shifted(spectrum: Array, parts: Array, radius: float) -> Array:
    """The eigenvalues of B + sigma I, sigma >= 0 being the least with which none is negative and the step is
    no longer than the radius."""
    least = float(spectrum.min())
    base = spectrum - least if least < 0 else spectrum  # exact where the lowest becomes 0

    def length(sigma: float) -> float:
        with np.errstate(divide="ignore", over="ignore"):
            terms = np.divide(parts, np.square(base + sigma), out=np.zeros_like(parts), where=parts > 0)
        return float(np.sqrt(terms.sum()))

    if length(0.0) <= radius:
        return base
    low, high = 0.0, float(np.sqrt(parts.sum())) / radius
    for _ in range(1100):  # bisection, to the last bit: near the hard case sigma is far below the eigenvalues
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if length(middle) > radius else (low, middle)
    return np.asarray(base + high)


run = runner(Slsr1)
