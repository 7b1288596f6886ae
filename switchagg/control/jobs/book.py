"""The life cycle of jobs on all switches, from their creation to their end. No I/O, no clock.

    create           placed            all joined           every INIT echoed
    ------> queued ---------> created ------------> opening ------------------> running <----> moving
     join                     joining <-- a rank is gone --+                    |    |  (membership changes)
    ------------------------->   |                              drain: draining      | lost, evicted,
                                 | no rank waits any more               | all left   v  switch restarted
                                 +---------> ended <--------------------+--------- failed

* An order (`create`) makes a job, which has its slots at once or is queued. So does the first rank that
  joins; such a job takes its slots when its last rank has joined. If no switch has room the job waits in the
  queue (scheduler.py).
* Ranks join in any order. All are answered when the last has joined and the slots are initialised. A rank
  whose join times out before, or whose connection closes, is taken out and may try again.
* In a running job a rank *leaves* in order, or is *lost*: its connection closed, or it was silent for longer
  than the job's deadline. Then the job fails and is removed from its switches at once. With
  on_loss="shrink" the rank is fenced and the others go on. A job has ended when every rank has left or is
  lost, and everything that it had is free.
* A name may have a new job while ranks of an earlier one are still present. A rank that has left, or was lost
  from a job that does not take it back, joins the next one; any rank does once the earlier job has failed. So
  `connect()`, `close()`, `connect()` works at every rank without a barrier.

    JobBook --+-- JobTable            names, ids, cookies, clocks of members
              +-- SwitchPool          the slots of all switches
              +-- CandidateFinder     placements that a job could have
              +-- Quotas, Scheduler   the queue
              +-- MembershipChanges   shrink, rejoin, move
              +-- Failovers           from a switch that is gone to another
              +-- JobLifecycle        generations, ends
              +-- Effects             what the caller is to carry out: `poll` returns it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from switchagg.control.jobs.candidates import CandidateFinder
from switchagg.control.jobs.effects import AnswerJoin, Effect, Effects, LogEvent, SendEvent
from switchagg.control.jobs.failovers import Failovers
from switchagg.control.jobs.job import UNOPENED, Change, ChangeReason, Generation, Job, Member, list_ranks
from switchagg.control.jobs.job_table import JobTable
from switchagg.control.jobs.lifecycle import JobLifecycle
from switchagg.control.jobs.membership_changes import MembershipChanges, check_address_free, lost_event
from switchagg.control.jobs.quotas import Quotas
from switchagg.control.jobs.records import (
    EventKind,
    JobSpec,
    JobState,
    JoinRequest,
    MemberState,
    OnLoss,
    SwitchState,
    Tenant,
    check_name,
)
from switchagg.control.jobs.scheduler import Scheduler
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.control.jobs.switch_resources import UNREACHED, SwitchResources
from switchagg.errors import AdmissionError, SwitchAggError, SwitchError, UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.switch import Capacity, Reconciled
from switchagg.runtime import SYSTEM

GRACE: Final = 5.0  # seconds that members have at least to come back after a restart
ATTACH_PATIENCE: Final = 5.0  # seconds that a client waits for the answer to an attach
RETRY: Final = 1.0  # seconds between two attempts to find a switch that takes a job
DOWN_PATIENCE: Final = 2.0  # seconds that a change of membership waits for its job's only switch to come back
_RESTARTED: Final = "restarted, and what its slots held is lost"


class JobBook:
    """All jobs of a controller. Times are seconds from any fixed start.

    Args:
        policy: the skip policy of new jobs.
        draw: returns a random number of 32 bits; replaceable for tests.
        cookies: returns 16 random bytes.
    """

    def __init__(
        self,
        switches: Iterable[SwitchResources],
        *,
        policy: SkipPolicy | None = None,
        draw: Callable[[], int] = lambda: SYSTEM.random_bits(32),
        cookies: Callable[[], bytes] = lambda: SYSTEM.random_bytes(16),
    ) -> None:
        self._policy = policy or SkipPolicy()
        self._effects = effects = Effects()
        self.table = JobTable()
        self.pool = SwitchPool(switches)
        self.candidates = CandidateFinder(self.pool.switches)
        self._quotas = Quotas(self.table, self.candidates)
        self._lifecycle = JobLifecycle(self.table, self.pool, effects, draw, cookies)
        self.changes = MembershipChanges(self._lifecycle, self.pool, self.candidates, effects)
        self.failovers = Failovers(self._lifecycle, self.pool, self.candidates, effects)
        self.scheduler = Scheduler(
            self.table, self.pool, self.candidates, self._quotas, self._lifecycle, self.changes, effects
        )

    def poll(self) -> list[Effect]:
        """Returns the effects to carry out now, in order, and forgets them."""
        return self._effects.poll()

    def restore(self, job: Job, now: float) -> None:
        """Takes over a job of an earlier controller; its members have at least `GRACE` seconds to attach."""
        if job.placement is not None:
            try:
                self.pool.claim(job.placement)
            except UsageError as error:
                if job.state is JobState.created:
                    job.placement = job.size = None
                    job.state = JobState.queued if self.candidates.independent(job) else JobState.created
                    self.table.add(job)
                    return
                text = f"job {job.name!r} was not taken up: {error}"
                self._effects.add(LogEvent(EventKind.ended, text, job.tenant, job.name))
                job.state = JobState.ended
                self._effects.save(job)
                return
        elif job.state is JobState.queued and not self.candidates.independent(job):
            job.state = JobState.created  # its members have to join again
        self.table.add(job)
        for member in job.joined():
            self.table.cookies[member.cookie] = member
            self.table.liveness.watch(member.cookie, job.deadline, now, grace=GRACE)
        if job.state is JobState.moving and job.change is None:
            job.change = Change(ChangeReason.move, "the controller restarted")

    # Requests of tenants.

    def create(self, tenant: Tenant, spec: JobSpec, now: float) -> Job:
        """Orders a job. It gets its slots at once, or waits for them, or for the members that decide them.

        Raises `AdmissionError`, with nothing changed, if no switch could take it, or it exceeds the quota.
        """
        newest = self.table.find(tenant.name, spec.name)
        if newest is not None and newest.state is not JobState.failed:
            raise AdmissionError(
                f"there is a job {spec.name!r} already, which is {newest.shown}", "name_taken"
            )
        candidates = self.candidates.of_size(spec.switch, spec.words, spec.slots, spec.world_size)
        self._quotas.check(tenant, None, candidates)
        job = self._new_job(tenant.name, spec.name, spec.world_size, now)
        job.spec, job.state = spec, JobState.created
        self._effects.save(job)
        self.scheduler.update(job)
        return job

    def drain(self, job: Job, who: str) -> None:
        """Admits no one else; the job ends when its members have left. One that has not opened ends now."""
        self._effects.log(EventKind.drained, f"job {job.name!r} is being drained by {who}", job)
        if job.state in (*UNOPENED, JobState.opening):
            self.scheduler.dismiss(job, f"it was drained by {who}", "draining")
        elif job.state is not JobState.failed:
            job.draining = True
            error = AdmissionError(f"job {job.name!r} is being drained by {who}", "draining")
            self._lifecycle.refuse_returning(job, error)
            self._effects.save(job)
        self.scheduler.run()

    def evict(self, job: Job, who: str) -> None:
        """Ends a job now: its members are told, and shut out. A failed one is forgotten."""
        why = f"evicted by {who}"
        self._effects.log(EventKind.evicted, f"job {job.name!r} was {why}", job)
        if job.state in (*UNOPENED, JobState.opening):
            self.scheduler.dismiss(job, f"it was {why}", "evicted")
        elif job.state is JobState.failed:
            self._lifecycle.end(job, why)
        else:
            self._lifecycle.fail(job, why, {"event": "evicted", "why": why})
        self.scheduler.run()

    def set_policy(self, job: Job, policy: SkipPolicy, why: str, now: float) -> None:
        """Has rank 0 announce a skip policy, which its job follows from the next collective on."""
        generation = job.generation
        if job.state is not JobState.running or generation is None:
            return
        if policy != job.policy:
            self._effects.log(EventKind.policy, f"job {job.name!r}: {policy}: {why}", job)
            job.policy, job.policy_why, job.policy_since = policy, why, now
            self._effects.save(job)
        first = job.members[generation.places[0]]
        event = {"event": "policy", "job": generation.known_as, "word": policy.word(), "why": why}
        self._effects.add(SendEvent(first, event))

    # Requests of ranks.

    def join(self, tenant: Tenant, name: str, request: JoinRequest, now: float) -> Member:
        """Adds a rank to a job. The answer comes as an `AnswerJoin`.

        Raises `AdmissionError`, with nothing changed, if the rank is refused, whatever the others do.
        """
        check_name("job name", name)
        job = joinable(self.table.named(tenant.name, name), name, request)
        if job is not None:
            check_agreement(job, request)
        returning = job is not None and job.state not in UNOPENED
        if not returning and (job is None or job.spec is None):
            words, slots = request.words, request.slots
            if job is not None:
                words = job.requested("words") if words is None else words
                slots = job.requested("slots") if slots is None else slots
            requests = [*(() if job is None else job.requests), request]
            possible = self.candidates.of_size(
                None, words, slots, request.world_size, request.stripes, requests
            )
            self._quotas.check(tenant, job, possible)
        candidates = self.candidates.with_rank(job, request)
        if returning:
            assert job is not None
            member = job.back[request.rank] = Member(job, request, now + request.timeout)
            self.changes.begin_if_wanted(job)
            return member
        if job is not None and candidates and job.missing == [request.rank]:
            self._quotas.check(tenant, job, candidates)
        if job is None:
            job = self._new_job(tenant.name, name, request.world_size, now)
        member = job.members[request.rank] = Member(job, request, now + request.timeout)
        self.scheduler.update(job)
        return member

    def leave(
        self,
        member: Member,
        begun: int | None = None,
        completed: int | None = None,
        why: str | None = None,
        token: int | None = None,
    ) -> None:
        """A rank is done with its job, having begun and completed so many collectives of its generation.

        `why` is the exception that ended it, if one did. Then a job that shrinks has lost it; any other job
        completes what it has begun. Does nothing the second time.

        Args:
            token: the one that it shows; None for that of its newest admission.
        """
        job = member.job
        if member.state is not MemberState.joined:
            return
        reason = f"it ended with {why}" if why else ""
        if reason and job.on_loss is OnLoss.shrink:
            self.lost([member], reason)
            return
        if member.admission is not None and (
            job.id != member.admission.job or (token is not None and member.is_behind(token))
        ):
            begun = completed = 0  # the counts are of the generation before, from which all have gone on
        member.why, member.begun, member.completed = reason, begun, completed
        self._lifecycle.end_member(member, MemberState.left)
        text = f"rank {member.rank} of job {job.name!r} has {f'failed: {reason}' if reason else 'left'}"
        self._effects.log(EventKind.left, text, job, rank=member.rank)
        if self._lifecycle.end_if_empty(job):
            pass
        elif job.failover is not None:
            why = f"{text} in a failover, and nobody can send again what it had sent"
            self._lifecycle.fail(job, why, {"event": "switch", "why": why})
        else:
            self._effects.send_all(job, _left_event(member, job.id))
            if job.state is not JobState.failed:
                self._effects.save(job)
            self.changes.advance(job)
        self.scheduler.run()

    def heard(self, cookie: bytes, now: float) -> Member | None:
        """Takes a sign of life. Returns its member; None if no member has this cookie."""
        self.table.liveness.heard(cookie, now)
        return self.table.cookies.get(cookie)

    def attached(self, member: Member, admitted: Mapping[str, Any], now: float) -> None:
        """Repeats on a member's new stream the event `admitted`, and others that it may have missed."""
        self._effects.add(SendEvent(member, admitted))
        self.table.liveness.heard(member.cookie, now)
        member.attached = now
        job, generation = member.job, member.job.generation
        if generation is not None and generation.open:
            for rank in generation.places:
                if job.members[rank].state is MemberState.left:
                    left = _left_event(job.members[rank], generation.known_as)
                    self._effects.add(SendEvent(member, left))
                if job.change is not None and (why := job.change.lost.get(rank)) is not None:
                    self._effects.add(SendEvent(member, lost_event(job, generation.known_as, [rank], why)))
        self.changes.remind(job)
        self.failovers.remind(member)

    # Losses and deadlines.

    def stream_ended(self, member: Member, now: float) -> None:
        """A member's connection has ended: it is lost at once, if it did not attach a moment ago.

        A client that gave up waiting for the answer to its attach closes that connection too. It lives, and
        its next heartbeat or attach says so.
        """
        if now - member.attached < ATTACH_PATIENCE:
            self.table.liveness.hurry(member.cookie, now + ATTACH_PATIENCE)
        else:
            self.lost([member], "its process ended")

    def lost(self, members: Sequence[Member], why: str) -> None:
        """Members are gone without leaving. Ignores those that have left or are lost already."""
        jobs: dict[int, list[Member]] = {}
        for member in members:
            if member.state is MemberState.joined:
                jobs.setdefault(member.job.number, []).append(member)
        for gone in jobs.values():
            self._lose(gone[0].job, gone, why)
        self.scheduler.run()

    def tick(self, now: float) -> None:
        """Refuses joins that have timed out, and declares members lost that were silent for too long.

        Jobs leave switches that are down, if others have room now, and look for one that takes them.
        """
        self.scheduler.give_up_moving(now)
        self._leave_dead_switches()
        for job in self.table.jobs():
            self._search_again(job, now)
            # A job that opens answers in a moment.
            waiting = (*(job.members.values() if job.state in UNOPENED else ()), *job.back.values())
            late = [each for each in waiting if not (each.admission or each.refusal) and each.expires <= now]
            refusals = [(member, self.scheduler.timeout_refusal(member)) for member in late]
            for member, refusal in refusals:
                member.refusal = refusal
                self._effects.add(AnswerJoin(member))
                self.scheduler.withdraw(member)
                for other in job.members.values():
                    other.crowded_out |= refusal.code == "no_slots"
        silent: dict[int, list[tuple[Member, float]]] = {}
        for member, seconds in self.table.overdue(now):
            silent.setdefault(member.job.number, []).append((member, seconds))
        for gone in silent.values():
            longest = max(seconds for _, seconds in gone)
            self.lost([member for member, _ in gone], f"silent for {longest:.0f} s")

    def close(self, *, for_good: bool = True) -> None:
        """The controller stops: joins that wait are refused. Jobs end, or stay on their switches."""
        for job in self.table.jobs():
            self.scheduler.refuse_joining(job, AdmissionError("the controller is stopping", "stopping"))
            if job.state is not JobState.ended:
                event = {"event": "stopping", "jobs": "end" if for_good else "stay"}
                self._effects.send_all(job, event)
                if for_good:
                    self._lifecycle.end(job, "the controller stopped")

    def _new_job(self, tenant: str, name: str, world_size: int, now: float) -> Job:
        job = self.table.new(tenant, name, world_size, now, self._policy)
        self._effects.log(EventKind.job_created, f"job {name!r} of {world_size} workers", job)
        return job

    def _lose(self, job: Job, gone: Sequence[Member], why: str) -> None:
        waiting = [member for member in gone if member.admission is None]
        for member in waiting:
            if job.state in UNOPENED or job.back.get(member.rank) is member:
                self.scheduler.withdraw(member)
        if job.state is JobState.opening:
            # As if these had never joined: the others go on waiting for them.
            self._lifecycle.remove_generation(job)
            for member in waiting:
                self._lifecycle.end_member(member, MemberState.lost)
                del job.members[member.rank]
            job.state = JobState.joining
            self.scheduler.reset(job)
            return
        lost = [
            member
            for member in gone
            if job.members.get(member.rank) is member and member.state is MemberState.joined
        ]
        if not lost:
            return
        # In a failover members know of no later generation than the one that they leave.
        there = job.failover.former[1].known_as if job.failover and job.failover.former else job.id
        for member in lost:
            member.why = why
            if member.admission is not None:
                self._effects.add(SendEvent(member, lost_event(job, there, [member.rank], why)))
            self._lifecycle.end_member(member, MemberState.lost)
            text = f"rank {member.rank} of job {job.name!r} is lost: {why}"
            self._effects.log(EventKind.lost, text, job, rank=member.rank)
        if self._lifecycle.end_if_empty(job) or job.state is JobState.failed:
            return
        ranks = sorted(member.rank for member in lost)
        event = lost_event(job, there, ranks, why)
        if job.on_loss is OnLoss.fail:
            self._lifecycle.fail(job, f"{list_ranks(ranks, ' is', ' are')} lost: {why}", event)
        else:
            if any(member.admission is not None for member in lost):
                self._effects.send_all(job, event)
            self.changes.shrink(job, lost, why)

    # Switches.

    def wants(self, part: Generation) -> bool:
        """Returns True if this generation, or part of one, is still to be installed."""
        job = self.table.ids.get(part.id)
        return job is not None and job.generation is not None and part in job.generation.parts

    def opened(self, job: Job, part: Generation, now: float) -> None:
        """A switch has installed the job, or its part of it, and initialised every slot."""
        generation = job.generation
        if generation is None or part not in generation.parts or generation.open:
            return
        part.ready = True
        if not all(each.ready for each in generation.parts):
            return
        if job.failover is not None:
            self.failovers.opened(job, now)
            self._leave_dead_switches()
            self._leave_drained(job)
            self.scheduler.run()
            return
        change = job.change
        job.state, job.change = JobState.running, None
        self._lifecycle.admit(job, now, {} if change is None else change.lost)
        for rank in generation.places:  # those that were not admitted yet when these left
            if job.members[rank].state is MemberState.left:
                self._effects.send_all(job, _left_event(job.members[rank], job.id))
        if change is not None:
            self.changes.log(job, change)
        else:
            text = f"job {job.name!r} runs with {job.world_size} workers"
            self._effects.log(EventKind.opened, text, job)
        self._effects.save(job)
        self.scheduler.run()

    def opening_failed(self, job: Job, part: Generation, error: SwitchAggError) -> None:
        """A switch refused the job, or never echoed an INIT: all ranks are refused, unless the job has run.

        That one goes to another switch, or waits until one takes it.
        """
        generation, search, name = job.generation, job.search, part.slot_range.switch
        if generation is None or part not in generation.parts or generation.open:
            return
        several = len(self.pool.switches) > 1
        why = f"{f'switch {name!r}' if several else 'the switch'} did not take job {job.name!r}: {error}"
        if search is None:
            self.scheduler.opening_failed(job, why)
        else:
            search.refused, search.last, search.why = search.refused | {name}, name, why
            if job.failover is not None:
                search.waits = not self.failovers.begin(job, name, why)
            else:
                self._lifecycle.remove_generation(job)
                self.changes.advance(job)
            if search.waits:
                text = f"job {job.name!r} waits for a switch, at most {job.deadline:g} s: {why}"
                self._effects.log(EventKind.moving, text, job, switch=name)
        self.scheduler.run()

    def _search_again(self, job: Job, now: float) -> None:
        """Tries every second to find a switch for a running job that none has taken; fails it at last."""
        search = job.search
        down = [name for name in job.switches if self.pool.switches[name].is_lost]
        if search is None:
            return
        if not (search.waits and down):
            search.down_since = None
        elif search.down_since is None:
            search.down_since = now
        if not search.waits or not (search.why or down):
            return  # its switches may only not be reached yet
        if search.since is None:
            search.since, search.retry_at = now, now + RETRY
        # Members send nothing in a change, so that no port refuses their packets and tells them.
        hopeless = job.failover is None and bool(down) and not self.failovers.has_standby(job)
        since, patience = (search.down_since, DOWN_PATIENCE) if hopeless else (search.since, job.deadline)
        assert since is not None
        if now - since >= patience:
            why = f"{search.why}; no switch has taken it for {patience:g} s"
            if hopeless or not search.why:
                why = (
                    f"it has lost switch {down[0]!r} in a change of its membership, and no other has room "
                    f"for P = {job.slots}, K = {job.words}"
                )
            self._lifecycle.fail(job, why, {"event": "switch", "why": why})
        elif now >= search.retry_at:
            search.retry_at, search.refused = now + RETRY, frozenset()
            if job.failover is None:
                self.changes.advance(job)
            elif not self.failovers.begin(job, search.last, search.why):
                self.failovers.begin(job, search.last, search.why, back=True)

    def switch_down(self, name: str, why: str) -> None:
        """A switch cannot be reached. Its jobs go over to others that have room; nothing new is placed there.

        Those without another switch stay: it may forward packets although its controller does not reach it.
        """
        switch = self.pool.switches[name]
        if switch.up or switch.why == UNREACHED:  # another reason is no event
            self._effects.log(EventKind.switch_down, f"switch {name!r} is down: {why}", switch=name)
        switch.up, switch.why = False, why
        for job in self.table.jobs():
            if name not in job.switches or job.generation is None:
                continue
            if job.change is not None and not self.changes.uses_old_generation(job):
                if not job.generation.open:
                    self._lifecycle.remove_generation(job)
                    self.changes.advance(job)
            elif not self.failovers.begin(job, name, f"switch {name!r} is down: {why}"):
                self.changes.fail_if_stranded(job)

    def _leave_dead_switches(self) -> None:
        """Has jobs go over that no other switch could take when theirs went down.

        Their members need not notice: of a tree, only the leaves' ports can refuse their packets.
        """
        switches = self.pool.switches.values()
        down = {each.name: each.why for each in switches if each.is_lost}
        for job in self.table.jobs():
            generation = job.generation
            if generation is not None and generation.forgotten and job.failover is None:
                self._replace_slots(job, generation, min(generation.forgotten))
        for job in self.table.jobs() if down else ():
            names = job.switches if job.failover is None else job.failover.target.switches
            gone = next((name for name in names if name in down), None)
            if gone is not None and job.change is None:
                self.failovers.begin(job, gone, f"switch {gone!r} is down: {down[gone]}")

    def _replace_slots(self, job: Job, generation: Generation, name: str) -> None:
        """Has a job whose slots a switch has lost go on, there or elsewhere. Fails it where it cannot.

        Where other switches are not known yet, as after a restart of the controller, it waits for them.
        """
        generation.forgotten |= {name}
        why = f"switch {name!r} {_RESTARTED}"
        if self.failovers.begin(job, name, why, back=True):
            return
        unknown = any(not each.up and not each.is_lost for each in self.pool.switches.values())
        if unknown and self.failovers.is_complete(job):
            return
        if not self._lifecycle.end_if_empty(job):
            self._lifecycle.fail(job, why, {"event": "switch", "why": why})

    def _leave_drained(self, job: Job, who: str = "") -> None:
        """Has a job go over from a switch that is drained, unless it is on its way already.

        One that was drained while the job went over to it is left as soon as the job is there.
        """
        if job.failover is not None or (job.change is not None and job.change.begun):
            return
        drained = [name for name in job.switches if self.pool.switches[name].state is SwitchState.draining]
        if drained:
            self.failovers.begin(
                job, drained[0], f"switch {drained[0]!r} is being drained{who}", planned=True
            )

    def switch_measured(self, name: str, capacity: Capacity, address: tuple[str, int] | None = None) -> None:
        """A switch reports its capacity, and its address and UDP port if these have become known.

        Raises `SwitchError` if its jobs do not fit any more.
        """
        switch = self.pool.switches[name]
        if address is not None:
            switch.address = address
        if capacity != switch.capacity:
            try:
                switch.resize(capacity)
            except SwitchAggError as error:
                raise SwitchError(
                    f"it is not what it was, and its jobs do not fit: {error}; evict them, "
                    "or start the switch as it was"
                ) from None
        switch.measured = True

    def switch_up(self, name: str, found: Reconciled) -> None:
        """A switch answers, and holds its jobs but those whose slots were lost, which go over, or fail."""
        switch = self.pool.switches[name]
        back = not switch.up
        switch.up, switch.why = True, ""
        if back:
            self._effects.log(EventKind.switch_up, f"switch {name!r} is up", switch=name)
        if (back and found.kept) or found.missing or found.removed:
            self._effects.log(
                EventKind.reconciled,
                f"switch {name!r}: {len(found.kept)} jobs were in order, "
                f"{len(found.missing)} were not there, {len(found.removed)} were nobody's",
                switch=name,
            )
        for job_id in found.missing:
            job = self.table.ids.get(job_id)
            if job is None or job.generation is None:
                continue
            if not job.generation.open:
                part = next(each for each in job.generation.parts if each.slot_range.switch == name)
                part.ready = False  # a stripe that a failover keeps has been
                if not self.failovers.begin(job, name, f"switch {name!r} {_RESTARTED}", back=True):
                    self.opening_failed(job, part, SwitchError(f"it {_RESTARTED}"))
                continue
            if not self.changes.uses_old_generation(job):
                continue  # the next generation opens below
            if job.failover is None:
                self._replace_slots(job, job.generation, name)
            else:  # its members report what they lack of all switches
                job.failover.gone |= {name}
                job.failover.planned = False
        self._leave_dead_switches()
        self.scheduler.run()

    def set_draining(self, name: str, draining: bool, who: str) -> None:
        """Places no new job on a switch, or does so again.

        The jobs of a switch that is drained go over to others that have room, in the middle of a collective.
        One of which a rank has left, or for which there is room later, moves at its next pause.
        """
        switch = self.pool.switches[name]
        if switch.draining is not draining:
            switch.draining = draining
            what = "is being drained" if draining else "takes jobs again,"
            self._effects.log(EventKind.drained, f"switch {name!r} {what} by {who}", switch=name)
        for job in self.table.jobs() if draining else ():
            if job.placement is not None and name in job.placement.switches and job.state in UNOPENED:
                self.scheduler.give_back(job)
                job.state = JobState.queued
                self._effects.save(job)
            else:
                self._leave_drained(job, f" by {who}")
        self.scheduler.run()


