"""The engines that the suite drives. A new one joins by an entry in `ENGINES`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
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


class Threads:
    """The native engine as one of three threads each has it, for packets that come to any of them."""

    def __init__(self, capacity: int) -> None:
        self._tables = [_native.SlotTable(capacity, shard, 3) for shard in range(3)]
        self._turn = 0

    def add_job(self, job: JobEntry) -> None:
        for table in self._tables:
            table.add_job(job)

    def remove_job(self, job_id: int) -> None:
        for table in self._tables:
            table.remove_job(job_id)

    def fence(self, job_id: int, bits: int) -> None:
        for table in self._tables:
            table.fence(job_id, bits)

    def admit(self, job_id: int, bits: int) -> None:
        for table in self._tables:
            table.admit(job_id, bits)

    def receive(self, payload: bytes, source: Address | None) -> list[Out]:
        self._turn = (self._turn + 1) % 3
        outs, owner = self._tables[self._turn].receive_or_shard(payload, source)
        if owner is not None:
            outs, owner = self._tables[owner].receive_or_shard(payload, source)
        assert owner is None
        return outs

    def counters(self) -> dict[str, int]:
        return _sum(table.counters() for table in self._tables)

    def job_counters(self, job_id: int) -> dict[str, int]:
        return _sum(table.job_counters(job_id) for table in self._tables)

    def slot(self, index: int) -> SlotState:
        return self._tables[self._tables[0].owner(index)].slot(index)


def _sum(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counters:
        total.update(each)
    return dict(total)


ENGINES: dict[str, Callable[[int], Engine]] = {
    "reference": SlotTable,
    "native": _native.SlotTable,
    "shared": SharedSlots,
    "threads": Threads,
}
"""Functions that make an engine with a number of slots, by name."""

SEQUENCES = 1200
"""Random sequences that an engine is compared in."""
