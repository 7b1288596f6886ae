"""Feeds a job's skip tuner from its members' heartbeats. No I/O and no clock.

Heartbeats carry counts since the latest admission; the tuner (`rules/policy.py`) wants those since the last
one. A generation with another number of workers gets a new tuner, which begins with the policy of the job.
"""

from __future__ import annotations

from collections.abc import Mapping

from switchagg.control.jobs.job import Job, Member
from switchagg.rules.policy import Decision, SkipTuner
from switchagg.wire.heartbeat import FIELDS, Report


class Tuning:
    """The tuner of one job."""

    def __init__(self) -> None:
        self._generation = 0
        self._first = True
        self._workers = 0
        self._tuner: SkipTuner | None = None
        self._last: dict[int, Report] = {}  # by the rank in the generation

    def heard(self, job: Job, member: Member, counts: Mapping[str, int], now: float) -> Decision | None:
        """Takes a member's counts. Returns what the job's policy should be, where that is to be said."""
        generation = job.generation
        if generation is None or not generation.open or member.rank not in generation.places:
            return None
        if generation.id != self._generation:
            self._first = self._generation == 0
            self._generation = generation.id
            self._last = {}
            if self._tuner is None or self._workers != len(generation.places):
                self._workers = len(generation.places)
                self._tuner = SkipTuner(self._workers, job.policy)
        assert self._tuner is not None
        rank = generation.places.index(member.rank)
        report = Report(**{name: counts.get(name, 0) for name in FIELDS})
        before = self._last.get(rank, Report() if self._first else None)
        self._last[rank] = report
        # The first that is heard in a later generation may still be of the one before.
        return None if before is None else self._tuner.observe(now, {rank: report.since(before)})
