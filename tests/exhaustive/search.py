"""A breadth-first search over all states that can be reached."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Wrong(Exception):
    """A property does not hold."""


class System(Protocol[State]):
    """A system to search. Each step changes the state, and none leads back: every schedule ends."""

    def initial(self) -> State:
        """Returns the first state."""

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """Yields all that may happen next, but nothing. Raises `Wrong` where a property does not hold."""

    def finished(self, state: State) -> bool:
        """True if every worker holds every RESULT."""


@dataclass(frozen=True, slots=True)
class Searched:
    """All states of a system: their number, steps between them, the longest way to one, and seconds."""

    states: int
    steps: int
    depth: int
    seconds: float


def search(system: System[State]) -> Searched:
    """Visits every state of `system`.

    Raises:
        Wrong: with the shortest schedule that ends in a wrong step, or where nothing can happen any more.
    """
    begun = time.perf_counter()
    first = system.initial()
    came: dict[State, tuple[State, str] | None] = {first: None}
    level, depth, steps = [first], 0, 0
    while level:
        following: list[State] = []
        for state in level:
            stuck = True
            try:
                for label, after in system.steps(state):
                    stuck = False
                    steps += 1
                    if after not in came:
                        came[after] = state, label
                        following.append(after)
                if stuck and not system.finished(state):
                    raise Wrong("nothing can happen any more, and not every worker holds every RESULT")
            except Wrong as wrong:
                raise Wrong("\n".join([*_way(came, state), f"wrong: {wrong}"])) from None
        depth += bool(following)
        level = following
    return Searched(len(came), steps, depth, time.perf_counter() - begun)


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels = []
    while (before := came[state]) is not None:
        state, label = before
        labels.append(label)
    return labels[::-1]
