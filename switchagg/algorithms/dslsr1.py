"""DS-LSR1: sampled quasi-Newton steps whose curvature pairs stay where they are.

Jahani, Nazari, Rusakov, Berahas, Takac, "Scaling Up Quasi-Newton Algorithms: Communication Efficient
Distributed SR1" (arXiv 1905.13096). `slsr1` sums Y = Hessian times S, d m numbers. Here a worker
keeps its own Y_i, and only products with it travel:

    reduce [ f_i, grad f_i, S' Y_i ]              1 + d + m^2 numbers, at the trial point
    B v = g v + R N^-1 R' v,   R = Y - g S,  N = R' S:      reduce Y_i' v, m numbers; then Y_i w, d numbers
    p by conjugate gradients on grad' p + p' B p / 2 inside the trust region (Steihaug); no matrix, no inverse

So a step's numbers do not grow with m d, but with m^2 and with d for each of the few products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from switchagg.algorithms.base import Array, Problem, checked_at_least, runner
from switchagg.algorithms.sampled_sr1 import SKIP, SampledSr1
from switchagg.errors import require

if TYPE_CHECKING:
    from worker_lib.session import Session


class DsLsr1(SampledSr1):
    """One worker's part: a step takes one collective, and two for each product with B.

    `x` is the same to the bit at all workers whose NumPy and processor are alike.

    Args:
        products: the most products with B in a step.
        tolerance: of conjugate gradients, relative to the gradient.
        memory, radius, seed, bits, x0: as in `SampledSr1`, whose attributes this class has.
    """

    _method = "DS-LSR1"

    def __init__(
        self,
        problem: Problem,
        session: Session,
        *,
        memory: int = 8,
        products: int = 10,
        tolerance: float = 0.1,
        radius: float = 1.0,
        seed: int = 0,
        bits: int = 64,
        x0: ArrayLike | None = None,
    ) -> None:
        self._products = checked_at_least("products", products, 1)
        require(0 < tolerance < 1, "tolerance", repr(tolerance), "greater than 0, less than 1")
        self._tolerance = float(tolerance)
        super().__init__(problem, session, memory=memory, radius=radius, seed=seed, bits=bits, x0=x0)

    def _minimizer(self) -> tuple[Array, float]:
        return steihaug(self.gradient, self._product(), self.radius, self._products, self._tolerance)

    def _reduce(self, x: Array) -> tuple[float, Array, tuple[Array, Array]]:
        """F, its gradient, and S' Y at x with this worker's Y_i, which it keeps."""
        p, d = self._problem, self.x.size
        curved = p.hessian_product(x, self._sample)
        inner = self._sample.T @ curved
        message = self._average(np.concatenate([[p.loss(x)], p.gradient(x), inner.reshape(-1)]))
        summed = message[1 + d :].reshape(self._memory, self._memory)
        return float(message[0]), message[1 : 1 + d].copy(), ((summed + summed.T) / 2, curved)

    def _product(self) -> Callable[[Array], Array]:
        """Returns v -> B v, two collectives a call, without secant equations of too small a curvature."""
        g, sample = self._initial, self._sample
        inner, curved = self._curvature
        values, vectors = np.linalg.eigh(inner - g * np.eye(self._memory))  # of N; S' S is I
        kept = np.abs(values) > SKIP * max(float(np.abs(values).max()), np.finfo(float).tiny)
        inverse = vectors[:, kept] / values[kept] @ vectors[:, kept].T

        def product(v: Array) -> Array:
            along = sample.T @ v
            weights = inverse @ (self._average(curved.T @ v) - g * along)
            bent = self._average(curved @ weights) - g * (sample @ weights)
            return np.asarray(g * v + bent)

        return product


def steihaug(
    gradient: Array, product: Callable[[Array], Array], radius: float, most: int, tolerance: float
) -> tuple[Array, float]:
    """Conjugate gradients on gradient' p + p' B p / 2 that end at the radius, or where curvature is negative.

    Steihaug, SIAM J. Numer. Anal. 20 (1983).

    Args:
        gradient: (d,).
        product: v -> B v, called at most `most` times.
        radius: greater than 0.
        tolerance: of the residual, relative to the gradient.

    Returns:
        p, and the decrease that the model predicts.
    """
    move = np.zeros_like(gradient)
    residual, direction = gradient.copy(), -gradient
    size = float(residual @ residual)
    goal = tolerance**2 * size
    predicted = 0.0
    for _ in range(most):
        if size <= goal or size == 0:
            break
        ahead = product(direction)
        curve = float(direction @ ahead)
        slope = float(residual @ direction)  # of the model along the direction, here
        step = np.inf if curve <= 0 else size / curve
        reach = _to_the_radius(move, direction, radius)
        step = min(step, reach)
        predicted -= step * slope + step**2 * curve / 2
        move = move + step * direction
        if step == reach:
            break
        residual = residual + step * ahead
        now = float(residual @ residual)
        direction = -residual + now / size * direction
        size = now
    return move, predicted


def _to_the_radius(move: Array, direction: Array, radius: float) -> float:
    """The positive t with ||move + t direction|| = radius."""
    a, b = float(direction @ direction), float(move @ direction)
    missing = max(radius**2 - float(move @ move), 0.0)
    root = float(np.sqrt(b**2 + a * missing))
    return missing / (b + root) if b >= 0 else (root - b) / a  # the form without cancellation


run = runner(DsLsr1)
