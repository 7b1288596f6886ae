"""How dense tensors are, from a small sample: which groups are looked at, and what is counted in them.

One group of 1,024 elements in about 131,072 is looked at before it is sent (this rank's own blocks) and
again once the sum is there (the blocks that were non-zero at any rank, but for sums that cancel). This costs
next to nothing, also where the job is dense and nobody looks for zeros. In each group the blocks of 16, 32,
... 1,024 elements that are not zero are counted:

    16 elements    x . . x x . . .    3
    32              x   x   x   .     3
    64                x       x       2     the closer together the zeros lie, the more of them stay

All ranks look at the same places. `switchagg/native/worker/density.cpp` is the same for the engine. No I/O.
"""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt

GROUP: Final = 1024  # elements
STRIDE: Final = 1 << 17  # elements for each group
SIZES: Final = tuple(16 << i for i in range(7))  # elements a block

_MASK: Final = 0xFFFFFFFF


class DensityProbe:
    """Counts over a session.

    Attributes:
        groups, summed: looked at; and looked at again.
        own, sum: for each of `SIZES`, blocks that were not zero on this rank, and in the sum.
    """

    def __init__(self) -> None:
        self.groups = self.summed = 0
        self.own = [0] * len(SIZES)
        self.sum = [0] * len(SIZES)
        self._seen = 0

    def places(self, position: int, segment: int, elements: int) -> list[int]:
        """Where the groups of a segment begin, in elements of the segment.

        Args:
            position: of the collective in the job.
            segment: its number.
            elements: of the segment; a rank that gets only a part of the sums looks at groups within it.
        """
        self._seen += elements
        found = []
        draws, self._seen = divmod(self._seen, STRIDE)
        whole = elements // GROUP
        for i in range(draws if whole else 0):
            draw = _mixed(_mixed((position * 0x9E3779B1 & _MASK) ^ segment) + i * 0x9E3779B1 & _MASK)
            found.append(draw % whole * GROUP)
        self.groups += len(found)
        return found

    def look(self, x: npt.NDArray[Any], places: list[int]) -> None:
        """Counts this rank's elements in `places`; x is the segment, before it is reduced."""
        _count(x, places, self.own)

    def look_again(self, result: npt.NDArray[Any], places: list[int]) -> None:
        """Counts the sums there; not those in lanes under 32 bits, where small ones round to zero."""
        self.summed += len(places)
        _count(result, places, self.sum)


def _count(x: npt.NDArray[Any], places: list[int], counts: list[int]) -> None:
    for place in places:
        group = x[place : place + GROUP] != 0
        for i, size in enumerate(SIZES):
            counts[i] += int(group.reshape(-1, size).any(axis=1).sum())


def _mixed(v: int) -> int:
    v ^= v >> 16
    v = v * 0x7FEB352D & _MASK
    v ^= v >> 15
    v = v * 0x846CA68B & _MASK
    return v ^ v >> 16
