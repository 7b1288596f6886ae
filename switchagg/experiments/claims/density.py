"""OmniReduce's speed-up against density and size of blocks, beside dense sums and a ring at its best.

Fei, Ho, Sahu, Canini, Sapio, "Efficient Sparse Collective Communication and its Application to Accelerate
Distributed Deep Learning", SIGCOMM 2021: zero blocks are not sent, so a sum that its links bound takes the
share of the blocks that some rank has, instead of all.

Links have 0.1 Gb/s, so that they decide and not the cores. gloo cannot go over them; its ring sends
2 (n - 1) / n times the vector, and what the links need for that alone stands for it: a bound in its favour.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.experiments.experiment import Check, Experiment, Outcome
from switchagg.experiments.rank import say
from switchagg.experiments.runner import Runner
from switchagg.report.plots import Plot, Series
from switchagg.report.table import Table
from switchagg.wire.header import HEADER_BYTES

WORKERS: Final = 4
WORDS: Final = 352
ELEMENTS: Final = 1 << 19
REPEATS: Final = 7
RATE: Final = 1e8
DENSITIES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.01)
BLOCKS: Final = (16, 64, 256)
EIGHT: Final = 8.0


def vector(
    seed: int, rank: int, size: int, block: int, density: float, alike: bool
) -> npt.NDArray[np.float32]:
    """Returns floats of which a share is not zero.

    Args:
        block: elements of each piece that is zero or not.
        alike: the same pieces at all ranks; otherwise each rank draws its own.
    """
    pieces = size // block
    draws = np.random.default_rng((seed, block, 0 if alike else 1 + rank))
    kept = draws.permutation(pieces)[: max(1, round(density * pieces))]
    x = np.zeros((pieces, block), np.float32)
    x[kept] = np.random.default_rng((seed, block, rank, 1)).standard_normal((kept.size, block))
    return x.reshape(-1)


def measure(session: Any, given: dict[str, Any]) -> list[dict[str, float]]:
    """One rank: seconds (the least) and bytes of a sum of each case."""
    out = []
    for case in given["cases"]:
        x = vector(
            given["seed"], session.rank, given["size"], case["piece"], case["density"], bool(case["alike"])
        )
        how = {"blocks": "sparse", "block_size": case["block"]} if case["block"] else {"blocks": "dense"}
        times: list[float] = []
        before = session.stats()
        for repeat in range(given["repeats"] + 1):
            y = x.copy()
            session.barrier()
            if repeat == 1:  # the first finds out how long round trips are
                before = session.stats()
            began = time.perf_counter()
            session.allreduce(y, bits=32, **how)
            times.append(time.perf_counter() - began)
        after = session.stats()
        sent = after["bytes_sent"] - before["bytes_sent"]
        sent -= (after["retransmissions"] - before["retransmissions"]) * given["packet"]
        out.append({"seconds": min(times[1:]), "bytes": sent / given["repeats"]})
        if session.rank == 0:
            say(f"{case['name']}: {1e3 * out[-1]['seconds']:.1f} ms")
    return out


def cases(quick: bool) -> list[dict[str, Any]]:
    """Returns dense sums, then densities by size of blocks, then single elements by size of blocks."""
    densities, blocks = (DENSITIES[::5], BLOCKS[2:]) if quick else (DENSITIES, BLOCKS)
    made = [{"name": "dense", "block": 0, "piece": 256, "density": 1.0, "alike": True}]
    for block in blocks:
        for density in densities:
            name = f"blocks of {block}, {density:.0%} of them"
            made.append({"name": name, "block": block, "piece": block, "density": density, "alike": True})
    for block in blocks:
        name = f"blocks of {block}, 1 % of single elements"
        made.append({"name": name, "block": block, "piece": 1, "density": 0.01, "alike": False})
    return made


def run(runner: Runner) -> Outcome:
    """All cases over links of 0.1 Gb/s."""
    every = cases(runner.quick)
    size = ELEMENTS // 8 if runner.quick else ELEMENTS
    given = {
        "cases": every,
        "size": size,
        "seed": runner.seed,
        "repeats": 2 if runner.quick else REPEATS,
        "packet": HEADER_BYTES + 4 * WORDS,
    }
    ran = runner.ranks(measure, WORKERS, given, arguments=["--rate", "100Mbit"], connect={"words": WORDS})
    seconds = [max(r[i]["seconds"] for r in ran.results) for i in range(len(every))]
    return outcome(every, seconds, [one["bytes"] for one in ran.results[0]], size)


def outcome(every: list[dict[str, Any]], seconds: list[float], sent: list[float], size: int) -> Outcome:
    """Puts cases, their seconds and a rank's bytes together."""
    ring = 2 * (WORKERS - 1) / WORKERS * 4 * size * 8 / RATE
    rows: list[tuple[Any, ...]] = []
    for case, took, each in zip(every, seconds, sent, strict=True):
        # Ranks that draw apart: a block is sent if any of them has any of its elements.
        share = case["density"]
        if not case["alike"]:
            share = 1 - (1 - share) ** (case["block"] * WORKERS)
        rows.append(
            (case["name"], share, sent[0] / each, seconds[0] / took, ring / took, 1e3 * took, case["block"])
        )
    alike = [row for row, case in zip(rows, every, strict=True) if case["block"] and case["alike"]]
    single = [row for row, case in zip(rows, every, strict=True) if not case["alike"]]
    least = min(row[1] for row in alike)
    sparsest = [row for row in alike if row[1] == least]
    blocks = sorted({row[6] for row in alike})
    grows = all(
        [row[3] for row in alike if row[6] == block] == sorted(row[3] for row in alike if row[6] == block)
        for block in blocks
    )
    checks = [
        Check(
            f"With {1 - least:.0%} of the blocks zero a sum takes an eighth of a dense one's time or less",
            max(row[3] for row in sparsest) >= EIGHT,
            ", ".join(f"blocks of {row[6]}: {row[3]:.1f} times as fast" for row in sparsest),
        ),
        Check(
            "and an eighth of the least time of a ring, such as gloo's, over these links",
            max(row[4] for row in sparsest) >= EIGHT,
            ", ".join(f"blocks of {row[6]}: {row[4]:.1f} times" for row in sparsest),
        ),
        Check(
            "The fewer blocks, the faster, with blocks of every size",
            grows,
            "; ".join(
                f"blocks of {block}: " + ", ".join(f"{row[3]:.1f}" for row in alike if row[6] == block)
                for block in blocks
            ),
        ),
        Check(
            "Bytes fall by the share of the blocks at most, and by half of that or more with blocks of 256",
            all(row[2] * row[1] <= 1.1 and (row[6] < 256 or row[2] * row[1] > 0.5) for row in alike),
            ", ".join(f"{row[0]}: {row[2]:.1f} times fewer" for row in sparsest),
        ),
        Check(
            "Where single elements are zero, smaller blocks are faster",
            [row[3] for row in single] == sorted((row[3] for row in single), reverse=True),
            ", ".join(f"blocks of {row[6]}: {row[3]:.2f} times as fast as dense" for row in single),
        ),
    ]
    return Outcome(
        checks=checks,
        tables=[
            Table(
                f"Sums of {size:,} float32, {WORKERS} workers, links of 0.1 Gb/s",
                (
                    "what is not zero", "share sent", "times fewer bytes than dense",
                    "times as fast as dense", "times as fast as a ring at best", "ms",
                ),
                [row[:6] for row in rows],
                f"A ring at best: {1e3 * ring:.0f} ms, which the links need for its bytes. Share sent: for "
                "single elements, expected. Bytes: headers and bitmaps included, repeats not. Times: the "
                "least of several, since other work of the computer only adds to them.",
            )
        ],
        plots=[
            Plot(
                "speed-up",
                "Speed-up over a dense sum by density",
                "share of the blocks that are not zero",
                "times as fast as dense",
                [
                    *(
                        Series(
                            f"blocks of {block}",
                            [row[1] for row in alike if row[6] == block],
                            [row[3] for row in alike if row[6] == block],
                        )
                        for block in blocks
                    ),
                    Series(
                        "1 / share",
                        sorted({row[1] for row in alike}),
                        [1 / share for share in sorted({row[1] for row in alike})],
                        style="dashed",
                    ),
                ],
                log_x=True,
                log_y=True,
                lines=[("eight-fold", EIGHT)],
            )
        ],
        notes=["Eight-fold is the paper's best speed-up of training; here it is that of a sum."],
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="density",
    title="Zero blocks are not sent: speed-up by density and size of blocks",
    claim="Sending non-zero blocks only makes a sum faster as density falls, up to eight-fold where nearly "
    "all is zero, and the size of blocks decides how much of scattered zeros is saved.",
    source="Fei, Ho, Sahu, Canini, Sapio, Efficient Sparse Collective Communication and its Application to "
    "Accelerate Distributed Deep Learning, SIGCOMM 2021, evaluation",
    run=run,
    order=190,
)
