"""The clocks of members: any sign of life resets one, and `overdue` returns members whose clock has run out.

No I/O and no clock: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Clock:
    deadline: float  # seconds of silence that are allowed
    heard: float
    expires: float


class Liveness:
    """Clocks of members, by their cookies. Times are seconds from any fixed start."""

    def __init__(self) -> None:
        self._clocks: dict[bytes, _Clock] = {}

    def watch(self, cookie: bytes, deadline: float, now: float, *, grace: float = 0.0) -> None:
        """Starts a member's clock; its first silence may last `grace` seconds if that is longer."""
        self._clocks[cookie] = _Clock(deadline, now, now + max(deadline, grace))

    def heard(self, cookie: bytes, now: float) -> None:
        """Resets a member's clock after a sign of life. Ignores members that are not watched."""
        clock = self._clocks.get(cookie)
        if clock is not None:
            clock.heard = max(clock.heard, now)
            clock.expires = clock.heard + clock.deadline

    def hurry(self, cookie: bytes, expires: float) -> None:
        """Lets a member's silence last until `expires` at most. Ignores members that are not watched."""
        clock = self._clocks.get(cookie)
        if clock is not None:
            clock.expires = min(clock.expires, expires)

    def forget(self, cookie: bytes) -> None:
        """Stops a member's clock, if it has one."""
        self._clocks.pop(cookie, None)

    def silent(self, cookie: bytes, now: float) -> float | None:
        """Returns the seconds since a member was last heard; None if it is not watched."""
        clock = self._clocks.get(cookie)
        return None if clock is None else max(0.0, now - clock.heard)

    def overdue(self, now: float) -> list[tuple[bytes, float]]:
        """Returns members whose clock has run out, with their seconds of silence; forgets them."""
        late = [(cookie, now - clock.heard) for cookie, clock in self._clocks.items() if clock.expires <= now]
        for cookie, _ in late:
            del self._clocks[cookie]
        return late

    def extend(self, seconds: float) -> None:
        """Gives every member more time, since the listener itself could not hear."""
        for clock in self._clocks.values():
            clock.expires += seconds
            clock.heard += seconds
