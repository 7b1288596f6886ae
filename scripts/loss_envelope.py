"""Goodput under loss, over workers, slots, words and loss, beside a model of what is possible.

    python scripts/loss_envelope.py
    python scripts/loss_envelope.py --workers 16 --slots 64 --words 17 --loss 0,0.05
    python scripts/loss_envelope.py --workers 2,4 --slots 512 --words 352 --loss 0 --threads 2

Each cell repeats an all-reduce of int32 over UDP, through a switch that loses packets independently in both
directions, and checks every sum. A row has, for each loss, the goodput (bytes of the tensor a second, 10^6),
its share of the model, and the longest RTO of any rank after any call, as a multiple of the path's round
trip.

The path's round trip is the smoothed one of the loss-free cell with the fewest slots. The model is the
least of

    g / c           g: goodput of the loss-free cell; c: packets that a packet number takes, relative to no
                    loss: each of n contributions is sent until it arrives, each lost RESULT asked for
                    until it arrives
    4K (P/2) / L    L: round trips until all n ranks hold a RESULT, if each loss is noticed after one round
                    trip: the most tries of n contributions, and of n RESULTs (expected values)

Exit status: 0 every cell was done and right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.errors import SwitchAggError

SEED: Final = 20261123
WINDOWS: Final = 8  # of packets, in a call


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one cell: bytes a second, smoothed round trip, longest RTO, both in seconds, and repeats a
    packet."""

    goodput: float
    rtt: float
    rto: float
    repeats: float


def rank_of_cell(
    url: str, job: str, rank: int, workers: int, slots: int, words: int, seconds: float
) -> Figures:
    """Runs one rank; its first element says whether rank 0 wants another call."""
    x = np.empty(WINDOWS * slots // 2 * words, np.int32)
    mine = np.arange(x.size, dtype=np.int32) * (rank + 1)
    right = np.arange(x.size, dtype=np.int32) * (workers * (workers + 1) // 2)
    with worker_lib.connect(
        url, job, rank, workers, transport="udp", slots=slots, words=words, timeout=60
    ) as session:
        session.barrier()
        begun, calls, rto, more = time.perf_counter(), 0, 0, True
        while more:
            x[:] = mine
            x[0] = rank == 0 and time.perf_counter() - begun < seconds
            session.allreduce(x, blocks="dense")
            more = bool(x[0])
            calls += 1
            if not np.array_equal(x[1:], right[1:]):
                raise AssertionError(f"a wrong sum in {job}")
            rto = max(rto, session.stats()["rto_seconds"])
        took = time.perf_counter() - begun
        stats = session.stats()
        packets = stats["packets_data"] + stats["packets_skip"]
        session.barrier()
    return Figures(calls * x.nbytes / took, stats["rtt_seconds"], rto, stats["retransmissions"] / packets)


def measure(host: EmbeddedController, workers: int, slots: int, words: int, seconds: float) -> Figures:
    """Runs all ranks of a cell; goodput is rank 0's, the others are the worst of all ranks."""
    job = f"n{workers}-P{slots}-K{words}"
    with ThreadPoolExecutor(workers) as pool:
        ranks = [
            pool.submit(rank_of_cell, host.url, job, rank, workers, slots, words, seconds)
            for rank in range(workers)
        ]
    found = [rank.result() for rank in ranks]
    return Figures(
        found[0].goodput,
        max(each.rtt for each in found),
        max(each.rto for each in found),
        max(each.repeats for each in found),
    )


def most_tries(workers: int, loss: float) -> float:
    """The expected maximum over `workers` of the tries until a packet arrives."""
    return sum(1 - (1 - loss**k) ** workers for k in range(200))


def possible(workers: int, slots: int, words: int, loss: float, free: float, round_trip: float) -> float:
    """The model's goodput, bytes a second; see above."""
    arrives = 1 - loss
    packets = (1 / arrives + 1 + loss * (1 + arrives) / arrives**2) / 2
    trips = 2 * most_tries(workers, loss) - 1
    return min(free / packets, 4 * words * slots / 2 / (trips * round_trip)) if loss else free


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=numbers, default=[2, 4, 8, 16, 32])
    parser.add_argument("--slots", type=numbers, default=[8, 64, 512])
    parser.add_argument("--words", type=numbers, default=[17, 352, 2032])
    parser.add_argument(
        "--loss", type=lambda text: [float(p) for p in text.split(",")], default=[0, 0.01, 0.05, 0.1, 0.2]
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="of the switch; several lose nothing (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of a cell, at least (%(default)s)")
    options = parser.parse_args()
    losses = sorted({0.0, *options.loss})
    found: dict[tuple[int, int, int, float], Figures] = {}
    bad = 0
    for loss in losses:
        faults = Faults(loss=loss, seed=SEED) if loss else None
        with EmbeddedController(faults=faults, threads=options.threads) as host:
            for workers, slots, words in product(options.workers, sorted(options.slots), options.words):
                try:
                    found[workers, slots, words, loss] = measure(host, workers, slots, words, options.seconds)
                except (SwitchAggError, AssertionError) as error:
                    bad += 1
                    print(f"n {workers}, P {slots}, K {words}, loss {loss:g}: {error}", file=sys.stderr)
    print(f"seed {SEED}; MB/s, share of the model, longest RTO in round trips, repeats a packet")
    print("|  n |   P |    K | rtt us | " + " | ".join(f"{f'loss {loss:g}':>29}" for loss in losses) + " |")
    shares, longest = [], 0.0
    for workers, words in product(options.workers, options.words):
        path = found.get((workers, min(options.slots), words, 0.0))
        for slots in sorted(options.slots):
            free = found.get((workers, slots, words, 0.0))
            cells = []
            for loss in losses:
                cell = found.get((workers, slots, words, loss))
                if cell is None or free is None or path is None:
                    cells.append(f"{'not done':>29}")
                    continue
                share = cell.goodput / possible(workers, slots, words, loss, free.goodput, path.rtt)
                if loss:
                    shares.append(share)
                    longest = max(longest, cell.rto / max(path.rtt, 1e-9))
                cells.append(
                    f"{cell.goodput / 1e6:8.2f} {share:5.0%} {cell.rto / path.rtt:5.1f} {cell.repeats:8.3f}"
                )
            rtt = path.rtt * 1e6 if path else math.nan
            print(f"| {workers:2} | {slots:3} | {words:4} | {rtt:6.0f} | " + " | ".join(cells) + " |")
    if shares:
        print(
            f"under loss: median {np.median(shares):.0%} of the model, least {min(shares):.0%}; "
            f"RTO at most {longest:.1f} round trips"
        )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
