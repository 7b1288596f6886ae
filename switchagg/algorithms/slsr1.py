"""Seeded S-LSR1: quasi-Newton steps from sampled curvature, with one reduction an iteration.

Berahas, Jahani, Richtarik, Takac, "Quasi-Newton Methods for Machine Learning: Forget the Past, Just Sample"
(arXiv 1901.09997). Curvature is not collected along the way but sampled anew at every iterate: m directions
S, and Y = Hessian times S. The naive distributed form (Jahani et al., arXiv 1905.13096) sends S,
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

import numpy as np

from switchagg.algorithms.base import Array, runner
from switchagg.algorithms.sampled_sr1 import SKIP, SampledSr1


class Slsr1(SampledSr1):
    """One worker's part: one collective a step. Arguments and attributes are those of `SampledSr1`."""

    _method = "S-LSR1"

    def _minimizer(self) -> tuple[Array, float]:
        return trust_region_step(self.gradient, self._sample, self._curvature, self._initial, self.radius)

    def _reduce(self, x: Array) -> tuple[float, Array, Array]:
        """F, its gradient and its Hessian times S, at x."""
        p, d = self._problem, self.x.size
        message = self._average(
            np.concatenate([[p.loss(x)], p.gradient(x), p.hessian_product(x, self._sample).reshape(-1)])
        )
        return float(message[0]), message[1 : 1 + d].copy(), message[1 + d :].reshape(d, self._memory)


def trust_region_step(
    gradient: Array, sample: Array, curved: Array, initial: float, radius: float
) -> tuple[Array, float]:
    """The minimizer p of gradient' p + p' B p / 2 with ||p|| <= radius, and the decrease that it predicts.

    B is SR1's from initial * I with the m secant equations B sample = curved, without those whose curvature
    is too small against rounding (arXiv 1901.09997). Its eigenvalues are `initial`, but for those
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
    kept = np.abs(values) > SKIP * max(float(np.abs(values).max()), np.finfo(float).tiny)
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
