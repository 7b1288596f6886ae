"""Workers in groups: groups for small messages, and a chain whose members talk to their neighbours only.

    chain      3 - 0 - 2 - 1                  groups   {3 0}  {3 0 2}  {0 2 1}  {2 1}
    heads      3       2                       a message: once up, and once down to each of its sender's group
    tails          0       1

A worker's own group is the one that it is the centre of. The switch multicasts, so a worker with two
neighbours sends once. Groups overlap; heads all send before tails do, so nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from switchagg.algorithms.base import Log
from switchagg.errors import UsageError

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


class Chain:
    """This worker's place in a chain of all of a session's ranks. Every rank makes it, with the same order.

    Args:
        session: of all workers.
        order: the ranks, from one end of the chain to the other.
        nbytes: of the messages, about.
        log: counts the groups' traffic too.

    Attributes:
        head: true if this worker sends first.
        neighbours: their ranks, one or two; none in a session of one.

    Raises:
        UsageError: `order` is not all ranks, each once.
        SwitchError: the switch has no room for so many groups.
    """

    def __init__(self, session: Session, order: Sequence[int], nbytes: int, log: Log | None = None) -> None:
        ranks = [int(r) for r in order]
        if sorted(ranks) != list(range(session.world_size)):
            raise UsageError(
                f"the chain is {ranks}; accepted: every rank from 0 to {session.world_size - 1} once"
            )
        at = ranks.index(session.rank)
        self.head = at % 2 == 0
        self.neighbours = [ranks[i] for i in (at - 1, at + 1) if 0 <= i < len(ranks)]
        # By their centre: the group, the centre's rank in it.
        self._groups: dict[int, tuple[Session, int]] = {}
        self._centre = session.rank
        for i, centre in enumerate(ranks):
            members = ranks[max(0, i - 1) : i + 2]
            group = group_for(session, members, nbytes) if len(ranks) > 1 else None
            if group is not None:
                self._groups[centre] = group, members.index(centre)
                if log is not None:
                    log.watch(group)

    def exchange(self, message: npt.NDArray[Any], *, heads: bool) -> dict[int, npt.NDArray[Any]]:
        """Heads, or else tails, send to their neighbours; the others receive.

        Args:
            message: what this worker sends if it is its turn; what it receives has the same shape and type.

        Returns:
            What has come, by the sender's rank; nothing at those who send.
        """
        if not self._groups:
            return {}
        if self.head == heads:
            group, root = self._groups[self._centre]
            group.broadcast(np.ascontiguousarray(message), root=root)
            return {}
        works = []
        for rank in self.neighbours:
            group, root = self._groups[rank]
            works.append((rank, group.broadcast_async(np.empty_like(message, order="C"), root=root)))
        return {rank: work.wait() for rank, work in works}

    def close(self) -> None:
        """Frees the groups' slots."""
        for group, _ in self._groups.values():
            group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
