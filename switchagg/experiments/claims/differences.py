"""Quantized gradients stall; quantized differences to a memory do not, with stochastic gradients either."""

from __future__ import annotations

import math
import statistics
from typing import Any, Final

from switchagg.experiments import convex
from switchagg.experiments.convex import Solution, Task
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.table import Table

WORKERS: Final = 4
WORDS: Final = 64  # K of the P4 targets
LEVELS: Final = 4
ORDERS: Final = ("shuffled", "half", "sorted")
REACHED: Final = 1e-8  # of the starting point's distance
PROBLEM: Final = {"name": "breast_cancer", "loss": "logistic", "l2": 0.01}


def run(runner: Runner) -> Outcome:
    """Three splits of one data set, from alike to as different as it gets."""
    steps = 100 if runner.quick else 1000
    compressor = {"levels": LEVELS, "seed": runner.seed}
    tasks: dict[str, Task] = {}
    asked: list[tuple[Task, list[dict[str, Any]]]] = []
    found: dict[tuple[str, str], Solution] = {}
    for order in ORDERS:
        task = tasks[order] = convex.make_task(PROBLEM, WORKERS, order, seed=runner.seed)
        target = REACHED * task.scale
        common = {"method": "diana", "steps": steps, "compressor": compressor}
        runs: list[dict[str, Any]] = [
            {**common, "name": "direct", "arguments": {"memory": False, "rule": 1.0}},
            {**common, "name": "DIANA", "arguments": {"rule": 1.0}, "target": target},
        ]
        if order == "sorted":
            batch = {"batch": 8, "variance": "lsvrg", "seed": runner.seed, "step": 1.0}
            stochastic = {"method": "vr-diana", "steps": 2 * steps, "compressor": compressor}
            runs += [
                {**stochastic, "name": "VR-DIANA", "arguments": batch, "target": target},
                {**stochastic, "name": "direct, stochastic", "arguments": {**batch, "memory": False}},
            ]
        asked.append((task, runs))
    for order, of_order in zip(ORDERS, convex.solve(runner, asked, WORKERS, words=WORDS), strict=True):
        found |= {(order, name): each for name, each in of_order.items()}
    floors = [found[order, "direct"].plateau() for order in ORDERS]
    spreads = [tasks[order].heterogeneity for order in ORDERS]
    fits = {key: _straight(each) for key, each in found.items() if "DIANA" in key[1]}
    checks = [
        Check(
            "Direct quantization stalls on every split, a thousandfold short of what DIANA reaches",
            min(floors) > 1000 * REACHED,
            ", ".join(f"{order} {floor:.2g}" for order, floor in zip(ORDERS, floors, strict=True)),
        ),
        Check(
            "Where it stalls is the farther off the more the workers' data differ",
            floors == sorted(floors) and spreads == sorted(spreads),
            ", ".join(f"{s:.3g} -> {f:.2g}" for s, f in zip(spreads, floors, strict=True)),
        ),
        *(
            Check(
                f"{name} with the same compressor, {order}: to {REACHED:g} of the first distance, on a line",
                each.reached and fits[order, name][0] > 0.97,
                f"{each.distances[-1]:.2g} after {each.last['step']} steps, factor "
                f"{10 ** fits[order, name][1]:.4f} a step, R^2 of the line {fits[order, name][0]:.4f}",
            )
            for (order, name), each in found.items()
            if "DIANA" in name
        ),
        Check(
            "Stochastic gradients without the memory stall",
            found["sorted", "direct, stochastic"].plateau() > 1000 * REACHED,
            f"{found['sorted', 'direct, stochastic'].plateau():.2g}",
        ),
        convex.same_x(found.values()),
    ]
    theory = found["sorted", "VR-DIANA"].extra
    return Outcome(
        checks=checks,
        tables=[
            Table.of(
                f"Logistic regression on breast cancer, {tasks['sorted'].dim} unknowns, {WORKERS} workers, "
                f"{LEVELS} levels each way",
                found.items(),
                {
                    "split": lambda run: run[0][0],
                    "heterogeneity": lambda run: tasks[run[0][0]].heterogeneity,
                    "method": lambda run: run[0][1],
                    "steps": lambda run: run[1].last["step"],
                    "distance (of the first)": lambda run: (
                        run[1].plateau() if "direct" in run[0][1] else run[1].distances[-1]
                    ),
                    "payload bits a step": lambda run: run[1].per_step("payload_bits"),
                    "bytes a step on the wire": lambda run: run[1].per_step("wire_bytes"),
                },
                "Heterogeneity: root mean square of the workers' gradients at the optimum. Direct: median "
                "distance over the second half of the run.",
            )
        ],
        plots=[
            convex.distance_plot(
                "steps",
                "Distance from the optimum, data sorted by label",
                {
                    name: found["sorted", name]
                    for name in ("direct", "DIANA", "VR-DIANA", "direct, stochastic")
                },
            ),
            convex.distance_plot(
                "splits",
                "Where direct quantization stalls",
                {
                    f"{order}, heterogeneity {tasks[order].heterogeneity:.3f}": found[order, "direct"]
                    for order in ORDERS
                },
            ),
        ],
        numbers={"floors": dict(zip(ORDERS, floors, strict=True)), "heterogeneity": spreads},
        notes=[
            f"The optimum was found by Newton's method to {convex.OPTIMUM_TOLERANCE:g}.",
            "Steps: 1 / (L (1 + omega / n)), where the theory's bound has 6 omega; VR-DIANA "
            f"{theory['gamma']:.3g}, where its bound, for the worst of all samples, is "
            f"{theory['bound']:.2g}.",
        ],
    )


def _straight(each: Solution) -> tuple[float, float]:
    """R^2 and slope of log10(distance) over steps, by least squares."""
    points = [(r["step"], math.log10(d)) for r, d in zip(each.records, each.distances, strict=True) if d > 0]
    steps, logs = zip(*points, strict=True)
    return statistics.correlation(steps, logs) ** 2, statistics.linear_regression(steps, logs).slope


EXPERIMENT = Experiment(
    name="compressed-differences",
    title="Quantized differences converge where quantized gradients stall",
    claim="Quantizing gradients directly stalls at a distance from the optimum that grows with the workers' "
    "heterogeneity; DIANA, which sends quantized differences to a memory with the same bits, converges "
    "linearly to it, and VR-DIANA does so with stochastic gradients.",
    source="Mishchenko, Gorbunov, Takac, Richtarik, Distributed Learning with Compressed Gradient "
    "Differences, arXiv 1901.09269; Horvath et al., Stochastic Distributed Learning with Gradient "
    "Quantization and Variance Reduction, arXiv 1904.05115",
    run=run,
    needs=("sklearn",),
    order=100,
)
