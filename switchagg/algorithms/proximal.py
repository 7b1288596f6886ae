"""The local problem of GADMM: the argmin of a worker's share with a quadratic around it.

    minimize over x:   f_i(x) - <linear, x> + weight/2 ||x||^2

Newton's method, its directions by conjugate gradients on Hessian products, its steps halved while they do not
make the function smaller. One step where f_i is quadratic. No messages, no state.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from switchagg.algorithms.base import Array, Problem
from switchagg.errors import SwitchAggError, UsageError

_STEPS: Final = 100
_HALVINGS: Final = 40
_PRECISION: Final = 1e-13  # of the gradient, relative to its parts


def minimize(problem: Problem, linear: Array, weight: float, x: Array) -> Array:
    """The minimizer, to the precision that float64 gives.

    Args:
        problem: with f_i's loss, gradient and Hessian products.
        linear: (d,). weight: 0 and up; over 0 unless f_i is strongly convex.
        x: the start; not changed.

    Raises:
        UsageError: the minimizer is not unique.
        SwitchAggError: it was not found, for example because a loss or its gradient is not finite.
    """
    if not problem.strong_convexity + weight > 0:
        raise UsageError(
            f"weight is {weight!r} and the problem is not strongly convex; accepted: a weight greater than 0"
        )

    def value(y: Array) -> float:
        return problem.loss(y) - float(linear @ y) + weight / 2 * float(y @ y)

    here = value(x)
    for _ in range(_STEPS):
        own = problem.gradient(x)
        slope = own - linear + weight * x
        scale = float(np.linalg.norm(own) + np.linalg.norm(linear) + weight * np.linalg.norm(x))
        size = float(np.linalg.norm(slope))
        if size <= _PRECISION * scale:
            return x
        direction = _newton(problem, x, slope, weight)
        step = 1.0
        for _ in range(_HALVINGS):
            y = x - step * direction
            there = value(y)
            if there < here:
                break
            step /= 2
        else:
            # The gain of a step is within rounding: this is the minimum in float64.
            if float(slope @ direction) <= 1e-11 * (abs(here) + scale * float(np.linalg.norm(x))):
                return np.asarray(x - direction)
            break
        x, here = y, there
    raise SwitchAggError("the local problem has no minimizer that Newton's method finds: is its loss convex?")


def _newton(problem: Problem, x: Array, slope: Array, weight: float) -> Array:
    """Solves (Hessian + weight) v = slope by conjugate gradients."""
    v = np.zeros_like(x)
    residual = slope.copy()
    p = residual.copy()
    size = float(residual @ residual)
    goal = size * 1e-28
    for _ in range(10 * x.size + 20):
        if size <= goal:
            break
        ahead = problem.hessian_product(x, p) + weight * p
        curve = float(p @ ahead)
        if not curve > 0:
            break
        along = size / curve
        v += along * p
        residual -= along * ahead
        now = float(residual @ residual)
        p = residual + now / size * p
        size = now
    return v
