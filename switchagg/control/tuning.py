"""One job's skip policy, tuned over its generations: heartbeats in, decisions out. No I/O and no clock.

    heartbeat -> difference to the member's last one -> switchagg.policy.SkipTuner -> Decision or None

A generation has other members than the one before, so it begins with a tuner of its own; what has been
learned of the machines goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

from switchagg.control.job import Member
from switchagg.heartbeat import FIELDS, Report
from switchagg.policy import Decision, SkipTuner


class Tuning:
    """The tuner of one job.

    Attributes:
        tuner: of the present generation, once it has been heard of.
    """

    def __init__(self) -> None:
        self._generation = 0
        self.tuner: SkipTuner | None = None
        self._last: dict[bytes, Report] = {}

    def heard(self, member: Member, fields: Mapping[str, int], now: float) -> Decision | None:
        """Takes the counts of a member's heartbeat.

        Returns:
            What the policy of its job should be from now on; None to leave it.
        """
        job = member.job
        generation = job.generation
        if generation is None or not generation.open or member.rank not in generation.places:
            return None
        if generation.id != self._generation or self.tuner is None:
            model = None if self.tuner is None else self.tuner.model
            self._generation = generation.id
            self.tuner = SkipTuner(len(generation.places), job.policy, model=model)
            self._last.clear()
        report = Report(**{name: fields.get(name, 0) for name in FIELDS})
        before = self._last.get(member.cookie)
        self._last[member.cookie] = report
        # The first one may tell of much that was long ago: the controller may have been away.
        return None if before is None else self.tuner.observe(now, {member.rank: report.since(before)})
