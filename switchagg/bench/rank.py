"""Commands of the all-reduce benchmark to a rank, its replies, and the rank that carries them out.

    Cell   make room for the tensors of a cell                        -> None
    Fill   write the tensors of a round, outside any timing           -> None
    Run    sleep until an agreed instant, reduce                      -> Measured
    Show   digest the results, when no rank is reducing any more      -> Digest

The common start is an instant on the machine's monotonic clock that the parent picks some milliseconds
ahead. Nobody spins while waiting for it, so it costs the other ranks no processor time.
"""

from __future__ import annotations

import ctypes
import gc
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.data import Draw, fill
from switchagg.bench.grid import Cell, numpy_dtype
from switchagg.bench.peers.peer import Endpoint, Work
from switchagg.processor_time import own_seconds

_PR_SET_TIMERSLACK: Final = 29
_REST_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Fill:
    """Get ready for one sample: write the tensors of these draws, one a call, and all else that is not timed.

    Attributes:
        pass_masks: pass the block masks to the system.
        union_bytes: bytes of each call's blocks that are non-zero at any rank.
    """

    system: str
    bits: int
    draws: tuple[Draw, ...]
    pass_masks: bool
    union_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Reduce the filled tensors, from `start` of the monotonic clock on."""

    start: float


@dataclass(frozen=True, slots=True)
class Show:
    """Take the digest of the last results, and write them to `result`.

    A command of its own, given when all ranks have measured: a rank that works on its results while others
    still wait for theirs takes the processor from them, for longer than a short call lasts.
    """

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A rank's measurements of a run.

    Attributes:
        seconds: from the common start until this rank's last call returned.
        calls: seconds of each call; the first begins when this rank has woken.
        late: seconds from the common start until this rank woke.
        counters: growth of the system's counters over the run.
        cpu_seconds: processor time of this process over the run.
    """

    seconds: float
    calls: tuple[float, ...]
    late: float
    counters: dict[str, float]
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Digest:
    """CRC-32 of the bytes of each call's result."""

    calls: tuple[int, ...]

    @classmethod
    def of(cls, results: Iterable[NDArray[Any]]) -> Digest:
        """That of contiguous arrays, one a call."""
        # Several times as fast as a cryptographic hash, and it is accidents that are looked for.
        return cls(tuple(zlib.crc32(result.view(np.uint8).data) for result in results))


def _sleep_until(start: float) -> None:
    """Sleeps until an instant of the monotonic clock.

    The default slack of timers, 50 microseconds, would be a good part of a short call. It is back after the
    sleep: some systems sleep in their calls, and users have them with it.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    time.sleep(max(0.0, start - time.monotonic()))
    prctl(_PR_SET_TIMERSLACK, 0, 0, 0, 0)


class AllReduceRank:
    """Carries out the parent's commands on one endpoint."""

    def __init__(self, rank: int, endpoint: Endpoint) -> None:
        self._rank = rank
        self._endpoint = endpoint
        self._cell: Cell
        self._tensors: list[NDArray[Any]] = []
        self._work: Work

    def carry_out(self, command: object) -> object:
        """Carries out one command and returns the reply.

        Raises:
            TypeError: there is no such command.
        """
        match command:
            case Cell():
                self._make_room(command)
                return None
            case Fill():
                self._fill(command)
                return None
            case Run():
                return self._run(command)
            case Show():
                if command.result is not None:
                    self._write_result(command.result)
                return Digest.of(self._tensors)
        raise TypeError(f"no such command: {command!r}")

    def _make_room(self, cell: Cell) -> None:
        self._cell = cell
        self._tensors = []  # the old ones go first
        # Not zeros(): NumPy asks for huge pages only in empty().
        self._tensors = [np.empty(cell.elements, numpy_dtype(cell.dtype)) for _ in range(cell.calls)]
        for tensor in self._tensors:
            tensor.fill(0)

    def _fill(self, command: Fill) -> None:
        masks = [
            fill(self._cell, draw, self._rank, x)
            for draw, x in zip(command.draws, self._tensors, strict=True)
        ]
        self._work = Work(
            command.system,
            command.bits,
            self._tensors,
            masks if command.pass_masks else None,
            self._cell.block_size,
            command.union_bytes,
        )
        self._endpoint.prepare(self._work)
        # By hand and here: with a framework loaded a collection takes longer than many calls.
        gc.collect()

    def _run(self, command: Run) -> Measured:
        before = self._endpoint.counters()
        cpu = own_seconds()
        _sleep_until(command.start)
        clock, reduce, work = time.monotonic, self._endpoint.reduce, self._work
        times = [clock()]
        for call in range(len(work.tensors)):
            reduce(work, call)
            times.append(clock())
        cpu = own_seconds() - cpu
        # Ranks on this core may have no result yet: to count and answer at once would take time from them.
        time.sleep(_REST_SECONDS)
        after = self._endpoint.counters()
        growth = {key: value - before.get(key, 0.0) for key, value in after.items()}
        calls = tuple(end - begin for begin, end in pairwise(times))
        return Measured(times[-1] - command.start, calls, times[0] - command.start, growth, cpu)

    def _write_result(self, path: str) -> None:
        rows = np.memmap(path, np.uint8, "r+", shape=(len(self._tensors), self._tensors[0].nbytes or 1))
        for row, tensor in zip(rows, self._tensors, strict=True):
            row[:] = tensor.view(np.uint8)
