"""Time of the default and of exact sums, in place, beside 32-bit lanes, in pairs that alternate in one run.

    python scripts/sum_times.py --workers 4 --transport shm --data normal
    python scripts/sum_times.py --workers 4 --transport udp --data random --blocks masked

Prints, for each kind of sum, the median milliseconds of a call, of its processor time on one rank, and the
median over pairs of its time divided by that of 32-bit lanes, with the 95 % interval of a bootstrap.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import worker_lib
from switchagg.control.embedded import EmbeddedController

KINDS: dict[str, dict[str, Any]] = {"32 bits": {"bits": 32}, "default": {}, "exact": {"accuracy": "exact"}}
BLOCK = 64  # elements
SEED = 20261123


def median_interval(values: np.ndarray) -> str:
    """The median, and the 95 % interval of a bootstrap of it."""
    drawn = np.random.default_rng(SEED).choice(values, (4000, values.size))
    low, high = np.percentile(np.median(drawn, 1), [2.5, 97.5])
    return f"{np.median(values):.3f} [{low:.3f}, {high:.3f}]"


def inputs(data: str, elements: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A rank's elements, and a bool for each block that is not zero."""
    random = np.random.default_rng([SEED, rank])
    blocks = np.ones(elements // BLOCK, np.bool_)
    if data in ("same", "random"):
        blocks = np.random.default_rng([SEED, 0 if data == "same" else rank]).random(blocks.size) < 0.01
    x = np.zeros((blocks.size, BLOCK), np.float32)
    shape = (int(blocks.sum()), BLOCK)
    x[blocks] = random.standard_t(3, shape) if data == "t" else random.standard_normal(shape)
    return x.reshape(-1), blocks


def measure(pipe: Connection, url: str, rank: int, options: argparse.Namespace) -> None:
    """Runs one rank's calls; rank 0 sends (pairs, kinds, 2) seconds: of the call, and of the processor."""
    x, blocks = inputs(options.data, options.bytes // 4 // BLOCK * BLOCK, rank)
    how: dict[str, Any] = {"blocks": options.blocks}
    if options.blocks == "masked":
        how = {"blocks": blocks, "block_size": BLOCK}
    given = x.copy()
    kinds = list(enumerate(KINDS.values()))
    times = np.zeros((options.pairs + 2, len(kinds), 2))
    with worker_lib.connect(
        url, "times", rank, options.workers, transport=options.transport, timeout=120
    ) as session:
        for number in range(len(times)):
            for kind, settings in kinds if number % 2 else kinds[::-1]:
                x[:] = given
                session.barrier()
                begun, used = time.perf_counter(), time.process_time()
                session.allreduce(x, **how, **settings)
                used = time.process_time() - used
                session.barrier()
                times[number, kind] = time.perf_counter() - begun, used
    if rank == 0:
        pipe.send(times[2:])


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--transport", choices=("shm", "udp"), default="shm")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="of the tensor (default %(default)s)")
    parser.add_argument(
        "--data", choices=("normal", "t", "same", "random"), default="normal",
        help="normal, or Student's t with 3 degrees of freedom; or 1 %% of the blocks, the same on all\n"
        "ranks or each rank's own",
    )  # fmt: skip
    parser.add_argument("--blocks", choices=("dense", "sparse", "masked"), default="dense")
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with EmbeddedController() as host:
        near, far = context.Pipe()
        ranks = [
            context.Process(target=measure, args=(far, host.url, rank, options))
            for rank in range(options.workers)
        ]
        for process in ranks:
            process.start()
        times = near.recv() * 1e3
        for process in ranks:
            process.join()
    print(
        f"{options.workers} workers, {options.transport}, {options.bytes} bytes, {options.data}, "
        f"{options.blocks}"
    )
    for number, name in enumerate(KINDS):
        ratio = median_interval(times[:, number, 0] / times[:, 0, 0])
        call, processor = np.median(times[:, number], 0)
        print(f"  {name:8}{call:9.2f} ms {processor:9.2f} ms of a processor   ratio {ratio}")


if __name__ == "__main__":
    main()
