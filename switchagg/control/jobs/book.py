"""The life cycle of jobs on all switches, from the first that is heard of one to its end. No I/O, no clock.

    create           placed            all joined           every INIT echoed
    ------> queued ---------> created ------------> opening ------------------> running <----> moving
     join                     joining <-- a rank is gone --+                    |    |   (membership.py)
    ------------------------->   |                              drain: draining      | lost, evicted,
                                 | nobody waits any more                | all left   v  switch restarted
                                 +---------> ended <--------------------+--------- failed

* A job is made by an order (`create`), and then has its slots at once, or is queued; or by the first rank
  that joins, and then takes slots when the last is there. Where no switch has room the job waits: higher
  priorities first, then the older. A job that waits is overtaken only by jobs for switches that it could
  not use.
* Ranks join in any order; the answer to all of them comes when the last has joined and the slots are
  initialised. Until then a rank whose join times out, or whose connection closes, is taken out and may try
  again.
* In a running job a rank *leaves* in order or is *lost*: its connection closed, or it was silent for longer
  than the job's deadline. Then the job fails and is removed from the switch at once; or, with
  on_loss="shrink", the rank is shut out and the others go on. When every rank has left or is lost the job
  has ended and everything it had is free.
* A name may have a new job while ranks of an earlier one are still there: a rank that has left, or was lost
  from a job that does not take it back, joins the next one. So `connect()`, `close()`, `connect()` works at
  every rank without a barrier.

Calls change the state and queue actions (`actions.py`); the caller carries out what `poll()` returns.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from switchagg.control.jobs.agreement import check_agreement, joinable
from switchagg.control.jobs.effects import Forget, Note, Settle, Tell
from switchagg.control.jobs.job import Change, ChangeReason, Job, Member
from switchagg.control.jobs.placement import Room, Site, Tree
from switchagg.control.jobs.places import UNOPENED
from switchagg.control.jobs.records import (
    EventKind,
    JobSpec,
    JobState,
    JoinRequest,
    MemberState,
    OnLoss,
    Tenant,
    check_name,
)
from switchagg.control.jobs.switching import Switching
from switchagg.control.jobs.trees import Trees
from switchagg.errors import AdmissionError, UsageError
from switchagg.rules.planner import SkipPolicy

GRACE: Final = 5.0  # seconds that members have at least to come back after a restart


class JobBook(Switching):
    """All jobs of a controller. Times are seconds from any fixed start.

    Args:
        rooms: the switches.
        policy: the skip policy of new jobs.
        draw: returns a random number of 32 bits; replaceable for tests.
        cookies: returns 16 random bytes.
    """

    def __init__(
        self,
        rooms: Sequence[Room],
        *,
        policy: SkipPolicy | None = None,
        draw: Callable[[], int] = lambda: secrets.randbits(32),
        cookies: Callable[[], bytes] = lambda: secrets.token_bytes(16),
    ) -> None:
        super().__init__(Trees(rooms), policy or SkipPolicy(), draw, cookies)

    # What people and the HTTP service look at.

    def find(self, tenant: str, name: str, job_id: int | None = None) -> Job | None:
        """Returns the tenant's newest job of that name, or the one that has, or last had, this id."""
        jobs = self._names.get((tenant, name), [])
        if job_id is not None:
            return next((job for job in jobs if job.id == job_id), None)
        return jobs[-1] if jobs else None

    def member(self, tenant: str, name: str, rank: int, token: int) -> Member:
        """Returns the admitted rank that has this token, or had it until its job's last change.

        Raises:
            AdmissionError: no job of that name has this rank (``not_found``), or the token is not the rank's
                (``wrong_token``).
        """
        members = [
            member
            for job in self._names.get((tenant, name), [])
            if (member := job.members.get(rank)) is not None and member.admission is not None
        ]
        if not members:
            raise AdmissionError(f"no job {name!r} with a rank {rank} is running", "not_found")
        for member in members:
            assert member.admission is not None
            if token and token in (member.admission.token, member.former):
                return member
        raise AdmissionError(f"that is not the token of rank {rank} in job {name!r}", "wrong_token")

    def at(self, job_id: int) -> Job | None:
        """Returns the job that a switch knows, or is to know, under this id."""
        return self._ids.get(job_id)

    def restore(self, job: Job, now: float) -> None:
        """Takes up a job of an earlier controller; its members have `GRACE` seconds at least to come back."""
        if job.tree is not None:
            try:
                self._claim(job.tree)
            except UsageError as error:
                if job.state is JobState.created:
                    job.tree = job.shape = None
                    job.state = JobState.queued if self._foreseen(job) else JobState.created
                    self._names.setdefault((job.tenant, job.name), []).append(job)
                    return
                text = f"job {job.name!r} was not taken up: {error}"
                self._actions.append(Note(EventKind.ended, text, job.tenant, job.name))
                self._actions.append(Forget(job))
                return
        elif job.state is JobState.queued and not self._foreseen(job):
            job.state = JobState.created  # who was to join it has to join again
        self._names.setdefault((job.tenant, job.name), []).append(job)
        if job.generation is not None:
            self._ids[job.generation.id] = job
        for member in job.joined():
            self._cookies[member.cookie] = member
            self.liveness.watch(member.cookie, job.deadline, now, grace=GRACE)
        if job.state is JobState.moving and job.change is None:
            job.change = Change(ChangeReason.move, "the controller restarted")

    def _claim(self, tree: Tree) -> None:
        """Takes these very ranges, or none. Raises `UsageError` where one is not to be had."""
        taken: list[Site] = []
        for site in tree.sites:
            try:
                if site.switch not in self.placement.rooms:
                    raise UsageError(f"there is no switch {site.switch!r} any more")
                self.placement.rooms[site.switch].claim(site)
            except UsageError:
                for each in taken:
                    self.placement.free(each)
                raise
            taken.append(site)

    # What a tenant asks for.

    def create(self, tenant: Tenant, spec: JobSpec, now: float) -> Job:
        """Orders a job. It has its slots at once, or waits for them, or for its members where these decide.

        Raises:
            AdmissionError: it cannot be, or goes past the tenant's quota. Nothing has changed then.
        """
        newest = self.find(tenant.name, spec.name)
        if newest is not None and newest.state is not JobState.failed:
            raise AdmissionError(
                f"there is a job {spec.name!r} already, which is {newest.shown}", "name_taken"
            )
        ways = self.placement.outlook(spec.switch, spec.words, spec.slots, spec.world_size)
        self._check_quota(tenant, None, ways)
        job = self._new_job(tenant.name, spec.name, spec.world_size, now)
        job.spec, job.state = spec, JobState.created
        self._save(job)
        self._complete(job)
        return job

    def join(self, tenant: Tenant, name: str, request: JoinRequest, now: float) -> Member:
        """A rank wants in. The answer comes as a `Settle`.

        Raises:
            AdmissionError: it cannot be, whatever the others do; `code` says why. Nothing has changed then.
        """
        check_name("job name", name)
        job = joinable(self._names.get((tenant.name, name), []), name, request)
        if job is not None and job.state not in UNOPENED:
            return self._come_back(job, request, now)
        if job is not None:
            check_agreement(job, request)
        words, slots = (
            mine if mine is not None else theirs
            for mine, theirs in zip(
                (request.words, request.slots), job.wanted if job else (None, None), strict=True
            )
        )
        if job is None or job.spec is None:
            ways = self.placement.outlook(None, words, slots, request.world_size)
            self._check_quota(tenant, job, ways)
        there = self._check_seat(job, request)
        if job is not None and there and job.missing == [request.rank]:
            self._check_quota(tenant, job, there)
        if job is None:
            job = self._new_job(tenant.name, name, request.world_size, now)
        member = Member(job, request, now + request.timeout)
        job.members[request.rank] = member
        self._complete(job)
        return member

    def leave(self, member: Member, begun: int | None = None) -> None:
        """A rank is done with its job, after it has begun so many collectives in this generation.

        Does nothing the second time.
        """
        job = member.job
        if member.state is not MemberState.joined:
            return
        self._part(member, MemberState.left)
        self._note(EventKind.left, f"rank {member.rank} of job {job.name!r} has left", job, rank=member.rank)
        if not self._end_if_empty(job):
            self._tell(job, {"event": "left", "job": job.id, "ranks": [member.rank], "begun": [begun]})
            if job.state is not JobState.failed:
                self._save(job)
            self._advance(job)
        self._schedule()

    def drain(self, job: Job, who: str) -> None:
        """Lets nobody else in; the job ends when its members have left. One that has not opened ends now."""
        self._note(EventKind.drained, f"job {job.name!r} is being drained by {who}", job)
        if job.state in (*UNOPENED, JobState.opening):
            self._dismiss(job, f"it was drained by {who}", "draining")
        elif job.state is not JobState.failed:
            job.draining = True
            self._refuse_back(job, AdmissionError(f"job {job.name!r} is being drained by {who}", "draining"))
            self._save(job)
        self._schedule()

    def evict(self, job: Job, who: str) -> None:
        """Ends a job now: its members are told, and shut out. One that has failed is forgotten."""
        why = f"evicted by {who}"
        self._note(EventKind.evicted, f"job {job.name!r} was {why}", job)
        if job.state in (*UNOPENED, JobState.opening):
            self._dismiss(job, f"it was {why}", "evicted")
        elif job.state is JobState.failed:
            self._end(job, why)
        else:
            self._fail(job, why, {"event": "evicted", "why": why}, EventKind.failed)
        self._schedule()

    def set_policy(self, job: Job, policy: SkipPolicy, why: str, now: float) -> None:
        """Has rank 0 say a skip policy, which its job follows from the next collective on."""
        generation = job.generation
        if job.state is not JobState.running or generation is None:
            return
        if policy != job.policy:
            self._note(EventKind.policy, f"job {job.name!r}: {policy}: {why}", job)
            job.policy, job.policy_why, job.policy_since = policy, why, now
            self._save(job)
        first = job.members[generation.places[0]]
        event = {"event": "policy", "job": generation.id, "word": policy.word(), "why": why}
        self._actions.append(Tell(first, event))

    # What becomes of members.

    def lost(self, members: Sequence[Member], why: str) -> None:
        """Members are gone without a word. No effect on those that have left, or were not let in any more."""
        jobs: dict[int, list[Member]] = {}
        for member in members:
            if member.state is MemberState.joined:
                jobs.setdefault(member.job.number, []).append(member)
        for gone in jobs.values():
            self._lose(gone[0].job, gone, why)
        self._schedule()

    def heard(self, cookie: bytes, now: float) -> Member | None:
        """A heartbeat has come. Returns whose it is; None where it is nobody's."""
        member = self._cookies.get(cookie)
        if member is not None:
            self.liveness.heard(member.cookie, now)
        return member

    def attached(self, member: Member, now: float) -> None:
        """A member has a new line: it is told again what it may have missed."""
        self.liveness.heard(member.cookie, now)
        job, generation = member.job, member.job.generation
        if generation is not None and generation.open:
            about = {"job": generation.id}
            for rank in generation.places:
                if job.members[rank].state is MemberState.left:
                    left = {"event": "left", "ranks": [rank], "begun": [None], **about}
                    self._actions.append(Tell(member, left))
                if job.change is not None and (why := job.change.lost.get(rank)) is not None:
                    lost = {"event": "lost", "ranks": [rank], "why": why, "on_loss": job.on_loss.value}
                    self._actions.append(Tell(member, {**lost, **about}))
        self._remind(job)

    def tick(self, now: float) -> None:
        """Refuses every join whose time is up, and declares members lost that were silent for too long."""
        self._give_up_moving(now)
        for job in self.jobs():
            late = [
                member
                for member in (*job.members.values(), *job.back.values())
                if member.admission is None
                and member.expires <= now
                and member.refusal is None
                # Once its job opens it will have its answer in a moment.
                and (job.state in UNOPENED or member.rank in job.back)
            ]
            refusals = [(member, self._timed_out(member)) for member in late]
            for member, refusal in refusals:
                member.refusal = refusal
                self._actions.append(Settle(member))
                self._withdraw(member)
                for other in job.members.values():
                    other.crowded_out |= refusal.code == "no_slots"
        silent = [(self._cookies[cookie], seconds) for cookie, seconds in self.liveness.overdue(now)]
        for job_number in dict.fromkeys(member.job.number for member, _ in silent):
            late_ones = [member for member, _ in silent if member.job.number == job_number]
            seconds = max(seconds for member, seconds in silent if member in late_ones)
            self.lost(late_ones, f"silent for {seconds:.0f} s")
        if silent:
            self._schedule()

    def close(self) -> None:
        """The controller stops for good: joins that wait are refused and every job ends."""
        for job in self.jobs():
            self._refuse_joining(job, AdmissionError("the controller is stopping", "stopping"))
            if job.state is not JobState.ended:
                self._tell(job, {"event": "stopping", "jobs": "end"})
                self._end(job, "the controller stopped")

    def pause(self) -> None:
        """The controller stops for now: joins that wait are refused, jobs stay on their switches."""
        for job in self.jobs():
            self._refuse_joining(job, AdmissionError("the controller is stopping", "stopping"))
            if job.state is not JobState.ended:
                self._tell(job, {"event": "stopping", "jobs": "stay"})

    # The rules.

    def _new_job(self, tenant: str, name: str, world_size: int, now: float) -> Job:
        self.last_number += 1
        job = Job(self.last_number, tenant, name, world_size, now, policy=self.policy, policy_since=now)
        self._names.setdefault((tenant, name), []).append(job)
        self._note(EventKind.job_created, f"job {name!r} of {world_size} workers", job)
        return job

    def _come_back(self, job: Job, request: JoinRequest, now: float) -> Member:
        """A rank that was lost wants to be let in again."""
        check_agreement(job, request)
        self._check_seat(job, request)
        member = Member(job, request, now + request.timeout)
        job.back[request.rank] = member
        self._look_for_change(job)
        return member

    def _lose(self, job: Job, gone: Sequence[Member], why: str) -> None:
        waiting = [member for member in gone if member.admission is None]
        opening = job.generation is not None and not job.generation.open
        for member in waiting:
            if job.state in UNOPENED or job.back.get(member.rank) is member:
                self._withdraw(member)
        if job.state is JobState.opening:
            # As if they had never been there: the others go on waiting for them.
            self._remove(job)
            for member in waiting:
                self._part(member, MemberState.lost)
                del job.members[member.rank]
            job.state = JobState.joining
            self._settle_unopened(job)
            return
        lost = [member for member in gone if member.admission is not None or (opening and member in waiting)]
        lost = [member for member in lost if member.state is MemberState.joined]
        if not lost:
            return
        for member in lost:
            member.why = why
            if member.admission is not None:
                own = {"event": "lost", "ranks": [member.rank], "why": why, "on_loss": job.on_loss.value}
                self._actions.append(Tell(member, {**own, "job": job.id}))
            self._part(member, MemberState.lost)
            self._note(
                EventKind.lost,
                f"rank {member.rank} of job {job.name!r} is lost: {why}",
                job,
                rank=member.rank,
            )
        if self._end_if_empty(job) or job.state is JobState.failed:
            return
        ranks = sorted(member.rank for member in lost)
        event = {"event": "lost", "ranks": ranks, "why": why, "on_loss": job.on_loss.value}
        if job.on_loss is OnLoss.fail:
            names = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
            self._fail(job, f"{names} lost: {why}", event, EventKind.failed)
        else:
            if any(member.admission is not None for member in lost):
                self._tell(job, {**event, "job": job.id})
            self._shrink(job, lost, why)
