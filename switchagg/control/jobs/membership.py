"""How the membership of a running job changes: it shrinks, takes a rank back, or moves. No I/O and no clock.

    running   a rank is lost, or all were asked to pause
       |      every member says how many collectives it has completed (progress)
    moving    all have: the answer is the most of them, which each finishes with what the others have
       |      each says that it is done with the old generation (proceed)
    opening   all have: the old generation is removed, a new one installed with who is there
       |      every INIT is echoed: the answer to all is their new admission
    running

Only the lost workers are shut out until then: results of complete collectives are still in the slots, and
who lacks them asks there. A loss on the way restarts nothing: the others carry on without it. A rank that
comes back joins under the rank that it had and waits for all to pause; rank 0 is told to ask for that, since
only the header of a collective reaches all ranks at the same point.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from switchagg.control.jobs.effects import Answer, Fence, Question, Tell
from switchagg.control.jobs.job import Change, ChangeReason, Generation, Job, Member
from switchagg.control.jobs.placement import Tree
from switchagg.control.jobs.places import Places
from switchagg.control.jobs.records import EventKind, JobState, MemberState, check_endpoint
from switchagg.errors import AdmissionError


class Memberships(Places):
    """Jobs whose membership changes."""

    def progress(self, member: Member, completed: int) -> None:
        """A member has stopped after so many collectives. The answer comes as an `Answer`.

        Raises `AdmissionError` where the job is over, or the number is none.
        """
        job = self._changing(member)
        if not 0 <= completed < 1 << 63:
            raise AdmissionError(f"completed is {completed}; accepted: 0 and up", "bad_request")
        if job.change is None:
            # It paused for a change that this controller no longer knows of, or not yet.
            job.change = Change(ChangeReason.move, f"rank {member.rank} has paused")
        job.state = JobState.moving
        job.change.completed[member.rank] = completed
        if job.change.complete_to is not None:
            self._actions.append(Answer(member, Question.progress, job.change.complete_to))
        self._advance(job)

    def proceed(self, member: Member, address: str, port: int) -> None:
        """A member is done with the old generation. The answer, its new admission, comes as an `Answer`.

        Args:
            address, port: where its packets come from in the new one.

        Raises `AdmissionError` where the job is over, `progress` is not answered, or the port is another's.
        """
        job = self._changing(member)
        check_endpoint(address, port)
        change = job.change
        if change is None or change.complete_to is None:
            if member.former and job.state is JobState.running:
                # The answer to an earlier request of this was lost on its way.
                self._actions.append(Answer(member, Question.proceed))
                return
            raise AdmissionError(
                f"rank {member.rank} of job {job.name!r} cannot proceed: "
                "its progress, and that of all others, comes first",
                "bad_request",
            )
        for other in [*job.joined(), *job.back.values()]:
            if other is not member and other.endpoint == (address, port):
                raise AdmissionError(
                    f"{address}:{port} is already rank {other.rank} of job {job.name!r}; "
                    "every rank sends from a port of its own",
                    "address_taken",
                )
        self.placement.options(member.rank, address, member.request.switch, job.switch)
        member.endpoint = (address, port)
        if member.rank not in change.proceeded:
            change.proceeded.add(member.rank)
            self._save(job)
        self._advance(job)

    def _changing(self, member: Member) -> Job:
        job = member.job
        if job.state not in (JobState.running, JobState.moving) or member.state is not MemberState.joined:
            raise AdmissionError(
                f"job {job.name!r} is {job.shown}{f': {job.why}' if job.why else ''}", "failed"
            )
        return job

    # What sets a change off.

    def _shrink(self, job: Job, gone: list[Member], why: str) -> None:
        """Goes on without members that are lost."""
        generation = job.generation
        change = job.change
        if change is None:
            change = job.change = Change(ChangeReason.shrink, why)
        elif not change.begun:
            change.reason, change.why = ChangeReason.shrink, why
        change.lost |= {member.rank: why for member in gone if member.admission is not None}
        if generation is not None and generation.open:
            self._shut_out(generation, gone)
        elif generation is not None:
            # The new one was being opened, with them in it.
            self._remove(job)
        job.state = JobState.moving
        self._save(job)
        self._advance(job)

    def _shut_out(self, generation: Generation, gone: Iterable[Member]) -> None:
        for part in generation.parts:
            seats = [generation.seat(member.rank) for member in gone]
            if bits := sum(1 << bit for there, bit in seats if there is part):
                part.fenced |= bits
                self._actions.append(Fence(part, bits))

    def _ask_to_pause(self, job: Job, reason: ChangeReason, why: str, target: Tree | None = None) -> None:
        """Begins a change that waits until the members come to a pause by themselves."""
        job.change = Change(reason, why, target=target)
        self._remind(job)

    def _remind(self, job: Job) -> None:
        """Tells rank 0 of a pause that is wanted."""
        generation, change = job.generation, job.change
        if generation is None or change is None or change.begun or not generation.open:
            return
        first = job.members[generation.places[0]]
        if first.state is MemberState.joined:
            event: dict[str, Any] = {"event": "pause", "job": generation.id, "why": change.why}
            self._actions.append(Tell(first, event))

    def _look_for_change(self, job: Job) -> None:
        """Lets in who waits, or moves the job off a switch that is being drained."""
        if job.state is not JobState.running or job.change is not None or job.tree is None:
            return
        if job.back:
            ranks = sorted(job.back)
            text = f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"
            self._ask_to_pause(job, ChangeReason.rejoin, f"{text} back")
            return
        emptied = self._draining(job.tree)
        if any(self.placement.rooms[name].up for name in emptied):
            target = self.placement.settle(self._possible(job), without=emptied, held=job.tree)
            if target is not None:
                why = f"moving to switch {target.root.switch}"
                if target.leaves:
                    why += f" and {', '.join(leaf.switch for leaf in target.leaves)} below it"
                self._ask_to_pause(job, ChangeReason.move, why, target)

    # How it goes on.

    def _advance(self, job: Job) -> None:
        """Takes the next step, once everybody that it needs is there."""
        change = job.change
        if job.state is not JobState.moving or change is None:
            return
        needed = self._members(job)
        if change.complete_to is None and needed <= change.completed.keys():
            change.complete_to = max(change.completed.values())
            self._save(job)
            for rank in sorted(needed):
                self._actions.append(Answer(job.members[rank], Question.progress, change.complete_to))
        opening = job.generation is not None and not job.generation.open
        if not opening and not self._waited_for(job, change):
            self._reform(job, change)

    @staticmethod
    def _members(job: Job) -> set[int]:
        return {member.rank for member in job.joined() if member.admission is not None}

    def _waited_for(self, job: Job, change: Change) -> bool:
        """Returns whether some member still uses the old generation."""
        return change.complete_to is None or not self._members(job) <= change.proceeded

    def _reform(self, job: Job, change: Change) -> None:
        """Opens the next generation with everybody that is there, where the old one was or elsewhere."""
        tree = self._next_tree(job, change)
        if tree is None:
            return  # until a switch has room, or comes back
        for member in job.back.values():
            job.members[member.rank] = member
        job.back.clear()
        self._save(job)
        self._begin(job, tree, job.joined())

    def _next_tree(self, job: Job, change: Change) -> Tree | None:
        """Takes what the next generation needs, and gives back what the old one had."""
        rooms, old = self.placement.rooms, job.tree
        kept, change.target = change.target, None
        if kept is not None and (
            kept.leaves or not all(rooms[name].up and not rooms[name].draining for name in kept.switches)
        ):
            # Who is at which leaf may not be what it was when this was kept for them.
            self.placement.give_back(kept, old)
            kept = None
        if kept is not None:
            self._retire(job)
            return kept
        ways = self._possible(job)
        if old is None:
            return self.placement.settle(ways)
        emptied = self._draining(old)
        tree = self.placement.resettle(ways, old, without=emptied)
        if tree is None and emptied:
            tree = self.placement.resettle(ways, old)
        if tree is not None:
            self._remove(job)
        return tree

    def _changed(self, job: Job, change: Change) -> None:
        """A new generation has opened."""
        generation = job.generation
        assert generation is not None
        ranks = ", ".join(map(str, generation.places))
        match change.reason:
            case ChangeReason.move:
                kind, what = EventKind.moved, f"runs on {_where(generation)}"
            case ChangeReason.shrink:
                kind, what = EventKind.shrunk, f"goes on with ranks {ranks}"
            case ChangeReason.rejoin:
                kind, what = EventKind.joined, f"goes on with ranks {ranks}"
        self._note(kind, f"job {job.name!r} {what}: {change.why}", job)


def _where(generation: Generation) -> str:
    leaves = [leaf.site.switch for leaf in generation.leaves]
    below = f" and {', '.join(leaves)} below it" if leaves else ""
    return f"switch {generation.site.switch}{below}"
