"""Carries the native engine's counts over to the counters of the P4 program.

Admitted packets count in the cells of the indirect counters that the job's entries name, as bmv2 counts
them. Packets that are not admitted count at the entry that they hit. Counts are carried over (`settle`)
before the tables change and before a client reads, so that each goes to the entry that was there at its
time. A client may set counters as on any switch.

Packets that belong to no job count by reason alone, whichever port they came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

from switchagg.emulator.outcomes import JobOutcomes, WorkerOutcomes
from switchagg.p4entities.tables import Entry
from switchagg.p4program.program import OUTCOMES, WORKER_PACKETS, WORKER_REPEATS, Form, Outcome
from switchagg.p4runtime.server.native.jobs import NativeJobs, RunningJob
from switchagg.p4runtime.server.native.tables import NativeTables
from switchagg.wire.header import DropReason, Op

_STRANGERS: Final[Mapping[str, Mapping[str, Any]]] = {
    DropReason.truncated: {"form": Form.TRUNCATED},
    DropReason.version: {"version": 0},
    DropReason.op: {"op": 5},  # no such op
    DropReason.length: {"form": Form.RAGGED},
}
"""A packet of no job that is dropped for a reason, as `NativeJobs.first` takes it."""
_NONE: Final = WorkerOutcomes(0, 0, 0, 0, 0)
_NOTHING: Final = JobOutcomes((0,) * 32, 0, 0, 0, {})


class Tallying(Protocol):
    """A switch that counts: a `Switch`."""

    def outcome_counters(self, job_id: int) -> JobOutcomes: ...
    def unknown_job_counters(self) -> dict[str, int]: ...


class NativeCounts:
    """Carries the engine's counts over to tables and counters."""

    def __init__(self, tables: NativeTables, jobs: NativeJobs) -> None:
        self._jobs = jobs
        self._outcomes = tables.counter(OUTCOMES)
        self._packets = tables.counter(WORKER_PACKETS)
        self._repeats = tables.counter(WORKER_REPEATS)
        self._seen: dict[int, JobOutcomes] = {}
        self._strangers: Counter[str] = Counter()

    def begin(self, engine: Tallying) -> None:
        """Counts from here on."""
        self._strangers = Counter(engine.unknown_job_counters())

    def settle(self, engine: Tallying, job: int | None = None) -> None:
        """Carries over what has been counted of a job since, or of everything."""
        running = self._jobs.running
        if job is not None:
            if job in running:
                self._settle_running(engine, job, running[job])
            return
        for number, each in running.items():
            self._settle_running(engine, number, each)
        strangers = Counter(engine.unknown_job_counters())
        for reason, count in (strangers - self._strangers).items():
            self._settle_stranger(reason, count)
        self._strangers = strangers

    def forget(self, job: int) -> None:
        """A job is gone."""
        self._seen.pop(job, None)

    def _settle_running(self, engine: Tallying, number: int, job: RunningJob) -> None:
        before = self._seen.get(number, _NOTHING)
        now = engine.outcome_counters(number)
        if now != before:
            self._settle_job(job, before, now)
        self._seen[number] = now

    def _settle_job(self, job: RunningJob, before: JobOutcomes, now: JobOutcomes) -> None:
        first = job.initialise
        base = first.tally & ~31
        for outcome, (old, new) in enumerate(zip(before.outcomes, now.outcomes, strict=True)):
            if new > old and base + outcome < len(self._outcomes.packets):
                self._outcomes.packets[base + outcome] += new - old
        number, slot = first.job, first.base
        jobs = self._jobs
        misplaced = now.outcomes[Outcome.MISPLACED] - before.outcomes[Outcome.MISPLACED]
        for bit, worker in now.workers.items():
            was, said = before.workers.get(bit, _NONE), job.workers.get(bit)
            misplaced -= worker.misplaced - was.misplaced
            if said is None or worker == was:
                continue
            if said.worker_tally < len(self._packets.packets):
                self._packets.packets[said.worker_tally] += worker.packets - was.packets
                self._repeats.packets[said.worker_tally] += worker.retransmissions - was.retransmissions
            admitted = worker.packets - was.packets + worker.misplaced - was.misplaced
            if admitted:
                _add(jobs.entry_of(said), admitted)
            outside = slot ^ first.slots  # the neighbouring range
            source, port, token = said.key, said.port, said.token
            if count := worker.outside - was.outside:
                _add(jobs.first(source=source, job=number, token=token, slot=outside, port=port), count)
            if count := worker.token - was.token:
                _add(jobs.first(source=source, job=number, token=token ^ 1, slot=slot, port=port), count)
            if count := worker.delivered - was.delivered:
                _add(jobs.delivery_entry(number, bit), count)
        if count := now.delivered - before.delivered:
            _add(jobs.delivery_entry(number, None), count)
        if count := now.source - before.source:
            _add(jobs.first(job=number, slot=slot), count)
        if count := now.length - before.length:
            _add(jobs.first(job=number, slot=slot, form=Form.OTHER_WORDS), count)
        inits = now.outcomes[Outcome.INITIALISED] - before.outcomes[Outcome.INITIALISED] + misplaced
        if inits:
            _add(jobs.entry_of(first), inits)
        if count := now.outside - before.outside:
            outside = slot ^ first.slots
            _add(jobs.first(op=Op.INIT, job=number, slot=outside, port=jobs.controller_port), count)

    def _settle_stranger(self, reason: str, count: int) -> None:
        packet = {"job": self._jobs.unknown_job()} if reason == DropReason.job else _STRANGERS.get(reason)
        if packet is not None:
            _add(self._jobs.first(**packet), count)


def _add(entry: Entry | None, count: int) -> None:
    if entry is not None:
        entry.packets += count