def _left_event(member: Member, job_id: int) -> dict[str, object]:
    counts = {"begun": [member.begun], "completed": [member.completed]}
    event: dict[str, object] = {"event": "left", "ranks": [member.rank], **counts, "job": job_id}
    return event | {"why": member.why} if member.why else event


def joinable(jobs: Sequence[Job], name: str, request: JoinRequest) -> Job | None:
    """Returns the one of the jobs of that name, older ones first, that a rank joins; None for a new one.

    Members of failed jobs take no rank: they may have gone while no controller was there to hear it.

    Raises `AdmissionError` if the rank is taken, or the newest job does not take it.
    """
    jobs = [job for job in jobs if job.state is not JobState.failed]
    for job in jobs:
        there = job.back.get(request.rank) or job.members.get(request.rank)
        if there is not None and there.state is MemberState.joined:
            raise AdmissionError(
                f"rank {request.rank} of job {name!r} is taken by {there.endpoint[0]}:"
                f"{there.endpoint[1]}; it can join again when that one has left",
                "rank_taken",
            )
    if not jobs:
        return None
    newest = jobs[-1]
    if newest.state in UNOPENED:
        return newest
    wrong_size = AdmissionError(
        f"world_size is {request.world_size}; job {name!r} is running with {newest.world_size}",
        "world_size_mismatch",
    )
    if newest.state in (JobState.running, JobState.moving):
        if newest.draining:
            raise AdmissionError(f"job {name!r} is being drained", "draining")
        if newest.on_loss is OnLoss.shrink:
            if request.world_size != newest.world_size:
                raise wrong_size
            was = newest.members.get(request.rank)
            if was is not None and was.state is MemberState.lost:
                return newest
    if len(newest.ranks(MemberState.joined)) == newest.world_size:
        # No rank has left, so this is no rank of the next job but one too many.
        raise wrong_size
    return None


