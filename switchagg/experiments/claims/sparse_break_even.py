"""The share of rows from which a dense sum is faster than a sparse one: by the cost model, and measured."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table

WORKERS: Final = 2
FACTOR: Final = 1.2
SHARES: Final = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)


@dataclass(frozen=True, slots=True)
class Setting:
    """A table and a network."""

    label: str
    rate: str | None
    rows: int
    width: int
    bits: int


SETTINGS: Final = (
    Setting("shared memory, pairs", None, 1 << 17, 1, 32),
    Setting("shared memory, rows of 16", None, 1 << 13, 16, 32),
    Setting("1 Gb/s, pairs", "1Gbit", 1 << 16, 1, 32),
    Setting("0.1 Gb/s, pairs in 8 bits", "100Mbit", 1 << 15, 1, 8),
)


def measure(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    """One rank: what the costs predict, and times of sparse and dense sums at several shares, in turns."""
    from worker_lib.sparse import sparse_costs

    rows, width, bits = given["rows"], given["width"], given["bits"]
    row = () if width == 1 else (width,)
    costs = sparse_costs(session, np.float32, rows, row, bits=bits)
    times: dict[str, list[list[float]]] = {"sparse": [], "dense": []}
    for i, share in enumerate(SHARES):
        shared = np.random.default_rng((given["seed"], i))
        union = np.sort(shared.choice(rows, int(share * rows), replace=False))
        # Each row is one rank's, and at some others too.
        own = np.random.default_rng((given["seed"], i, session.rank)).random(union.size) < 0.3
        mine = union[own | (np.arange(union.size) % session.world_size == session.rank)]
        values = np.ones((mine.size, *row), np.float32)
        taken: dict[str, list[float]] = {"sparse": [], "dense": []}
        for turn in range(given["repeats"] + 1):
            for name, over in (("sparse", 1), ("dense", 0)):
                session.barrier()
                began = time.perf_counter()
                found = session.allreduce_sparse(mine, values, rows, bits=bits, dense_over=over)
                if turn:
                    taken[name].append(time.perf_counter() - began)
                assert found.indices.size == union.size
        for name, seconds in taken.items():
            times[name].append(seconds)
    return {"times": times, "predicted": costs.break_even(rows, width), "costs": str(costs)}


def run(runner: Runner) -> Outcome:
    """Every setting in a job of its own."""
    settings = SETTINGS[:1] if runner.quick else SETTINGS
    rows: list[tuple[Any, ...]] = []
    plots: list[Plot] = []
    checks: list[Check] = []
    numbers: dict[str, Any] = {}
    for number, setting in enumerate(settings):
        runner.say(setting.label)
        given = {**asdict(setting), "seed": runner.seed, "repeats": 5 if runner.quick else 60}
        arguments = [] if setting.rate is None else ["--rate", setting.rate]
        results = runner.ranks(measure, WORKERS, given, arguments=arguments).results
        # A call has ended when the last rank has its result.
        times = {name: np.max([r["times"][name] for r in results], axis=0) for name in ("sparse", "dense")}
        # Other work of the computer only adds to a time, so the least of many is the time itself.
        apart = times["sparse"].min(axis=1) - times["dense"].min(axis=1)
        predicted, measured = float(results[0]["predicted"]), crossing(apart)
        ratio = max(predicted, measured) / max(min(predicted, measured), 1e-9)
        checks.append(
            Check(
                f"{setting.label}: predicted and measured break-even within a factor of {FACTOR}",
                ratio <= FACTOR,
                f"{predicted:.0%} of rows predicted, {measured:.0%} measured: a factor of {ratio:.2f}",
            )
        )
        rows.append((setting.label, setting.rows, setting.width, setting.bits, predicted, measured, ratio))
        numbers[setting.label] = {
            "costs": results[0]["costs"],
            **{name: each.tolist() for name, each in times.items()},
        }
        plots.append(
            Plot(
                f"setting-{number}",
                f"{setting.label}: break-even {predicted:.0%} predicted, {measured:.0%} measured",
                "share of rows that some rank has",
                "milliseconds a sum: least and median",
                [
                    Series(
                        name,
                        list(SHARES),
                        (1e3 * times[name].min(axis=1)).tolist(),
                        low=(1e3 * times[name].min(axis=1)).tolist(),
                        high=(1e3 * np.median(times[name], axis=1)).tolist(),
                    )
                    for name in ("sparse", "dense")
                ],
            )
        )
    return Outcome(
        checks=checks,
        tables=[
            Table(
                f"{WORKERS} workers, float32",
                ("setting", "rows", "elements a row", "bits", "predicted", "measured", "factor"),
                rows,
                "Predicted from a few sums and the handling of made-up rows, before the first table is seen. "
                "Measured: where a straight line through the differences of both ways' least times meets 0.",
            )
        ],
        plots=plots,
        numbers=numbers,
        notes=[
            "In SparCML a sparse element travels as index and value, so dense wins from half the table on. "
            "Here indices are a bit a row, and what being sparse costs is the handling of rows by the "
            "workers: on a slow network it nearly always pays, through shared memory only while few rows are "
            "there.",
            "Through shared memory a sum is less than a millisecond of three processes, so both figures vary "
            "with what else the computer does.",
        ],
    )


def crossing(apart: Any) -> float:
    """Share at which a line through the differences, sparse less dense, meets 0; 1 where none does."""
    slope, base = np.polyfit(SHARES, apart, 1)
    if slope <= 0:
        return 0.0 if base > 0 else 1.0
    return float(np.clip(-base / slope, 0.0, 1.0))


EXPERIMENT = Experiment(
    name="sparse-break-even",
    title="When a sparse sum should be a dense one",
    claim="A sparse all-reduce should turn dense past a break-even share of non-zero elements, which a cost "
    "model predicts; here: within a factor of 1.2 of the measured one.",
    source="Renggli et al., SparCML: High-Performance Sparse Communication for Machine Learning, SC 2019, "
    "arXiv 1802.08021, section 5",
    run=run,
    order=200,
)
