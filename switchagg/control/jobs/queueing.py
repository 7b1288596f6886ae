"""Jobs that have not opened: who waits for room, who gets it, and who gives up. No I/O and no clock.

The queue is strict. Higher priorities come first, then the older; a job that waits is overtaken only on
switches that it could not use. So a large job is not starved by small ones that would always fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from switchagg.control.jobs.compaction import clear_range
from switchagg.control.jobs.job import ChangeReason, Job, Member
from switchagg.control.jobs.membership import Memberships
from switchagg.control.jobs.placement import Shape, Site, Tree
from switchagg.control.jobs.places import UNOPENED
from switchagg.control.jobs.records import EventKind, JobState, MemberState, Quota, Tenant
from switchagg.control.jobs.trees import Way, crossing, singles
from switchagg.errors import AdmissionError

ROOM_PATIENCE: Final = 30.0  # seconds in which members who are asked to make room come to a pause


class Queueing(Memberships):
    """Jobs, and the room that they wait for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._quotas: dict[str, Quota] = {}

    def queue(self) -> list[Job]:
        """Returns the jobs that wait for room, the next one first."""
        waiting = [job for job in self.jobs() if job.state is JobState.queued]
        return sorted(waiting, key=lambda job: (-job.priority, job.number))

    # Quotas.

    def _check_quota(self, tenant: Tenant, job: Job | None, ways: Sequence[Way]) -> None:
        """Raises `AdmissionError` where a job more, or this one so large, goes past the tenant's quota."""
        quota = self._quotas[tenant.name] = tenant.quota
        mine = [each for each in self.jobs() if each.tenant == tenant.name and each is not job]
        running = [each for each in mine if each.state is not JobState.failed]
        if job is None and quota.jobs is not None and len(running) >= quota.jobs:
            raise AdmissionError(
                f"tenant {tenant.name!r} has {len(running)} jobs; its quota is {quota.jobs}", "quota"
            )
        if not self._affordable(tenant.name, job, ways):
            least = min(ways, key=lambda way: way.memory)
            slots, memory = self._used(tenant.name, job)
            raise AdmissionError(
                f"{least.slots} slots ({least.memory} bytes) asked for; tenant {tenant.name!r} has {slots} "
                f"({memory} bytes) in other jobs, and its quota is "
                f"{'any number of' if quota.slots is None else quota.slots} slots and "
                f"{'any number of' if quota.memory is None else quota.memory} bytes",
                "quota",
            )

    def _affordable(self, tenant: str, job: Job | None, ways: Sequence[Way]) -> list[Way]:
        """Returns the ways that are within the tenant's quota."""
        quota = self._quotas.get(tenant, Quota())
        slots, memory = self._used(tenant, job)
        return [
            way
            for way in ways
            if (quota.slots is None or slots + way.slots <= quota.slots)
            and (quota.memory is None or memory + way.memory <= quota.memory)
        ]

    def _used(self, tenant: str, without: Job | None) -> tuple[int, int]:
        """Returns slots and bytes that a tenant's jobs have or wait for, on all switches."""
        slots = memory = 0
        for job in self.jobs():
            if job.tenant != tenant or job is without or job.state is JobState.failed:
                continue
            if job.tree is not None:
                slots += sum(site.slots for site in job.tree.sites)
                memory += sum(site.shape.memory for site in job.tree.sites)
            elif ways := self._possible(job):
                least = min(ways, key=lambda way: way.memory)
                slots, memory = slots + least.slots, memory + least.memory
        return slots, memory

    # Room.

    def _complete(self, job: Job) -> None:
        """Settles where a job stands that has not opened, after a rank came or went; opens it if it can."""
        if job.state not in UNOPENED:
            return
        if job.tree is None and (self._foreseen(job) or not job.missing):
            job.state = JobState.queued
            self._schedule()
        elif not job.missing and job.tree is not None:
            job.state = JobState.opening
            self._begin(job, job.tree, job.joined())
        else:
            job.state = JobState.joining if job.members else JobState.created

    def _schedule(self) -> None:
        """Gives room that is there to those that wait for it, in order."""
        for job in self.jobs():
            if job.state is JobState.moving:
                self._advance(job)
            else:
                self._look_for_change(job)
        blocked: set[str] = set()
        for job in self.queue():
            ways = self._affordable(job.tenant, job, self._possible(job))
            tree = self.placement.settle(ways, without=blocked)
            if tree is None:
                if not crossing(blocked.__contains__, ways):
                    self._make_room(job, singles(ways))
                blocked |= {name for way in ways for name in way.switches}
                continue
            job.tree, job.shape = tree, tree.root.shape
            job.state = JobState.created
            self._save(job)
            self._complete(job)

    def _make_room(self, waiting: Job, possible: Mapping[str, Shape]) -> None:
        """Has jobs move aside for one that waits only since what is free is in pieces."""
        if any(job.change is not None and job.change.making_room for job in self.jobs()):
            return
        for name in self.placement.cramped(possible):
            moves = clear_range(
                self.placement, self.placement.rooms[name], possible[name].slots, self._could_move
            )
            for site, target in moves:
                job = self._at(site)
                assert job is not None
                why = f"making room for job {waiting.number}"
                self._ask_to_pause(job, ChangeReason.move, why, Tree(target))
                assert job.change is not None
                job.change.making_room = True
            if moves:
                return

    def _give_up_moving(self, now: float) -> None:
        """Lets jobs stay that had been asked to make room and do not come to a pause."""
        given_up = False
        for job in self.jobs():
            change = job.change
            if change is None or not change.making_room or change.begun or job.state is not JobState.running:
                continue
            if change.waited_since is None:
                change.waited_since = now
            elif now - change.waited_since > ROOM_PATIENCE:
                if change.target is not None:
                    self.placement.give_back(change.target, job.tree)
                job.change, job.stays, given_up = None, True, True
        if given_up:
            self._schedule()

    def _at(self, site: Site) -> Job | None:
        return next((job for job in self.jobs() if job.tree is not None and site in job.tree.sites), None)

    def _could_move(self, site: Site) -> Mapping[str, Shape] | None:
        job = self._at(site)
        if job is None or job.state is not JobState.running or job.change is not None or job.stays:
            return None
        if job.tree is None or job.tree.leaves:
            return None  # where its members are, it has nowhere else to go
        return singles(self._possible(job))

    def _timed_out(self, member: Member) -> AdmissionError:
        job, missing, seconds = member.job, member.job.missing, member.request.timeout
        if member.rank in job.back:
            return AdmissionError(
                f"job {job.name!r} did not come to a pause within {seconds:g} seconds, "
                f"in which rank {member.rank} could have come back",
                "join_timeout",
            )
        if not missing or member.crowded_out:
            place = "" if missing else f", and is number {self.queue().index(job) + 1} in the queue"
            return AdmissionError(
                f"job {job.name!r} had no room within {seconds:g} seconds{place}: "
                f"{self.placement.lacking(self._possible(job)) or 'others come first'}",
                "no_slots",
            )
        return AdmissionError(
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} of job {job.name!r} "
            f"did not join within {seconds:g} seconds "
            f"({len(job.members)} of {job.world_size} were there)",
            "join_timeout",
        )

    # Giving up.

    def _withdraw(self, member: Member) -> None:
        """Takes a rank out that was not let in yet. What it asked for no longer binds the others."""
        job = member.job
        self._part(member, MemberState.lost)
        if job.back.get(member.rank) is member:
            del job.back[member.rank]
            return
        del job.members[member.rank]
        self._settle_unopened(job)

    def _settle_unopened(self, job: Job) -> None:
        if job.spec is None and not job.members:
            self._end(job, "nobody waits for it any more")
        elif job.tree is not None and not self._foreseen(job):
            self._give_up_place(job)
            job.state = JobState.joining
        else:
            job.state = JobState.created if job.tree is not None else JobState.joining
        self._complete(job)

    def _refuse_back(self, job: Job, error: AdmissionError) -> None:
        self._refuse(list(job.back.values()), error)
        job.back.clear()

    def _refuse_joining(self, job: Job, error: AdmissionError) -> None:
        """Refuses everybody who waits to be let in; a job that was only joins has ended then."""
        self._refuse_back(job, error)
        if job.state is JobState.opening:
            self._remove(job)
            job.state = JobState.joining
        if job.state in UNOPENED:
            self._refuse(list(job.members.values()), error)
            job.members.clear()
            self._settle_unopened(job)

    def _dismiss(self, job: Job, why: str, code: str, *, bare: bool = False) -> None:
        """Ends a job that has not opened; those that wait for it hear why.

        `bare`: an order stands, and its ranks may try again.
        """
        text = why if bare else f"job {job.name!r} has ended: {why}"
        error = AdmissionError(text, code)
        if bare and job.spec is not None:
            self._note(EventKind.refused, why, job)
            self._refuse_joining(job, error)
            return
        self._refuse(list(job.members.values()), error)
        self._end(job, why)
