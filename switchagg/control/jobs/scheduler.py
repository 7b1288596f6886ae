"""The queue of jobs that wait for slots. No I/O and no clock.

1. Higher priorities come first, then the older.
2. A job that fits has its slots, though others before it do not fit: it overtakes them.
3. A job is overtaken `OVERTAKES` times, by younger jobs that take slots of switches that it could use. Then
   it comes before all but older ones of that kind, and what gets free on these switches is kept for it.

So no job waits for more than the jobs that were there when it came and `OVERTAKES` others, whatever their
priorities. If the free slots of a switch are in pieces, running jobs are asked to move, which they do when
they pause; meanwhile nobody overtakes there the job that needs this. A job that does not pause in time stays
where it is, and others are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from switchagg.control.jobs.candidates import CandidateFinder, PlacementCandidate
from switchagg.control.jobs.effects import Effects
from switchagg.control.jobs.job import UNOPENED, ChangeReason, Job, Member, list_ranks
from switchagg.control.jobs.job_table import JobTable
from switchagg.control.jobs.lifecycle import JobLifecycle
from switchagg.control.jobs.membership_changes import MembershipChanges
from switchagg.control.jobs.quotas import Quotas
from switchagg.control.jobs.records import MAX_PRIORITY, EventKind, JobState, MemberState
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.control.jobs.switch_resources import SlotRange
from switchagg.errors import AdmissionError

OVERTAKES: Final = 8  # younger jobs that may have slots before a waiting one that could use their switches
_NAMED: Final = 3  # jobs of the queue that a message names
MOVE_PATIENCE: Final = 30.0  # seconds in which members who are asked to make room have to pause


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Gives waiting jobs their slots, and takes back those of jobs that do not open."""

    _table: JobTable
    _pool: SwitchPool
    _candidates: CandidateFinder
    _quotas: Quotas
    _lifecycle: JobLifecycle
    _changes: MembershipChanges
    _effects: Effects

    def queue(self) -> list[Job]:
        """Returns the waiting jobs, the next one first."""
        waiting = [job for job in self._table.jobs() if job.state is JobState.queued]
        return sorted(
            waiting, key=lambda job: (0 if _due(job) else MAX_PRIORITY + 1 - job.priority, job.number)
        )

    def waiting_for(self, job: Job) -> str:
        """Returns the place of a waiting job in the queue, who is before it, and why it has no slots yet.

        Jobs of other tenants are counted and not named.
        """
        queue = self.queue()
        place = queue.index(job)
        names = [repr(each.name) for each in queue[:place] if each.tenant == job.tenant][:_NAMED]
        if rest := place - len(names):
            names.append(f"{rest} {'other' if rest == 1 else 'others'}")
        behind = f", behind {', '.join(names)}" if names else ""
        obstacles = self._pool.obstacles(self._candidates.of_job(job))
        why = obstacles or "the free slots are kept for a job before it"
        return f"number {place + 1} in the queue{behind}: {why}"

    # Slots.

    def run(self) -> None:
        """Gives free slots to the jobs that wait for them, in order."""
        for job in self._table.jobs():
            self._changes.advance(job)
            self._changes.begin_if_wanted(job)
        while self._place_next():
            pass

    def _place_next(self) -> bool:
        """Gives slots to the first job of the queue that may have some; returns False if there is none."""
        queue = self.queue()
        kept: set[str] = set()  # switches that jobs further back may not use
        for job in queue:
            candidates = self._affordable(job)
            placement = self._pool.take(candidates, without=kept)
            if placement is None:
                usable = _switches(candidates)
                if not usable & kept:
                    self._make_room(job, candidates)
                kept |= usable if _due(job) else usable & self._being_cleared()
                continue
            for other in queue:
                if other.number < job.number and not _switches(self._affordable(other)).isdisjoint(
                    placement.switches
                ):
                    other.overtaken += 1
            job.placement, job.size = placement, placement.root.size
            job.state = JobState.created
            self._effects.save(job)
            self.update(job)
            return True
        return False

    def _affordable(self, job: Job) -> list[PlacementCandidate]:
        return self._quotas.affordable(job.tenant, job, self._candidates.of_job(job))

    def _being_cleared(self) -> set[str]:
        """Returns the switches on which jobs are asked to make room."""
        moving = [job for job in self._table.jobs() if job.change is not None and job.change.making_room]
        return {each.switch for job in moving for each in job.ranges}

    def update(self, job: Job) -> None:
        """Sets the state of an unopened job after a rank came or went; opens the job if it is complete."""
        if job.state not in UNOPENED:
            return
        if job.placement is None and (self._candidates.independent(job) or not job.missing):
            job.state = JobState.queued
            self.run()
        elif not job.missing and job.placement is not None:
            job.state = JobState.opening
            self._lifecycle.begin(job, job.placement)
        else:
            job.state = JobState.joining if job.members else JobState.created

    def give_up_moving(self, now: float) -> None:
        """Lets jobs stay that were asked to make room and did not pause in time."""
        given_up = False
        for job in self._table.jobs():
            change = job.change
            if change is None or not change.making_room or change.begun or job.state is not JobState.running:
                continue
            if change.waited_since is None:
                change.waited_since = now
            elif now - change.waited_since > MOVE_PATIENCE:
                if change.target is not None:
                    self._pool.release(change.target, job.placement)
                job.change, job.stays, given_up = None, True, True
        if given_up:
            self.run()

    def _make_room(self, waiting: Job, candidates: Sequence[PlacementCandidate]) -> None:
        """Asks jobs to move if a job waits only since the free slots are in pieces."""
        if any(job.change is not None and job.change.making_room for job in self._table.jobs()):
            return
        single = [each for each in candidates if each.alone]
        for slot_range, target in self._pool.clear_range(single, self._movable):
            job = self._owner(slot_range)
            assert job is not None
            why = f"making room for job {waiting.number}"
            self._changes.ask_to_pause(job, ChangeReason.move, why, target).making_room = True

    def _owner(self, slot_range: SlotRange) -> Job | None:
        return next((job for job in self._table.jobs() if slot_range in job.ranges), None)

    def _movable(self, slot_range: SlotRange) -> Sequence[PlacementCandidate]:
        """Returns the candidates of the job at a range; none if it cannot move now."""
        job = self._owner(slot_range)
        if job is None or job.state is not JobState.running or job.change is not None or job.stays:
            return []
        if job.failover is not None:
            return []
        if job.placement is None or len(job.ranges) > 1:
            return []  # its members attach to these switches only
        return [each for each in self._candidates.of_job(job) if each.alone]

    # Refusals.

    def timeout_refusal(self, member: Member) -> AdmissionError:
        """Returns the refusal of a member whose join has timed out."""
        job, missing, seconds = member.job, member.job.missing, member.request.timeout
        if member.rank in job.back:
            return AdmissionError(
                f"job {job.name!r} did not come to a pause within {seconds:g} seconds, "
                f"in which rank {member.rank} could have come back",
                "join_timeout",
            )
        if not missing or member.crowded_out:
            obstacles = self._pool.obstacles(self._candidates.of_job(job)) or "others come first"
            why = f": {obstacles}" if missing else f", and is {self.waiting_for(job)}"
            return AdmissionError(
                f"job {job.name!r} had no room within {seconds:.3g} seconds{why}", "no_slots"
            )
        return AdmissionError(
            f"{list_ranks(missing)} of job {job.name!r} "
            f"did not join within {seconds:.3g} seconds "
            f"({len(job.members)} of {job.world_size} were there)",
            "join_timeout",
        )

    def withdraw(self, member: Member) -> None:
        """Takes a rank out that was not admitted yet. Its wishes no longer bind the others."""
        job = member.job
        self._lifecycle.end_member(member, MemberState.lost)
        if job.back.get(member.rank) is member:
            del job.back[member.rank]
            return
        del job.members[member.rank]
        self.reset(job)

    def reset(self, job: Job) -> None:
        """Sets the state of an unopened job after ranks were taken out of it; ends it if none is left."""
        if job.spec is None and not job.members:
            self._lifecycle.end(job, "nobody waits for it any more")
        elif job.placement is not None and not self._candidates.independent(job):
            self.give_back(job)
            job.state = JobState.joining
        else:
            job.state = JobState.created if job.placement is not None else JobState.joining
        self.update(job)

    def give_back(self, job: Job) -> None:
        """Frees the ranges of a job that no switch holds yet."""
        if job.placement is not None:
            self._pool.release(job.placement)
        job.placement = job.size = None

    def refuse_joining(self, job: Job, error: AdmissionError) -> None:
        """Refuses every rank that is not admitted; a job without an order has ended then."""
        self._lifecycle.refuse_returning(job, error)
        if job.state is JobState.opening:
            self._lifecycle.remove_generation(job)
            job.state = JobState.joining
        if job.state in UNOPENED:
            self._lifecycle.refuse(job.members.values(), error)
            job.members.clear()
            self.reset(job)

    def dismiss(self, job: Job, why: str, code: str) -> None:
        """Ends a job that has not opened, and refuses its ranks."""
        self._lifecycle.end(job, why, AdmissionError(f"job {job.name!r} has ended: {why}", code))

    def opening_failed(self, job: Job, why: str) -> None:
        """Refuses the ranks of a job that a switch did not take. An order stands: ranks may join it again."""
        error = AdmissionError(why, "switch")
        if job.spec is not None:
            self._effects.log(EventKind.refused, why, job)
            self.refuse_joining(job, error)
        else:
            self._lifecycle.end(job, why, error)


def _due(job: Job) -> bool:
    return job.overtaken >= OVERTAKES


def _switches(candidates: Sequence[PlacementCandidate]) -> set[str]:
    return {name for each in candidates for name in each.switches}
