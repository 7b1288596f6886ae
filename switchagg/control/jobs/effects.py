"""What the book of jobs asks its shell to do, in order. `JobBook.poll` returns these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.records import EventKind


class Question(StrEnum):
    """What a member waits for an answer to, in a change of membership."""

    progress = "progress"
    proceed = "proceed"


@dataclass(frozen=True, slots=True)
class Install:
    """Tell the job's switch about `generation.entry`, initialise its slots, then call `opened`.

    Send generation.pending_inits() and feed generation.echoed() until none is pending; where that cannot be
    had, call `opening_failed`.
    """

    job: Job
    generation: Generation


@dataclass(frozen=True, slots=True)
class Remove:
    """Make the switch forget this generation."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Fence:
    """Make the switch drop what these workers send."""

    generation: Generation
    bits: int


@dataclass(frozen=True, slots=True)
class Settle:
    """`member` has its admission or its refusal: answer its join."""

    member: Member


@dataclass(frozen=True, slots=True)
class Tell:
    """Send `event` on the member's line."""

    member: Member
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """A question of a change of membership is answered.

    Where `refusal` is empty: progress with `member.job.change.complete_to`, proceed with the new admission.
    """

    member: Member
    question: Question
    complete_to: int = 0
    refusal: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """`member` is gone: its line has no use any more, its questions no answer, its heartbeats no meaning."""

    member: Member


@dataclass(frozen=True, slots=True)
class Save:
    """What is kept of `job` over a restart has changed."""

    job: Job


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is to be kept of `job`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the event log."""

    kind: EventKind
    text: str
    tenant: str | None = None
    job: str | None = None
    switch: str | None = None
    rank: int | None = None


Action = Install | Remove | Fence | Settle | Tell | Answer | Hang | Save | Forget | Note
