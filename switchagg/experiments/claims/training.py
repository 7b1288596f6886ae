"""Training runs of the race's dense model with all workers in one process, for claims on steps and bits.

A way of training is tuned by its held-out loss after a number of steps, with a seed of its own; what is
reported are the curves of other seeds. No network changes them, since sums are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.experiments.claims.race import Dense
from switchagg.experiments.lockstep import Lockstep
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

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
        workers: how many.
    """

    def __init__(self, make: Callable[[], Any] | None, shapes: Any, workers: int = WORKERS) -> None:
        self.bits = 0.0
        self._workers = None
        if make is not None:

            def laid_out() -> Any:
                compressor = make()
                compressor.lay_out(shapes)
                return compressor

            self._workers = Lockstep(laid_out, workers)

    def mean(self, xs: Sequence[Floats] | Floats) -> Floats:
        """Returns the mean."""
        if self._workers is None:
            self.bits += 32 * xs[0].size
            return np.asarray(np.mean(xs, axis=0, dtype=np.float32))
        before = self._workers.sent
        out = self._workers.mean(list(xs)).astype(np.float32, copy=False)
        self.bits += self._workers.sent - before
        return out


Way = Callable[[Any, float, int], tuple[Curve, float]]
"""A way of training: of the task, a rate and a seed; returns the curve and the bits of a worker a step."""


def tuned_ways(
    runner: Runner,
    ways: Mapping[str, Way],
    rates: Sequence[float],
    seeds: int,
    task: Callable[[], Any] = Dense,
) -> dict[str, Tuned]:
    """Tunes each way of training by name and runs it with other seeds."""
    found = {}
    for name, way in ways.items():
        found[name] = tuned(way, rates, runner.seed, seeds, task())
        runner.say(f"{name}: rate {found[name].rate:g}, loss {found[name].loss:.4f}")
    return found


def rates_note(what: str, rates: Sequence[float]) -> str:
    """Returns the sentence on how rates were found."""
    return (
        f"Every {what} takes the best of the rates {', '.join(map('{:g}'.format, rates))} by its loss at "
        "the end, with another seed"
    )


class Arrivals:
    """Ways of training, and the steps that each takes to one held-out loss.

    Attributes:
        target: the loss.
        steps: of each way, by seed.
        means: over seeds; None where a seed did not arrive.
    """

    def __init__(self, ways: Mapping[str, Tuned], target: float) -> None:
        self._ways, self.target = ways, target
        self.steps = {name: each.steps_to(target) for name, each in ways.items()}
        self.means = {
            name: float(np.mean([s for s in each if s is not None])) if None not in each else None
            for name, each in self.steps.items()
        }

    def table(self, title: str, heading: str, full: Tuned, note: str) -> Table:
        """Returns the table of the ways.

        Args:
            title: up to the loss. heading: of the ways.
            full: the way whose workers send 32 bits an element and step.
        """
        headings = ("rate", "steps, mean", "by seed", "loss at the end", "bits an element and step")
        rows = [
            (
                name,
                each.rate,
                self.means[name],
                ", ".join(map(steps_text, self.steps[name])),
                each.spread,
                each.bits / full.bits * 32,
            )
            for name, each in self._ways.items()
        ]
        return Table(f"{title} {self.target:.3f}", (heading, *headings), rows, note)

    def plot(self, name: str = "loss") -> Plot:
        """Returns the curves of the ways, and the target."""
        return Plot(
            name,
            "Held-out loss, mean of seeds",
            "steps",
            "nats",
            [each.series(name) for name, each in self._ways.items()],
            log_y=True,
            lines=[("target", self.target)],
        )


def steps_text(steps: float | None) -> str:
    """Returns a number of steps as people read it."""
    return "not reached" if steps is None else f"{steps:.0f}"


def tuned(run: Way, rates: Sequence[float], seed: int, seeds: int, task: Any) -> Tuned:
    """Tunes a way of training and runs it with other seeds."""

    def end(rate: float) -> float:
        last = run(task, rate, seed + 1000)[0][-1][1]
        return last if np.isfinite(last) else LARGE

    best = min(rates, key=end) if len(rates) > 1 else rates[0]
    runs = [run(task, best, seed + i) for i in range(seeds)]
    return Tuned(best, [curve for curve, _ in runs], runs[0][1])
