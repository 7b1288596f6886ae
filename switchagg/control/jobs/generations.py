"""Makes, opens and removes the generations of jobs: ids, tokens, slots, INITs. No I/O and no clock.

The lowest layer of the book of jobs; `membership.py` and `jobs.py` stand on it. Rules here change records and
queue actions, which `poll` hands to the shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from switchagg.control.jobs.effects import (
    Action,
    Answer,
    Forget,
    Hang,
    Install,
    Note,
    Question,
    Remove,
    Save,
    Settle,
    Tell,
)
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.liveness import Liveness
from switchagg.control.jobs.placement import Site, Tree
from switchagg.control.jobs.records import Admission, EventKind, JobState, MemberState
from switchagg.control.jobs.trees import Trees
from switchagg.errors import AdmissionError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry

_JOB_IDS: Final = 0xFFFF  # ids are 1..this; 0 is nobody's


class Generations:
    """The jobs on all switches, and what is to be done about them."""

    def __init__(
        self, placement: Trees, policy: SkipPolicy, draw: Callable[[], int], cookies: Callable[[], bytes]
    ) -> None:
        self.placement = placement
        self.policy = policy
        self.liveness: Liveness[bytes] = Liveness()
        self.last_id = 0
        self.last_number = 0
        self._draw = draw
        self._draw_cookie = cookies
        self._names: dict[tuple[str, str], list[Job]] = {}  # jobs that have not ended, oldest first
        self._ids: dict[int, Job] = {}  # by the ids that a switch knows
        self._cookies: dict[bytes, Member] = {}
        self._actions: list[Action] = []

    def poll(self) -> list[Action]:
        """Returns what is to be done now, in order, and forgets it."""
        actions, self._actions = self._actions, []
        return actions

    def jobs(self) -> list[Job]:
        """Returns every job that has not ended, by tenant and name, older ones first."""
        return [job for key in sorted(self._names) for job in self._names[key]]

    def belonging(self, switch: str) -> list[Generation]:
        """Returns what is on a switch, with its slots initialised."""
        return [
            part
            for job in self._ids.values()
            if job.generation is not None
            for part in job.generation.parts
            if part.ready and part.site.switch == switch
        ]

    # Opening.

    def _begin(self, job: Job, tree: Tree, members: list[Member]) -> None:
        """Makes the next generation of a job, of these members in the order of their ranks."""
        job.last_id = self._new_id()
        self._ids[job.last_id] = job
        taken = {0}
        for member in members:
            member.token = self._draw_new(taken)
            if not member.cookie:
                member.cookie = self._draw_cookie()
                self._cookies[member.cookie] = member
        job.tree, job.shape, job.stays = tree, tree.root.shape, False
        job.generation = self._generation(job, tree, members, taken)
        job.generation.prepare()
        for part in job.generation.parts:
            self._actions.append(Install(job, part))

    def _generation(self, job: Job, tree: Tree, members: list[Member], taken: set[int]) -> Generation:
        """A job on its switches, with a result token of each, and a token of each leaf at the root."""
        first_seq = self._draw()
        places = tuple(member.rank for member in members)
        seats = dict(tree.seats) if tree.leaves else {tree.root.switch: places}

        def part(site: Site, leaves: tuple[WorkerEntry, ...], parent: ParentEntry | None) -> Generation:
            ranks = seats.get(site.switch, ())
            here = [member for member in members if member.rank in ranks]
            workers = [WorkerEntry(bit, *member.endpoint, member.token) for bit, member in enumerate(here)]
            entry = JobEntry(
                job=job.last_id,
                base=site.base,
                slots=site.slots,
                words=site.words,
                result_token=self._draw_new(taken),
                workers=(*workers, *leaves),
                touch=job.touch,
                parent=parent,
            )
            return Generation(site, entry, first_seq, ranks)

        first = len(seats.get(tree.root.switch, ()))
        leaves = tuple(
            WorkerEntry(bit, *self.placement.rooms[site.switch].address, self._draw_new(taken))
            for bit, site in enumerate(tree.leaves, first)
        )
        root = part(tree.root, leaves, None)
        if leaves:
            above = self.placement.rooms[tree.root.switch].address
            root.leaves = tuple(
                part(
                    site,
                    (),
                    ParentEntry(*above, leaf.token, tree.root.base, root.entry.result_token),
                )
                for site, leaf in zip(tree.leaves, leaves, strict=True)
            )
            root.seats = (*root.places, *(site.switch for site in tree.leaves))
            root.places = places
        return root

    def _admit(self, job: Job, now: float, lost: Mapping[int, str]) -> None:
        """The generation is open: every member of it gets what it needs.

        Args:
            lost: why, by rank, members of the generation before were lost.
        """
        generation = job.generation
        assert generation is not None
        generation.open = True
        interval = min(1.0, job.deadline / 5)
        for number, rank in enumerate(generation.places):
            member = job.members[rank]
            part, bit = generation.seat(rank)
            new = member.admission is None
            if member.admission is not None:
                member.former = member.admission.token
            member.admission = Admission(
                switch=part.site.switch,
                job=generation.id,
                token=member.token,
                result_token=part.entry.result_token,
                base=part.site.base,
                slots=part.site.slots,
                words=part.site.words,
                first_seq=generation.first_seq,
                policy=job.policy,
                worker_bit=bit,
                senders=len(part.senders),
                rank=number,
                world_size=len(generation.places),
                places=generation.places,
                lost=tuple(sorted(lost.items())),
                deadline=job.deadline,
                on_loss=job.on_loss,
                cookie=member.cookie,
                interval=interval,
            )
            if new:
                self.liveness.watch(member.cookie, job.deadline, now)
                self._actions.append(Settle(member))
            else:
                self._actions.append(Answer(member, Question.proceed))

    def _remove(self, job: Job) -> None:
        """Its switches forget the job; its slots are still kept for it."""
        if job.generation is not None:
            del self._ids[job.generation.id]
            for part in job.generation.parts:
                self._actions.append(Remove(part))
            job.generation = None

    def _retire(self, job: Job) -> None:
        """Its switches forget the job, and its slots are free."""
        self._remove(job)
        if job.tree is not None:
            self.placement.give_back(job.tree)
            job.tree = None

    def _new_id(self) -> int:
        """The id that was free longest, so that late packets of an ended job meet no other."""
        for _ in range(_JOB_IDS):
            self.last_id = self.last_id % _JOB_IDS + 1
            if self.last_id not in self._ids:
                break
        return self.last_id

    def _draw_new(self, taken: set[int]) -> int:
        while (number := self._draw()) in taken:
            pass
        taken.add(number)
        return number

    # Ending.

    def _part(self, member: Member, state: MemberState) -> None:
        """A member is gone for good."""
        member.state = state
        if member.cookie:
            self.liveness.forget(member.cookie)
            self._cookies.pop(member.cookie, None)
        self._actions.append(Hang(member))

    def _refuse(self, members: Iterable[Member], error: AdmissionError) -> None:
        """Refuses those that wait to be let in."""
        for member in members:
            if member.admission is None and member.refusal is None:
                member.refusal = error
                self._actions.append(Settle(member))
                self._part(member, MemberState.lost)

    def _drop_change(self, job: Job, error: AdmissionError) -> None:
        """A change of membership comes to nothing: whoever waits for it hears why."""
        change, job.change = job.change, None
        if change is not None:
            if change.target is not None:
                self.placement.give_back(change.target, job.tree)
            for member in job.joined():
                for question in Question:
                    self._actions.append(Answer(member, question, 0, str(error), error.code))
        self._refuse(job.back.values(), error)
        job.back.clear()

    def _fail(self, job: Job, why: str, event: Mapping[str, Any], kind: EventKind) -> None:
        """The job is over, though members are still there: they are told, and the switch forgets it."""
        job.why = why
        error = AdmissionError(f"job {job.name!r} has failed: {why}", "failed")
        self._drop_change(job, error)
        self._refuse(list(job.members.values()), error)
        self._retire(job)
        job.state = JobState.failed
        self._tell(job, {**event, "job": job.last_id})
        self._actions.append(Forget(job))
        self._note(kind, f"job {job.name!r} has failed: {why}", job)

    def _end_if_empty(self, job: Job) -> bool:
        if job.state is not JobState.ended and not job.ranks(MemberState.joined):
            self._end(job)
        return job.state is JobState.ended

    def _end(self, job: Job, why: str = "all its members are gone") -> None:
        error = AdmissionError(f"job {job.name!r} has ended: {why}", "failed")
        self._drop_change(job, error)
        self._refuse(list(job.members.values()), error)
        for member in job.joined():
            self._part(member, MemberState.lost)
        self._retire(job)
        job.state = JobState.ended
        key = (job.tenant, job.name)
        self._names[key].remove(job)
        if not self._names[key]:
            del self._names[key]
        self._actions.append(Forget(job))
        self._note(EventKind.ended, f"job {job.name!r} has ended: {why}", job)

    # Saying.

    def _tell(self, job: Job, event: Mapping[str, Any]) -> None:
        """Tells every member that is there."""
        for member in job.joined():
            if member.admission is not None:
                self._actions.append(Tell(member, event))

    def _save(self, job: Job) -> None:
        self._actions.append(Save(job))

    def _note(self, kind: EventKind, text: str, job: Job | None = None, **more: Any) -> None:
        if job is not None:
            more = {
                "tenant": job.tenant,
                "job": job.name,
                "switch": job.site.switch if job.site is not None else None,
                **more,
            }
        self._actions.append(Note(kind, text, **more))
