"""The slot machine: what a switch does with a packet. No I/O; the reference that every engine agrees with.

A job owns P slots, a power of two, at a base that is a multiple of P. Each slot holds

    seq      the round it is in: sequence numbers that differ by P use the same slot
    seen     one bit per worker that has taken part in this round; `full` is the bits of all its workers
    filled   whether any of them sent words
    words    K 32-bit words: the sum, or the bitwise or, of what has come

A packet is admitted, or dropped under the first of these that holds (`switchagg.wire.header.DropReason`):

    truncated   it is shorter than a header
    version     its version is not 1
    op          a worker sent something else than SUM or OR; the controller's port, something else than INIT;
                or it is a RESULT, and not one of the job's parent (below)
    length      with the payload flag: not at least 16 whole words; without it, or in an INIT: a payload
    job         its job is not here
    length      its payload is not the job's K words
    source      the job has no worker at the packet's source address and port, or that worker is fenced
    token       its token is not this worker's
    slot        its slot is not base + (seq mod P)

and then

    seq = slot.seq + P           -> fresh: slot.seq = seq, seen = bit, filled = has payload,
                                    words = payload if there is one
    seq = slot.seq, bit in seen  -> a repeat: if seen is full, send the stored RESULT to this worker alone;
                                    else drop it (duplicate)
    seq = slot.seq, bit not seen -> seen |= bit; if there is a payload: words = payload if not filled,
                                    else words op= payload; filled |= has payload
    anything else                -> drop it (stale)
    seen becomes full            -> send RESULT to every worker, without payload if not filled

SUM wraps modulo 2^32, OR is bitwise, and all arithmetic on seq wraps modulo 2^32. Only equality of seq is
compared: a jump is not obeyed, and the pipeline of a hardware switch could not do more.

A RESULT carries the job's result token, the slot's seq, and reply 0, except that a RESULT sent to one worker
echoes the `reply` of the packet that asked for it.

INIT, from the controller's port only (its source and token are not looked at): slot.seq = seq, seen = full,
filled = False, and the packet goes back to the controller as it came. With seq = the slot's first seq - P,
the first round is fresh and a late packet of an earlier job is not. The slots of a job that was just added
hold zeros and need an INIT.

Two levels. A job may have a *parent*: a switch above, the root, that knows this switch, a leaf, as one of
its workers, and has the job under the same id in as many slots from a base of its own. Then a leaf stores no
results, and

    seen becomes full            -> send what the slot holds up to the parent, as this switch's contribution
    a repeat, and seen is full   -> send it up once more, with reply = the worker's bit + 1
    RESULT from the parent       -> reply 0: send it down to every worker; reply = bit + 1: to that one alone

What goes up has the op and the retransmission flag of the packet that gave rise to it, this switch's token at
the parent, and the slot moved to the parent's range; what comes down has the job's result token, the slot
moved back, and reply 0. The parent answers a repeat by a RESULT that echoes `reply`, so it finds its way to
the worker that asked. A RESULT is the parent's if it comes from its address and port with its result token,
has the job's K words or none, a slot in its range, and a `reply` of 0 or of a worker of this job. Whether its
round is over is not looked at: a worker knows which RESULTs it lacks.

A worker that was lost is fenced: its packets are dropped from then on, while nothing else of its job changes.
A round that has its packet already can still become full; one that has not never does. RESULTs go to it as
before: they are harmless.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.wire.header import (
    COUNTERS,
    MAX_WORDS,
    MAX_WORKERS,
    MIN_WORDS,
    DropReason,
    Event,
    Flag,
    Header,
    Op,
    WireError,
    decode,
    encode,
)

MAX_CAPACITY: Final = 1 << 16

Address = tuple[str, int]
Out = tuple[Address | None, bytes]
"""A packet to send: its destination, None for the controller's port, and the UDP payload."""


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; accepted: {low}..{high}")


def _check_address(ip: str, port: int) -> None:
    _check_range("port", port, 1, 0xFFFF)
    try:
        ipaddress.IPv4Address(ip)
    except ValueError:
        raise UsageError(f"ip is {ip!r}; accepted: an IPv4 address such as 10.0.0.1") from None


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """Admission of one worker of a job: packets from `ip`:`port` with `token` set bit `bit` of a slot's seen.

    Raises `UsageError` for a value out of range.
    """

    bit: int
    ip: str
    port: int
    token: int = field(repr=False)

    def __post_init__(self) -> None:
        _check_range("bit", self.bit, 0, MAX_WORKERS - 1)
        _check_address(self.ip, self.port)
        _check_range("token", self.token, 0, 0xFFFFFFFF)

    @property
    def address(self) -> Address:
        """(ip, port)."""
        return self.ip, self.port


