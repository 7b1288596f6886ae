"""The convex problems that methods are run and checked on: ridge and logistic regression, their split over
workers, and their exact optimum.

    f_i(x) = (1/N_i) sum_j loss(a_j . x, b_j) + l2/2 ||x - center||^2,    R(x) = l1 ||x||_1

`split` gives workers samples as they come or sorted by label, which makes the f_i as different as the data
allow. `optimum` finds x* without any of the methods under test: Newton's method on the smooth problem, and
Newton's method on the support that a proximal gradient method has settled on where there is an l1 term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from switchagg.algorithms.base import Array, checked_at_least
from switchagg.errors import UsageError, require

ORDERS: Final = ("shuffled", "sorted")


def checked_samples(features: Array, targets: Array) -> tuple[Array, Array]:
    """Features (N, d) and targets (N,) as float64.

    Raises:
        UsageError: the shapes do not fit, or a value is not finite.
    """
    a, b = np.ascontiguousarray(features, np.float64), np.array(targets, np.float64)
    if a.ndim != 2 or not a.size or b.shape != a.shape[:1]:
        raise UsageError(f"features {a.shape}, targets {b.shape}; needed: (N, d) and (N,), N and d over 0")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise UsageError("features or targets hold NaN or infinity; accepted: finite values")
    return a, b


@dataclass(frozen=True, eq=False)
class _Linear:
    """The common part of both regressions: samples, regularizers and constants derived from them.

    Args:
        features: (N, d), float64.
        targets: (N,).
        l2: strong convexity that the regularizer adds, 0 and up.
        l1: weight of ||x||_1 in R, the same at all workers, 0 and up.
        center: where the l2 term pulls x to; the origin by default.

    Raises:
        UsageError: shapes do not fit, a weight is negative, or a value is not finite.
    """

    features: Array
    targets: Array
    l2: float = 0.0
    l1: float = 0.0
    center: Array | None = None
    smoothness: float = field(init=False)
    sample_smoothness: float = field(init=False)
    strong_convexity: float = field(init=False)

    def __post_init__(self) -> None:
        a, b = checked_samples(self.features, self.targets)
        for name, weight in (("l2", self.l2), ("l1", self.l1)):
            require(0 <= weight < np.inf, name, repr(weight), "0 and up")
        if self.center is not None and np.shape(self.center) != a.shape[1:]:
            raise UsageError(f"center has shape {np.shape(self.center)}; needed: ({a.shape[1]},)")
        object.__setattr__(self, "features", a)
        object.__setattr__(self, "targets", b)
        self._check_targets()
        full = a.shape[1] <= a.shape[0]
        values = np.linalg.eigvalsh(a.T @ a / len(a) if full else a @ a.T / len(a))
        object.__setattr__(self, "smoothness", float(self._curvature[1] * values[-1] + self.l2))
        rows = np.square(a).sum(axis=1)
        object.__setattr__(self, "sample_smoothness", float(self._curvature[1] * rows.max() + self.l2))
        least = max(0.0, float(values[0])) if full else 0.0
        object.__setattr__(self, "strong_convexity", float(self._curvature[0] * least + self.l2))

    _curvature = (0.0, 0.0)  # bounds of the loss's second derivative

    def _check_targets(self) -> None:
        """Refuses targets that the loss has no meaning for."""

    def _values(self, margins: Array) -> Array:
        raise NotImplementedError

    def _slopes(self, margins: Array, targets: Array) -> Array:
        raise NotImplementedError

    def _curvatures(self, margins: Array) -> Array:
        raise NotImplementedError

    @property
    def dim(self) -> int:
        """d."""
        return int(self.features.shape[1])

    @property
    def samples(self) -> int:
        """N_i."""
        return int(self.features.shape[0])

    def _pull(self, x: Array) -> Array:
        return x if self.center is None else x - self.center

    def loss(self, x: Array) -> float:
        """f_i(x), without R."""
        return float(
            self._values(self.features @ x).mean() + self.l2 / 2 * float(np.square(self._pull(x)).sum())
        )

    def gradient(self, x: Array) -> Array:
        """Gradient of f_i; (d,)."""
        slopes = self._slopes(self.features @ x, self.targets)
        return np.asarray(self.features.T @ slopes / self.samples + self.l2 * self._pull(x))

    def batch_gradient(self, x: Array, indices: NDArray[np.int64]) -> Array:
        """Mean gradient of these samples' losses, with l2; (d,)."""
        rows = self.features[indices]
        slopes = self._slopes(rows @ x, self.targets[indices])
        return np.asarray(rows.T @ slopes / len(indices) + self.l2 * self._pull(x))

    def hessian_product(self, x: Array, directions: Array) -> Array:
        """Hessian of f_i at x times `directions`, (d,) or (d, m)."""
        weights = self._curvatures(self.features @ x) / self.samples
        along = self.features @ directions
        weighted = (along.T * weights).T
        return np.asarray(self.features.T @ weighted + self.l2 * directions)

    def block_smoothness(self, block: int) -> Array:
        """For each block of `block` coordinates, the Lipschitz constant of its part of the gradient.

        Returns:
            shape (ceil(d / block),); each at most `smoothness`.
        """
        checked_at_least("block", block, 1)
        norms = [np.linalg.norm(self.features[:, at : at + block], 2) for at in range(0, self.dim, block)]
        return np.array([self._curvature[1] * norm**2 / self.samples + self.l2 for norm in norms])

    def regularizer(self, x: Array) -> float:
        """R(x) = l1 ||x||_1."""
        return self.l1 * float(np.abs(x).sum())

    def prox(self, x: Array, step: float) -> Array:
        """Soft thresholding by step * l1."""
        if not self.l1:
            return x
        return np.asarray(np.sign(x) * np.maximum(np.abs(x) - step * self.l1, 0.0))


