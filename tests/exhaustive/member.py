"""The state of a member, as far as it decides on what may happen."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

Front = tuple[int, int]


class Life(IntEnum):
    """The state of a process, of which the controller need not know."""

    joined = 0
    lost = 1  # to the controller; its process goes on for a while
    gone = 2
    left = 3
    joining = 4  # back, and waits to be let in


class Phase(IntEnum):
    """A member's step in a change of membership."""

    run = 0
    progress = 1  # waits for the number of collectives to complete
    finish = 2
    proceed = 3  # waits for its admission to the next generation


class Member(NamedTuple):
    """A member in one generation."""

    life: Life
    job: int = 0
    admission: int = -1
    phase: Phase = Phase.run
    base: int = 0  # RESULTs that it holds without a gap
    front: Front = (0, 0)  # packets sent from there on, and the RESULTs held, as bits
    limit: int = -1  # collectives that it may complete; -1: any
    fail_from: int = 99  # collectives from here on fail, since a member has left
    sure: int = 0  # collectives that were complete at one that has left
    asked: bool = False  # to ask for a pause in its next header
    wanted: bool = False  # a change is to begin
    machine: int = -1
    events: tuple[tuple[tuple[str, object], ...], ...] = ()
    answer: object = None

    @property
    def sent(self) -> int:
        """The number of packets sent."""
        return self.base + self.front[0]
