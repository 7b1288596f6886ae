"""1-bit Adam and 1-bit LAMB: the originals' convergence with a fifth of the bytes; the switch counts signs.

    Adam, LAMB           exact means of gradients
    1-bit Adam, LAMB     the same for 15 % of the steps; then v is frozen and moments go as signs, fed back
    signs of gradients   Adam throughout, on gradients as signs, fed back: what the papers start from

The formulas are those of `worker_lib.adam`; here they run with all workers in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from switchagg.experiments.claims.training import (
    EVERY,
    SEEDS,
    WORKERS,
    Arrivals,
    Curve,
    Sums,
    Tuned,
    rates_note,
    steps_text,
    tuned_ways,
)
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner

STEPS: Final = 300
WARM_UP: Final = 0.15  # of the steps
RATES: Final = {"Adam": (0.001, 0.002, 0.004, 0.008), "LAMB": (0.0025, 0.005, 0.01, 0.02)}
FEWER: Final = {"Adam": 5.0, "LAMB": 4.6}  # times, in the papers
MARGIN: Final = 1.1  # steps; ours


def _signs() -> Any:
    from worker_lib.compress import ErrorFeedback, Signs

    return ErrorFeedback(Signs())


def _rotated() -> Any:
    from worker_lib.compress import ErrorFeedback, Rotation

    return ErrorFeedback(Rotation(bits=4))


SIGNS: Final = "Adam, signs of gradients"
METHODS: Final[dict[str, dict[str, tuple[Callable[[], Any] | None, float]]]] = {
    "Adam": {
        "Adam": (None, 1.0),
        "1-bit Adam": (_signs, WARM_UP),
        SIGNS: (_signs, 0.0),
        "two phases, rotation in 4 bits": (_rotated, WARM_UP),
    },
    "LAMB": {"LAMB": (None, 1.0), "1-bit LAMB": (_signs, WARM_UP)},
}
"""A compressor, and the share of the steps before the variance is frozen; 0: compressed, and never frozen."""


def train(
    task: Any,
    rate: float,
    seed: int,
    optimizer: str,
    make: Callable[[], Any] | None,
    warm_up: float,
    steps: int,
) -> tuple[Curve, float]:
    """Trains; returns the held-out losses, and a worker's bits a step."""
    from worker_lib.adam import AdamMoments, LambMoments

    exact, narrow = Sums(None, task.shapes), Sums(make, task.shapes)
    kind = {"Adam": AdamMoments, "LAMB": LambMoments}[optimizer]
    sizes = [int(np.prod(shape)) for shape in task.shapes]
    x = task.start(seed)
    moments = kind(x, sizes, warm_up=round((warm_up or 1.0) * steps))
    curve: Curve = [(0, task.loss(x))]
    for step in range(steps):
        messages = [moments.message(task.gradient(x, seed, step, rank)) for rank in range(WORKERS)]
        sums = narrow if moments.frozen or not warm_up else exact
        moments.take(sums.mean(messages), rate)
        if (step + 1) % EVERY == 0:
            curve.append((step + 1, task.loss(x)))
    return curve, (exact.bits + narrow.bits) / steps


def _compared(runner: Runner, optimizer: str, steps: int, seeds: int) -> tuple[Arrivals, dict[str, Tuned]]:
    """Returns an optimizer's methods, each at its best rate, and their steps to its loss."""
    ways = {
        name: partial(train, optimizer=optimizer, make=make, warm_up=warm_up, steps=steps)
        for name, (make, warm_up) in METHODS[optimizer].items()
    }
    rates = RATES[optimizer]
    found = tuned_ways(runner, ways, rates[:1] if runner.quick else rates, seeds)
    # The loss at the very end is a matter of luck.
    target = float(np.mean([curve[int(0.8 * len(curve))][1] for curve in found[optimizer].curves]))
    return Arrivals(found, target), found


def run(runner: Runner) -> Outcome:
    """Every method at its best rate, to the loss of its optimizer."""
    steps, seeds = (30, 1) if runner.quick else (STEPS, SEEDS)
    checks, tables, plots, numbers = [], [], [], {}
    for optimizer in METHODS:
        arrivals, found = _compared(runner, optimizer, steps, seeds)
        means = arrivals.means
        name = f"1-bit {optimizer}"
        new, old = means[name], means[optimizer]
        fewer = found[optimizer].bits / found[name].bits
        checks += [
            Check(
                f"{name} takes as many steps as {optimizer} to a loss (at most {MARGIN:g} times as many, "
                "which is ours)",
                new is not None and old is not None and new <= MARGIN * old,
                f"{steps_text(new)} and {steps_text(old)} to {arrivals.target:.3f}, mean of {seeds} seeds",
            ),
            Check(
                f"and sends {FEWER[optimizer]:g} times fewer bits, the warm-up included",
                fewer >= FEWER[optimizer],
                f"{fewer:.2f} times: {WARM_UP:.0%} of the steps in 32 bits, then a count of {WORKERS} signs "
                f"in {WORKERS.bit_length()} bits, where the paper's messages have 1",
            ),
        ]
        if SIGNS in means:
            plain = means[SIGNS]
            checks.append(
                Check(
                    f"Without frozen variance signs do worse: more steps than {name}, or it does not arrive",
                    new is not None and (plain is None or plain > new),
                    f"{steps_text(plain)} against {steps_text(new)}",
                )
            )
        tables.append(
            arrivals.table(
                f"Perceptron on digits, {WORKERS} workers, {steps} steps: steps to a held-out loss of",
                "method",
                found[optimizer],
                "Bits: of words that are not zero at all workers, magnitudes included.",
            )
        )
        plots.append(arrivals.plot(optimizer.lower()))
        numbers[optimizer] = {"target": arrivals.target, "fewer": fewer, "steps": arrivals.steps}
    return Outcome(
        checks=checks,
        tables=tables,
        plots=plots,
        numbers=numbers,
        notes=[
            "Steps are counted with all workers in one process; nothing is sent. The target is the mean loss "
            "of Adam, or of LAMB, after 80 % of the steps.",
            *(f"{rates_note(f'method of {name}', rates)}." for name, rates in RATES.items()),
            "LAMB is made for batches of many thousands; here a step has 64 samples, and there are six "
            "coefficients, one a tensor.",
        ],
    )


EXPERIMENT = Experiment(
    name="one-bit-adam",
    title="Adam and LAMB with signs instead of moments, once their variance is frozen",
    claim="Adam's variance can be frozen after a warm-up; from then on its moments can be sent as signs with "
    "error feedback. That converges as fast as Adam, a step for a step, with up to 5 times fewer bytes. "
    "Compressing Adam's gradients directly does not. LAMB's can too, with up to 4.6 times fewer bytes, with "
    "coefficients that are scaled from those of the warm-up.",
    source="Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence "
    "Speed, ICML 2021, arXiv 2102.02888; Li et al., 1-bit LAMB: Communication Efficient Large-Scale "
    "Large-Batch Training with LAMB's Convergence Speed, arXiv 2104.06069",
    run=run,
    needs=("sklearn",),
    order=230,
)
