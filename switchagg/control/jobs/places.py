"""Where jobs could be, as far as their members are known. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from switchagg.control.jobs.generations import Generations
from switchagg.control.jobs.job import Job
from switchagg.control.jobs.placement import Tree
from switchagg.control.jobs.records import JobState, JoinRequest
from switchagg.control.jobs.trees import Way
from switchagg.errors import AdmissionError

UNOPENED: Final = (JobState.created, JobState.queued, JobState.joining)


class Places(Generations):
    """Jobs, and the switches that they could be on."""

    def _foreseen(self, job: Job) -> bool:
        """Returns whether a job's place does not depend on who joins it."""
        return job.spec is not None and self.placement.foreseen(job.switch)

    def _possible(self, job: Job) -> Sequence[Way]:
        """Returns how a job could be placed, as far as its members are known; with none to be had, none."""
        try:
            if job.state in UNOPENED and (job.missing or self._foreseen(job)):
                return self.placement.outlook(job.switch, *job.wanted, job.world_size)
            return self._ways(job)
        except AdmissionError:
            return []

    def _ways(self, job: Job, coming: JoinRequest | None = None) -> Sequence[Way]:
        """Returns how a job could be placed with its members, of the size that it has if it has one.

        Args:
            coming: of a rank that is not counted among them yet.

        Raises `AdmissionError` for none.
        """
        words, slots = job.words, job.slots
        options = {
            member.rank: self.placement.options(
                member.rank, member.endpoint[0], member.request.switch, job.switch
            )
            for member in (*job.joined(), *job.back.values())
        }
        if coming is not None:
            words, slots = words or coming.words, slots or coming.slots
            options[coming.rank] = self.placement.options(
                coming.rank, coming.address, coming.switch, job.switch
            )
        return self.placement.ways(job.switch, words, slots, options)

    def _check_seat(self, job: Job | None, request: JoinRequest) -> Sequence[Way]:
        """Returns how the job could be placed with this rank too; empty where that does not depend on it.

        Raises `AdmissionError` for a rank that attaches to no switch, or to none with the others.
        """
        within = None if job is None else job.switch
        if job is not None and job.tree is not None and job.state in UNOPENED:
            within = job.tree.root.switch  # which it has without knowing its members
        self.placement.options(request.rank, request.address, request.switch, within)
        return () if job is None or self._foreseen(job) else self._ways(job, request)

    def _draining(self, tree: Tree) -> list[str]:
        """Returns the switches of a tree that are to be emptied."""
        return [name for name in tree.switches if self.placement.rooms[name].draining]

    def _give_up_place(self, job: Job) -> None:
        """Gives back the ranges of a job that is on no switch yet."""
        if job.tree is not None:
            self.placement.give_back(job.tree)
        job.tree = job.shape = None
