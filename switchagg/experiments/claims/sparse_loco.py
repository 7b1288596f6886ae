"""SparseLoCo: outer steps whose pseudo-gradients are sparse, in two bits and fed back, against DiLoCo.

    every 15 steps of Adam at each worker:  d = anchor - x
    DiLoCo       mean of d in 32 bits, Nesterov momentum
    SparseLoCo   e <- 0.95 e + d;  the largest 1 to 3 % of e, ternary;  e <- e - sent;  rate 1, no momentum

As `worker_lib.outer.OuterSteps` does it on a session; here with all workers in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from switchagg.experiments.claims.training import SEEDS, WORKERS, Adam, Curve, Sums, rates_note, tuned_ways
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

EVERY: Final = 15
STEPS: Final = 450
RATES: Final = (0.0005, 0.001, 0.002, 0.004, 0.008)
DENSITIES: Final = (0.01, 0.03, 0.1)
CLAIMED: Final = 0.03
DECAY: Final = 0.95
BLOCK: Final = 8  # elements that a word of four-bit lanes has


def _sparse(density: float, block: int) -> Callable[[], Any]:
    def make() -> Any:
        from worker_lib.compress import Dithering, ErrorFeedback, TopBlocks, chain

        few = chain(TopBlocks(tau=density, block=block), Dithering(levels=1, block=1024))
        return ErrorFeedback(few, decay=DECAY)

    return make


def _narrow() -> Any:
    from worker_lib.compress import ErrorFeedback, Rotation

    return ErrorFeedback(Rotation(bits=4))


def train(
    task: Any,
    rate: float,
    seed: int,
    every: int,
    outer: tuple[float, float],
    make: Callable[[], Any] | None,
    steps: int,
) -> tuple[Curve, float]:
    """Trains; returns the held-out losses of the anchor, and a worker's bits a step.

    Args:
        every: local steps between two sums; 1: gradients are summed in each step.
        outer: rate and Nesterov momentum.
    """
    sums = Sums(make, task.shapes)
    anchor = task.start(seed)
    xs = np.stack([anchor] * (WORKERS if every > 1 else 1))
    adam, velocity = Adam(xs), np.zeros_like(anchor)
    curve: Curve = [(0, task.loss(anchor))]
    for step in range(1, steps + 1):
        gradients = np.stack(
            [task.gradient(xs[rank if every > 1 else 0], seed, step, rank) for rank in range(WORKERS)]
        )
        adam.step(xs, gradients if every > 1 else sums.mean(gradients)[None], rate)
        if step % EVERY == 0:
            if every > 1:
                moved = sums.mean(anchor - xs)
                velocity = np.float32(outer[1]) * velocity + moved
                anchor = anchor - np.float32(outer[0]) * (moved + np.float32(outer[1]) * velocity)
                xs[:] = anchor
            curve.append((step, task.loss(anchor if every > 1 else xs[0])))
    return curve, sums.bits / steps


def run(runner: Runner) -> Outcome:
    """Gradients in every step, DiLoCo, and SparseLoCo by density, each at its best rate."""
    steps, seeds = (30, 1) if runner.quick else (STEPS, SEEDS)
    densities = DENSITIES[1:2] if runner.quick else DENSITIES
    ways: dict[str, dict[str, Any]] = {
        "a sum in every step": {"every": 1, "outer": (1.0, 0.0), "make": None},
        "local steps, averaged": {"every": EVERY, "outer": (1.0, 0.0), "make": None},
        "DiLoCo": {"every": EVERY, "outer": (0.7, 0.9), "make": None},
        "DiLoCo, rate 0.4": {"every": EVERY, "outer": (0.4, 0.9), "make": None},
        **{
            f"SparseLoCo, {density:.0%}": {
                "every": EVERY, "outer": (1.0, 0.0), "make": _sparse(density, 1),
            }
            for density in densities
        },
        f"SparseLoCo, {CLAIMED:.0%} in blocks of {BLOCK}": {
            "every": EVERY, "outer": (1.0, 0.0), "make": _sparse(CLAIMED, BLOCK),
        },
        "averaged, rotation in 4 bits": {"every": EVERY, "outer": (1.0, 0.0), "make": _narrow},
    }  # fmt: skip
    runs = {name: partial(train, **given, steps=steps) for name, given in ways.items()}
    found = tuned_ways(runner, runs, RATES[2:3] if runner.quick else RATES, seeds)
    dense = min((found[name] for name in found if name.startswith("DiLoCo")), key=lambda each: each.loss)
    in_claim = {f"SparseLoCo, {each:.0%}" for each in densities if each <= CLAIMED}
    sparse = {name: found[name] for name in found if name in in_claim}
    best = min(sparse, key=lambda name: sparse[name].loss)
    aligned = found[f"SparseLoCo, {CLAIMED:.0%} in blocks of {BLOCK}"]
    size = found["a sum in every step"].bits / 32
    return Outcome(
        checks=[
            Check(
                f"SparseLoCo with 1 to {CLAIMED:.0%} of the elements in two bits ends at a lower loss than "
                "DiLoCo in full precision",
                sparse[best].loss < dense.loss,
                f"{best}: {sparse[best].loss:.4f}, DiLoCo {dense.loss:.4f}, mean of {seeds} seeds",
            ),
            Check(
                "With blocks as long as a word a switch carries a tenth of DiLoCo's bits or less",
                10 * aligned.bits <= dense.bits,
                f"{dense.bits / aligned.bits:.1f} times fewer, at a loss of {aligned.loss:.4f}; single "
                f"elements: {dense.bits / found[f'SparseLoCo, {CLAIMED:.0%}'].bits:.1f} times",
            ),
        ],
        tables=[
            Table(
                f"Perceptron on digits, {WORKERS} workers, {steps} steps of Adam, an outer step in {EVERY}",
                ("way", "rate of Adam", "held-out loss, mean", "by seed", "bits an element and step"),
                [(name, e.rate, e.loss, e.spread, e.bits / size) for name, e in found.items()],
                "Bits: of words that are not zero at all workers, norms included, bitmaps not.",
            )
        ],
        plots=[
            Plot(
                "loss-by-bits",
                "Held-out loss at the end by what a worker sends",
                "bits an element and step",
                "nats",
                [Series(name, [e.bits / size], [e.loss], style="points") for name, e in found.items()],
                log_x=True,
            )
        ],
        numbers={name: {"loss": each.loss, "bits": each.bits} for name, each in found.items()},
        notes=[
            "Steps are counted with all workers in one process; nothing is sent.",
            f"{rates_note('way', RATES)}; DiLoCo also the better of two outer rates. The paper's models have "
            "hundreds of millions of parameters; this one has 51 thousand.",
            "Two bits are a sign and zero; the sum of four ranks' takes lanes of four bits. A word has eight "
            "of them and is sent if any rank has any: with single elements that is most words.",
        ],
    )


EXPERIMENT = Experiment(
    name="sparse-loco",
    title="Sparse outer steps in two bits",
    claim="With error feedback in place of the outer momentum, pseudo-gradients of which 1 to 3 % are "
    "sent in two bits train to a lower loss than DiLoCo's in full precision.",
    source="Sarfi, Therien, Lidin, Belilovsky, Communication Efficient LLM Pre-training with SparseLoCo, "
    "arXiv 2508.15706; DiLoCo: Douillard et al., arXiv 2311.08105, Algorithm 1",
    run=run,
    needs=("sklearn",),
    order=240,
)
