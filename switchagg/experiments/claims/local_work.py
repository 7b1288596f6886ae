"""Work between sums: FedBCD's rounds against local steps, and numbers that DS-LSR1 sends against m.

Rounds and numbers are counted with all workers in one process (`lockstep`), since no network changes them.

* FedBCD: Liu et al., arXiv 1912.11187: T iterations with Q local steps between sums take T / Q rounds, and Q
  of the order of sqrt(T) leaves the rate of T iterations as it is (section on convergence). So to an accuracy
  rounds fall with Q, at best by Q.
* DS-LSR1: Jahani et al., arXiv 1905.13096: S-LSR1 with naive sums sends its curvature pairs, d m
  numbers a step; DS-LSR1 sends m^2 and d-vectors in conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from switchagg.algorithms import fedbcd
from switchagg.algorithms.base import Array, Log
from switchagg.algorithms.fedbcd import VerticalShare
from switchagg.algorithms.problems import Regression
from switchagg.algorithms.problems import optimum as minimizer
from switchagg.experiments import convex, data
from switchagg.experiments.claims.swarm import Perceptron
from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.lockstep import ThreadSession, in_threads
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

LOCAL: Final = (1, 2, 4, 8, 16, 32)
MEMORY: Final = (4, 16, 64)
PRODUCTS: Final = 10
ACCURACY: Final = 1e-3
L2: Final = 1e-3
WORKERS: Final = 4
NETWORK_STEPS: Final = 30


def rounds(shares: Sequence[VerticalShare], optimum: Array, local: int, limit: int) -> int | None:
    """Returns FedBCD's sums until all blocks together are at `ACCURACY` of the first distance."""
    cuts = np.cumsum([share.dim for share in shares])[:-1]
    parts = np.split(optimum, cuts)

    def call(session: ThreadSession, most: int) -> list[float]:
        log = Log(optimum=parts[session.rank])
        share = shares[session.rank]
        fedbcd.run(share, session, steps=most, local_steps=local, log=log)  # type: ignore[arg-type]
        return [float(record.distance or 0.0) for record in log.records]

    for most in (limit // 16, limit // 4, limit):  # a run does not stop where all together are near
        ran = in_threads(partial(call, most=most), len(shares))
        distances = np.linalg.norm(ran, axis=0) / np.linalg.norm(optimum)
        near = np.flatnonzero(distances <= ACCURACY)
        if near.size:
            return int(near[0])
    return None


class Network(Perceptron):
    """A perceptron with what a quasi-Newton method asks for; curvature by differences of gradients."""

    l1 = 0.0

    def __init__(self, pixels: Any, digits: Any) -> None:
        super().__init__(pixels, digits)
        self.smoothness = self.sample_smoothness = 1.0  # the first model's curvature, no bound
        self.strong_convexity = 0.0
        self._all = np.arange(len(pixels))

    def loss(self, x: Array) -> float:
        first, offset, second, last = self.parts(x)
        scores = np.tanh(self.pixels @ first + offset) @ second + last
        top = scores.max(axis=1)
        sums = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
        return float((sums - scores[self._all, self.digits]).mean())

    def gradient(self, x: Array) -> Array:
        return np.asarray(self.batch_gradient(x, self._all))

    def hessian_product(self, x: Array, directions: Array) -> Array:
        each = 1e-5
        columns = [
            (self.gradient(x + each * v) - self.gradient(x - each * v)) / (2 * each) for v in directions.T
        ]
        return np.stack(columns, axis=1)


def curvature(
    parts: Sequence[Any], start: Array | None, memory: int, optimum: Array | None, limit: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Returns for both methods steps (to `ACCURACY`, or all), numbers a step and the loss at the end."""
    from switchagg.algorithms.dslsr1 import DsLsr1
    from switchagg.algorithms.slsr1 import Slsr1

    def call(session: ThreadSession, kind: Any, more: dict[str, Any]) -> tuple[int, int, float]:
        part = parts[session.rank]
        method = kind(part, session, memory=memory, seed=seed, x0=start, **more)
        before, steps = session.numbers, 0
        goal = 0.0 if optimum is None else ACCURACY * float(np.linalg.norm(optimum))
        while steps < limit:
            method.step()
            steps += 1
            if optimum is not None and np.linalg.norm(method.x - optimum) <= goal:
                break
        return steps, session.numbers - before, method.loss

    out = {}
    for name, kind, more in (("S-LSR1", Slsr1, {}), ("DS-LSR1", DsLsr1, {"products": PRODUCTS})):
        step, numbers, loss = in_threads(partial(call, kind=kind, more=more), len(parts))[0]
        out[name] = {"steps": step, "numbers": numbers / max(1, step), "loss": loss, "reached": step < limit}
    return out


def _fedbcd(runner: Runner) -> tuple[list[Check], Table, Plot]:
    whole = data.problem("digits", loss="ridge", l2=L2)
    optimum = minimizer([whole], tolerance=1e-8)
    halves = np.array_split(np.arange(whole.dim), 2)
    shares = [VerticalShare(whole.features[:, of], whole.targets, "ridge", L2) for of in halves]
    local = LOCAL[:3] if runner.quick else LOCAL
    limit = 500 if runner.quick else 6000
    rows: list[tuple[Any, ...]] = []
    for each in local:
        found = rounds(shares, optimum, each, limit)
        one = rows[0][1] if rows else found
        rows.append((each, found, one / found if one and found else None, found * each if found else None))
        runner.say(f"FedBCD, {each} local steps: {found} rounds")
    counts = [row[1] for row in rows]
    known = all(count is not None for count in counts)
    most = max(each for each in local if each == 1 or (counts[0] and each**2 <= counts[0]))
    checks = [
        Check(
            "FedBCD: more local steps take fewer rounds",
            known and counts == sorted(counts, reverse=True) and counts[-1] < counts[0],
            ", ".join(f"Q = {row[0]}: {row[1]}" for row in rows),
        ),
        Check(
            f"and up to Q = {most}, the root of the iterations of Q = 1, iterations stay of one order: at "
            "most twice as many",
            known and all(row[3] <= 2 * rows[0][3] for row in rows if row[0] <= most),
            ", ".join(f"Q = {row[0]}: {row[3]}" for row in rows if row[3]),
        ),
    ]
    table = Table(
        f"FedBCD-p, ridge regression on digits, features in two halves, to {ACCURACY:g}",
        ("local steps Q", "rounds", "times fewer", "iterations"),
        rows,
        "Every Q at the largest rate with a guarantee, 1 / the largest L_k, the same for each.",
    )
    got = [row for row in rows if row[1]]
    plot = Plot(
        "local-steps",
        "FedBCD: rounds by local steps",
        "local steps",
        "rounds",
        [
            Series("rounds", [row[0] for row in got], [row[1] for row in got]),
            Series(
                "rounds of Q = 1 / Q",
                [row[0] for row in got],
                [got[0][1] / row[0] for row in got],
                style="dashed",
            ),
        ],
        log_x=True,
        log_y=True,
    )
    return checks, table, plot


def _slsr1(runner: Runner) -> tuple[list[Check], Table, Plot]:
    pixels, digits = data.digits()
    pixels = pixels / 16.0
    rows: list[tuple[Any, ...]] = []
    limit = 20 if runner.quick else 300
    for pairs in (60,) if runner.quick else (60, 250, 800):
        problem = {"name": "digits", "loss": "ridge", "l2": 0.01, "pairs": pairs, "seed": runner.seed}
        task = convex.make_task(problem, WORKERS, "shuffled", seed=runner.seed)
        parts: list[Regression] = task.parts
        for memory in MEMORY[:1] if runner.quick else MEMORY:
            for name, one in curvature(parts, None, memory, task.optimum, limit, runner.seed).items():
                count = one["steps"] if one["reached"] else None
                rows.append(("ridge", task.dim, memory, name, count, one["numbers"], one["loss"]))
            runner.say(
                f"d = {task.dim}, m = {memory}: {rows[-2][5]:,.0f} and {rows[-1][5]:,.0f} numbers a step"
            )
    shares = np.array_split(np.arange(len(digits)), WORKERS)
    networks = [Network(pixels[of], digits[of]) for of in shares]
    start = networks[0].start(runner.seed)
    first = float(np.mean([part.loss(start) for part in networks]))
    memory = MEMORY[0] if runner.quick else MEMORY[1]
    steps = 3 if runner.quick else NETWORK_STEPS
    trained = curvature(networks, start, memory, None, steps, runner.seed)
    for name, one in trained.items():
        rows.append(("network", networks[0].dim, memory, name, steps, one["numbers"], one["loss"]))
    gradient = networks[0].dim + 1
    bound = [
        row[5] <= 1 + row[1] + row[2] ** 2 + PRODUCTS * (row[1] + row[2])
        for row in rows
        if row[3] == "DS-LSR1"
    ]
    pairs_of = list(zip(rows[::2], rows[1::2], strict=True))
    wide = [(naive, new) for naive, new in pairs_of if naive[2] > PRODUCTS + 1]
    checks = [
        Check(
            "DS-LSR1 sends at most 1 + d + m^2 numbers a step and d + m for each of at most "
            f"{PRODUCTS} products, S-LSR1 1 + d (m + 1)",
            all(bound)
            and all(abs(row[5] - 1 - row[1] * (row[2] + 1)) < 1 for row in rows if row[3] == "S-LSR1"),
            f"{len(rows)} runs, d of {min(row[1] for row in rows)} to {max(row[1] for row in rows)}",
        ),
        Check(
            "so with more directions than products DS-LSR1 sends fewer",
            all(new[5] < naive[5] for naive, new in wide) and bool(wide or runner.quick),
            ", ".join(f"d = {n[1]}, m = {n[2]}: {n[5] / d[5]:.1f} times" for n, d in wide),
        ),
        Check(
            f"Both lower a network's loss alike in {steps} steps, within a tenth",
            abs(trained["DS-LSR1"]["loss"] - trained["S-LSR1"]["loss"])
            <= 0.1 * (first - trained["S-LSR1"]["loss"]),
            f"from {first:.3f} to {trained['S-LSR1']['loss']:.3f} (S-LSR1) and "
            f"{trained['DS-LSR1']['loss']:.3f} (DS-LSR1); one gradient and loss are {gradient:,} numbers",
        ),
    ]
    table = Table(
        f"S-LSR1 and DS-LSR1, {WORKERS} workers: numbers a step",
        ("problem", "d", "m", "method", "steps", "numbers a step", "loss at the end"),
        rows,
        f"Ridge regression on digits to {ACCURACY:g} of the first distance; a dash: not in {limit} steps.",
    )
    dims = sorted({row[1] for row in rows if row[0] == "ridge"})
    plot = Plot(
        "numbers",
        "Numbers a step by directions",
        "directions m",
        "numbers a step",
        [
            Series(
                f"{name}, d = {d}",
                [float(row[2]) for row in rows if row[3] == name and row[1] == d and row[0] == "ridge"],
                [float(row[5]) for row in rows if row[3] == name and row[1] == d and row[0] == "ridge"],
                style="dashed" if name == "S-LSR1" else "solid",
            )
            for d in dims
            for name in ("S-LSR1", "DS-LSR1")
        ],
        log_x=True,
        log_y=True,
    )
    return checks, table, plot


def run(runner: Runner) -> Outcome:
    """FedBCD's rounds, then both forms of sampled SR1."""
    first, first_table, first_plot = _fedbcd(runner)
    second, second_table, second_plot = _slsr1(runner)
    return Outcome(
        checks=[*first, *second],
        tables=[first_table, second_table],
        plots=[first_plot, second_plot],
        notes=[
            "Rounds, steps and numbers are counted with all workers in one process; nothing is sent.",
            "The paper's scaling of DS-LSR1 in time, over nodes, is not measured: here all workers share the "
            "cores.",
            "Once each block has settled against the others' outputs as they were, more local steps change "
            "nothing: they cost computing and save no rounds.",
            "At most twice as many iterations, and losses alike within a tenth, are bounds of ours.",
        ],
    )


EXPERIMENT = Experiment(
    name="local-work",
    title="Work between sums: FedBCD's local steps, and curvature that stays where it is",
    claim="With features spread over workers, local steps between sums take fewer rounds to an accuracy; "
    "and a sampled quasi-Newton method need not send its curvature pairs.",
    source="Liu et al., A Communication Efficient Collaborative Learning Framework for Distributed Features, "
    "arXiv 1912.11187, convergence analysis; Jahani et al., Scaling Up Quasi-Newton Algorithms, arXiv "
    "1905.13096",
    run=run,
    needs=("sklearn",),
    order=230,
)
