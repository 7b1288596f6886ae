"""The facts of a switch that the control plane and a P4Runtime client share. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from switchagg.wire.header import HEADER_BYTES, MAX_WORKERS

MAX_THREADS: Final = 64  # of a software switch
DEFAULT_MEMORY: Final = 1 << 30  # bytes of a software switch, for the slots of all jobs
SLOT_STATE_BYTES = 16  # seq, seen, filled and what aligning them costs


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a switch."""

    slots: int  # in all jobs together
    words: int  # the largest K of a job
    memory: int  # bytes that all jobs' slots may take together
    workers: int = MAX_WORKERS  # of one job
    groups: int | None = None  # multicast groups, of which a job takes one; None for no limit
    exact_words: int | None = None  # the one K of a P4 program; None where a job may choose
    directs: bool = False  # it sends the words of directed contributions to one worker alone

    @staticmethod
    def bytes_of(slots: int, words: int) -> int:
        """Returns the bytes of `slots` slots of `words` words: a packet and its state each."""
        return slots * (HEADER_BYTES + 4 * words + SLOT_STATE_BYTES)


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The result of `SwitchDriver.reconcile`, as ids of jobs in order.

    Attributes:
        kept: were installed correctly; their slots are intact.
        missing: were not there, or incomplete; what their slots held is lost.
        removed: belonged to no job of the controller.
    """

    kept: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


class ChangeKind(StrEnum):
    """A change of a switch's state."""

    connected = "connected"  # it answers (again); its jobs are not known
    lost = "lost"  # it cannot be reached, or another controller has it
    restarted = "restarted"  # it answers, and has lost its memory


@dataclass(frozen=True, slots=True)
class SwitchChange:
    """A change that a driver has noticed. `why` is for people: part of a sentence, no full stop."""

    kind: ChangeKind
    why: str = ""
