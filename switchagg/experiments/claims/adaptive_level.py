"""The level of compression chosen at every step, against the best fixed one of a sweep; three prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from switchagg.experiments.convex import OPTIMUM_TOLERANCE, Solution, make_task, same_x, solve
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

WORKERS: Final = 4
WORDS: Final = 64
BLOCK: Final = 8
ACCURACY: Final = 0.03
WITHIN: Final = 1.1
FAR: Final = 4
DRAWS: Final = 3  # of the features
PROBLEM: Final = {"name": "digits", "loss": "ridge", "l2": 0.003, "pairs": 450, "standard": False}
PRICES: Final = {"payload": "payload_bits", "packets": "packets", "bytes": "wire_bytes"}
VARIANTS: Final = ("sparse", "quantized", "stochastic")


def _name(variant: str, level: int, price: str) -> str:
    """Of a fixed level's run. Where it leaves its lanes to be chosen, bits or packets choose them."""
    lanes = "" if variant != "quantized" else f", lanes by {'payload' if price == 'payload' else 'packets'}"
    return f"{variant}, {level} blocks{lanes}"


def _runs(runner: Runner, levels: list[int], target: float) -> list[dict[str, Any]]:
    """All fixed levels, and one that is chosen for each price, of every variant."""
    common = {"method": "adaptive", "steps": 30 if runner.quick else 6000, "target": target}
    runs: dict[str, dict[str, Any]] = {}
    for variant in VARIANTS:
        arguments = {"variant": variant, "block": BLOCK, "seed": runner.seed}
        for price in PRICES:
            cost = {"model": price, "words": WORDS}
            for level in levels:
                runs.setdefault(
                    _name(variant, level, price), {"cost": cost, "arguments": {**arguments, "level": level}}
                )
            runs[f"{variant}, adaptive by {price}"] = {"cost": cost, "arguments": arguments}
    return [{**common, **run, "name": name} for name, run in runs.items()]


def _together(runs: Sequence[Solution]) -> Solution:
    """One run on all draws, as the sums of what it took."""
    last = {field: sum(run.last[field] for run in runs) for field in ("step", *PRICES.values())}
    levels = [float(run.extra["mean_level"]) for run in runs]
    return Solution(
        [last],
        all(run.same for run in runs),
        all(run.reached for run in runs),
        {"mean_level": sum(levels) / len(levels)},
    )