@dataclass(frozen=True, slots=True)
class ParentEntry:
    """The switch above, of a job in two levels, that knows this switch as one of its workers.

    Attributes:
        token: this switch's token there.
        base: the job's first slot there; it has as many as here.
        result_token: in the RESULTs that come from there.

    Raises `UsageError` for a value out of range.
    """

    ip: str
    port: int
    token: int = field(repr=False)
    base: int
    result_token: int = field(repr=False)

    def __post_init__(self) -> None:
        _check_address(self.ip, self.port)
        _check_range("token", self.token, 0, 0xFFFFFFFF)
        _check_range("base", self.base, 0, MAX_CAPACITY - 1)
        _check_range("result_token", self.result_token, 0, 0xFFFFFFFF)

    @property
    def address(self) -> Address:
        """(ip, port)."""
        return self.ip, self.port


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job as a switch knows it.

    Raises `UsageError` for a value out of range, `slots` that is no power of two, a `base` here or at the
    parent that is not a multiple of it, no workers or more than 32, two workers with the same bit or the same
    address and port, or a parent with a worker's.
    """

    job: int  # id, 16 bits
    base: int  # first slot
    slots: int  # P, a power of two, at least 2
    words: int  # K
    result_token: int = field(repr=False)
    workers: tuple[WorkerEntry, ...]
    touch: bool = True  # False: payloads are neither stored nor combined; the floor of a benchmark
    parent: ParentEntry | None = None  # of a leaf: the root

    def __post_init__(self) -> None:
        _check_range("job", self.job, 0, 0xFFFF)
        _check_range("words", self.words, MIN_WORDS, MAX_WORDS)
        _check_range("result_token", self.result_token, 0, 0xFFFFFFFF)
        _check_range("slots", self.slots, 2, MAX_CAPACITY)
        _check_range("base", self.base, 0, MAX_CAPACITY - 1)
        if self.slots & (self.slots - 1):
            raise UsageError(f"slots is {self.slots}; accepted: a power of two")
        if self.base % self.slots:
            raise UsageError(f"base is {self.base}; accepted: a multiple of the job's {self.slots} slots")
        if not 1 <= len(self.workers) <= MAX_WORKERS:
            raise UsageError(f"{len(self.workers)} workers; accepted: 1..{MAX_WORKERS}")
        if len({worker.bit for worker in self.workers}) != len(self.workers):
            raise UsageError(f"two workers of job {self.job} have the same bit: {self.workers}")
        if len({worker.address for worker in self.workers}) != len(self.workers):
            raise UsageError(f"two workers of job {self.job} have the same address and port: {self.workers}")
        if self.parent is not None:
            if self.parent.base % self.slots:
                raise UsageError(
                    f"base at the parent is {self.parent.base}; "
                    f"accepted: a multiple of the job's {self.slots} slots"
                )
            if any(worker.address == self.parent.address for worker in self.workers):
                raise UsageError(
                    f"a worker of job {self.job} has its parent's address and port: {self.parent}"
                )


@dataclass(frozen=True, slots=True)
class SlotState:
    """The contents of a slot. `words` is uint32 of shape (K,) in host order, None where not filled."""

    seq: int
    seen: int
    filled: bool
    words: npt.NDArray[np.uint32] | None


@dataclass(slots=True)
class _Slot:
    words: npt.NDArray[np.uint32]
    seq: int = 0
    seen: int = 0
    filled: bool = False


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
        _check_range("capacity", capacity, 1, MAX_CAPACITY)
        self._capacity = capacity
        self._jobs: dict[int, _Job] = {}
        self._counters: Counter[str] = Counter()

    def add_job(self, job: JobEntry) -> None:
        """Admits a job's workers. Its slots hold zeros until they are initialised by INIT packets.

        Raises `UsageError` where the id is in use, or the range leaves the capacity or overlaps another job.
        """
        if job.job in self._jobs:
            raise UsageError(f"job {job.job} is already in the table")
        end = job.base + job.slots
        if end > self._capacity:
            raise UsageError(f"slots {job.base}..{end - 1} are outside the switch's {self._capacity}")
        for other in self._jobs.values():
            if job.base < other.entry.base + other.entry.slots and other.entry.base < end:
                raise UsageError(f"slots {job.base}..{end - 1} overlap those of job {other.entry.job}")
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
        slot.seq, slot.seen, slot.filled = header.seq, job.full, False
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
            slot.seq, slot.seen, slot.filled = header.seq, 0, False
            self._count(Event.fresh, job)
        elif header.seq != slot.seq:
            return self._drop(DropReason.stale, job)
        elif slot.seen & bit:
            if slot.seen != job.full:
                return self._drop(DropReason.duplicate, job)
            self._count(Event.duplicates_answered, job)
            if job.entry.parent is not None:
                return [self._contribution(job, job.entry.parent, header, worker.bit + 1)]
            return [(worker.address, self._result(job, header.slot, header.reply))]

        slot.seen |= bit
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
        if job.entry.parent is not None:
            return [self._contribution(job, job.entry.parent, header, 0)]
        result = self._result(job, header.slot)
        return [(each.address, result) for each in job.workers]

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
        down = Header(Op.RESULT, 0, header.job, job.entry.result_token, header.seq, slot)
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
    def _result(job: _Job, index: int, reply: int = 0) -> bytes:
        slot = job.slots[index - job.entry.base]
        header = Header(Op.RESULT, 0, job.entry.job, job.entry.result_token, slot.seq, index, reply)
        return encode(header, slot.words if slot.filled else None)

    @staticmethod
    def _contribution(job: _Job, parent: ParentEntry, cause: Header, reply: int) -> Out:
        """Returns a full slot's contribution to the parent."""
        index = cause.slot - job.entry.base
        slot = job.slots[index]
        flags = cause.flags & Flag.RETRANSMISSION
        header = Header(cause.op, flags, cause.job, parent.token, cause.seq, parent.base + index, reply)
        return parent.address, encode(header, slot.words if slot.filled else None)


def _packets_of(worker: WorkerEntry) -> str:
    return f"worker_{worker.bit}_packets"
