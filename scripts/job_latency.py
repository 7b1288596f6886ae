"""Measures the time from a job's first request to its first packet, and to its first sum.

    python scripts/job_latency.py --workers 4 --jobs 30

Starts `switchagg host`, and runs jobs one after the other; all ranks ask to join at once, from threads here.
"admitted" is when the last of them has its answer (every slot is initialised then), "first packet" when the
last session could send, "first sum" when a small all-reduce is done on all ranks.
"""

from __future__ import annotations

import statistics
import threading
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import worker_lib
from worker_lib.embedded import start_embedded
from worker_lib.join import join


def admitted(pool: ThreadPoolExecutor, url: str, name: str, workers: int) -> float:
    """Seconds from the first join to the last admission."""
    started = time.perf_counter()
    members = list(
        pool.map(lambda rank: join(url, name, rank, workers, "127.0.0.1", 42000 + rank), range(workers))
    )
    seconds = time.perf_counter() - started
    for member in members:
        member.leave()
    return seconds


def summed(pool: ThreadPoolExecutor, url: str, name: str, workers: int) -> tuple[float, float]:
    """Seconds from the first request to the last session that could send, and to the last first sum."""
    together = threading.Barrier(workers)

    def one(rank: int) -> tuple[float, float]:
        together.wait()
        started = time.perf_counter()
        with worker_lib.connect(url, name, rank, workers) as session:
            ready = time.perf_counter()
            array = np.ones(1000, np.float32)
            session.allreduce(array)
            done = time.perf_counter()
            assert (array == workers).all()
        return ready - started, done - started

    times = list(pool.map(one, range(workers)))
    return max(ready for ready, _ in times), max(done for _, done in times)


def main() -> None:
    """Prints medians and maxima."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=30)
    args = parser.parse_args()
    with start_embedded() as host, ThreadPoolExecutor(args.workers) as pool:
        summed(pool, host.controller, "warm", args.workers)
        joins = [admitted(pool, host.controller, f"join{i}", args.workers) for i in range(args.jobs)]
        sums = [summed(pool, host.controller, f"sum{i}", args.workers) for i in range(args.jobs)]
    print(f"{args.jobs} jobs of {args.workers} workers:")
    for name, times in (
        ("admitted", joins),
        ("first packet", [ready for ready, _ in sums]),
        ("first sum", [done for _, done in sums]),
    ):
        print(f"{name:13} median {1e3 * statistics.median(times):6.1f} ms   max {1e3 * max(times):6.1f} ms")


if __name__ == "__main__":
    main()
