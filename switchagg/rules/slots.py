"""The slot machine: the rules for what a switch does with a packet, and the records of its jobs. No I/O.

`tests/reference/slots.py` is the readable program of the rules, with which every engine agrees.

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

A contribution is *directed* if it has the flag DIRECTED, not RETRANSMISSION, and a `reply` of other than 0.
Where a directed contribution makes seen full, and the slot is filled, the RESULT goes with payload to the
worker with bit `reply` - 1 alone, and to every other as *bare*: without payload, with the flag DIRECTED.

A slot also gathers the flags CE and ECT (ECN, RFC 3168) of a round's contributions. Its RESULT has their
union, bare or not, and the answer to a repeat those of the repeat too; what a leaf sends up and down has them
alike. Whoever receives a packet whose IP header has CE sets both first. Shared slots gather none.

SUM wraps modulo 2^32, OR is bitwise, and all arithmetic on seq wraps modulo 2^32. Only equality of seq is
compared: a jump is not obeyed, and the pipeline of a hardware switch could not do more.

A RESULT carries the job's result token, the slot's seq, and reply 0, except that a RESULT sent in answer to a
repeat echoes that packet's `reply`.

INIT, from the controller's port only (its source and token are not looked at): slot.seq = seq, seen = full,
filled = False, and the packet goes back to the controller as it came. With seq = the slot's first seq - P,
the first round is fresh and a late packet of an earlier job is not. The slots of a job that was just added
hold zeros and need an INIT.

Two levels. A job may have a *parent*: a switch above, the root, that knows this switch, a leaf, as one of
its workers, and has the job under the same id in as many slots from a base of its own. Then a leaf stores no
results, and

    seen becomes full            -> send what the slot holds up to the parent, as this switch's contribution,
                                    directed with the same reply if the packet was
    a repeat, and seen is full   -> send it up once more, with reply = the worker's bit + 1
    RESULT from the parent       -> reply 0: send it down to every worker; reply = bit + 1: to that one alone

What goes up has the op and the retransmission flag of the packet that gave rise to it, this switch's token at
the parent, and the slot moved to the parent's range; what comes down has the job's result token, the slot
moved back, reply 0, and the flag DIRECTED if it came with it. The parent answers a repeat by a RESULT that
echoes `reply`, so it finds its way to the worker that asked. A RESULT is the parent's if it comes from its
address and port with its result token, has the job's K words or none, a slot in its range, and a `reply` of 0
or of a worker of this job. Whether its round is over is not looked at: a worker knows which RESULTs it lacks.

A worker that was lost is fenced: its packets are dropped from then on, while nothing else of its job changes.
A round that has its packet already can still become full; one that has not never does. RESULTs go to it as
before: they are harmless.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.addresses import parse_address
from switchagg.errors import UsageError
from switchagg.wire.header import MAX_WORDS, MAX_WORKERS, MIN_WORDS

MAX_CAPACITY: Final = 1 << 16

Address = tuple[str, int]
Out = tuple[Address | None, bytes]
"""A packet to send: its destination, None for the controller's port, and the UDP payload."""


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; accepted: {low}..{high}")


def _check_address(ip: str, port: int) -> None:
    _check_range("port", port, 1, 0xFFFF)
    parse_address("ip", ip)


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
    shared: bool = False  # the workers run the slot machine themselves, in memory that they share

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
        if self.shared and (self.parent is not None or not self.touch):
            raise UsageError(f"job {self.job} shares slots; that is not for leaves, or untouched words")
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


def check_admission(job: JobEntry, others: Iterable[JobEntry], capacity: int) -> None:
    """Raises `UsageError` if a switch of `capacity` slots has no room for a job beside the others.

    That is where the id is in use, or the range leaves the capacity or overlaps another job's.
    """
    others, end = tuple(others), job.base + job.slots
    if any(other.job == job.job for other in others):
        raise UsageError(f"job {job.job} is already in the table")
    if end > capacity:
        raise UsageError(f"slots {job.base}..{end - 1} are outside the switch's {capacity}")
    for other in others:
        if job.base < other.base + other.slots and other.base < end:
            raise UsageError(f"slots {job.base}..{end - 1} overlap those of job {other.job}")


@dataclass(frozen=True, slots=True)
class SlotState:
    """The contents of a slot. `words` is uint32 of shape (K,) in host order, None where not filled."""

    seq: int
    seen: int
    filled: bool
    words: npt.NDArray[np.uint32] | None
