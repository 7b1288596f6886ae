"""A member's rules in a failover: suspend, replay, move, as the native engine has them.

`switchagg/native/worker/engine_change.cpp` is the engine. The rules are functions of a member's state.
"""

from __future__ import annotations

from typing import NamedTuple

Front = tuple[int, int]


class Mover(NamedTuple):
    """A member on one switch, or between two."""

    admission: int = -1
    start: int = 0  # the first packet sent to this switch
    base: int = 0  # RESULTs of this switch that it has without a gap
    front: Front = (0, 0)  # packets sent to this switch from there on, and the RESULTs held, as bits
    end: int = 0  # packets that were sent to an earlier switch
    held: int = 0  # those of them whose RESULT it had then, as bits
    taken: int = 0  # RESULTs that were decoded, as bits
    suspended: bool = False  # neither sends nor receives, and waits for the answer
    machine: int = -1
    events: tuple[tuple[tuple[str, object], ...], ...] = ()
    answer: object = None

    @property
    def sent(self) -> int:
        """The number of packets sent, to this switch and earlier ones."""
        return self.base + self.front[0]


def suspend(mover: Mover, slots: int) -> Mover:
    """Stops, and keeps what it has and has sent."""
    end = max(mover.end, mover.sent)
    here = (1 << mover.base) - 1 | mover.front[1] << mover.base
    last = (1 << end) - (1 << max(0, end - slots))
    return mover._replace(suspended=True, end=end, held=(here | mover.held) & last)


def lowest(mover: Mover) -> int:
    """The least packet number whose RESULT it lacks."""
    number = mover.base
    while number < mover.end and mover.held >> number & 1:
        number += 1
    return number


def move(mover: Mover, first: int) -> Mover:
    """Begins at another switch with a packet number."""
    return mover._replace(suspended=False, start=first, base=first, front=(0, 0))


def delivered(mover: Mover, number: int) -> bool:
    """True for a RESULT that it had from an earlier switch."""
    return number < mover.end and bool(mover.held >> number & 1)
