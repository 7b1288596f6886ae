"""The life cycle of jobs, from the first rank that joins to the last that is gone. No I/O and no clock.

                join                all joined            every INIT echoed
    (no job) ---------> joining ------------------> opening ---------------> running ----+
                           |                           |                        |  lost  |
                           | nobody waits any more     | the switch refuses     v        | all left
                           +---------> ended <---------+---------------------- failed ---+ or lost

* Ranks join in any order; the answer to all of them comes when the last has joined and the slots are
  initialised.
* Until then a rank whose join times out, or whose connection closes, is taken out and may try again.
* In a running job a rank *leaves* in order or is *lost*. A lost rank fails the job; nobody is let in again:
  new members get new tokens and new slots. When every rank has left or is lost the job has ended and
  everything it had is free.
* A name may have a new job while ranks of an earlier one are still there: a rank that has left, or was lost
  and came back, joins the next *generation*. So `connect()`, `close()`, `connect()` works at every rank
  without a barrier.

Calls change the state and queue actions; the caller carries out what `poll()` returns:

    Install(job)      tell the switch about job.entry, send job.pending_inits() and feed job.echoed() until
                      none is pending, then call opened(job); or opening_failed(job, error)
    Remove(job)       the switch forgets job.entry
    Settle(member)    member.admission or member.refusal is there: answer its join

Slot i of a job starts at the smallest position q >= 0 with (first_seq + q) mod P = i. Its INIT carries that
position's sequence number less P, so that exactly the first packet of the job for this slot is fresh.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from switchagg.control.allocator import SlotAllocator, is_power_of_two
from switchagg.control.drivers.base import Capacity
from switchagg.control.records import (
    DEFAULT_DEADLINE,
    Admission,
    JobState,
    JoinRequest,
    MemberState,
    OnLoss,
    check_name,
)
from switchagg.errors import AdmissionError, SwitchAggError, UsageError
from switchagg.planner import SkipPolicy, default_shape
from switchagg.slots import JobEntry, WorkerEntry
from switchagg.wire import MIN_WORDS, Header, Op, WireError

MIN_SLOTS: Final = 2  # a window is half of them
_JOB_IDS: Final = 0xFFFF  # ids are 1..this; 0 is nobody's


@dataclass(eq=False, slots=True)
class Member:
    """One rank of one job."""

    job: Job
    request: JoinRequest
    deadline: float
    token: int = 0
    state: MemberState = MemberState.joined
    admission: Admission | None = None
    refusal: AdmissionError | None = None

    @property
    def rank(self) -> int:
        """Its rank, which is also its bit in the switch."""
        return self.request.rank


@dataclass(eq=False, slots=True)
class Job:
    """One generation of a job name.

    `entry` is there from `opening` on. `words` and `slots` are what a rank asked for until then.
    """

    name: str
    world_size: int
    created: float
    id: int = 0
    state: JobState = JobState.joining
    members: dict[int, Member] = field(default_factory=dict)
    words: int | None = None
    slots: int | None = None
    first_seq: int = 0
    policy: SkipPolicy = field(default_factory=SkipPolicy)
    entry: JobEntry | None = None
    _pending: dict[int, bytes] = field(default_factory=dict)  # slot -> its INIT, not yet echoed

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self.world_size) if rank not in self.members]

    def ranks(self, state: MemberState) -> list[int]:
        """Returns the ranks in `state`, in order."""
        return sorted(rank for rank, member in self.members.items() if member.state is state)

    def pending_inits(self) -> list[bytes]:
        """Returns the INIT packets that no echo has come for."""
        return list(self._pending.values())

    def echoed(self, packet: bytes) -> None:
        """Takes a packet that came back through the controller's port; ignores all but this job's echoes."""
        try:
            header = Header.unpack(packet)
        except WireError:
            return
        if header.op is Op.INIT and self._pending.get(header.slot) == packet:
            del self._pending[header.slot]


def init_packets(entry: JobEntry, first_seq: int) -> dict[int, bytes]:
    """Returns the INIT of every slot of a job, by slot index (base + i)."""
    packets = {}
    for i in range(entry.slots):
        position = (i - first_seq) % entry.slots
        seq = (first_seq + position - entry.slots) % (1 << 32)
        slot = entry.base + i
        packets[slot] = Header(Op.INIT, 0, entry.job, 0, seq, slot).pack()
    return packets


@dataclass(frozen=True, slots=True)
class Install:
    """Tell the switch about `job`, which is `opening`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Remove:
    """Make the switch forget `job`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Settle:
    """`member` has its admission or its refusal."""

    member: Member


Action = Install | Remove | Settle


class JobBook:
    """All jobs of one switch. Times are seconds from any fixed start.

    Args:
        capacity: what the switch has room for.
        words, slots: of a job whose ranks all leave these to the controller; None takes 352 and 1,024, or as
            much of these as the switch has room for.
        policy: the skip policy of new jobs.
        draw: returns a random number of 32 bits; replaceable for tests.

    Raises `UsageError` for defaults that the switch has no room for.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        words: int | None = None,
        slots: int | None = None,
        policy: SkipPolicy | None = None,
        draw: Callable[[], int] = lambda: secrets.randbits(32),
    ) -> None:
        self.capacity = capacity
        self.allocator = SlotAllocator(capacity.slots)
        self.policy = policy or SkipPolicy()
        usual_words, usual_slots = default_shape(capacity.words)
        self.default_words = usual_words if words is None else words
        self.default_slots = min(usual_slots, self.allocator.largest_free) if slots is None else slots
        try:
            self._check_settings(self.default_words, self.default_slots)
        except AdmissionError as error:
            raise UsageError(str(error)) from None
        self._draw = draw
        self._names: dict[str, list[Job]] = {}  # generations that have not ended, oldest first
        self._ids: dict[int, Job] = {}
        self._last_id = 0
        self._actions: list[Action] = []

    # What people and the HTTP service look at.

    def jobs(self) -> list[Job]:
        """Returns every job that has not ended, by name, older generations first."""
        return [job for name in sorted(self._names) for job in self._names[name]]

    def find(self, name: str, job_id: int | None = None) -> Job | None:
        """Returns the newest job of that name, or the one with this id."""
        jobs = self._names.get(name, [])
        if job_id is not None:
            return next((job for job in jobs if job.id == job_id), None)
        return jobs[-1] if jobs else None

    @property
    def memory_used(self) -> int:
        """Bytes of switch memory that open jobs take."""
        return sum(
            Capacity.bytes_of(job.entry.slots, job.entry.words) for job in self._ids.values() if job.entry
        )

    def poll(self) -> list[Action]:
        """Returns what is to be done now, in order, and forgets it."""
        actions, self._actions = self._actions, []
        return actions

    # What happens.

    def join(self, name: str, request: JoinRequest, now: float) -> Member:
        """A rank wants in. The answer comes as a `Settle`.

        Raises:
            AdmissionError: it cannot be, whatever the others do; `code` says why. Nothing has changed then.
        """
        check_name("job name", name)
        job = self._joinable(name, request)
        if job is not None:
            self._check_agreement(job, request)
        words, slots = (
            mine if mine is not None else theirs
            for mine, theirs in zip(
                (request.words, request.slots), (job.words, job.slots) if job else (None, None), strict=True
            )
        )
        self._check_settings(
            self.default_words if words is None else words, self.default_slots if slots is None else slots
        )
        if job is None:
            job = Job(name, request.world_size, now, policy=self.policy)
            self._names.setdefault(name, []).append(job)
        job.words, job.slots = words, slots
        member = Member(job, request, now + request.timeout)
        job.members[request.rank] = member
        if not job.missing:
            self._open(job)
        return member

    def leave(self, name: str, rank: int, token: int) -> None:
        """A rank is done with its job.

        Raises:
            AdmissionError: no job of that name has this rank (``not_found``), or the token is not the rank's
                (``wrong_token``).
        """
        members = [
            member
            for job in self._names.get(name, [])
            if (member := job.members.get(rank)) is not None and member.admission is not None
        ]
        if not members:
            raise AdmissionError(f"no job {name!r} with a rank {rank} is running", "not_found")
        for member in members:
            if member.token == token:
                if member.state is MemberState.joined:
                    member.state = MemberState.left
                    self._end_if_empty(member.job)
                return
        raise AdmissionError(f"that is not the token of rank {rank} in job {name!r}", "wrong_token")

    def lost(self, member: Member) -> None:
        """The connection that `member` joined on has closed. No effect once it has left."""
        job = member.job
        if member.state is not MemberState.joined or job.members.get(member.rank) is not member:
            return
        if job.state is JobState.joining:
            self._withdraw(member)
            return
        member.state = MemberState.lost
        if job.state is JobState.running:
            job.state = JobState.failed
        self._end_if_empty(job)

    def expire(self, now: float) -> None:
        """Refuses every join whose deadline has come; its rank may try again."""
        late = [
            member
            for job in self.jobs()
            if job.state is JobState.joining
            for member in job.members.values()
            if member.deadline <= now
        ]
        refusals = [(member, self._timed_out(member)) for member in late]
        for member, refusal in refusals:
            self._withdraw(member)
            member.refusal = refusal
            self._actions.append(Settle(member))

    def opened(self, job: Job) -> None:
        """The switch knows the job and every slot is initialised."""
        if job.state is not JobState.opening or job.entry is None:
            return
        entry = job.entry
        lost = any(member.state is not MemberState.joined for member in job.members.values())
        job.state = JobState.failed if lost else JobState.running
        for member in job.members.values():
            member.admission = Admission(
                switch="switch",
                job=entry.job,
                token=member.token,
                result_token=entry.result_token,
                base=entry.base,
                slots=entry.slots,
                words=entry.words,
                first_seq=job.first_seq,
                policy=job.policy,
                worker_bit=member.rank,
                rank=member.rank,
                world_size=job.world_size,
                places=tuple(range(job.world_size)),
                deadline=DEFAULT_DEADLINE,
                on_loss=OnLoss.fail,
                cookie=secrets.token_bytes(16),
                interval=1.0,
            )
            self._actions.append(Settle(member))

    def opening_failed(self, job: Job, error: SwitchAggError) -> None:
        """The switch refused the job, or never echoed an INIT: all its ranks are refused, and it ends."""
        if job.state is not JobState.opening:
            return
        self._refuse_all(job, AdmissionError(f"the switch did not take job {job.name!r}: {error}", "switch"))

    def close(self) -> None:
        """The controller stops: joins that wait are refused and every job ends."""
        for job in self.jobs():
            self._refuse_all(job, AdmissionError("the controller is stopping", "stopping"))

    # The rules.

    def _joinable(self, name: str, request: JoinRequest) -> Job | None:
        """Returns the generation that `request` belongs to, None for a new one."""
        jobs = self._names.get(name, [])
        for job in jobs:
            there = job.members.get(request.rank)
            if there is not None and there.state is MemberState.joined:
                raise AdmissionError(
                    f"rank {request.rank} of job {name!r} is taken by {there.request.address}:"
                    f"{there.request.port}; it can join again when that one has left",
                    "rank_taken",
                )
        if not jobs:
            return None
        newest = jobs[-1]
        if newest.state is JobState.joining:
            return newest
        if len(newest.ranks(MemberState.joined)) == newest.world_size:
            # Nobody has left: this is not the next generation coming in but one rank too many.
            raise AdmissionError(
                f"world_size is {request.world_size}; job {name!r} is running with {newest.world_size}",
                "world_size_mismatch",
            )
        return None

    @staticmethod
    def _check_agreement(job: Job, request: JoinRequest) -> None:
        if request.world_size != job.world_size:
            raise AdmissionError(
                f"rank {request.rank} says that job {job.name!r} has {request.world_size} workers; "
                f"ranks {sorted(job.members)} say {job.world_size}",
                "world_size_mismatch",
            )
        for name, mine, theirs in (
            ("words", request.words, job.words),
            ("slots", request.slots, job.slots),
        ):
            if mine is not None and theirs is not None and mine != theirs:
                raise AdmissionError(
                    f"rank {request.rank} asks for {mine} {name} in job {job.name!r}; "
                    f"ranks {sorted(job.members)} have {theirs}. All must ask for the same, or for none",
                    "settings_mismatch",
                )
        for other in job.members.values():
            if other.request.touch != request.touch:
                raise AdmissionError(
                    f"rank {request.rank} has touch={request.touch} in job {job.name!r}, "
                    f"rank {other.rank} has {other.request.touch}",
                    "settings_mismatch",
                )
            if (other.request.address, other.request.port) == (request.address, request.port):
                raise AdmissionError(
                    f"{request.address}:{request.port} is already rank {other.rank} of job {job.name!r}; "
                    "every rank sends from a port of its own",
                    "address_taken",
                )

    def _check_settings(self, words: int, slots: int) -> None:
        if not MIN_WORDS <= words <= self.capacity.words:
            raise AdmissionError(
                f"words is {words}; accepted: {MIN_WORDS}..{self.capacity.words}, "
                "which is what fits the MTU on the way to the switch",
                "bad_request",
            )
        if slots < MIN_SLOTS or not is_power_of_two(slots):
            raise AdmissionError(
                f"slots is {slots}; accepted: a power of two, at least {MIN_SLOTS}", "bad_request"
            )
        if slots > self.capacity.slots:
            raise AdmissionError(f"slots is {slots}; the switch has {self.capacity.slots} in all", "no_slots")
        self._check_memory(words, slots, 0)

    def _check_memory(self, words: int, slots: int, used: int) -> None:
        needed = Capacity.bytes_of(slots, words)
        if needed > self.capacity.memory - used:
            others = f", of which other jobs have {used}" if used else ""
            raise AdmissionError(
                f"{slots} slots of {words} words take {needed} bytes; "
                f"the switch has {self.capacity.memory} bytes for slots{others}",
                "no_memory",
            )

    def _open(self, job: Job) -> None:
        words = self.default_words if job.words is None else job.words
        slots = self.default_slots if job.slots is None else job.slots
        try:
            self._check_memory(words, slots, self.memory_used)
            base = self.allocator.allocate(slots)
        except AdmissionError as error:
            self._refuse_all(job, error)
            return
        job.words, job.slots, job.id = words, slots, self._new_id()
        self._ids[job.id] = job
        taken = {0}
        for member in job.members.values():
            member.token = self._draw_new(taken)
        job.first_seq = self._draw()
        job.entry = JobEntry(
            job=job.id,
            base=base,
            slots=slots,
            words=words,
            result_token=self._draw_new(taken),
            workers=tuple(
                WorkerEntry(rank, member.request.address, member.request.port, member.token)
                for rank, member in sorted(job.members.items())
            ),
            touch=job.members[0].request.touch,
        )
        job._pending = init_packets(job.entry, job.first_seq)
        job.state = JobState.opening
        self._actions.append(Install(job))

    def _new_id(self) -> int:
        """The id that was free longest, so that late packets of an ended job meet no other."""
        for _ in range(_JOB_IDS):
            self._last_id = self._last_id % _JOB_IDS + 1
            if self._last_id not in self._ids:
                break
        return self._last_id

    def _draw_new(self, taken: set[int]) -> int:
        while (number := self._draw()) in taken:
            pass
        taken.add(number)
        return number

    @staticmethod
    def _timed_out(member: Member) -> AdmissionError:
        job, missing = member.job, member.job.missing
        return AdmissionError(
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} of job {job.name!r} "
            f"did not join within {member.request.timeout:g} seconds "
            f"({len(job.members)} of {job.world_size} were there)",
            "join_timeout",
        )

    def _withdraw(self, member: Member) -> None:
        """Takes a rank out of a job that is still joining. What it asked for no longer binds the others."""
        job = member.job
        del job.members[member.rank]
        member.state = MemberState.lost
        requests = [other.request for other in job.members.values()]
        job.words = next((request.words for request in requests if request.words is not None), None)
        job.slots = next((request.slots for request in requests if request.slots is not None), None)
        self._end_if_empty(job)

    def _refuse_all(self, job: Job, error: AdmissionError) -> None:
        for member in job.members.values():
            if member.admission is None and member.refusal is None:
                member.refusal = error
                self._actions.append(Settle(member))
            member.state = MemberState.lost
        self._end_if_empty(job)

    def _end_if_empty(self, job: Job) -> None:
        if job.state is JobState.ended or job.ranks(MemberState.joined):
            return
        job.state = JobState.ended
        if job.entry is not None:
            self.allocator.free(job.entry.base)
            del self._ids[job.id]
            self._actions.append(Remove(job))
        self._names[job.name].remove(job)
        if not self._names[job.name]:
            del self._names[job.name]
