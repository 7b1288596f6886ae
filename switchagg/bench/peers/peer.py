"""Interfaces of a system under test: for the parent, which starts it, and for each rank's process."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from switchagg.bench.grid import Variant


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Parameters of a rank's process.

    Attributes:
        directory: a private folder that all ranks of the group share, for rendezvous files.
        timeout: seconds that a call may take.
        options: as the parent's `Peer.start` returned them, such as a controller's address.
    """

    rank: int
    workers: int
    directory: Path
    timeout: float
    options: Mapping[str, Any]


@dataclass(slots=True)
class Work:
    """One rank's part of one sample.

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


class Endpoint(ABC):
    """A rank's handle on the system, made by `open_endpoint(config)` of the system's module.

    It joins the group, and is there when all ranks are.
    """

    def prepare(self, work: Work) -> None:  # noqa: B027
        """Does what a program does once for a tensor that it keeps, such as wrapping it. Not timed."""

    @abstractmethod
    def reduce(self, work: Work, call: int) -> None:
        """Sums tensor `call` of the work over all ranks, in place. Timed."""

    def counters(self) -> dict[str, float]:
        """Counters since the start; the parent reports their growth a call."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Leaves the group."""


class Peer(ABC):
    """The parent's side of one group of ranks, which serves one system or several like ones."""

    name: str
    """The group's name: the module under `switchagg.bench.peers` that the rank's process loads."""

    @property
    def binds(self) -> bool:
        """True if its ranks are bound to cores: no other process works for each call."""
        return True

    @abstractmethod
    def missing(self) -> str | None:
        """The reason that it cannot run here, in one line; None where it can."""

    def start(self) -> dict[str, Any]:
        """Starts the processes that the ranks need besides each other; returns the options for the ranks."""
        return {}

    def commands(self, workers: int, rank_command: Sequence[str]) -> list[list[str]]:
        """The command lines that start the ranks; `{rank}` in an argument stands for the rank."""
        return [[part.replace("{rank}", str(rank)) for part in rank_command] for rank in range(workers)]

    def environment(self) -> dict[str, str]:
        """Environment of the ranks. One thread each, as torchrun has it."""
        return {**os.environ, "OMP_NUM_THREADS": "1"}

    def processes(self) -> list[int]:
        """Ids of the processes that `start` started, for accounting of processor time."""
        return []

    def warnings(self) -> list[str]:
        """Lines for the user on conditions here, once it is started."""
        return []

    def stop(self) -> None:  # noqa: B027
        """Stops the processes that `start` started. Safe to call twice."""

    def refuses(self, variant: Variant, dtype: str) -> str | None:
        """The reason that it cannot measure this variant on this element type; None where it can."""
        del variant, dtype
        return None
