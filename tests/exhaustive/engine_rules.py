"""A member's rules in a change of membership: freeze, finish, resume, as the native engine has them.

`switchagg/native/worker/engine.cpp` is the engine. The rules are functions of a member's state. Collective i
has the packet numbers from `packets * i` on.
"""

from __future__ import annotations

from switchagg.control.jobs.records import Admission
from switchagg.wire.header import Header
from tests.exhaustive.member import Life, Member, Phase


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
