"""The slot table: the rules of `switchagg.rules.slots` as a readable program. No I/O.

Every engine agrees with it packet by packet.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.slots import (
    MAX_CAPACITY,
    Address,
    JobEntry,
    Out,
    ParentEntry,
    SlotState,
    WorkerEntry,
    check_admission,
)
from switchagg.wire.header import COUNTERS, DropReason, Event, Flag, Header, Op, WireError, decode, encode

_ECN = Flag.CE | Flag.ECT


@dataclass(slots=True)
class _Slot:
    words: npt.NDArray[np.uint32]
    seq: int = 0
    seen: int = 0
    filled: bool = False
    ecn: int = 0  # flags of the round's contributions


@dataclass(slots=True)
class _Job:
    entry: JobEntry
    slots: list[_Slot]
    workers: tuple[WorkerEntry, ...]  # in bit order
    full: int
    fenced: int = 0
    counters: Counter[str] = field(default_factory=Counter)


class SlotTable:
    """The slots of one switch and the jobs that own them.

    Args:
        capacity: slots in the switch, 1..65,536. Raises `UsageError` for others.
    """

    def __init__(self, capacity: int) -> None:
        if not 1 <= capacity <= MAX_CAPACITY:
            raise UsageError(f"capacity is {capacity}; accepted: 1..{MAX_CAPACITY}")
        self._capacity = capacity
        self._jobs: dict[int, _Job] = {}
        self._counters: Counter[str] = Counter()

    def add_job(self, job: JobEntry) -> None:
        """Admits a job's workers. Its slots hold zeros until they are initialised by INIT packets.

        Raises `UsageError` where the id is in use, or the range leaves the capacity or overlaps another job.
        """
        check_admission(job, [other.entry for other in self._jobs.values()], self._capacity)
        self._jobs[job.job] = _Job(
            entry=job,
            slots=[_Slot(np.zeros(job.words, np.uint32)) for _ in range(job.slots)],
            workers=tuple(sorted(job.workers, key=lambda worker: worker.bit)),
            full=sum(1 << worker.bit for worker in job.workers),
        )

    def remove_job(self, job_id: int) -> None:
        """Forgets a job and frees its slots. Raises `UsageError` where there is no such job."""
        self._get(job_id)
        del self._jobs[job_id]

    def fence(self, job_id: int, bits: int) -> None:
        """Drops the packets of these workers from now on.

        Raises `UsageError` where there is no such job, or one of the bits is no worker's; nothing is changed.
        """
        job = self._with(job_id, bits)
        job.fenced |= bits

    def admit(self, job_id: int, bits: int) -> None:
        """Takes the packets of workers that were fenced again. Raises as `fence`."""
        job = self._with(job_id, bits)
        job.fenced &= ~bits

    def receive(self, payload: bytes, source: Address | None) -> list[Out]:
        """Takes in one packet and returns those to send, a multicast as one for each worker, in bit order.

        What a leaf sends up is addressed to its parent.

        Args:
            payload: of the UDP datagram.
            source: the sender; None for the controller's port.
        """
        self._counters[Event.received] += 1
        try:
            header = Header.unpack(payload)
            if source is not None and header.op is Op.RESULT:
                return self._deliver(payload, source)
            if header.op not in ((Op.INIT,) if source is None else (Op.SUM, Op.OR)):
                return self._drop(DropReason.op)
            _, words = decode(payload)
            if header.op is Op.INIT and words is not None:
                return self._drop(DropReason.length)
        except WireError as error:
            return self._drop(error.reason)
        job = self._jobs.get(header.job)
        if job is None:
            return self._drop(DropReason.job)
        job.counters[Event.received] += 1
        if source is None:
            return self._initialise(job, header, payload)
        if words is not None and words.size != job.entry.words:
            return self._drop(DropReason.length, job)
        worker = next((worker for worker in job.workers if worker.address == source), None)
        if worker is None or job.fenced & 1 << worker.bit:
            return self._drop(DropReason.source, job)
        if worker.token != header.token:
            return self._drop(DropReason.token, job)
        if header.slot != self._slot_of(job, header):
            return self._drop(DropReason.slot, job)
        return self._contribute(job, worker, header, words)

    def counters(self) -> dict[str, int]:
        """Returns every name of `switchagg.wire.header.COUNTERS` with its count since the table was made."""
        return {name: self._counters[name] for name in COUNTERS}

    def job_counters(self, job_id: int) -> dict[str, int]:
        """Returns the same names for one job's packets, those that got past the check `job`.

        And ``worker_<bit>_packets``: those admitted from each worker, whatever became of them. Raises
        `UsageError` where there is no such job.
        """
        job = self._get(job_id)
        names = (*COUNTERS, *(_packets_of(worker) for worker in job.workers))
        return {name: job.counters[name] for name in names}

    def slot(self, index: int) -> SlotState:
        """Returns a copy of a slot. Raises `UsageError` where `index` belongs to no job."""
        for job in self._jobs.values():
            if job.entry.base <= index < job.entry.base + job.entry.slots:
                slot = job.slots[index - job.entry.base]
                return SlotState(slot.seq, slot.seen, slot.filled, slot.words.copy() if slot.filled else None)
        raise UsageError(f"slot {index} belongs to no job")

    def _get(self, job_id: int) -> _Job:
        if job_id not in self._jobs:
            raise UsageError(f"there is no job {job_id} in the table")
        return self._jobs[job_id]

    def _with(self, job_id: int, bits: int) -> _Job:
        job = self._get(job_id)
        if bits & ~job.full:
            raise UsageError(f"bits is {bits:#x}; the workers of job {job_id} have {job.full:#x}")
        return job

    def _count(self, name: str, job: _Job | None) -> None:
        self._counters[name] += 1
        if job is not None:
            job.counters[name] += 1

    def _drop(self, reason: DropReason, job: _Job | None = None) -> list[Out]:
        self._count(reason, job)
        return []

    @staticmethod
    def _slot_of(job: _Job, header: Header) -> int:
        return job.entry.base + header.seq % job.entry.slots

    def _initialise(self, job: _Job, header: Header, payload: bytes) -> list[Out]:
        if header.slot != self._slot_of(job, header):
            return self._drop(DropReason.slot, job)
        slot = job.slots[header.slot - job.entry.base]
        slot.seq, slot.seen, slot.filled, slot.ecn = header.seq, job.full, False, 0
        self._count(Event.inits, job)
        return [(None, payload)]

    def _contribute(
        self, job: _Job, worker: WorkerEntry, header: Header, words: npt.NDArray[np.uint32] | None
    ) -> list[Out]:
        slot = job.slots[header.slot - job.entry.base]
        bit = 1 << worker.bit
        job.counters[_packets_of(worker)] += 1
        if header.flags & Flag.RETRANSMISSION:
            self._count(Event.retransmissions, job)

        if header.seq == (slot.seq + job.entry.slots) % 2**32:
            slot.seq, slot.seen, slot.filled, slot.ecn = header.seq, 0, False, 0
            self._count(Event.fresh, job)
        elif header.seq != slot.seq:
            return self._drop(DropReason.stale, job)
        elif slot.seen & bit:
            if slot.seen != job.full:
                return self._drop(DropReason.duplicate, job)
            self._count(Event.duplicates_answered, job)
            if job.entry.parent is not None:
                return [self._contribution(job, job.entry.parent, header, worker.bit + 1)]
            return [(worker.address, self._result(job, header.slot, header.reply, header.flags & _ECN))]

        slot.seen |= bit
        slot.ecn |= header.flags & _ECN
        self._count(Event.accepted, job)
        if words is None:
            self._count(Event.skips, job)
        else:
            self._combine(job, slot, header.op, words)
        if slot.seen != job.full:
            return []
        self._count(Event.results, job)
        if not slot.filled:
            self._count(Event.empty_results, job)
        reader = header.reply if _is_directed(header) else 0
        if job.entry.parent is not None:
            return [self._contribution(job, job.entry.parent, header, reader, directed=reader != 0)]
        result = self._result(job, header.slot)
        if not reader or not slot.filled:
            return [(each.address, result) for each in job.workers]
        bare = encode(replace(Header.unpack(result), flags=Flag.DIRECTED | slot.ecn))
        return [(each.address, result if each.bit + 1 == reader else bare) for each in job.workers]

    def _deliver(self, payload: bytes, source: Address) -> list[Out]:
        """A RESULT: the parent's goes down to whom it is for, and nobody else may send one."""
        try:
            header, words = decode(payload)
        except WireError:
            return self._drop(DropReason.op)
        job = self._jobs.get(header.job)
        if job is None or (parent := job.entry.parent) is None:
            return self._drop(DropReason.op)
        receivers = [worker for worker in job.workers if header.reply in (0, worker.bit + 1)]
        if (
            source != parent.address
            or header.token != parent.result_token
            or not parent.base <= header.slot < parent.base + job.entry.slots
            or (words is not None and words.size != job.entry.words)
            or not receivers
        ):
            return self._drop(DropReason.op)
        job.counters[Event.received] += 1
        self._count(Event.delivered, job)
        slot = job.entry.base + header.slot - parent.base
        flags = header.flags & (Flag.DIRECTED | _ECN)
        down = Header(Op.RESULT, flags, header.job, job.entry.result_token, header.seq, slot)
        return [(worker.address, encode(down, words)) for worker in receivers]

    def _combine(self, job: _Job, slot: _Slot, op: Op, words: npt.NDArray[np.uint32]) -> None:
        if not slot.filled:
            self._count(Event.stored, job)
            combined = words
        elif op is Op.SUM:
            self._count(Event.added, job)
            combined = slot.words + words  # uint32 wraps
        else:
            self._count(Event.ored, job)
            combined = slot.words | words
        slot.filled = True
        if job.entry.touch:
            slot.words = combined

    @staticmethod
    def _result(job: _Job, index: int, reply: int = 0, ecn: int = 0) -> bytes:
        slot = job.slots[index - job.entry.base]
        flags, token = slot.ecn | ecn, job.entry.result_token
        header = Header(Op.RESULT, flags, job.entry.job, token, slot.seq, index, reply)
        return encode(header, slot.words if slot.filled else None)

    @staticmethod
    def _contribution(
        job: _Job, parent: ParentEntry, cause: Header, reply: int, *, directed: bool = False
    ) -> Out:
        """Returns a full slot's contribution to the parent."""
        index = cause.slot - job.entry.base
        slot = job.slots[index]
        flags = Flag.DIRECTED if directed else cause.flags & Flag.RETRANSMISSION
        flags |= slot.ecn | cause.flags & _ECN
        header = Header(cause.op, flags, cause.job, parent.token, cause.seq, parent.base + index, reply)
        return parent.address, encode(header, slot.words if slot.filled else None)


def _is_directed(header: Header) -> bool:
    flags = header.flags & (Flag.DIRECTED | Flag.RETRANSMISSION)
    return flags == Flag.DIRECTED and header.reply != 0


def _packets_of(worker: WorkerEntry) -> str:
    return f"worker_{worker.bit}_packets"
