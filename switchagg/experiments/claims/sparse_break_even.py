"""SparCML's statements of sparse sums, by counters of bytes; and the time that choosing a form by cost loses.

fill-in      k of N places drawn by each of P ranks: the union has N (1 - (1 - k/N)^P)
delta        the number of places from which dense is smaller; theirs is N isize / (c + isize), with an
             index of c bytes for every value. Here an index is a bit of a bitmap: N (1 - 1 / bits)
dense stage  quantized, it takes bits / 32 of the bytes
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table
from switchagg.wire.header import HEADER_BYTES

WORKERS: Final = 2
RANKS: Final = (3, 4, 8)  # of the fill-in
ROWS: Final = 1 << 16  # of the tables whose bytes are counted
DRAWN: Final = (0.005, 0.05, 0.2, 0.4)  # share of the rows that each rank draws
REGRET: Final = 1.2  # ours: the paper has no bound
WORDS: Final = 352  # a packet
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


def count(session: Any, given: dict[str, Any]) -> list[dict[str, Any]]:
    """One rank: places of unions, and bytes of sparse and dense sums of pairs."""
    rows = given["rows"]
    out = []
    for number, share in enumerate(DRAWN):
        draws = np.random.default_rng((given["seed"], number, session.rank))
        mine = np.sort(draws.choice(rows, int(share * rows), replace=False))
        values = np.ones(mine.size, np.float32)
        found: dict[str, Any] = {"k": mine.size}
        table = np.zeros(rows, np.float32)
        table[mine] = values
        for name, bits in (("sparse", 32), ("dense", 32), ("dense, 8 bit", 8)):
            session.barrier()
            before = session.stats()
            if name == "sparse":
                sums = session.allreduce_sparse(mine, values, rows, bits=bits, dense_over=1)
                found["union"] = sums.indices.size
            else:
                session.allreduce(table.copy(), bits=bits, blocks="dense")
            after = session.stats()
            again = (after["retransmissions"] - before["retransmissions"]) * given["packet"]
            found[name] = after["bytes_sent"] - before["bytes_sent"] - again
        out.append(found)
    return out


def run(runner: Runner) -> Outcome:
    """Bytes first, then every setting of times in a job of its own."""
    checks, tables = _counted(runner)
    settings = SETTINGS[:1] if runner.quick else SETTINGS
    rows: list[tuple[Any, ...]] = []
    plots: list[Plot] = []
    numbers: dict[str, Any] = {}
    for number, setting in enumerate(settings):
        runner.say(setting.label)
        given = {**asdict(setting), "seed": runner.seed, "repeats": 5 if runner.quick else 60}
        arguments = [] if setting.rate is None else ["--rate", setting.rate]
        results = runner.ranks(measure, WORKERS, given, arguments=arguments).results
        # A call has ended when the last rank has its result.
        times = {name: np.max([r["times"][name] for r in results], axis=0) for name in ("sparse", "dense")}
        # Other work of the computer only adds to a time, so the least of many is the time itself.
        least = {name: each.min(axis=1) for name, each in times.items()}
        predicted, measured = float(results[0]["predicted"]), crossing(least["sparse"] - least["dense"])
        worst, at = regret(least["sparse"], least["dense"], predicted)
        checks.append(
            Check(
                f"{setting.label}: the form chosen takes at most {REGRET} times the better one's time, at "
                "every share (the bound is ours)",
                worst <= REGRET,
                f"{worst:.2f} times, at {at:.0%} of the rows",
            )
        )
        rows.append(
            (setting.label, setting.rows, setting.width, setting.bits, predicted, measured, worst, at)
        )
        numbers[setting.label] = {
            "costs": results[0]["costs"],
            "regret": worst,
            **{name: each.tolist() for name, each in times.items()},
        }
        plots.append(
            Plot(
                f"setting-{number}",
                f"{setting.label}: dense from {predicted:.0%} on predicted, {measured:.0%} measured",
                "share of rows that some rank has",
                "milliseconds a sum: least and median",
                [
                    Series(
                        name,
                        list(SHARES),
                        (1e3 * least[name]).tolist(),
                        low=(1e3 * least[name]).tolist(),
                        high=(1e3 * np.median(times[name], axis=1)).tolist(),
                    )
                    for name in ("sparse", "dense")
                ],
            )
        )
    return Outcome(
        checks=checks,
        tables=[
            *tables,
            Table(
                f"Times: {WORKERS} workers, float32",
                (
                    "setting",
                    "rows",
                    "elements a row",
                    "bits",
                    "dense from, predicted",
                    "dense from, measured",
                    "worst time over the better form's",
                    "at a share of",
                ),
                rows,
                "Predicted from a few sums and the handling of made-up rows, before the first table is seen. "
                "Measured: where a straight line through the differences of both ways' least times meets 0. "
                "Where the two curves run close to each other, the crossing says little and the time lost "
                "by choosing is small.",
            ),
        ],
        plots=plots,
        numbers=numbers,
        notes=[
            "In SparCML a sparse element travels as index and value, so dense is smaller from half the table "
            "on. Here indices are a bit a row, so in bytes sparse pays nearly always; what being sparse "
            "costs is the handling of rows by the workers.",
        ],
    )  # fmt: skip


def _counted(runner: Runner) -> tuple[list[Check], list[Table]]:
    """Returns checks and tables that do not depend on times."""
    from worker_lib.sparse import SparseCosts

    rows = ROWS // 2 if runner.quick else ROWS
    unions, sizes = [], []
    worst_fill = 0.0
    delta = SparseCosts.by_bytes(32).break_even(rows, 1, supported=False)
    narrow: list[float] = []
    right = True
    for workers in RANKS[:1] if runner.quick else RANKS:
        runner.say(f"{workers} workers: unions and bytes")
        given = {"seed": runner.seed, "rows": rows, "packet": 4 * WORDS + HEADER_BYTES}
        of_ranks = runner.ranks(count, workers, given, connect={"words": WORDS}).results
        for share, found in zip(DRAWN, of_ranks[0], strict=True):
            k = found["k"]
            expected = rows * (1 - (1 - k / rows) ** workers)
            # Of places that at least one rank draws; negatively correlated, so at most binomial.
            deviation = float(np.sqrt(expected * (1 - expected / rows)))
            off = abs(found["union"] - expected) / deviation
            worst_fill = max(worst_fill, off)
            unions.append((workers, share, k, expected, found["union"], off))
            filled = found["union"] / rows
            smaller = found["sparse"] < found["dense"]
            right &= smaller == (filled < delta) or abs(filled - delta) < 0.02
            narrow.append(found["dense"] / found["dense, 8 bit"])
            sizes.append(
                (
                    workers,
                    filled,
                    found["sparse"],
                    found["dense"],
                    found["dense, 8 bit"],
                    filled < delta,
                    smaller,
                )
            )
    return [
        Check(
            "Fill-in: the union of P ranks' draws of k of N places has N (1 - (1 - k/N)^P), within 5 "
            "standard deviations",
            worst_fill < 5,
            f"at most {worst_fill:.1f} off, for P of {', '.join(map(str, RANKS))}",
        ),
        Check(
            f"delta: a sparse sum takes fewer bytes than a dense one up to {delta:.0%} of the places, and "
            "more beyond (the paper's, with an index of 4 bytes: 50 %)",
            right,
            f"{len(sizes)} unions from {min(s[1] for s in sizes):.1%} to {max(s[1] for s in sizes):.1%}",
        ),
        Check(
            "A dense stage in 8 bits takes a quarter of the bytes",
            min(narrow) > 3.5,
            f"{min(narrow):.2f} to {max(narrow):.2f} times fewer",
        ),
    ], [
        Table(
            f"Unions of uniform draws of {rows:,} places",
            ("ranks", "share drawn", "k", "expected union", "union", "standard deviations off"),
            unions,
        ),
        Table(
            "Bytes that a rank sends, bitmaps and headers included, repeats not",
            ("ranks", "union", "sparse", "dense", "dense, 8 bit", "sparse smaller by delta", "measured"),
            sizes,
        ),
    ]  # fmt: skip


def regret(sparse: Any, dense: Any, break_even: float) -> tuple[float, float]:
    """Returns the most that the form chosen by a share takes over the better form, and where."""
    taken = np.where(np.array(SHARES) < break_even, sparse, dense) / np.minimum(sparse, dense)
    worst = int(taken.argmax())
    return float(taken[worst]), SHARES[worst]


def crossing(apart: Any) -> float:
    """Share at which a line through the differences, sparse less dense, meets 0; 1 where none does."""
    slope, base = np.polyfit(SHARES, apart, 1)
    if slope <= 0:
        return 0.0 if base > 0 else 1.0
    return float(np.clip(-base / slope, 0.0, 1.0))


EXPERIMENT = Experiment(
    name="sparse-break-even",
    title="When a sparse sum should be a dense one",
    claim="A sparse all-reduce is smaller than a dense one up to delta places, where the union fills in with "
    "the number of ranks as N (1 - (1 - k/N)^P); past it, it should turn dense, and a quantized dense stage "
    "saves its share. Here also: choosing by a cost model loses little time.",
    source="Renggli et al., SparCML: High-Performance Sparse Communication for Machine Learning, SC 2019, "
    "arXiv 1802.08021",
    run=run,
    order=200,
)
