"""What the parent and a rank's process say to each other, pickled over a Unix socket. `rank.py` says when.

A module of its own because `python -m switchagg.bench.rank` is `__main__` in the rank and would have
classes of its own there. A `Cell` is a command too: make room for its tensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.data import Draw


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
    """Reduce what was filled, from `start` of the monotonic clock on."""

    start: float


@dataclass(frozen=True, slots=True)
class Show:
    """Take the digest of the results of the last run, and write them to `result`.

    A command of its own, given when all ranks have measured: a rank that works on its results while others
    still wait for theirs takes the processor from them, for longer than a short call lasts.
    """

    result: str | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rank saw of a run.

    Attributes:
        seconds: from the common start until this rank's last call returned.
        late: how much later than the common start this rank woke.
        counters: growth of the system's counters over the run.
        cpu_seconds: processor time of this process over the run.
    """

    seconds: float
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