def run(runner: Runner) -> Outcome:
    """Sweeps fixed levels, then lets the level be chosen for each price."""
    drawn = range(runner.seed, runner.seed + (1 if runner.quick else DRAWS))
    pairs = {"pairs": 60} if runner.quick else {}
    tasks = [make_task({**PROBLEM, "seed": seed, **pairs}, WORKERS, "sorted") for seed in drawn]
    most = min(-(-task.dim // BLOCK) for task in tasks)
    levels = [most, most // 4] if runner.quick else sorted({1, 2, 4, 8, 16, 32, most})
    asked = [(task, _runs(runner, levels, ACCURACY * task.scale)) for task in tasks]
    of_tasks = solve(runner, asked, WORKERS, words=WORDS)
    found = {name: _together([of_task[name] for of_task in of_tasks]) for name in of_tasks[0]}
    task = tasks[0]

    def fixed(variant: str, level: int, price: str) -> Solution:
        return found[_name(variant, level, price)]

    checks, rows, plots = [], [], []
    best: dict[str, dict[str, int]] = {}
    for variant in VARIANTS:
        best[variant] = {}
        for price, field in PRICES.items():
            costs = {
                level: fixed(variant, level, price).last[field]
                for level in levels
                if fixed(variant, level, price).reached
            }
            chosen = found[f"{variant}, adaptive by {price}"]
            if not costs:
                checks.append(Check(f"{variant}: some fixed level reaches {ACCURACY:g}", False, "none did"))
                continue
            level = min(costs, key=lambda at: costs[at])
            best[variant][price] = level
            ratio = chosen.last[field] / costs[level]
            checks.append(
                Check(
                    f"{variant}, priced by {price}: within 10 % of the best fixed level's cost",
                    chosen.reached and ratio <= WITHIN,
                    f"{chosen.last[field]:,} for {costs[level]:,} with {level} of {most} blocks, "
                    f"{100 * (ratio - 1):+.1f} %",
                )
            )
            rows.append(
                (
                    variant,
                    price,
                    level,
                    costs[level],
                    chosen.last[field],
                    100 * (ratio - 1),
                    chosen.extra["mean_level"],
                    max(costs.values()) / costs[level],
                )
            )
        apart = {price: best[variant].get(price, 0) for price in ("payload", "packets")}
        wrong = fixed(variant, apart["payload"] or most, "packets").last["packets"]
        right = fixed(variant, apart["packets"] or most, "packets").last["packets"]
        checks.append(
            Check(
                f"{variant}: the best level under packets is at least {FAR} times that under payload bits",
                apart["packets"] >= FAR * apart["payload"] > 0,
                f"{apart['payload']} and {apart['packets']} of {most} blocks; with the former "
                f"{100 * (wrong / right - 1):.0f} % more packets",
            )
        )
        plots.append(
            Plot(
                variant,
                f"Cost of each fixed level to {ACCURACY:g}: {variant}",
                "blocks a step",
                "cost, of the best fixed level's",
                [
                    Series(
                        price,
                        [float(level) for level in levels],
                        [
                            fixed(variant, level, price).last[field]
                            / fixed(variant, best[variant].get(price, most), price).last[field]
                            for level in levels
                        ],
                    )
                    for price, field in PRICES.items()
                ],
                log_x=True,
                log_y=True,
                lines=[
                    (f"adaptive, {price}", found[f"{variant}, adaptive by {price}"].last[field] / least)
                    for price, field in PRICES.items()
                    for least in [fixed(variant, best[variant].get(price, most), price).last[field]]
                ],
            )
        )
    checks.append(same_x(found.values(), ": they choose alike without a message"))
    return Outcome(
        checks=checks,
        tables=[
            Table(
                f"To {ACCURACY:g} of the first distance: ridge regression on digits, {task.dim} unknowns, "
                f"condition {task.condition:.0f}, {WORKERS} workers, {most} blocks of {BLOCK}, packets of "
                f"{WORDS} words",
                (
                    "variant",
                    "price",
                    "best fixed level",
                    "its cost",
                    "cost of the adaptive level",
                    "more, %",
                    "mean adaptive level",
                    "worst fixed over best",
                ),
                rows,
                f"Sums over {len(tasks)} draws of the features. Costs as measured: payload bits, "
                "packets of a worker with the plan's, its bytes both ways with what was sent again.",
            ),
            Table.of(
                "All runs",
                found,
                {
                    "run": lambda name: name,
                    "steps": lambda name: found[name].last["step"],
                    "payload bits": lambda name: found[name].last["payload_bits"],
                    "packets": lambda name: found[name].last["packets"],
                    "bytes": lambda name: found[name].last["wire_bytes"],
                    "reached": lambda name: found[name].reached,
                },
            ),
        ],
        plots=plots,
        numbers={"best": best},
        notes=[
            f"The optimum was found by Newton's method to {OPTIMUM_TOLERANCE:g}.",
            f"Costs are summed over {len(tasks)} draws; on a single one the ratio scatters more.",
            "Few blocks may take longer steps, by F's smoothness along them. That makes the price "
            "of packets flat "
            "for the sparse variant: a packet holds 8 blocks, but 8 blocks have to go slower than one.",
            "Support and level come from the last aggregate of each block, which all workers have; so they "
            "agree without a message, and the union is the support. The paper's workers choose from their "
            "own gradients.",
        ],
    )


EXPERIMENT = Experiment(
    name="adaptive-level",
    title="The level of compression that suits the price",
    claim="The level chosen at each step for the most guaranteed improvement per cost reaches the accuracy "
    "of the best fixed level, found by sweep, within 10 % of its cost under each cost model, without the "
    "sweep; and the level that is best under payload bits is far from the best under packets.",
    source="Khirirat, Magnusson, Aytekin, Johansson, A Flexible Framework for Communication-Efficient "
    "Machine Learning: from HPC to IoT, arXiv 2003.06377",
    run=run,
    needs=("sklearn",),
    order=130,
)
