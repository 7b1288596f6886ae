"""SparCML's training: the largest elements with error feedback, and the sum of them quantized as well.

    e <- e + gradient;  the largest 5 % of e, in blocks of 16, of 32, 6 or 4 bits a value;  e <- e - sent

Four workers' values of 6 bits add up to 8, and those of 4 bits to 6: so wide are the lanes.

The paper quantizes what leaves its dense stage, at random; a switch adds what is quantized already, so error
feedback covers the rounding too. All workers run in one process.
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
    rates_note,
    steps_text,
    tuned_ways,
)
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner

STEPS: Final = 450
RATES: Final = (0.025, 0.05, 0.1, 0.2)
SHARE: Final = 0.05
BLOCK: Final = 16
MARGIN: Final = 1.1  # of steps; ours


def _top(levels: int | None) -> Callable[[], Any]:
    def make() -> Any:
        from worker_lib.compress import Dithering, ErrorFeedback, TopBlocks, chain

        top = TopBlocks(tau=SHARE, block=BLOCK)
        return ErrorFeedback(top if levels is None else chain(top, Dithering(levels=levels, block=1024)))

    return make


METHODS: Final[dict[str, Callable[[], Any] | None]] = {
    "all, 32 bits": None,
    "largest, 32 bits": _top(None),
    "largest, 6 bits a value": _top(31),
    "largest, 4 bits a value": _top(7),
}


def train(
    task: Any, rate: float, seed: int, make: Callable[[], Any] | None, steps: int
) -> tuple[Curve, float]:
    """Trains with momentum SGD; returns the held-out losses, and a worker's bits a step."""
    sums = Sums(make, task.shapes)
    x = task.start(seed)
    state: dict[str, Any] = {}
    curve: Curve = [(0, task.loss(x))]
    for step in range(1, steps + 1):
        gradients = [task.gradient(x, seed, step, rank) for rank in range(WORKERS)]
        task.update(x, sums.mean(gradients), state, rate, 0.9)
        if step % EVERY == 0:
            curve.append((step, task.loss(x)))
    return curve, sums.bits / steps


def _fewer(times: float) -> str:
    return f"{times:.1f} times fewer than all" if times else "not reached"


def run(runner: Runner) -> Outcome:
    """Every width at its best rate, to one loss."""
    steps, seeds = (30, 1) if runner.quick else (STEPS, SEEDS)
    ways = {name: partial(train, make=make, steps=steps) for name, make in METHODS.items()}
    found = tuned_ways(runner, ways, RATES[1:2] if runner.quick else RATES, seeds)
    full = found["all, 32 bits"]
    target = float(np.mean([curve[len(curve) // 2][1] for curve in full.curves]))
    arrivals = Arrivals(found, target)
    means = arrivals.means
    wide = means["largest, 32 bits"]
    narrow = [means[name] for name in METHODS if "largest" in name and "32" not in name]
    to_loss = {name: (means[name] or np.inf) * found[name].bits for name in METHODS}
    return Outcome(
        checks=[
            Check(
                "The largest elements, quantized too, still reach the loss that exact sums have half-way",
                None not in narrow,
                ", ".join(f"{name}: {steps_text(steps)}" for name, steps in means.items()),
            ),
            Check(
                f"Quantizing them takes no more than {MARGIN:g} times the steps (the bound is ours)",
                wide is not None and all(each is not None and each <= MARGIN * wide for each in narrow),
                ", ".join(steps_text(each) for each in narrow) + f" against {steps_text(wide)} in 32 bits",
            ),
            Check(
                "and fewer bits to the loss, the fewer the narrower",
                to_loss["largest, 4 bits a value"]
                < to_loss["largest, 6 bits a value"]
                < to_loss["largest, 32 bits"],
                ", ".join(
                    f"{name}: {_fewer(to_loss['all, 32 bits'] / bits)}"
                    for name, bits in to_loss.items()
                    if name != "all, 32 bits"
                ),
            ),
        ],
        tables=[
            arrivals.table(
                f"Perceptron on digits, {WORKERS} workers, momentum SGD: steps to a held-out loss of",
                "what is sent",
                full,
                f"The largest {SHARE:.0%} of the blocks of {BLOCK} elements at each worker. Bits: of words "
                "that are not zero at all workers, norms included, bitmaps not.",
            )
        ],
        plots=[arrivals.plot()],
        numbers={"target": target, "steps": arrivals.steps},
        notes=[
            "Steps are counted with all workers in one process; nothing is sent.",
            f"{rates_note('width', RATES)}.",
        ],
    )


EXPERIMENT = Experiment(
    name="quantized-top-k",
    title="The largest elements, quantized as well",
    claim="Training on the largest elements with error feedback converges also where their sum is quantized "
    "at random, so that sparsity and few bits save together.",
    source="Renggli et al., SparCML: High-Performance Sparse Communication for Machine Learning, SC 2019, "
    "arXiv 1802.08021",
    run=run,
    needs=("sklearn",),
    order=205,
)
