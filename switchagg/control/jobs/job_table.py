"""The jobs that have not ended, found by name, by id and by their members' cookies. No I/O and no clock.

The table also keeps the clock of every admitted member (`liveness.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.liveness import Liveness
from switchagg.errors import AdmissionError
from switchagg.rules.planner import SkipPolicy

_JOB_IDS: Final = 0xFFFF  # ids are 1..this; 0 belongs to no job


class JobTable:
    """The jobs of one controller."""

    def __init__(self) -> None:
        self.ids: dict[int, Job] = {}  # by the ids that switches know them under
        self.cookies: dict[bytes, Member] = {}  # present members
        self.liveness = Liveness()  # of admitted members
        self.last_id = self.last_number = 0  # the latest that were given out
        self._names: dict[tuple[str, str], list[Job]] = {}  # oldest first

    def jobs(self) -> list[Job]:
        """Returns every job, by tenant and name, older ones first."""
        return [job for key in sorted(self._names) for job in self._names[key]]

    def named(self, tenant: str, name: str) -> Sequence[Job]:
        """Returns the tenant's jobs of that name, older ones first."""
        return self._names.get((tenant, name), ())

    def find(self, tenant: str, name: str, job_id: int | None = None) -> Job | None:
        """Returns the tenant's newest job of that name, or the newest whose last generation has this id."""
        newest = reversed(self.named(tenant, name))
        return next((job for job in newest if job_id in (None, job.id)), None)

    def member(self, tenant: str, name: str, rank: int, token: int) -> Member:
        """Returns the admitted rank with this token, which may be its token before the last change.

        Raises `AdmissionError` if no job of that name has this rank, or it has another token.
        """
        found = False
        for job in self.named(tenant, name):
            member = job.members.get(rank)
            if member is not None and member.admission is not None:
                found = True
                if token and token in (member.admission.token, member.former):
                    return member
        if found:
            raise AdmissionError(f"that is not the token of rank {rank} in job {name!r}", "wrong_token")
        raise AdmissionError(f"no job {name!r} with a rank {rank} is running", "not_found")

    def on_switch(self, switch: str) -> list[Generation]:
        """Returns the generations that a switch holds with their slots initialised."""
        return [
            part
            for job in dict.fromkeys(self.ids.values())
            if job.generation is not None
            for part in job.generation.parts
            if part.ready and part.slot_range.switch == switch
        ]

    def new(self, tenant: str, name: str, world_size: int, now: float, policy: SkipPolicy) -> Job:
        """Adds a job with a number of its own."""
        self.last_number += 1
        job = Job(self.last_number, tenant, name, world_size, now, policy=policy, policy_since=now)
        self.add(job)
        return job

    def add(self, job: Job) -> None:
        """Adds a job with its generation, if it has one."""
        self._names.setdefault((job.tenant, job.name), []).append(job)
        if job.generation is not None:
            self.ids |= {part.id: job for part in job.generation.parts}

    def remove(self, job: Job) -> None:
        """Removes a job that has ended."""
        key = (job.tenant, job.name)
        self._names[key].remove(job)
        if not self._names[key]:
            del self._names[key]

    def assign_id(self, job: Job) -> None:
        """Gives a job the id that was free longest, so that late packets of an ended job meet no other."""
        for _ in range(_JOB_IDS):
            self.last_id = self.last_id % _JOB_IDS + 1
            if self.last_id not in self.ids:
                break
        job.id = self.last_id
        self.ids[job.id] = job

    def unregister(self, member: Member) -> None:
        """Forgets a member's cookie and clock, if it has any."""
        self.liveness.forget(member.cookie)
        self.cookies.pop(member.cookie, None)

    def overdue(self, now: float) -> list[tuple[Member, float]]:
        """Returns members whose clock has run out, with their seconds of silence; stops their clocks."""
        return [(self.cookies[cookie], seconds) for cookie, seconds in self.liveness.overdue(now)]
