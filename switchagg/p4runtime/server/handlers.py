"""What all kinds of entities share: the changes that a client asks for, and what does them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Protocol

from switchagg.p4runtime.server.errors import invalid


class Change(enum.IntEnum):
    """p4.v1.Update.Type."""

    INSERT = 1
    MODIFY = 2
    DELETE = 3


class Handler(Protocol):
    """Writes and reads one kind of entity, as its message."""

    def write(self, change: Change, message: Any) -> None:
        """Does one update, wholly or not at all. Raises `Refused`."""

    def read(self, message: Any) -> Iterator[Any]:
        """The entities that a message, with wildcards, asks for. Raises `Refused`."""


def only_modify(change: Change, what: str) -> None:
    """Raises `Refused` for a change of what is always there."""
    if change is not Change.MODIFY:
        raise invalid(f"{what} is there always: MODIFY it, not {change.name}")
