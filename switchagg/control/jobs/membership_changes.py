"""Changes of a running job's membership: it shrinks, takes a rank back, or moves. No I/O and no clock.

    running   a rank is lost, or all members were asked to pause
       |      each member reports how many collectives it has completed (progress)
    moving    all have: the answer is the largest number, up to which each completes with the others' results
       |      each reports that it is done with the old generation (proceed)
    opening   all have: the old generation is removed, a new one installed with the present members
       |      every INIT is echoed: the answer to all is their new admission
    running

Until then only the lost workers are fenced: results of complete collectives are still in the slots, for
members that lack them. A further loss restarts nothing: the others carry on without that rank. A rank that
comes back joins under its old rank and waits until all pause. Rank 0 is told to ask for that, since only the
header of a collective reaches all ranks at the same point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from switchagg.addresses import show_address
from switchagg.control.jobs.candidates import CandidateFinder
from switchagg.control.jobs.effects import AnswerStep, ChangeStep, Effects, Fence, SendEvent
from switchagg.control.jobs.job import Change, ChangeReason, Job, Member, Placement, list_ranks
from switchagg.control.jobs.lifecycle import JobLifecycle
from switchagg.control.jobs.records import (
    EventKind,
    JobState,
    MemberState,
    OnLoss,
    SwitchState,
    checked_address,
)
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.errors import AdmissionError

_KINDS: Final = {
    ChangeReason.move: EventKind.moved,
    ChangeReason.shrink: EventKind.shrunk,
    ChangeReason.rejoin: EventKind.joined,
}


def check_address_free(job: Job, address: str, ports: Sequence[int], rank: int) -> None:
    """Raises `AdmissionError` if another rank of the job sends from this address and one of these ports."""
    for other in [*job.joined(), *job.back.values()]:
        same = set(ports).intersection(other.ports)
        if other.rank != rank and other.endpoint[0] == address and same:
            raise AdmissionError(
                f"{show_address(address, min(same))} is already rank {other.rank} of job {job.name!r}; "
                "every rank sends from a port of its own",
                "address_taken",
            )


def checked_ports(job: Job, address: str, ports: Sequence[int]) -> str:
    """Returns the address in its usual form.

    Raises `AdmissionError` if no worker can send from there, or these are not its ports, one for each stripe.
    """
    address = checked_address(address, *ports)
    if len(ports) != job.stripes:
        raise AdmissionError(f"{len(ports)} ports; job {job.name!r} has {job.stripes} stripes", "bad_request")
    return address


@dataclass(frozen=True, slots=True)
class MembershipChanges:
    """Begins the changes of jobs' membership and takes them from step to step."""

    _lifecycle: JobLifecycle
    _pool: SwitchPool
    _candidates: CandidateFinder
    _effects: Effects

    # Calls of members.

    def progress(
        self, member: Member, completed: int, token: int | None = None, *, replaying: bool = False
    ) -> None:
        """A member has paused after so many collectives. The answer comes as an `AnswerStep`.

        Raises `AdmissionError` if the job is over, or the number is negative or too large.

        Args:
            token: the one that it shows; None for that of its newest admission.
            replaying: it lacks RESULTs of the present switch, of collectives that it has completed.
        """
        job = self._changing(member)
        self._check_path(job)
        if not 0 <= completed < 1 << 63:
            raise AdmissionError(f"completed is {completed}; accepted: 0 and up", "bad_request")
        if token is not None and member.is_behind(token):
            # The answer to its `proceed` was lost. It has completed all that it had to before it called that.
            self._effects.add(AnswerStep(member, ChangeStep.progress, completed))
            return
        if job.change is None or not job.change.begun:
            self._leave_behind(job)
        if job.change is None:
            # It paused for a change that this controller does not know any more, or not yet.
            job.change = Change(ChangeReason.move, f"rank {member.rank} has paused")
        if job.state is JobState.running:
            self._effects.log(EventKind.paused, f"job {job.name!r} pauses: {job.change.why}", job)
        job.state = JobState.moving
        job.change.completed[member.rank] = completed
        (job.change.replaying.add if replaying else job.change.replaying.discard)(member.rank)
        if job.change.complete_to is not None:
            self._effects.add(AnswerStep(member, ChangeStep.progress, job.change.complete_to))
        self.advance(job)

    def proceed(self, member: Member, address: str, ports: Sequence[int], token: int | None = None) -> None:
        """A member is done with the old generation, and will send from this address and these ports.

        The answer comes as an `AnswerStep`. Raises `AdmissionError` if the job is over, `progress` is not
        answered, or a port is another's.

        Args:
            token: the one that it shows; None for that of its newest admission.
        """
        job = self._changing(member)
        self._check_path(job)
        address = checked_ports(job, address, ports)
        change = job.change
        if token is not None and member.is_behind(token):
            # The answer to an earlier call of this member was lost.
            self._effects.add(AnswerStep(member, ChangeStep.proceed))
            return
        if change is None or change.complete_to is None:
            raise AdmissionError(
                f"rank {member.rank} of job {job.name!r} cannot proceed: "
                "its progress, and that of all others, comes first",
                "bad_request",
            )
        check_address_free(job, address, ports, member.rank)
        self._candidates.switches_of(member.rank, address, member.request.switch, job.switch)
        member.move_to(address, ports)
        if member.rank not in change.proceeded:
            change.proceeded.add(member.rank)
            self._effects.save(job)
        self.advance(job)

    @staticmethod
    def _check_path(job: Job) -> None:
        if job.failover is not None:
            raise AdmissionError(f"job {job.name!r} goes over to another switch first", "switch")

    @staticmethod
    def _changing(member: Member) -> Job:
        job = member.job
        if job.state not in (JobState.running, JobState.moving) or member.state is not MemberState.joined:
            raise AdmissionError(
                f"job {job.name!r} is {job.shown}{f': {job.why}' if job.why else ''}", "failed"
            )
        return job

    # Causes of a change.

    def shrink(self, job: Job, gone: list[Member], why: str) -> None:
        """Has a job go on without lost members."""
        generation = job.generation
        change = job.change
        if change is None:
            change = job.change = Change(ChangeReason.shrink, why)
        elif not change.begun:
            change.reason, change.why = ChangeReason.shrink, why
        change.lost |= {member.rank: why for member in gone if member.admission is not None}
        if job.failover is not None:
            # Whoever has stopped sending must not wait for it.
            later = AdmissionError(f"job {job.name!r} has lost a rank: that is dealt with first", "switch")
            for member in job.joined():
                self._effects.add(AnswerStep(member, ChangeStep.replay, refusal=later))
            change.stranded |= not (job.failover.planned and job.failover.first is None)
            self._lifecycle.cancel_failover(job)
        if generation is not None and generation.open:
            ranks = {member.rank for member in gone}
            for part in generation.parts:
                if bits := sum(1 << bit for bit, sender in enumerate(part.senders) if sender in ranks):
                    part.fenced |= bits
                    self._effects.add(Fence(part, bits))
        elif generation is not None:
            # The next generation, which includes them, was being opened.
            self._lifecycle.remove_generation(job)
        job.state = JobState.moving
        self._effects.save(job)
        self.advance(job)

    def _leave_behind(self, job: Job) -> None:
        """Has a job that shrinks go on without ranks that have left, since a member has paused.

        It needs what they would have contributed, or no pause could be asked of all any more.
        """
        gone = _left(job)
        if gone and job.on_loss is OnLoss.shrink:
            why = "it left the job in order"
            self._effects.send_all(job, lost_event(job, job.id, [member.rank for member in gone], why))
            self.shrink(job, gone, why)

    def begin_if_wanted(self, job: Job) -> None:
        """Begins a change that lets returning ranks in, or moves the job off a switch that is drained."""
        if job.state is not JobState.running or job.change is not None or job.placement is None:
            return
        if job.failover is not None:
            return
        if job.back:
            text = f"{list_ranks(sorted(job.back), ' is', ' are')} back"
            self.ask_to_pause(job, ChangeReason.rejoin, text)
            return
        drained = self._pool.draining(job.placement)
        if any(self._pool.switches[name].up for name in drained):
            target = self._pool.take(self._candidates.of_job(job), without=drained, held=job.placement)
            if target is not None:
                self.ask_to_pause(job, ChangeReason.move, f"moving to {_switches(target)}", target)

    def ask_to_pause(
        self, job: Job, reason: ChangeReason, why: str, target: Placement | None = None
    ) -> Change:
        """Begins a change that waits until the members pause by themselves."""
        change = job.change = Change(reason, why, target=target)
        self.remind(job)
        return change

    def remind(self, job: Job) -> None:
        """Tells rank 0 if a pause is wanted."""
        generation, change = job.generation, job.change
        if generation is None or change is None or change.begun or not generation.open:
            return
        first = job.members[generation.places[0]]
        if first.state is MemberState.joined:
            event = {"event": "pause", "job": generation.known_as, "why": change.why}
            self._effects.add(SendEvent(first, event))

    # Steps.

    def advance(self, job: Job) -> None:
        """Takes the next step of a change as soon as every member that it needs has reported."""
        change = job.change
        if job.state is not JobState.moving or change is None:
            return
        needed = _admitted(job)
        if change.complete_to is None and needed <= change.completed.keys():
            counts = change.completed | {each.rank: each.completed or 0 for each in _left(job)}
            change.complete_to = max(counts.values())
            # Unless one who holds all that knows it to be in the slots, a lost rank may not have resent it.
            hold = {rank for rank, count in counts.items() if count == change.complete_to}
            change.stranded |= bool(change.lost) and hold <= change.replaying
            self._effects.save(job)
            if self.fail_if_stranded(job):
                return
            for rank in sorted(needed):
                answer = AnswerStep(job.members[rank], ChangeStep.progress, change.complete_to)
                self._effects.add(answer)
        opening = job.generation is not None and not job.generation.open
        if opening or self.uses_old_generation(job):
            return
        placement = self._next_placement(job, change)
        change.search.waits = placement is None
        if placement is None:
            return  # until a switch has room, comes back, or is tried again
        job.members |= job.back
        job.back.clear()
        self._effects.save(job)
        self._lifecycle.begin(job, placement)

    def fail_if_stranded(self, job: Job) -> bool:
        """Fails a job that has lost a rank and a switch if a collective is complete at some ranks only.

        Nobody can complete it: what the lost rank had contributed is gone. Returns True if it has failed.
        """
        change = job.change
        if change is None or change.complete_to is None or not self.uses_old_generation(job):
            return False
        down = [name for name in job.switches if not self._pool.switches[name].up]
        if not (change.stranded or down):
            return False
        behind = [
            rank
            for rank in sorted(_admitted(job) - change.proceeded)
            if change.completed.get(rank, 0) < change.complete_to
        ]
        if not behind:
            return False
        why = (
            f"{list_ranks(behind, ' lacks', ' lack')} a collective that others hold: "
            f"{', '.join(down) or 'its switch'} and {list_ranks(sorted(change.lost))} were lost together"
        )
        self._lifecycle.fail(job, why, {"event": "switch", "why": why})
        return True

    @staticmethod
    def uses_old_generation(job: Job) -> bool:
        """Returns True while some member has not proceeded from the generation before the change."""
        change = job.change
        return change is None or change.complete_to is None or not _admitted(job) <= change.proceeded

    def _next_placement(self, job: Job, change: Change) -> Placement | None:
        """Takes the ranges of the next generation and frees those of the old one."""
        switches, old = self._pool.switches, job.placement
        kept, change.target = change.target, None
        if kept is not None:
            if len(kept.ranges) == 1 and all(
                switches[name].state is SwitchState.up for name in kept.switches
            ):
                self._lifecycle.free_ranges(job)
                return kept
            # Members may have changed their leaves since then; stripes have some ranges of `old`.
            self._pool.release(kept, old)
        candidates, refused = self._candidates.of_job(job), change.search.refused
        if old is None:
            return self._pool.take(candidates, without=refused)
        drained = self._pool.draining(old)
        placement = self._pool.retake(candidates, old, without=refused.union(drained))
        if placement is None and drained:
            placement = self._pool.retake(candidates, old, without=refused)
        if placement is not None:
            self._lifecycle.remove_generation(job)
        return placement

    def log(self, job: Job, change: Change) -> None:
        """Logs a change whose new generation has opened."""
        generation = job.generation
        assert generation is not None
        assert job.placement is not None
        if change.reason is ChangeReason.move:
            what = f"runs on {_switches(job.placement)}"
        else:
            what = f"goes on with ranks {', '.join(map(str, generation.places))}"
        self._effects.log(_KINDS[change.reason], f"job {job.name!r} {what}: {change.why}", job)


def lost_event(job: Job, job_id: int, ranks: list[int], why: str) -> dict[str, object]:
    """The event that tells members of lost ranks."""
    return {"event": "lost", "ranks": ranks, "why": why, "on_loss": job.on_loss.value, "job": job_id}


def _left(job: Job) -> list[Member]:
    """The members of a job's generation that have left."""
    places = job.generation.places if job.generation is not None and job.generation.open else ()
    return [job.members[rank] for rank in places if job.members[rank].state is MemberState.left]


def _admitted(job: Job) -> set[int]:
    return {member.rank for member in job.joined() if member.admission is not None}


def _switches(placement: Placement) -> str:
    root, *others = placement.switches
    if placement.stripes:
        return f"switches {', '.join(placement.switches)}"
    return f"switch {root} and {', '.join(others)} below it" if others else f"switch {root}"
