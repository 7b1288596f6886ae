"""Opens the generations of jobs, removes them, and ends members and jobs. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from switchagg.control.jobs import effects
from switchagg.control.jobs.job import Generation, Job, Member, Placement, init_packets
from switchagg.control.jobs.job_table import JobTable
from switchagg.control.jobs.records import Admission, EventKind, JobState, MemberState, StripeAdmission
from switchagg.control.jobs.switch_pool import SwitchPool
from switchagg.control.jobs.switch_resources import SlotRange
from switchagg.errors import AdmissionError
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry
from switchagg.wire.header import MAX_WEIGHT

FIRST_SIGN: Final = 5.0  # seconds that a member has at least for its first sign of life


@dataclass(frozen=True, slots=True)
class JobLifecycle:
    """Carries jobs of a table from placement to their end."""

    _table: JobTable
    _pool: SwitchPool
    _effects: effects.Effects
    _draw: Callable[[], int]  # a random number of 32 bits
    _draw_cookie: Callable[[], bytes]  # 16 random bytes

    # Generations.

    def begin(
        self, job: Job, placement: Placement, kept: Collection[Generation] = (), first: Sequence[int] = ()
    ) -> None:
        """Makes a job's next generation of the members that are present, and has it installed.

        Args:
            kept: the stripes of the one before that go on as they are.
            first: of a failover, the number that each stripe begins with.
        """
        members = job.joined()
        self._table.assign_id(job)
        taken = {0}
        for member in members:
            member.token = self._draw_new(taken)
            if not member.cookie:
                member.cookie = self._draw_cookie()
                self._table.cookies[member.cookie] = member
        job.placement, job.size, job.stays = placement, placement.root.size, False
        generation = self._generation(job, placement, members, taken)
        if placement.stripes:
            there = {part.slot_range: replace(part, stripes=(), newest=0, open=False) for part in kept}
            parts = [there.get(part.slot_range, part) for part in generation.parts]
            generation, generation.stripes, generation.newest = parts[0], tuple(parts[1:]), job.id
        job.generation = generation
        for number, part in enumerate(generation.parts):
            if not part.ready:
                part.first_packet = first[number if placement.stripes else 0] if first else 0
                self._effects.add(effects.Install(job, part))

    def _generation(
        self, job: Job, placement: Placement, members: list[Member], taken: set[int]
    ) -> Generation:
        """Returns a generation with a result token for each switch and a token for each leaf at the root."""
        first_seq = self._draw()
        places = tuple(member.rank for member in members)
        root_range = placement.root
        seats = dict(placement.seats) if placement.leaves else {root_range.switch: places}

        def part(
            slot_range: SlotRange,
            leaves: tuple[WorkerEntry, ...] = (),
            parent: ParentEntry | None = None,
            stripe: int = 0,
        ) -> Generation:
            ranks = places if placement.stripes else seats.get(slot_range.switch, ())
            here = [member for member in members if member.rank in ranks]
            workers = [
                WorkerEntry(bit, member.endpoint[0], member.ports[stripe], member.token)
                for bit, member in enumerate(here)
            ]
            alone = len(placement.ranges) == 1 and job.touch
            requests = [member.request for member in here]
            entry = JobEntry(
                job=job.id,
                base=slot_range.base,
                slots=slot_range.slots,
                words=slot_range.words,
                result_token=self._draw_new(taken),
                workers=(*workers, *leaves),
                touch=job.touch,
                parent=parent,
                shared=alone and self._pool.switches[slot_range.switch].shares_slots(requests),
            )
            start = self._draw() if stripe else first_seq
            weight = placement.weights[stripe] if placement.stripes else MAX_WEIGHT
            return Generation(
                slot_range, entry, start, ranks, pending=init_packets(entry, start), weight=weight
            )

        switches = self._pool.switches
        leaves = tuple(
            WorkerEntry(bit, *switches[each.switch].address, self._draw_new(taken))
            for bit, each in enumerate(placement.leaves, len(seats.get(root_range.switch, ())))
        )
        root = part(root_range, leaves)
        if leaves:
            address = switches[root_range.switch].address
            base, result_token = root_range.base, root.entry.result_token
            root.leaves = tuple(
                part(each, (), ParentEntry(*address, leaf.token, base, result_token))
                for each, leaf in zip(placement.leaves, leaves, strict=True)
            )
            root.seats = (*root.places, *(each.switch for each in placement.leaves))
            root.places = places
        root.stripes = tuple(part(each, stripe=i) for i, each in enumerate(placement.stripes, 1))
        return root

    def admit(self, job: Job, now: float, lost: Mapping[int, str], *, replays: bool = False) -> None:
        """Opens a job's generation: its members get admissions, which say who was `lost` before, and why.

        Args:
            replays: it is that of a failover, which goes on; a change of membership begins anew.
        """
        generation = job.generation
        assert generation is not None
        generation.open = True
        receivers = self._receivers(generation)
        tree = tuple(each.slot_range.switch for each in generation.parts) if generation.leaves else ()
        for number, rank in enumerate(generation.places):
            member = job.members[rank]
            part, bit = generation.seat(rank)
            former = member.admission
            member.admission = Admission(
                **asdict(part.slot_range),
                job=generation.known_as,
                token=member.token,
                result_token=part.entry.result_token,
                first_seq=_of_packet_0(part),
                first_packet=part.first_packet,
                stripes=tuple(
                    StripeAdmission(
                        switch=each.slot_range.switch,
                        job=each.id,
                        token=each.entry.workers[bit].token,
                        result_token=each.entry.result_token,
                        base=each.slot_range.base,
                        first_seq=_of_packet_0(each),
                        first_packet=each.first_packet,
                        weight=each.weight,
                    )
                    for each in (generation.parts if generation.stripes else ())
                ),
                policy=job.policy,
                worker_bit=bit,
                senders=len(part.senders),
                rank=number,
                world_size=len(generation.places),
                places=generation.places,
                receivers=receivers,
                lost=tuple(sorted(lost.items())),
                deadline=job.deadline,
                on_loss=job.on_loss,
                cookie=member.cookie,
                interval=min(1.0, job.deadline / 5),
                shared=part.entry.shared,
                tree=tree,
            )
            if former is None:
                # It hears of its admission when the store has that.
                self._table.liveness.watch(member.cookie, job.deadline, now, grace=FIRST_SIGN)
                self._effects.add(effects.AnswerJoin(member))
            else:
                member.former, member.replays = former.token, replays
                step = effects.ChangeStep.replay if replays else effects.ChangeStep.proceed
                self._effects.add(effects.AnswerStep(member, step))

    def _receivers(self, generation: Generation) -> tuple[int, ...]:
        """Returns for each rank the `reply` that names it or its leaf; none if a switch does not direct."""
        names = [part.slot_range.switch for part in generation.parts]
        if not all(self._pool.switches[name].capacity.directs for name in names):
            return ()
        seats = [(generation.seat(rank)[0], rank) for rank in generation.places]
        senders = generation.senders
        return tuple(
            1 + senders.index(rank if part is generation else part.slot_range.switch) for part, rank in seats
        )

    def remove_generation(self, job: Job, kept: Collection[SlotRange] = ()) -> None:
        """Removes a job from its switches, except from ranges that it keeps; its slots stay reserved."""
        if job.generation is not None:
            parts = job.generation.parts
            stay = {part.id for part in parts if part.slot_range in kept}
            for part in parts:
                if part.slot_range not in kept:
                    self._effects.add(effects.Remove(part))
                if part.id not in stay:
                    self._table.ids.pop(part.id, None)
            job.generation = None

    def free_ranges(self, job: Job) -> None:
        """Removes a job from its switches and frees its slots."""
        self.remove_generation(job)
        if job.placement is not None:
            self._pool.release(job.placement)
            job.placement = None

    def cancel_failover(self, job: Job) -> None:
        """Forgets a failover and frees what was reserved for it, unless the job is being installed there."""
        failover, job.failover = job.failover, None
        if failover is not None and failover.target is not job.placement:
            self._pool.release(failover.target, job.placement)

    def _draw_new(self, taken: set[int]) -> int:
        while (number := self._draw()) in taken:
            pass
        taken.add(number)
        return number

    # Ends.

    def end_member(self, member: Member, state: MemberState) -> None:
        """Ends a membership: the member has left or is lost."""
        member.state = state
        self._table.unregister(member)
        self._effects.add(effects.CloseStream(member))

    def refuse(self, members: Iterable[Member], error: AdmissionError) -> None:
        """Refuses those of these members that are not admitted yet."""
        for member in list(members):
            if member.admission is None and member.refusal is None:
                member.refusal = error
                self._effects.add(effects.AnswerJoin(member))
                self.end_member(member, MemberState.lost)

    def refuse_returning(self, job: Job, error: AdmissionError) -> None:
        """Refuses the lost ranks that wait to be let in again."""
        self.refuse(job.back.values(), error)
        job.back.clear()

    def end_if_empty(self, job: Job) -> bool:
        """Ends a job without present members; returns True if it has ended."""
        if job.state is not JobState.ended and not job.ranks(MemberState.joined):
            self.end(job)
        return job.state is JobState.ended

    def fail(self, job: Job, why: str, event: Mapping[str, Any]) -> None:
        """Fails a job: tells its members and removes it from its switches. It has ended if none is there."""
        job.why = why
        self._release(job, AdmissionError(f"job {job.name!r} has failed: {why}", "failed"))
        self.free_ranges(job)
        job.state = JobState.failed
        self._effects.send_all(job, {"job": job.id, **event})
        self._effects.save(job)
        self._effects.log(EventKind.failed, f"job {job.name!r} has failed: {why}", job)
        self.end_if_empty(job)

    def end(
        self, job: Job, why: str = "all its members are gone", refusal: AdmissionError | None = None
    ) -> None:
        """Ends a job and every membership, and frees all that it has. Ranks that wait get the refusal."""
        self._release(job, refusal or AdmissionError(f"job {job.name!r} has ended: {why}", "failed"))
        for member in job.joined():
            self.end_member(member, MemberState.lost)
        self.free_ranges(job)
        job.state = JobState.ended
        self._table.remove(job)
        self._effects.save(job)
        self._effects.log(EventKind.ended, f"job {job.name!r} has ended: {why}", job)

    def _release(self, job: Job, error: AdmissionError) -> None:
        """Refuses the ranks that wait for a job that is over: for its change of membership, or to join."""
        change, job.change = job.change, None
        if change is not None and change.target is not None:
            self._pool.release(change.target, job.placement)
        if change is not None or job.failover is not None:
            self.cancel_failover(job)
            for member in job.joined():
                for step in effects.ChangeStep:
                    self._effects.add(effects.AnswerStep(member, step, refusal=error))
        self.refuse_returning(job, error)
        self.refuse(job.members.values(), error)


def _of_packet_0(part: Generation) -> int:
    """Returns the sequence number of packet 0; `first_seq` is of the first one that the slots take."""
    return (part.first_seq - part.first_packet) % (1 << 32)
