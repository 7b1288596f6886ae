"""The engines that the suite drives. A new one joins by an entry in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from switchagg.emulator import _native
from switchagg.rules.slots import Address, JobEntry, Out, SlotState
from tests.reference.slots import SlotTable


class Engine(Protocol):
    """A switch without sockets: packets come in, packets go out."""

    def add_job(self, job: JobEntry) -> None: ...
    def remove_job(self, job_id: int) -> None: ...
    def fence(self, job_id: int, bits: int) -> None: ...
    def admit(self, job_id: int, bits: int) -> None: ...
    def receive(self, payload: bytes, source: Address | None) -> list[Out]: ...
    def counters(self) -> dict[str, int]: ...
    def job_counters(self, job_id: int) -> dict[str, int]: ...
    def slot(self, index: int) -> SlotState: ...


class SharedSlots(_native.SlotTable):
    """The native engine, with every job that can have them in slots that its workers could share."""

    def add_job(self, job: JobEntry) -> None:
        super().add_job(replace(job, shared=job.parent is None and job.touch))


ENGINES: dict[str, Callable[[int], Engine]] = {
    "reference": SlotTable,
    "native": _native.SlotTable,
    "shared": SharedSlots,
}
"""Functions that make an engine with a number of slots, by name."""

SEQUENCES = 2000
"""Random sequences that an engine is compared in."""
