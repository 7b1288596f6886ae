"""Measures compression: processor time of one rank's share of a reduction, for each method.

python scripts/compress_cost.py [ELEMENTS]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from worker_lib.adam import AdamMoments, LambMoments
from worker_lib.compress import (
    Compressor,
    Differences,
    Dithering,
    ErrorFeedback,
    IntSGD,
    Message,
    Modular,
    PowerSGD,
    RandomBlocks,
    Rotation,
    Round,
    Signs,
    TopBlocks,
    chain,
)

METHODS: list[Compressor] = [
    Dithering(bits=8),
    Dithering(bits=8, block=256),
    Rotation(bits=8),
    IntSGD(8),
    Modular(),
    RandomBlocks(tau=0.1),
    TopBlocks(tau=0.1),
    ErrorFeedback(TopBlocks(tau=0.1)),
    ErrorFeedback(chain(TopBlocks(tau=0.1), Dithering(bits=8))),
    Differences(Dithering(bits=8)),
    ErrorFeedback(PowerSGD(rank=2)),
    Signs(),
    ErrorFeedback(Signs()),
]
ROUNDS = 5  # of which the fastest counts


def cost(compressor: Compressor, x: np.ndarray[tuple[int], np.dtype[np.float32]]) -> list[float]:
    """Nanoseconds an element of share, encode and decode."""
    alone = Round(0, 1)
    best = [float("inf")] * 3
    for turn in range(1 + ROUNDS):  # the first may go in full
        compressor.prepare(x.size, alone)
        times = [time.process_time()]
        shared = compressor.share(x, alone)
        times.append(time.process_time())
        if isinstance(shared, Message):  # its sum over one rank
            shared = shared.values
        message = compressor.encode(x, shared, alone)
        times.append(time.process_time())
        total = message.values.copy()
        start = time.process_time()
        compressor.decode(total, message, shared, alone)
        spent = [times[1] - times[0], times[2] - times[1], time.process_time() - start]
        if turn:
            best = [min(a, b) for a, b in zip(best, spent, strict=True)]
    return [1e9 * b / x.size for b in best]


def moments_cost(moments: AdamMoments, gradient: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Nanoseconds an element of a step of the second phase, without its sum and compressor."""
    best = float("inf")
    moments.take(gradient.copy(), 0.001)
    for _ in range(ROUNDS):
        start = time.process_time()
        moments.take(moments.message(gradient), 0.001)
        best = min(best, time.process_time() - start)
    return 1e9 * best / gradient.size


def main() -> None:
    """Prints a line for each method."""
    elements = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    x = np.random.default_rng(0).standard_normal(elements).astype(np.float32)
    print(f"{'ns an element, float32':64s} share encode decode  all")
    for compressor in METHODS:
        share, encode, decode = cost(compressor, x)
        print(
            f"{compressor.describe()[:64]:64s} {share:5.1f} {encode:6.1f} {decode:6.1f} "
            f"{share + encode + decode:5.1f}"
        )
    for kind in (AdamMoments, LambMoments):
        spent = moments_cost(kind(x.copy(), [x.size], warm_up=1), x)
        print(f"{'a step of ' + kind.__name__:84s} {spent:5.1f}")


if __name__ == "__main__":
    main()
