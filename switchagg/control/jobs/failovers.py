"""Failovers of running jobs: a switch is gone, and the job goes on at another one. No I/O and no clock.

    a switch cannot be reached, has restarted, refuses a member's packets, or gives it a wrong sum twice
       |      ranges of the job's P and K are reserved on switches that are up; members are told
       |      each reports the lowest packet number whose RESULT it lacks, and its new UDP port
    all have: the generation is removed, and installed there, from the lowest of these packet numbers on
       |      every INIT is echoed: the answer to all is their new admission
    each sends again what it had sent from that packet number on (docs/protocol.md, section 13)

Of a job that is dealt to several switches, the stripes of those that are gone go over. The others stay as
they are, and packet numbers are those of a stripe.

The membership, and the numbers of packets and collectives, stay. A member that has left or is lost holds
contributions that nobody can send again: then there is no failover. A planned one ends with such a loss, as
long as the old switch has the job: the change of membership then leaves that switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from switchagg.control.jobs.candidates import CandidateFinder, PlacementCandidate
from switchagg.control.jobs.effects import AnswerStep, ChangeStep, Effects, SendEvent
from switchagg.control.jobs.job import Failover, Job, Member, Placement, SwitchSearch
from switchagg.control.jobs.lifecycle import JobLifecycle
from switchagg.control.jobs.membership_changes import check_address_free, checked_ports
from switchagg.control.jobs.records import EventKind, JobState, MemberState
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.errors import AdmissionError


@dataclass(frozen=True, slots=True)
class Failovers:
    """Begins the failovers of jobs and takes them from step to step."""

    _lifecycle: JobLifecycle
    _pool: SwitchPool
    _candidates: CandidateFinder
    _effects: Effects

    def has_standby(self, job: Job) -> bool:
        """Returns True if the job could run on another switch too, were that free.

        A switch that this controller has not reached yet may be such a one.
        """
        mine = () if job.placement is None else job.placement.switches
        if any(not each.measured for each in self._pool.switches.values() if each.name not in mine):
            return True
        return any(set(each.switches) - set(mine) for each in self._fitting(job))

    def begin(self, job: Job, gone: str, why: str, *, back: bool = False, planned: bool = False) -> bool:
        """Begins a failover from the switch `gone`. Returns False, with nothing changed, if none is possible.

        A failover whose target is gone begins again. With `back` the switch is there again, empty, and the
        job may go on there. It is `planned` if that switch lives, and is drained.
        """
        generation = job.generation
        if generation is None or job.state not in (JobState.running, JobState.moving):
            return False
        if not self.is_complete(job):
            return False
        if job.failover is None and not generation.open:
            return False  # of a change of membership
        old, earlier = job.placement, job.failover
        target = self._target(job, gone, back=back)
        if target is None:
            return False
        assert old is not None
        used = (earlier.former[0] if earlier is not None and earlier.former is not None else old).switches
        left = generation.forgotten | ({gone} & {*used})
        generation.forgotten = frozenset()
        self._lifecycle.cancel_failover(job)
        job.failover = (
            Failover(why, target, left, {}, planned and left == {gone})
            if earlier is None
            else replace(
                earlier,
                why=why,
                target=target,
                gone=earlier.gone | left,
                planned=False,
                first=None,
            )
        )
        search = job.failover.search
        search.refused, search.waits = frozenset() if back else search.refused, False
        if job.change is not None:
            self._postpone(job)
        there = ", ".join(target.switches)
        self._effects.log(EventKind.moving, f"job {job.name!r} goes over to {there}: {why}", job, switch=gone)
        for member in job.joined():
            self._remind(member)
        self._advance(job)
        return True

    def _target(self, job: Job, gone: str, *, back: bool) -> Placement | None:
        """Reserves ranges for a job that leaves `gone`, and rather none on a switch that it has left before.

        There is none on those that have refused the job since all were tried. With `back` any will do.
        """
        candidates, earlier = self._fitting(job), job.failover
        if back:
            return self._pool.take(candidates, held=job.placement)
        if earlier is not None:
            refused = earlier.search.refused
            target = self._pool.take(candidates, without=earlier.gone | refused | {gone}, held=job.placement)
            if target is not None or refused:
                return target
        return self._pool.take(candidates, without=[gone], held=job.placement)

    @staticmethod
    def is_complete(job: Job) -> bool:
        """Returns True if all members of the job's generation are there, and can send again what they had."""
        generation = job.generation
        return generation is not None and all(
            job.members[rank].state is MemberState.joined for rank in generation.places
        )

    def _fitting(self, job: Job) -> list[PlacementCandidate]:
        return [each for each in self._candidates.of_job(job) if each.size == job.size]

    def _postpone(self, job: Job) -> None:
        """Has members that are about to change the membership do so after the failover."""
        change = job.change
        assert change is not None
        if change.target is not None:
            self._pool.release(change.target, job.placement)
            change.target = None
        change.proceeded.clear()
        change.search = SwitchSearch()
        later = AdmissionError(f"job {job.name!r} goes over to another switch first", "switch")
        for member in job.joined():
            self._effects.add(AnswerStep(member, ChangeStep.progress, refusal=later))
            self._effects.add(AnswerStep(member, ChangeStep.proceed, refusal=later))

    def remind(self, member: Member) -> None:
        """Tells a member of its job's failover if that waits for it."""
        failover = member.job.failover
        if failover is not None and member.rank not in failover.lowest:
            self._remind(member)

    def _remind(self, member: Member) -> None:
        job = member.job
        assert job.failover is not None
        assert member.admission is not None
        event = {"event": "failover", "job": member.admission.job, "why": job.failover.why}
        for stripe, each in enumerate(member.admission.stripes):
            if each.switch in job.failover.gone:
                event["stripe"] = stripe
        self._effects.add(SendEvent(member, event))

    # Calls of members.

    def report(
        self,
        member: Member,
        token: int,
        lowest: Sequence[int],
        address: str,
        ports: Sequence[int],
        *,
        stripe: int = 0,
        damaged: bool = False,
    ) -> None:
        """A member has stopped sending, lacks the RESULTs of packet numbers `lowest`, and has new ports.

        Both are by stripe; `stripe` is the one whose switch is gone. The answer comes as an `AnswerStep`.
        Where no failover is under way, this begins one. Where a RESULT was `damaged` and no other switch has
        room, the job begins anew at its own. Raises `AdmissionError` if the job is over, a port is another's,
        or there is no other switch.
        """
        job = member.job
        if job.state not in (JobState.running, JobState.moving) or member.state is not MemberState.joined:
            raise AdmissionError(
                f"job {job.name!r} is {job.shown}{f': {job.why}' if job.why else ''}", "failed"
            )
        assert member.admission is not None
        if not all(0 <= each < 1 << 63 for each in lowest):
            raise AdmissionError(f"lowest is {min(lowest)}; accepted: 0 and up", "bad_request")
        stripes = [each.switch for each in member.admission.stripes] or [member.admission.switch]
        if not (len(lowest) == len(stripes) and 0 <= stripe < len(stripes)):
            raise AdmissionError(
                f"stripe {stripe} of {len(lowest)}; job {job.name!r} has {len(stripes)}", "bad_request"
            )
        address = checked_ports(job, address, ports)
        if token != member.admission.token and job.failover is None:
            # The answer to an earlier call of this member was lost.
            self._effects.add(AnswerStep(member, ChangeStep.replay))
            return
        check_address_free(job, address, ports, member.rank)
        if job.failover is None:
            gone = stripes[stripe]
            trouble = "got a wrong sum from" if damaged else "cannot reach"
            why = f"rank {member.rank} {trouble} switch {gone!r}"
            if not self.begin(job, gone, why) and not (damaged and self.begin(job, gone, why, back=True)):
                raise self._refusal(job, gone)
        assert job.failover is not None
        if job.failover.first is None:
            job.failover.lowest[member.rank] = tuple(lowest)
            member.move_to(address, ports)
            self._advance(job)

    def _refusal(self, job: Job, gone: str) -> AdmissionError:
        change = job.change
        waits = change is not None and bool(change.lost)  # the loss is dealt with first
        if waits or any(not switch.up and not switch.is_lost for switch in self._pool.switches.values()):
            return AdmissionError(f"job {job.name!r} cannot leave switch {gone!r} yet", "switch")
        return AdmissionError(
            f"job {job.name!r} has lost switch {gone!r}, and no other has room for P = {job.slots}, "
            f"K = {job.words}",
            "no_switch",
        )

    # Steps.

    def _advance(self, job: Job) -> None:
        """Goes over as soon as every member has reported."""
        failover, generation = job.failover, job.generation
        assert failover is not None
        assert generation is not None
        if not set(generation.places) <= failover.lowest.keys():
            return
        failover.first = tuple(map(min, zip(*failover.lowest.values(), strict=True)))
        old = job.placement
        assert old is not None
        if failover.former is None:
            failover.former = old, generation
        kept = [
            part
            for part in (failover.former[1].parts if failover.former[1].stripes else ())
            if part.slot_range in failover.target.ranges and part.slot_range.switch not in failover.gone
        ]
        self._lifecycle.remove_generation(job, [part.slot_range for part in kept])
        self._pool.release(old, failover.target)
        self._lifecycle.begin(job, failover.target, kept, failover.first)

    def opened(self, job: Job, now: float) -> None:
        """The job is installed on its new switches: members are admitted there."""
        failover, job.failover = job.failover, None
        assert failover is not None
        self._lifecycle.admit(job, now, {}, replays=True)
        self._effects.log(EventKind.moved, f"job {job.name!r} runs on {', '.join(job.switches)}", job)
        self._effects.save(job)
