"""The kinds of faults, and the random order in which they strike. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

Target = Literal["worker", "switch", "controller", "host"]
Means = Literal["kill", "stop", "lose", "fill"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: as options have it.
        text: as the table has it.
        target: the process that it strikes; "host" is a controller with a switch inside.
        means: SIGKILL, SIGSTOP, a filter on its UDP sockets, or a full disk.
        seconds: shortest and longest, until the process is started again, goes on, hears or may write.
        loss: of "lose": lowest and highest share of the datagrams that get lost.
    """

    name: str
    text: str
    target: Target
    means: Means
    seconds: tuple[float, float]
    loss: tuple[float, float] = (1.0, 1.0)


KINDS: Final = (
    Kind("worker-kill", "worker killed", "worker", "kill", (0.0, 1.0)),
    Kind("worker-stop", "worker stopped", "worker", "stop", (0.1, 4.0)),
    Kind("worker-cut", "worker hears nothing", "worker", "lose", (0.1, 4.0)),
    Kind("switch-kill", "switch killed", "switch", "kill", (0.0, 1.0)),
    Kind("switch-stop", "switch stopped", "switch", "stop", (0.1, 3.0)),
    Kind("switch-cut", "switch hears nothing", "switch", "lose", (0.1, 3.0)),
    Kind("switch-loss", "switch loses packets", "switch", "lose", (0.5, 3.0), (0.05, 0.5)),
    Kind("controller-kill", "controller killed", "controller", "kill", (0.0, 2.0)),
    Kind("controller-stop", "controller stopped", "controller", "stop", (0.1, 4.0)),
    Kind("controller-cut", "heartbeats lost", "controller", "lose", (0.1, 4.0)),
    Kind("controller-disk", "disk full", "controller", "fill", (0.5, 4.0)),
    Kind("host-kill", "controller and switch killed", "host", "kill", (0.0, 2.0)),
    Kind("host-stop", "controller and switch stopped", "host", "stop", (0.1, 3.0)),
    Kind("host-cut", "controller and switch hear nothing", "host", "lose", (0.1, 4.0)),
    Kind("host-loss", "controller and switch lose packets", "host", "lose", (0.5, 3.0), (0.05, 0.5)),
    Kind("host-disk", "disk full, switch inside", "host", "fill", (0.5, 4.0)),
)


@dataclass(frozen=True, slots=True)
class Draw:
    """One fault as it was drawn.

    Attributes:
        kind: of `KINDS`.
        lot: a number of which the one who strikes makes the target: 0 to 1, 1 excluded.
        seconds: until it ends.
        loss: share of lost datagrams.
        rest: seconds from here to the next fault, after all jobs work again.
        overlap: true if the next fault does not wait for that.
    """

    kind: Kind
    lot: float
    seconds: float
    loss: float
    rest: float
    overlap: bool


class Deck:
    """Deals faults in random order; each kind comes before any comes again."""

    def __init__(self, kinds: Sequence[Kind], rng: Random) -> None:
        self._kinds, self._rng = list(kinds), rng
        self._left: list[Kind] = []

    def draw(self) -> Draw:
        """Returns the next fault."""
        if not self._left:
            self._left = self._rng.sample(self._kinds, len(self._kinds))
        kind, rng = self._left.pop(), self._rng
        return Draw(
            kind,
            rng.random(),
            rng.uniform(*kind.seconds),
            rng.uniform(*kind.loss),
            rng.expovariate(2.0),
            rng.random() < 0.3,
        )
