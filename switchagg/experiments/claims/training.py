"""Training runs of the race's dense model with all workers in one process, for claims on steps and bits.

A way of training is tuned by its held-out loss after a number of steps, with a seed of its own; what is
reported are the curves of other seeds. No network changes them, since sums are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.experiments.claims.race import Dense
from switchagg.experiments.lockstep import Lockstep
from switchagg.report.plots import Series

Floats = npt.NDArray[np.float32]
Curve = list[tuple[int, float]]
"""Steps and held-out losses."""

WORKERS: Final = 4
SEEDS: Final = 3
EVERY: Final = 15  # steps between two looks at the loss
BETAS: Final = (0.9, 0.999)
EPSILON: Final = 1e-8
LARGE: Final = 10.0  # a loss that stands for one that is not finite


@dataclass(frozen=True, slots=True)
class Tuned:
    """A way of training at its best rate.

    Attributes:
        rate: with the least loss at the end.
        curves: one for each seed.
        bits: a number that a worker sends, in bits a step of training, mean over the run.
    """

    rate: float
    curves: list[Curve]
    bits: float

    @property
    def loss(self) -> float:
        """The mean over seeds of the loss at the end."""
        return float(np.mean([curve[-1][1] for curve in self.curves]))

    @property
    def spread(self) -> str:
        """The losses at the end by seed, least to most."""
        ends = [curve[-1][1] for curve in self.curves]
        return f"{min(ends):.4f} to {max(ends):.4f}"

    def steps_to(self, target: float) -> list[int | None]:
        """Returns each seed's steps to the first look at or under a loss."""
        return [next((step for step, loss in curve if loss <= target), None) for curve in self.curves]

    def series(self, name: str) -> Series:
        """The mean curve."""
        steps = [step for step, _ in self.curves[0]]
        return Series(name, steps, np.mean([[x[1] for x in curve] for curve in self.curves], axis=0).tolist())


class Adam:
    """Adam's moments of one or several models, as arrays of their shape."""

    def __init__(self, x: Floats) -> None:
        self.m, self.v, self.steps = np.zeros_like(x), np.zeros_like(x), 0

    def step(self, x: Floats, gradient: Floats, rate: float) -> None:
        """Takes a step, in place."""
        self.steps += 1
        first, second = (np.float32(b) for b in BETAS)
        self.m += (1 - first) * (gradient - self.m)
        self.v += (1 - second) * (gradient * gradient - self.v)
        divisor = np.sqrt(self.v / np.float32(1 - BETAS[1] ** self.steps)) + np.float32(EPSILON)
        x -= np.float32(rate / (1 - BETAS[0] ** self.steps)) * self.m / divisor


class Sums:
    """Means of the workers' vectors, compressed or exact; counts a worker's bits.

    Args:
        make: makes a worker's compressor; None: exact means, 32 bits an element.
        shapes: of the model's tensors.
    """

    def __init__(self, make: Callable[[], Any] | None, shapes: Any) -> None:
        self.bits = 0.0
        self._workers = None
        if make is not None:

            def laid_out() -> Any:
                compressor = make()
                compressor.lay_out(shapes)
                return compressor

            self._workers = Lockstep(laid_out, WORKERS)

    def mean(self, xs: Sequence[Floats] | Floats) -> Floats:
        """Returns the mean."""
        if self._workers is None:
            self.bits += 32 * xs[0].size
            return np.asarray(np.mean(xs, axis=0, dtype=np.float32))
        before = self._workers.sent
        out = self._workers.mean(list(xs)).astype(np.float32, copy=False)
        self.bits += self._workers.sent - before
        return out


def tuned(
    run: Callable[[Any, float, int], tuple[Curve, float]], rates: Sequence[float], seed: int, seeds: int
) -> Tuned:
    """Tunes a way of training and runs it with other seeds.

    Args:
        run: called with the task, a rate and a seed; returns the curve and the bits of a worker a step.
    """
    task = Dense()

    def end(rate: float) -> float:
        last = run(task, rate, seed + 1000)[0][-1][1]
        return last if np.isfinite(last) else LARGE

    best = min(rates, key=end) if len(rates) > 1 else rates[0]
    runs = [run(task, best, seed + i) for i in range(seeds)]
    return Tuned(best, [curve for curve, _ in runs], runs[0][1])
