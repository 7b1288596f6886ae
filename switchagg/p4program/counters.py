"""Counters of the P4 programs, under the names that every engine reports (`switchagg.wire.header.COUNTERS`).

Refused packets count at the entry of the admission table that refused them; admitted ones by job and
`Outcome`, and by job, worker and whether they were sent before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from switchagg.p4program import program as p4_program
from switchagg.p4program.program import Entries, JobPlace, Outcome, TableEntry
from switchagg.wire.header import COUNTERS, DropReason, Event

if TYPE_CHECKING:
    from switchagg.rules.slots import JobEntry


def _cells(*outcomes: Outcome) -> tuple[int, ...]:
    """The cells of outcomes that are counted apart where they complete a slot."""
    return tuple(outcome + completing for outcome in outcomes for completing in (0, p4_program.COMPLETING))


_ACCEPTED: Final = tuple(outcome for outcome in Outcome if outcome >= Outcome.SKIP)
COUNTED_CELLS: Final[Mapping[str, tuple[int, ...]]] = {
    DropReason.stale: (Outcome.STALE,),
    DropReason.duplicate: (Outcome.DUPLICATE,),
    DropReason.slot: (Outcome.MISPLACED,),
    Event.duplicates_answered: (Outcome.ANSWERED,),
    Event.inits: (Outcome.INITIALISED,),
    Event.fresh: _cells(Outcome.FRESH_SKIP, Outcome.FRESH_STORED),
    Event.stored: _cells(Outcome.STORED, Outcome.FRESH_STORED),
    Event.added: _cells(Outcome.ADDED),
    Event.ored: _cells(Outcome.ORED),
    Event.skips: _cells(Outcome.SKIP, Outcome.EMPTY_SKIP, Outcome.FRESH_SKIP),
    Event.accepted: _cells(*_ACCEPTED),
    Event.results: tuple(outcome + p4_program.COMPLETING for outcome in _ACCEPTED),
    Event.empty_results: (
        Outcome.EMPTY_SKIP + p4_program.COMPLETING,
        Outcome.FRESH_SKIP + p4_program.COMPLETING,
    ),
}
"""The cells of a job's part of `OUTCOMES` that add up to a counter."""
RECEIVED: Final = (*DropReason, Event.accepted, Event.duplicates_answered, Event.inits, Event.delivered)
"""The counters that add up to the packets received."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads a switch's counters: packets of an entry, and of a cell of an indirect counter."""

    entry: Callable[[TableEntry], int]
    cell: Callable[[str, int], int]


def refusals(entries: Entries, reader: Reader) -> Counter[str]:
    """Returns packets by reason, of the refusing entries among `entries`."""
    counts: Counter[str] = Counter()
    for entry in entries.tables:
        if entry.reason is not None:
            counts[entry.reason] += reader.entry(entry)
    return counts


def job_counters(
    job: JobEntry,
    place: JobPlace,
    entries: Entries,
    reader: Reader,
    removed: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Returns a job's counters by the names in `wire.header.COUNTERS`, and ``worker_<bit>_packets``.

    They count since the cells and entries were zero.

    Args:
        entries: those of the job that are installed.
        removed: `refusals` of those that were removed while it ran, for workers that are fenced.
    """
    first = place.index * p4_program.OUTCOMES_PER_JOB
    cells = {i: reader.cell(p4_program.OUTCOMES, first + i) for i in range(p4_program.OUTCOMES_PER_JOB)}
    counts = refusals(entries, reader)
    counts.update(removed)
    counts.update({name: sum(cells[i] for i in counted) for name, counted in COUNTED_CELLS.items()})
    named = {}
    for worker in job.workers:
        cell = place.index * p4_program.WORKERS_PER_JOB + worker.bit
        counts[Event.retransmissions] += reader.cell(p4_program.WORKER_REPEATS, cell)
        named[f"worker_{worker.bit}_packets"] = reader.cell(p4_program.WORKER_PACKETS, cell)
    counts[Event.delivered] = sum(
        reader.entry(entry) for entry in entries.tables if entry.action in ("deliver_all", "deliver_one")
    )
    counts[Event.received] = sum(counts[name] for name in RECEIVED)
    return {name: counts[name] for name in COUNTERS} | named
