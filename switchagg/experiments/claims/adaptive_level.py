"""The level of compression that gains most for its price, as in the paper: one worker, single coordinates.

A worker sends the T largest coordinates of its gradient to a server, each with its index, and the step is
1 / L; T is chosen anew in every step, greedily:

    sparse      F falls by at least E_T / (2 L),            E_T: sum of the T largest squares
    quantized   signs and a mean: by at least S_T^2 / (2 L T),    S_T: sum of the T largest magnitudes
    T = argmax gain(T) / price(T)

Here the server is a second rank that contributes nothing. The matrix has what a level tuned for one price
costs in another, and beside it the best fixed level in hindsight, which greedy steps promise nothing about.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

Array = npt.NDArray[np.float64]

ACCURACY: Final = 0.02  # of F(0) - F*
FLOAT: Final = 32  # bits
FIXED: Final = 20_000  # bits that a message costs beside its payload, in the last price
VARIANTS: Final = ("sparse", "quantized")
LEVELS: Final = (1, 4, 16, 64, 256)
PROBLEM: Final = {"name": "source", "loss": "logistic", "l2": 0.003}

PRICES: Final[dict[str, Callable[[Array], Array]]] = {
    "payload": lambda bits: bits,
    "packets of 128 bytes": lambda bits: np.ceil(bits / (8 * 128)) * 8 * 128,
    "packets of 1,500 bytes": lambda bits: np.ceil(bits / (8 * 1500)) * 8 * 1500,
    "payload and 20,000 a message": lambda bits: bits + FIXED,
}
"""Bits that a message of so many bits of payload costs."""


def payload(variant: str, counts: Array, dim: int) -> Array:
    """Bits of a message with so many coordinates."""
    index = math.ceil(math.log2(dim))
    return counts * (index + FLOAT) if variant == "sparse" else counts * (index + 1) + FLOAT


def gains(variant: str, largest: Array) -> Array:
    """Twice L times the decrease that is promised, for T = 1 to d.

    Args:
        largest: magnitudes of the gradient's coordinates, falling.
    """
    if variant == "sparse":
        return np.asarray(np.cumsum(np.square(largest)))
    return np.asarray(np.square(np.cumsum(largest)) / np.arange(1, largest.size + 1))


def descend(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """One rank: every run, one after the other; rank 0 has the gradient, and both have x."""
    from switchagg.experiments.data import problem
    from switchagg.experiments.rank import say

    whole: Any = problem(**given["problem"])
    smoothness, counts = whole.smoothness, np.arange(1, whole.dim + 1)
    out: dict[str, Any] = {}
    for name, (variant, price, level) in given["runs"].items():
        bits = payload(variant, counts, whole.dim)
        costs = {each: PRICES[each](bits) for each in PRICES}
        paid = dict.fromkeys(PRICES, 0.0)
        x, sent, short, reached = np.zeros(whole.dim), [], 0, False
        loss = whole.loss(x)
        for _ in range(given["steps"]):
            gradient = whole.gradient(x)
            order = np.argsort(-np.abs(gradient), kind="stable")
            gain = gains(variant, np.abs(gradient[order]))
            best = level or 1 + int(np.argmax(gain / costs[price]))
            there = np.sort(order[:best])
            values = gradient[there]
            if variant == "quantized":
                values = np.sign(values) * np.abs(values).mean()
            mine = (there, values) if session.rank == 0 else (there[:0], values[:0])
            summed = session.allreduce_sparse(*mine, whole.dim, bits=64, dense_over=1)
            x = x - summed.to_dense() / smoothness
            now = whole.loss(x)
            # Rounding of the loss is no ascent.
            short += loss - now < gain[best - 1] / (2 * smoothness) - 1e-12
            loss = now
            sent.append(best)
            for each in PRICES:
                paid[each] += float(costs[each][best - 1])
            if loss <= given["target"]:
                reached = True
                break
        out[name] = {
            "paid": paid, "steps": len(sent), "reached": reached, "short": short,
            "mean": float(np.mean(sent)), "least": min(sent), "most": max(sent),
            "digest": float(x.sum()),
        }  # fmt: skip
        if session.rank == 0:
            say(f"{name}: {len(sent)} steps")
    return out


def run(runner: Runner) -> Outcome:
    """Fixed levels, then levels tuned for each price."""
    from switchagg.algorithms.problems import optimum
    from switchagg.experiments.data import problem

    asked: dict[str, Any] = {**PROBLEM, "seed": runner.seed}
    whole: Any = problem(**asked)
    best = whole.loss(optimum([whole], tolerance=1e-8))
    target = best + ACCURACY * (whole.loss(np.zeros(whole.dim)) - best)
    levels = [64, whole.dim] if runner.quick else [*LEVELS, whole.dim]
    runs: dict[str, tuple[str, str, int | None]] = {}
    for variant in VARIANTS:
        for level in levels:
            runs[f"{variant}, {level}"] = variant, "payload", level
        for price in PRICES:
            runs[f"{variant}, for {price}"] = variant, price, None
    given = {"problem": asked, "runs": runs, "target": target, "steps": 20 if runner.quick else 4000}
    results = runner.ranks(descend, 2, given).results
    found: dict[str, Any] = results[0]
    checks, rows, plots = [], [], []
    for variant in VARIANTS:
        tuned = {price: found[f"{variant}, for {price}"] for price in PRICES}
        for price in PRICES:
            fixed = {at: found[f"{variant}, {at}"] for at in levels if found[f"{variant}, {at}"]["reached"]}
            least = min(fixed, key=lambda at: fixed[at]["paid"][price], default=None)
            own = tuned[price]["paid"][price]
            others = {p: tuned[p]["paid"][price] / own for p in PRICES}
            rows.append(
                (
                    variant,
                    price,
                    own / 1e6,
                    *(others[p] for p in PRICES),
                    least,
                    None if least is None else fixed[least]["paid"][price] / own,
                    tuned[price]["mean"],
                )
            )
        full = {p: found[f"{variant}, {whole.dim}"]["paid"][p] / tuned[p]["paid"][p] for p in PRICES}
        checks.append(
            Check(
                f"{variant}: in every price the level tuned for it costs less than all coordinates in every "
                "step",
                min(full.values()) > 1,
                ", ".join(f"{times:.3g} times less in {price}" for price, times in full.items()),
            )
        )
        naive = {p: tuned["payload"]["paid"][p] / tuned[p]["paid"][p] for p in PRICES if p != "payload"}
        checks.append(
            Check(
                f"{variant}: where messages or packets have a price, a level tuned for payload costs more "
                "than "
                "one tuned for that price",
                all(each["reached"] for each in tuned.values()) and min(naive.values()) > 1,
                ", ".join(f"{times:.3g} times in {price}" for price, times in naive.items()),
            )
        )
        plots.append(
            Plot(
                variant,
                f"Cost of each fixed level, over that of the level tuned for the price: {variant}",
                "coordinates a step",
                "times",
                [
                    Series(
                        price,
                        [float(at) for at in levels],
                        [
                            found[f"{variant}, {at}"]["paid"][price] / tuned[price]["paid"][price]
                            for at in levels
                        ],
                    )
                    for price in PRICES
                ],
                log_x=True,
                log_y=True,
            )
        )
    alike = all(a["digest"] == b["digest"] for a, b in zip(*(r.values() for r in results), strict=True))
    return Outcome(
        checks=[
            Check(
                "Every step gains at least what its level promises",
                not any(each["short"] for each in found.values()),
                f"{sum(each['steps'] for each in found.values()):,} steps, "
                f"{sum(each['short'] for each in found.values())} of them short",
            ),
            *checks,
            Check("x is the same to the bit at both ranks, in every run", alike, f"{len(found)} runs"),
        ],
        tables=[
            Table(
                f"Logistic regression on hashed TF-IDF of the standard library's source, {whole.samples} "
                f"texts, {whole.dim} unknowns, to {ACCURACY:g} of F(0) - F*: cost of levels tuned for a "
                "price "
                "(columns), paid in another (rows), over that of the level tuned for it",
                (
                    "variant",
                    "paid in",
                    "tuned for it, Mbit",
                    *(f"for {price}" for price in PRICES),
                    "best fixed level",
                    "its cost",
                    "mean adaptive level",
                ),
                rows,
                "The best fixed level is known in hindsight only. An index has "
                f"{math.ceil(math.log2(whole.dim))} bits, a value {FLOAT}, or a sign.",
            ),
            Table.of(
                "All runs",
                found,
                {
                    "run": lambda name: name,
                    "steps": lambda name: found[name]["steps"],
                    "reached": lambda name: found[name]["reached"],
                    **{
                        f"{price}, Mbit": lambda name, p=price: found[name]["paid"][p] / 1e6  # type: ignore[misc]
                        for price in PRICES
                    },
                    "least level": lambda name: found[name]["least"],
                    "most": lambda name: found[name]["most"],
                },
            ),
        ],
        plots=plots,
        numbers={"runs": found},
        notes=[
            "Hashed TF-IDF of the standard library's source stands in for the paper's RCV1 and URL data. "
            "Prices "
            "are the paper's kinds: payload, packets of a link with short and with long ones, and payload "
            "with "
            "a fixed cost a message.",
            "Steps are greedy and nothing says that a level tuned for a price is the cheapest in it: one "
            "tuned "
            "for another price, or a fixed level known in hindsight, may cost a little less.",
            "`switchagg.algorithms.adaptive` is another method: all workers choose blocks alike from the "
            "last "
            "aggregates, and few blocks take longer steps, by F's smoothness along them.",
        ],
    )


EXPERIMENT = Experiment(
    name="adaptive-level",
    title="The level of compression that suits the price",
    claim="Choosing in every step the number of coordinates that gains most for its price keeps to the "
    "promised decrease, and the level has to be tuned for the price that is paid: tuned for another, it "
    "costs "
    "more.",
    source="Khirirat, Magnusson, Aytekin, Johansson, A Flexible Framework for Communication-Efficient "
    "Machine Learning: from HPC to IoT, arXiv 2003.06377",
    run=run,
    needs=("sklearn",),
    order=130,
)
