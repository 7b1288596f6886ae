"""A member's rules in a change of membership: freeze, finish, resume, as `switchagg/native/worker/engine.cpp` has them.

A state says how far a member is; the rules are functions of it. Collective i has the packet numbers from
`packets * i` on.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from switchagg.control.jobs.records import Admission
from switchagg.wire.header import Header

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


def completed(member: Member, packets: int) -> int:
    """The number of collectives that are complete."""
    done = member.base // packets
    return done if member.limit < 0 else min(done, member.limit)


def halted(member: Member, packets: int) -> bool:
    """True if it neither sends nor takes RESULTs."""
    return member.limit >= 0 and completed(member, packets) >= member.limit


def may_begin(member: Member, collective: int) -> bool:
    """True if packets of this collective may be sent for the first time."""
    return collective < member.fail_from and (member.limit < 0 or collective < member.limit)


def freeze(member: Member, packets: int) -> Member:
    """No collective is begun or completed from now on."""
    return member._replace(limit=completed(member, packets), wanted=False, phase=Phase.progress)


def finish(member: Member, complete_to: int) -> Member:
    """Goes on until so many are complete."""
    return member._replace(limit=max(member.limit, complete_to), phase=Phase.finish)


def pause(member: Member, collective: int) -> Member:
    """Reads in a header that all pause after this collective."""
    return member._replace(limit=collective + 1) if member.limit < 0 else member


def resume(member: Member, job: int, admission: int, machine: int) -> Member:
    """Begins the next generation."""
    return Member(
        Life.joined, job, admission, base=0, wanted=member.wanted, machine=machine, events=member.events
    )


def takes(admission: Admission, header: Header) -> bool:
    """True for a RESULT of the member's generation."""
    return (
        header.job == admission.job
        and header.token == admission.result_token
        and header.slot == admission.base + header.seq % admission.slots
    )
