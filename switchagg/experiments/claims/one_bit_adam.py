"""1-bit Adam: Adam's convergence with a fifth of the bytes, where the switch counts signs.

    Adam                 exact means of gradients
    1-bit Adam           Adam for 15 % of the steps, then v is frozen and moments travel as signs, fed back
    signs of gradients   Adam throughout, on gradients as signs, fed back: what the paper starts from

`worker_lib.adam` is 1-bit Adam on a session; here its formulas run with all workers in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from switchagg.experiments.claims.training import (
    BETAS,
    EPSILON,
    EVERY,
    SEEDS,
    WORKERS,
    Adam,
    Arrivals,
    Curve,
    Sums,
    rates_note,
    steps_text,
    tuned_ways,
)
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner

STEPS: Final = 300
WARM_UP: Final = 0.15  # of the steps
RATES: Final = (0.001, 0.002, 0.004, 0.008)
FEWER: Final = 5.0
MARGIN: Final = 1.1  # steps; ours


def _signs() -> Any:
    from worker_lib.compress import ErrorFeedback, Signs

    return ErrorFeedback(Signs())


def _rotated() -> Any:
    from worker_lib.compress import ErrorFeedback, Rotation

    return ErrorFeedback(Rotation(bits=4))


METHODS: Final[dict[str, tuple[Callable[[], Any] | None, float]]] = {
    "Adam": (None, 1.0),
    "1-bit Adam": (_signs, WARM_UP),
    "Adam, signs of gradients": (_signs, 0.0),
    "two phases, rotation in 4 bits": (_rotated, WARM_UP),
}
"""A compressor, and the share of the steps before the variance is frozen; 0: compressed, and never frozen."""


def train(
    task: Any, rate: float, seed: int, make: Callable[[], Any] | None, warm_up: float, steps: int
) -> tuple[Curve, float]:
    """Trains; returns the held-out losses, and a worker's bits a step."""
    exact, narrow = Sums(None, task.shapes), Sums(make, task.shapes)
    x = task.start(seed)
    adam, first = Adam(x), np.float32(BETAS[0])
    curve: Curve = [(0, task.loss(x))]
    for step in range(steps):
        gradients = [task.gradient(x, seed, step, rank) for rank in range(WORKERS)]
        if warm_up == 0:
            adam.step(x, narrow.mean(gradients), rate)
        elif step < warm_up * steps:
            adam.step(x, exact.mean(gradients), rate)
        else:
            adam.m = narrow.mean([first * adam.m + (1 - first) * each for each in gradients])
            moved = adam.v > 0
            divisor = np.sqrt(adam.v / np.float32(1 - BETAS[1] ** adam.steps)) + np.float32(EPSILON)
            x -= np.float32(rate / (1 - BETAS[0] ** (step + 1))) * moved * adam.m / divisor
        if (step + 1) % EVERY == 0:
            curve.append((step + 1, task.loss(x)))
    return curve, (exact.bits + narrow.bits) / steps


def run(runner: Runner) -> Outcome:
    """Every method at its best rate, to Adam's loss."""
    steps, seeds = (30, 1) if runner.quick else (STEPS, SEEDS)
    ways = {
        name: partial(train, make=make, warm_up=warm_up, steps=steps)
        for name, (make, warm_up) in METHODS.items()
    }
    found = tuned_ways(runner, ways, RATES[:1] if runner.quick else RATES, seeds)
    adam = found["Adam"]
    # Adam's loss at the very end is a matter of luck.
    target = float(np.mean([curve[int(0.8 * len(curve))][1] for curve in adam.curves]))
    arrivals = Arrivals(found, target)
    new, old, plain = (arrivals.means[name] for name in ("1-bit Adam", "Adam", "Adam, signs of gradients"))
    fewer = adam.bits / found["1-bit Adam"].bits
    return Outcome(
        checks=[
            Check(
                f"1-bit Adam takes as many steps as Adam to a loss (at most {MARGIN:g} times as many, which "
                "is ours)",
                new is not None and old is not None and new <= MARGIN * old,
                f"{steps_text(new)} and {steps_text(old)} to {target:.3f}, mean of {seeds} seeds",
            ),
            Check(
                f"and sends {FEWER:g} times fewer bits, the warm-up included",
                fewer >= FEWER,
                f"{fewer:.2f} times: {WARM_UP:.0%} of the steps in 32 bits, then a count of {WORKERS} signs "
                f"in {WORKERS.bit_length()} bits, where the paper's messages have 1",
            ),
            Check(
                "Without frozen variance signs do worse: more steps than 1-bit Adam, or it does not arrive",
                new is not None and (plain is None or plain > new),
                f"{steps_text(plain)} against {steps_text(new)}",
            ),
        ],
        tables=[
            arrivals.table(
                f"Perceptron on digits, {WORKERS} workers, {steps} steps: steps to a held-out loss of",
                "method",
                adam,
                "Bits: of words that are not zero at all workers, magnitudes included.",
            )
        ],
        plots=[arrivals.plot()],
        numbers={"target": target, "fewer": fewer, "steps": arrivals.steps},
        notes=[
            "Steps are counted with all workers in one process; nothing is sent. The target is Adam's mean "
            "loss after 80 % of the steps.",
            f"{rates_note('method', RATES)}.",
        ],
    )


EXPERIMENT = Experiment(
    name="one-bit-adam",
    title="Adam with signs instead of moments, once its variance is frozen",
    claim="Adam's variance can be frozen after a warm-up; from then on its moments can be sent as signs with "
    "error feedback. That converges as fast as Adam, a step for a step, with up to 5 times fewer bytes. "
    "Compressing Adam's gradients directly does not.",
    source="Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence "
    "Speed, ICML 2021, arXiv 2102.02888",
    run=run,
    needs=("sklearn",),
    order=230,
)
