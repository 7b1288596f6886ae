"""Client arbitration, the election of the client that may write (P4Runtime 1.4, section 5). No I/O.

    stream ─ election id ─► update ─┐
    stream gone ──────────► leave ──┴─► notices: (stream, OK | ALREADY_EXISTS | NOT_FOUND, election id)

Of all streams, the one with the largest election id that the switch has ever seen is primary. When it goes,
or lowers its id, nobody is, until a stream comes with an id that is at least as large. Only the default role
is there. A stream is any hashable thing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from switchagg.p4runtime.server.errors import Code, invalid


@dataclass(frozen=True, slots=True)
class Notice:
    """An answer for a stream: OK it is primary, ALREADY_EXISTS another is, NOT_FOUND nobody is."""

    stream: Hashable
    status: Code
    election_id: int | None


class Arbitration:
    """The streams of one device, with the election id of each; None for streams that never want to write.

    Attributes:
        primary: the primary's stream.
    """

    def __init__(self) -> None:
        self._streams: dict[Hashable, int | None] = {}
        self.primary: Hashable | None = None
        self._highest: int | None = None

    @property
    def count(self) -> int:
        """The number of streams."""
        return len(self._streams)

    def is_primary(self, election_id: int | None) -> bool:
        """Returns True for the election id of the primary."""
        return (
            self.primary is not None
            and election_id is not None
            and self._streams[self.primary] == election_id
        )

    def update(self, stream: Hashable, election_id: int | None) -> list[Notice]:
        """Takes the election id of a stream, new or known. Raises `StatusError` for one that another has."""
        if election_id is not None:
            for other, theirs in self._streams.items():
                if other != stream and theirs == election_id:
                    raise invalid(f"election id {election_id} belongs to another client")
        before = self.primary, self._highest
        self._streams[stream] = election_id
        if election_id is not None and (self._highest is None or election_id >= self._highest):
            self._highest = election_id
            self.primary = stream
        elif self.primary == stream:
            self.primary = None
        if (self.primary, self._highest) != before:
            return self._notices()
        return [self._notice(stream)]

    def leave(self, stream: Hashable) -> list[Notice]:
        """Takes a stream away."""
        self._streams.pop(stream, None)
        if self.primary != stream:
            return []
        self.primary = None
        return self._notices()

    def _notices(self) -> list[Notice]:
        return [self._notice(each) for each in self._streams]

    def _notice(self, stream: Hashable) -> Notice:
        if self.primary is None:
            status = Code.NOT_FOUND
        else:
            status = Code.OK if stream == self.primary else Code.ALREADY_EXISTS
        return Notice(stream, status, self._highest)
