"""What the P4 programs count, under the names that every engine reports (`switchagg.wire.header.COUNTERS`).

Refused packets count at the entry of the admission table that refused them; admitted ones by job and
`Outcome`, and by job, worker and whether they were sent before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from switchagg.p4program.program import (
    COMPLETING,
    OUTCOMES,
    OUTCOMES_PER_JOB,
    WORKER_PACKETS,
    WORKER_REPEATS,
    WORKERS_PER_JOB,
    Entries,
    JobPlace,
    Outcome,
    TableEntry,
)
from switchagg.rules.slots import JobEntry
from switchagg.wire.header import COUNTERS, DropReason, Event


@dataclass(frozen=True, slots=True)
class Reader:
    """How to read a switch's counters: packets of an entry, and of a cell of an indirect counter."""

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
    first = place.index * OUTCOMES_PER_JOB
    cells = {i: reader.cell(OUTCOMES, first + i) for i in range(OUTCOMES_PER_JOB)}

    def both(*outcomes: Outcome) -> int:
        return sum(cells[outcome] + cells[outcome + COMPLETING] for outcome in outcomes)

    counts = refusals(entries, reader)
    counts.update(removed)
    counts[DropReason.stale] += cells[Outcome.STALE]
    counts[DropReason.duplicate] += cells[Outcome.DUPLICATE]
    counts[DropReason.slot] += cells[Outcome.MISPLACED]
    counts[Event.duplicates_answered] = cells[Outcome.ANSWERED]
    counts[Event.inits] = cells[Outcome.INITIALISED]
    counts[Event.fresh] = both(Outcome.FRESH_SKIP, Outcome.FRESH_STORED)
    counts[Event.stored] = both(Outcome.STORED, Outcome.FRESH_STORED)
    counts[Event.added] = both(Outcome.ADDED)
    counts[Event.ored] = both(Outcome.ORED)
    counts[Event.skips] = both(Outcome.SKIP, Outcome.EMPTY_SKIP, Outcome.FRESH_SKIP)
    counts[Event.accepted] = both(*(outcome for outcome in Outcome if outcome >= Outcome.SKIP))
    completing = [outcome + COMPLETING for outcome in Outcome if outcome >= Outcome.SKIP]
    counts[Event.results] = sum(cells[cell] for cell in completing)
    counts[Event.empty_results] = (
        cells[Outcome.EMPTY_SKIP + COMPLETING] + cells[Outcome.FRESH_SKIP + COMPLETING]
    )
    named = {}
    for worker in job.workers:
        cell = place.index * WORKERS_PER_JOB + worker.bit
        counts[Event.retransmissions] += reader.cell(WORKER_REPEATS, cell)
        named[f"worker_{worker.bit}_packets"] = reader.cell(WORKER_PACKETS, cell)
    counts[Event.delivered] = sum(
        reader.entry(entry) for entry in entries.tables if entry.action in ("deliver_all", "deliver_one")
    )
    taken = (Event.accepted, Event.duplicates_answered, Event.inits, Event.delivered)
    counts[Event.received] = sum(counts[name] for name in (*DropReason, *taken))
    return {name: counts[name] for name in COUNTERS} | named