@dataclass(frozen=True, eq=False)
class RidgeRegression(_Linear):
    """loss(z, b) = (z - b)^2 / 2."""

    _curvature = (1.0, 1.0)

    def _values(self, margins: Array) -> Array:
        return np.asarray(np.square(margins - self.targets) / 2)

    def _slopes(self, margins: Array, targets: Array) -> Array:
        return margins - targets

    def _curvatures(self, margins: Array) -> Array:
        return np.ones_like(margins)


@dataclass(frozen=True, eq=False)
class LogisticRegression(_Linear):
    """loss(z, b) = log(1 + exp(-b z)), b being -1 or 1."""

    _curvature = (0.0, 0.25)

    def _check_targets(self) -> None:
        if not np.isin(self.targets, (-1.0, 1.0)).all():
            odd = self.targets[~np.isin(self.targets, (-1.0, 1.0))][0]
            raise UsageError(f"a target is {odd!r}; accepted for logistic regression: -1 and 1")

    def _values(self, margins: Array) -> Array:
        return np.asarray(np.logaddexp(0.0, -self.targets * margins))

    def _slopes(self, margins: Array, targets: Array) -> Array:
        z = targets * margins
        return np.asarray(-targets * np.exp(-np.logaddexp(0.0, z)))

    def _curvatures(self, margins: Array) -> Array:
        return np.asarray(np.exp(-np.logaddexp(0.0, margins) - np.logaddexp(0.0, -margins)))


Regression = RidgeRegression | LogisticRegression


# ---------------------------------------------------------------------- splitting


def split(problem: Regression, workers: int, *, order: str = "shuffled", seed: int = 0) -> list[Regression]:
    """Shares a problem's samples out to workers, as evenly as their number allows.

    Args:
        problem: all samples.
        workers: n; each gets at least one sample.
        order: ``"shuffled"``: samples at random, so that the shares resemble each other; ``"sorted"``: by
            target, so that they do not.
        seed: of the shuffling.

    Returns:
        n problems. Their mean is the whole problem exactly where n divides the number of samples; otherwise
        workers with fewer samples give each of them a little more weight.

    Raises:
        UsageError: more workers than samples, or another order.
    """
    checked_at_least("workers", workers, 1)
    if workers > problem.samples:
        raise UsageError(f"{workers} workers for {problem.samples} samples; accepted: at most one each")
    require(order in ORDERS, "order", repr(order), ", ".join(map(repr, ORDERS)))
    if order == "sorted":
        places = np.argsort(problem.targets, kind="stable")
    else:
        places = np.random.default_rng(seed).permutation(problem.samples)
    return [
        replace(problem, features=problem.features[part], targets=problem.targets[part])
        for part in np.array_split(places, workers)
    ]


def sharing_minimizer(problem: RidgeRegression, x: Array) -> RidgeRegression:
    """The same features with targets that x explains exactly and an l2 term centred there.

    However the samples are split, x then minimizes every worker's f_i.
    """
    return replace(problem, targets=problem.features @ x, center=np.array(x, np.float64))


