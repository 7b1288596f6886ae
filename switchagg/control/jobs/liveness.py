"""Who has been silent for too long. No I/O and no clock.

Every admitted member is watched under a key. Whatever shows that it lives moves its clock; `overdue` returns
those whose clock has run out, once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Clock:
    deadline: float  # seconds of silence that are allowed
    heard: float
    expires: float


class Liveness(Generic[Key]):
    """Clocks of members. Times are seconds from any fixed start."""

    def __init__(self) -> None:
        self._clocks: dict[Key, _Clock] = {}

    def watch(self, key: Key, deadline: float, now: float, *, grace: float = 0.0) -> None:
        """Watches a member from now on; the first time it may be silent for `grace` if that is longer."""
        self._clocks[key] = _Clock(deadline, now, now + max(deadline, grace))

    def heard(self, key: Key, now: float) -> bool:
        """A member has shown that it lives. Returns whether it is watched."""
        clock = self._clocks.get(key)
        if clock is None:
            return False
        clock.heard = max(clock.heard, now)
        clock.expires = max(clock.expires, clock.heard + clock.deadline)
        return True

    def forget(self, key: Key) -> None:
        """Watches a member no longer. Does nothing where it was not."""
        self._clocks.pop(key, None)

    def silent(self, key: Key, now: float) -> float | None:
        """Returns the seconds since a member was last heard; None where it is not watched."""
        clock = self._clocks.get(key)
        return None if clock is None else max(0.0, now - clock.heard)

    def overdue(self, now: float) -> list[tuple[Key, float]]:
        """Returns members whose time is up, with the seconds that they have been silent; forgets them."""
        late = [(key, now - clock.heard) for key, clock in self._clocks.items() if clock.expires <= now]
        for key, _ in late:
            del self._clocks[key]
        return late

    def forgive(self, seconds: float) -> None:
        """Gives everybody so much more time: it was the listener that could not hear."""
        for clock in self._clocks.values():
            clock.expires += seconds
            clock.heard += seconds
