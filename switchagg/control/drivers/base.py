"""What the controller needs from a switch, whatever it is and however it is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from switchagg.slots import JobEntry, SlotState
from switchagg.wire import HEADER_BYTES

SLOT_STATE_BYTES = 16  # seq, seen, filled and what aligning them costs


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a switch has room for."""

    slots: int  # in all jobs together
    words: int  # the largest K of a job
    memory: int  # bytes that all jobs' slots may take together

    @staticmethod
    def bytes_of(slots: int, words: int) -> int:
        """Returns the bytes that `slots` slots of `words` words take: a packet each, and its state."""
        return slots * (HEADER_BYTES + 4 * words + SLOT_STATE_BYTES)


class SwitchDriver(Protocol):
    """One switch. Methods may block for a round trip and raise `SwitchError`."""

    @property
    def capacity(self) -> Capacity:
        """What the switch has room for."""
        ...

    @property
    def address(self) -> tuple[str, int]:
        """IPv4 address and UDP port that workers send to."""
        ...

    @property
    def receive_buffer(self) -> int:
        """Bytes that the switch can queue at its UDP port; workers size their windows by it."""
        ...

    @property
    def link(self) -> str:
        """Name of the UNIX socket where workers of the switch's host attach; empty where they cannot."""
        ...

    @property
    def warnings(self) -> list[str]:
        """What a person should know about how this switch runs, a sentence each."""
        ...

    def install_job(self, entry: JobEntry) -> None:
        """Admits the workers of a job. Raises `SwitchError` where the switch refuses."""
        ...

    def remove_job(self, job_id: int) -> None:
        """Forgets a job; its slots may be given to another at once."""
        ...

    def packet_out(self, packet: bytes) -> list[bytes]:
        """Sends a UDP payload by the controller's port; returns what has come back there, in any order."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Returns the counters of the whole switch, named as in `switchagg.wire.COUNTERS`."""
        ...

    def job_counters(self, job_id: int) -> Mapping[str, int]:
        """Returns the counters of one job, and ``worker_<bit>_packets``."""
        ...

    def slot(self, index: int) -> SlotState | None:
        """Returns what a slot holds, for people; None where the switch does not show it."""
        ...