# ---------------------------------------------------------------------- the optimum


def optimum(problems: Sequence[Regression], *, tolerance: float = 1e-10) -> Array:
    """x* = argmin F, to `tolerance` in distance, by Newton's method.

    The certificate is ||v|| / mu, v being the shortest subgradient of F at the result, computed in extended
    precision where the platform has it, and mu the strong convexity of F.

    Raises:
        UsageError: F is not strongly convex, so that there is no such certificate; or the tolerance is below
            what double precision can give for this problem.
    """
    checked_at_least("number of problems", len(problems), 1)
    mu = float(np.mean([p.strong_convexity for p in problems]))
    if not mu > 0:
        raise UsageError("the problem is not strongly convex (l2 is 0 and the features do not make it so)")
    l1 = problems[0].l1
    x = np.zeros(problems[0].dim)
    if l1:
        x = _settle(problems, x)
    best, least = x, np.inf
    for _ in range(60):
        slope = _precise_gradient(problems, x)
        support = np.ones(x.size, np.bool_) if not l1 else x != 0
        v = np.where(support, slope + l1 * np.sign(x), np.sign(slope) * np.maximum(np.abs(slope) - l1, 0))
        size = float(np.linalg.norm(v.astype(np.float64))) / mu
        if size < least:
            best, least = x, size
        if least <= tolerance / 100 or (size > least and least <= tolerance):
            break
        hessian = _hessian(problems, x)[np.ix_(support, support)]
        direction = np.zeros(x.size)
        direction[support] = np.linalg.solve(hessian, v[support].astype(np.float64))
        x = _damped(problems, x, direction, l1)
        if l1 and not np.array_equal(x != 0, support):
            x = _settle(problems, x)
    if not least <= tolerance:
        raise UsageError(f"tolerance is {tolerance:g}; reached: {least:.3g}, by the gradient over mu")
    return best


def _precise_gradient(problems: Sequence[Regression], x: Array) -> NDArray[np.longdouble]:
    total = np.zeros(x.size, np.longdouble)
    for p in problems:
        margins = p.features @ x
        if isinstance(p, RidgeRegression):
            # Residuals cancel near the optimum: this product is where precision is lost.
            slopes = p.features.astype(np.longdouble) @ x.astype(np.longdouble) - p.targets
        else:
            slopes = p._slopes(margins, p.targets).astype(np.longdouble)
        total += slopes @ p.features.astype(np.longdouble) / p.samples + p.l2 * p._pull(x)
    return total / len(problems)


def _hessian(problems: Sequence[Regression], x: Array) -> Array:
    total = np.zeros((x.size, x.size))
    for p in problems:
        weights = p._curvatures(p.features @ x) / p.samples
        total += (p.features.T * weights) @ p.features + p.l2 * np.eye(x.size)
    return total / len(problems)


def _objective(problems: Sequence[Regression], x: Array) -> float:
    return float(np.mean([p.loss(x) for p in problems])) + problems[0].regularizer(x)


def _damped(problems: Sequence[Regression], x: Array, direction: Array, l1: float) -> Array:
    """A Newton step, halved while it makes F worse; with l1, signs that it would change become 0."""
    here, scale = _objective(problems, x), 1.0
    for _ in range(30):
        y = x - scale * direction
        if l1:
            y = np.where(np.sign(y) == np.sign(x), y, 0.0)
        if _objective(problems, y) <= here + 1e-12 * abs(here):
            return y
        scale /= 2
    return x


def _settle(problems: Sequence[Regression], x: Array, rounds: int = 20_000) -> Array:
    """Accelerated proximal gradient until support and signs have not changed for a while."""
    step = 1 / float(np.mean([p.smoothness for p in problems]))
    y, t, same = x, 1.0, 0
    for _ in range(rounds):
        slope = np.mean([p.gradient(y) for p in problems], axis=0)
        new = problems[0].prox(y - step * slope, step)
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        if float((y - new) @ (new - x)) > 0:  # going uphill: start the momentum again
            t_new = 1.0
        y = new + (t - 1) / t_new * (new - x)
        same = same + 1 if np.array_equal(np.sign(new), np.sign(x)) else 0
        x, t = new, t_new
        if same >= 200:
            break
    return x