def check_agreement(job: Job, request: JoinRequest) -> None:
    """Raises `AdmissionError` if a rank's request contradicts the job's order or another rank."""
    there = [*job.joined(), *job.back.values()]
    ranks = sorted(member.rank for member in there)
    if request.world_size != job.world_size:
        said = f"ranks {ranks} say" if job.spec is None else "it was created for"
        raise AdmissionError(
            f"rank {request.rank} says that job {job.name!r} has {request.world_size} workers; "
            f"{said} {job.world_size}",
            "world_size_mismatch",
        )
    who = f"ranks {ranks} have" if job.spec is None else "it was created with"
    for name in ("words", "slots", "priority", "deadline", "on_loss"):
        mine = getattr(request, name)
        known = getattr(job, name) if name in ("words", "slots") else job.requested(name)
        if mine is not None and known is not None and mine != known:
            raise AdmissionError(
                f"rank {request.rank} asks for {mine} {name} in job {job.name!r}; "
                f"{who} {known}. All must ask for the same, or for none",
                "settings_mismatch",
            )
    if (there or job.spec is not None) and request.stripes != job.stripes:
        raise AdmissionError(
            f"rank {request.rank} asks for {request.stripes} stripes in job {job.name!r}; "
            f"{who} {job.stripes}. All must ask for the same",
            "settings_mismatch",
        )
    if there and job.touch != request.touch:
        raise AdmissionError(
            f"rank {request.rank} has touch={request.touch} in job {job.name!r}, {who} touch={job.touch}",
            "settings_mismatch",
        )
    check_address_free(job, request.address, (request.port, *request.more_ports), request.rank)
