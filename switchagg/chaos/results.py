"""The results of all ranks beside each other: those of one collective must be the same to the bit. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

_KEPT: Final = 100_000  # calls that are remembered


class Results:
    """The newest results by job, rank and call."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int, int], tuple[int, tuple[int, ...], int]] = OrderedDict()

    def add(self, job: str, rank: int, calls: Sequence[int], checksum: int) -> str:
        """Takes a rank's result up.

        Args:
            calls: the call of each rank whose contribution is in it, 0 where there is none.
            checksum: of all bytes.

        Returns:
            A sentence that says how it differs from another rank's; empty if it does not.
        """
        mine = (rank, tuple(calls), checksum)
        for place, call in enumerate(calls):
            if not call:
                continue
            other = self._seen.setdefault((job, place, call), mine)
            if other[1:] != mine[1:]:
                return (
                    f"job {job}: call {call} of rank {place} went into two results: rank {other[0]} has the "
                    f"sum of calls {list(other[1])}, checksum {other[2]:#x}, "
                    f"and rank {rank} that of calls {list(calls)}, checksum {checksum:#x}"
                )
        while len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
        return ""
