"""Groups of a few workers for small messages: as many as a method needs, a few slots each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from worker_lib.session import Session

_SMALL: Final = 64 << 10  # bytes of a message up to which few slots, and small packets, do
_SLOTS: Final = 16
_WORDS: Final = (16, 256)  # a packet: always filled, so no larger than a small message needs


def group_for(session: Session, ranks: Sequence[int], nbytes: int) -> Session | None:
    """`Session.group` for messages of about so many bytes; every rank calls it.

    Returns:
        The group's session; None on ranks that are not in it.

    Raises:
        SwitchError: the switch has no room for it.
    """
    if nbytes > _SMALL:
        return session.group(ranks)
    return session.group(ranks, slots=_SLOTS, words=min(max(-(-nbytes // 4), _WORDS[0]), _WORDS[1]))
