"""Quantization and sparsification together, on differences, against either alone: bits to an accuracy.

Every compressor takes the best of some step sizes. Under one rule for the step, the rule decides the order:
its 1 + w is far from what a compressor needs, by another factor for each.
"""

from __future__ import annotations

from typing import Any, Final

from switchagg.experiments import convex
from switchagg.experiments.convex import Solution
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.table import Table

WORKERS: Final = 8
WORDS: Final = 64
BLOCK: Final = 16
LEVELS: Final = (1, 4, 16)
SHARES: Final = (0.0625, 0.125, 0.25)
STEPS: Final = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 1.8)  # of 1 / L
ACCURACY: Final = 1e-3
PROBLEM: Final = {"name": "digits", "loss": "ridge", "l2": 0.01, "pairs": 193}


def run(runner: Runner) -> Outcome:
    """Every combination to the same accuracy, each at its best step size."""
    task = convex.make_task(
        {**PROBLEM, "seed": runner.seed, **({"pairs": 60} if runner.quick else {})}, WORKERS, "sorted"
    )
    kinds: dict[str, tuple[str, dict[str, Any]]] = {"neither": ("neither", {})}
    for levels in LEVELS:
        kinds[f"s = {levels}"] = ("quantized", {"levels": levels})
    for tau in SHARES:
        kinds[f"tau = {tau:g}"] = ("sparsified", {"tau": tau, "block": BLOCK})
    for tau in SHARES:
        for levels in LEVELS[:1] if runner.quick else LEVELS[:2]:
            kinds[f"tau = {tau:g}, s = {levels}"] = ("both", {"tau": tau, "block": BLOCK, "levels": levels})
    limit = 100 if runner.quick else 4000
    runs = []
    chosen: dict[str, float] = {}
    for name, (_, spec) in kinds.items():
        compressor = {**spec, "seed": runner.seed}
        step = convex.tuned(task, compressor, STEPS[2:4] if runner.quick else STEPS, ACCURACY, limit)
        chosen[name] = STEPS[2] if step is None else step
        runner.say(f"{name}: tuned to {chosen[name]:g} / L")
        runs.append(
            {
                "name": name,
                "method": "diana",
                "steps": limit,
                "compressor": compressor,
                "arguments": {"step_times_l": chosen[name]},
                "target": ACCURACY * task.scale,
            }
        )
    (found,) = convex.solve(runner, [(task, runs)], WORKERS, words=WORDS)
    best: dict[str, tuple[str, Solution]] = {}
    for name, each in found.items():
        kind = kinds[name][0]
        if each.reached and (kind not in best or _bits(each) < _bits(best[kind][1])):
            best[kind] = name, each
    bits = {kind: _bits(each) for kind, (_, each) in best.items()}
    alone = min((bits.get("quantized", float("inf")), bits.get("sparsified", float("inf"))))
    held = "both" in bits and bits["both"] < alone
    ended = {name: each for name, each in found.items() if each.reached}
    lightest = min(ended, key=lambda name: float(ended[name].last["wire_bytes"]), default=None)
    return Outcome(
        checks=[
            Check(
                f"The best combination reaches {ACCURACY:g} in fewer bits than the best of either alone",
                held,
                "; ".join(f"{kind} {_text(bits[kind])} ({best[kind][0]})" for kind in bits),
            ),
            convex.same_x(found.values()),
        ],
        tables=[
            Table.of(
                f"To {ACCURACY:g} of the first distance: ridge regression on digits, {task.dim} unknowns, "
                f"condition {task.condition:.0f}, {WORKERS} workers",
                found,
                {
                    "compressor": lambda name: name,
                    "kind": lambda name: kinds[name][0],
                    "step size x L": lambda name: chosen[name],
                    "steps": lambda name: found[name].last["step"],
                    "reached": lambda name: found[name].reached,
                    "payload bits": lambda name: found[name].last["payload_bits"],
                    "bits an unknown and step": lambda name: found[name].per_step("payload_bits") / task.dim,
                    "bytes on the wire": lambda name: found[name].last["wire_bytes"],
                    "packets": lambda name: found[name].last["packets"],
                },
                "s: levels each way, in the narrowest lanes that hold the sum of all workers; tau: share "
                f"of the blocks of {BLOCK}, the same at all workers; without s, lanes of 32 bits. Payload "
                "counts the 256 bits of the shared norm. One worker's figures.",
            )
        ],
        plots=[
            convex.distance_plot(
                "bits",
                "Distance over bits: the best of each kind",
                {f"{kind}: {name}": each for kind, (name, each) in best.items()},
                "payload_bits",
            )
        ],
        numbers={"bits": bits, "best": {kind: name for kind, (name, _) in best.items()}},
        notes=[
            f"The optimum was found by Newton's method to {convex.OPTIMUM_TOLERANCE:g}.",
            f"On the wire the order is another: {lightest} takes the fewest bytes. A vector this "
            "small fits a few "
            f"packets of {WORDS} words however it is compressed, and a common norm takes a round of its own.",
            f"Each compressor takes the best of the step sizes {', '.join(map('{:g}'.format, STEPS))}, in "
            "units of 1 / L.",
        ],
    )


def _bits(each: Solution) -> float:
    return float(each.last["payload_bits"])


def _text(bits: float) -> str:
    return f"{bits / 1e6:.3g} Mbit"


EXPERIMENT = Experiment(
    name="both-compressions",
    title="Quantizing and sparsifying differences at once",
    claim="Combining quantization with sparsification on gradient differences reaches a given accuracy in "
    "fewer bits than either alone.",
    source="Horvath et al., Stochastic Distributed Learning with Gradient Quantization and Variance "
    "Reduction, arXiv 1904.05115; Mishchenko et al., arXiv 1901.09269",
    run=run,
    needs=("sklearn",),
    order=110,
)
