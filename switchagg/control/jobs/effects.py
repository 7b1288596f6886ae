"""The effects that the book of jobs asks its caller to carry out, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import EventKind
from switchagg.errors import AdmissionError


class ChangeStep(StrEnum):
    """A step of a change of membership, or of a failover, in which a member waits for an answer."""

    progress = "progress"
    proceed = "proceed"
    replay = "replay"


@dataclass(frozen=True, slots=True)
class Install:
    """Install `generation.entry` on its switch, initialise its slots, then call `JobBook.opened`.

    Send the packets of `generation.pending` and feed generation.echoed() until none is pending. If that
    fails, call `JobBook.opening_failed`.
    """

    job: Job
    generation: Generation


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove this generation from its switch."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Fence:
    """Make the switch drop the packets of these workers."""

    generation: Generation
    bits: int


@dataclass(frozen=True, slots=True)
class AnswerJoin:
    """Answer the member's join with its admission or its refusal."""

    member: Member


@dataclass(frozen=True, slots=True)
class SendEvent:
    """Send `event` on the member's stream."""

    member: Member
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """Answer a member's call: progress with `complete_to`, others with the new admission; or refuse it."""

    member: Member
    step: ChangeStep
    complete_to: int = 0
    refusal: AdmissionError | None = None


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close the member's stream and fail its pending calls."""

    member: Member


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Store the job again, or delete it there if it is over."""

    job: Job


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Append an entry to the event log."""

    kind: EventKind
    text: str
    tenant: str | None = None
    job: str | None = None
    switch: str | None = None
    rank: int | None = None


SwitchEffect = Install | Remove | Fence
MemberEffect = AnswerJoin | SendEvent | AnswerStep | CloseStream
Effect = SwitchEffect | MemberEffect | SaveJob | LogEvent


class Effects:
    """The effects that have not been carried out yet."""

    def __init__(self) -> None:
        self._queue: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Appends an effect."""
        self._queue.append(effect)

    def save(self, job: Job) -> None:
        """Has a job stored, or deleted if it is over."""
        self.add(SaveJob(job))

    def send_all(self, job: Job, event: Mapping[str, Any]) -> None:
        """Sends an event to every admitted member that is present."""
        for member in job.joined():
            if member.admission is not None:
                self.add(SendEvent(member, event))

    def log(self, kind: EventKind, text: str, job: Job | None = None, **more: Any) -> None:
        """Logs an event, about a job if there is one; `more` are further fields of `LogEvent`."""
        if job is not None:
            switch = None if job.slot_range is None else job.slot_range.switch
            more = {"tenant": job.tenant, "job": job.name, "switch": switch, **more}
        self.add(LogEvent(kind, text, **more))

    def poll(self) -> list[Effect]:
        """Returns the effects in order, and forgets them."""
        effects, self._queue = self._queue, []
        return effects
