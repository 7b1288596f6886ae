"""What a system under test looks like: from the parent, which starts it, and inside each rank's process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from switchagg.bench.grid import Variant


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank's process stands.

    Attributes:
        directory: a private folder that all ranks of the group share, for rendezvous files.
        timeout: seconds that a call may take.
        options: what the parent's `Peer.start` found out, such as a controller's address.
    """

    rank: int
    workers: int
    directory: Path
    timeout: float
    options: Mapping[str, Any]


@dataclass(slots=True)
class Work:
    """One rank's part of one sample: what to reduce, and how.

    Attributes:
        tensors: one tensor a call, (elements,) each, reduced in place.
        masks: the block masks to pass, one a call; None where the system should find the zero blocks itself.
        block_size: elements to a block.
        union_bytes: bytes of each call's blocks that are non-zero at any rank.
    """

    system: str
    bits: int
    tensors: Sequence[NDArray[Any]]
    masks: Sequence[NDArray[Any]] | None
    block_size: int
    union_bytes: Sequence[int]
    prepared: list[Any] = field(default_factory=list)


class Endpoint(Protocol):
    """A rank's handle on the system."""

    def prepare(self, work: Work) -> None:
        """What a program does once for a tensor that it keeps: wrap it, say. Not timed."""

    def reduce(self, work: Work) -> None:
        """Sum every tensor of the work over all ranks, in place, one call after the other. Timed."""

    def counters(self) -> dict[str, float]:
        """Counters since the start; the parent reports their growth a call."""

    def close(self) -> None:
        """Leave the group."""


class Peer(ABC):
    """The parent's side of one group of ranks, which serves one system or several like ones."""

    name: str
    """The group's name: the module under `switchagg.bench.peers` that the rank's process loads."""

    @abstractmethod
    def missing(self) -> str | None:
        """Why it cannot run here, in one line; None where it can."""

    @abstractmethod
    def start(self, workers: int) -> dict[str, Any]:
        """Start what the ranks need besides each other; return the options for their `Place`."""

    def commands(self, workers: int, rank_command: Sequence[str]) -> list[list[str]]:
        """The command lines that start the ranks; `{rank}` in an argument stands for the rank."""
        return [[part.replace("{rank}", str(rank)) for part in rank_command] for rank in range(workers)]

    def environment(self) -> dict[str, str]:
        """Environment of the ranks. One thread each, as torchrun has it."""
        return {**os.environ, "OMP_NUM_THREADS": "1"}

    def processes(self) -> list[int]:
        """Process ids of what `start` started, for accounting of processor time."""
        return []

    def warnings(self) -> list[str]:
        """What a user should know about how it runs here, once it is started."""
        return []

    def stop(self) -> None:  # noqa: B027
        """Stop what `start` started. Safe to call twice."""

    def refuses(self, variant: Variant, dtype: str) -> str | None:
        """Why it cannot measure this variant on this element type; None where it can."""
        del variant, dtype
        return None
