"""The facts of a switch that the control plane and a P4Runtime client share. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from switchagg.wire.header import HEADER_BYTES, MAX_WORKERS

DEFAULT_MEMORY: Final = 1 << 30  # bytes of a software switch, for the slots of all jobs
SLOT_STATE_BYTES = 16  # seq, seen, filled and what aligning them costs


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a switch has room for."""

    slots: int  # in all jobs together
    words: int  # the largest K of a job
    memory: int  # bytes that all jobs' slots may take together
    workers: int = MAX_WORKERS  # of one job
    groups: int | None = None  # multicast groups, of which a job takes one; None for no limit
    exact_words: int | None = None  # the one K of a P4 program; None where a job may choose

    @staticmethod
    def bytes_of(slots: int, words: int) -> int:
        """Returns the bytes that `slots` slots of `words` words take: a packet each, and its state."""
        return slots * (HEADER_BYTES + 4 * words + SLOT_STATE_BYTES)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What `SwitchDriver.reconcile` found and did, as ids of jobs, in order.

    Attributes:
        kept: were there as they should be, and their slots with them.
        installed: were not there, or not whole, and now are; what their slots held is lost.
        removed: were there and nobody's.
    """

    kept: tuple[int, ...] = ()
    installed: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


class ChangeKind(StrEnum):
    """What has become of a switch."""

    connected = "connected"  # it answers (again); what it holds is not known
    lost = "lost"  # it cannot be reached, or another controller has taken it over
    restarted = "restarted"  # it answers, and its memory is gone


@dataclass(frozen=True, slots=True)
class SwitchChange:
    """A change that the driver noticed by itself. `why` is for people: part of a sentence, no full stop."""

    kind: ChangeKind
    why: str = ""
