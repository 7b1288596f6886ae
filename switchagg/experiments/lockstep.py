"""All workers of a compressed all-reduce in one process: a switch's sums of their words, and no network.

Steps to an accuracy do not depend on the network, since sums are the same to the bit; so step sizes are tuned
here, in a fraction of the time that processes and packets take. What is reported runs through the switch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from worker_lib.compress import Compressor, Message

Array = npt.NDArray[Any]

_COUNTERS: Final = (
    "bytes_sent", "bytes_received", "packets_sent", "packets_received", "packets_data", "packets_skip",
)  # fmt: skip


class Lockstep:
    """The compressors of n workers.

    Args:
        make: makes one worker's; called n times.
        workers: n.

    Attributes:
        bits: of all messages of worker 0 so far, before zero blocks are skipped.
        sent: bits of the words in the union so far: those that are not zero at all workers.
    """

    def __init__(self, make: Callable[[], Compressor], workers: int) -> None:
        from worker_lib.compress import Round

        self._each = [(make(), Round(rank, workers)) for rank in range(workers)]
        self.bits = self.sent = 0

    def mean(self, xs: Sequence[Array]) -> Array:
        """Returns the average that an all-reduce of these vectors gives, by rank 0's decoder."""
        from worker_lib.compress import Message

        every = [(c, round, x) for (c, round), x in zip(self._each, xs, strict=True)]
        for c, round, x in every:
            c.prepare(x.size, round)
        first = [c.share(x, round) for c, round, x in every]
        shared = None
        if isinstance(first[0], Message):
            self.bits += first[0].payload_bits
            self.sent += first[0].payload_bits
            shared = _summed([m for m in first if isinstance(m, Message)])
        elif first[0] is not None:
            self.bits += 32 * first[0].size
            self.sent += 32 * first[0].size
            shared = np.bitwise_or.reduce([w for w in first if isinstance(w, np.ndarray)])
        messages = [c.encode(x, shared, round) for c, round, x in every]
        self.bits += messages[0].payload_bits
        self.sent += _in_union(messages)
        total = _summed(messages)
        results = [
            c.decode(total.copy(), message, shared, round)
            for (c, round, _), message in zip(every, messages, strict=True)
        ]
        return np.asarray(results[0] / len(results))


def _summed(messages: Sequence[Message]) -> Array:
    total = messages[0].values.copy()
    for message in messages[1:]:
        total += message.values  # int32 wraps, as a switch's words do
    return total


def _in_union(messages: Sequence[Message]) -> int:
    """Returns the bits of a message's values that are not zero at all workers."""
    union = np.count_nonzero(np.any([m.values != 0 for m in messages], axis=0))
    return int(union) * messages[0].payload_bits // messages[0].values.size


def best_of(
    candidates: Iterable[float], steps: Callable[[float, int], int | None], limit: int
) -> float | None:
    """Returns the candidate with the fewest steps, of equals the first; None where none arrives.

    Of step sizes give the largest first: one that diverges ends soon, and one that arrives limits the rest.

    Args:
        steps: called with a candidate and the most steps that can still be the fewest; returns how many it
            takes, or None.
    """
    best = None
    for candidate in candidates:
        found = steps(candidate, limit)
        if found is not None and (best is None or found < limit):
            best, limit = candidate, found
    return best


class ThreadSession:
    """One worker's place in `in_threads`: the part of a session that the methods for convex problems use.

    Sums are exact to a float64's rounding and in the order of ranks, as wide lanes would have them.

    Attributes:
        rank, world_size: as in a session.
        numbers: given to sums so far, zeros included.
    """

    def __init__(self, rank: int, world_size: int, held: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world_size, self.numbers = rank, world_size, 0
        self._held, self._barrier = held, barrier

    def allgather(self, x: Array) -> Array:
        """Returns everyone's x by rank; shape (n, *x.shape)."""
        self._held[self.rank] = x
        self._barrier.wait()
        out = np.stack(self._held)
        self._barrier.wait()
        return out

    def allreduce(self, x: Array, *, op: str = "sum", **_: Any) -> Array:
        """Sums, or averages, into x, which is returned."""
        self.numbers += x.size
        total = self.allgather(x.copy()).sum(axis=0)
        x[...] = total / self.world_size if op == "avg" else total
        return x

    def stats(self) -> dict[str, int]:
        """Zeros for the counters that a log reads: nothing is on a wire."""
        return dict.fromkeys(_COUNTERS, 0)


def in_threads(function: Callable[[ThreadSession], Any], workers: int) -> list[Any]:
    """Returns what a function returns at each of n workers, which are threads; the first to fail ends all."""
    held: list[Any] = [None] * workers
    barrier = threading.Barrier(workers)

    def call(rank: int) -> Any:
        try:
            return function(ThreadSession(rank, workers, held, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(call, rank) for rank in range(workers)]
    failed = [f.exception() for f in futures if f.exception() is not None]
    for error in failed:
        if not isinstance(error, threading.BrokenBarrierError):
            assert error is not None
            raise error
    return [f.result() for f in futures]
