"""What a sum of some rows of a table costs with those rows alone, with the whole table, and the break-even.

    sparse   round + union * (width * element + row)
    dense    round + rows * width * (element + cell) + union * pick

The number of rows that some rank has is known to all ranks once their supports are ORed, so all of them
decide alike. SparCML (Renggli et al., arXiv 1802.08021, section 5) compares what travels: there a pair takes
an index and a value, so that dense is cheaper from half the table on. Here indices travel as a bit a row, and
what dense saves is the handling of rows; so the break-even depends on machine and network, and is measured.
No I/O but in `measured`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from switchagg.errors import UsageError

if TYPE_CHECKING:
    from worker_lib.session import Session

_SMALL: Final = 1 << 14  # elements of the sums that are timed
_LARGE: Final = (1 << 16, 1 << 18)  # as many as the table has, within these
_TABLE: Final = 1 << 21  # elements of the largest table that is handled
_SECONDS: Final = 0.4  # for the larger sums, about
_REPEATS: Final = 25  # the least counts: whatever disturbs a measurement only adds to it


@dataclass(frozen=True, slots=True)
class SparseCosts:
    """What things cost, in seconds or in any other unit that is the same throughout.

    Attributes:
        round: a sum of nothing.
        element: each element summed.
        row: finding the place of a row of the union, and moving it there and back.
        cell: an element of a dense table, made.
        pick: putting a row into a dense table and taking it out again.
        bit: a row's part in the exchange of supports.

    Raises:
        UsageError: a value is negative, or an element costs nothing.
    """

    round: float
    element: float
    row: float = 0.0
    cell: float = 0.0
    pick: float = 0.0
    bit: float = 0.0

    def __post_init__(self) -> None:
        values = astuple(self)
        if not all(np.isfinite(v) and v >= 0 for v in values) or self.element <= 0:
            raise UsageError(f"costs are {values}; accepted: finite, not negative, element over 0")

    @classmethod
    def by_bytes(cls, bits: int) -> SparseCosts:
        """What travels, in bytes, and nothing else: the break-even of a network that is all that counts.

        Args:
            bits: on the wire of an element: 8, 16, 32; 96 for lanes of 64 bits, which take three words.
        """
        return cls(0.0, bits / 8, bit=1 / 8)

    def support(self, rows: int) -> float:
        """The exchange of supports of a table."""
        return self.round + rows * self.bit

    def sparse(self, union: float, width: int) -> float:
        """The sum of `union` rows of `width` elements, once the union is known."""
        return self.round + union * (width * self.element + self.row)

    def dense(self, rows: int, width: int, union: float) -> float:
        """The sum of the whole table, of which `union` rows are of interest."""
        return self.round + rows * width * (self.element + self.cell) + union * self.pick

    def break_even(self, rows: int, width: int, result: str = "sparse", *, supported: bool = True) -> float:
        """Share of a table's rows from which the sum of the whole table is cheaper.

        Args:
            rows: of the table.
            width: elements a row.
            result: what is wanted in the end: ``"sparse"``, ``"dense"``, or ``"auto"``, whichever there is.
            supported: whether the supports have been exchanged anyway. If not, their exchange is part of what
                being sparse costs.

        Returns:
            0 to 1; 1 where being sparse always pays.
        """
        # A dense result needs the table and its rows either way; "auto" puts rows in and takes none out.
        cell, pick = {"sparse": (self.cell, self.pick), "dense": (0.0, 0.0)}.get(
            result, (self.cell, self.pick / 2)
        )
        a_row = width * self.element + self.row - pick
        table = rows * width * (self.element + cell) - (0.0 if supported else self.support(rows))
        if a_row <= 0 or rows == 0:
            return 1.0
        return float(np.clip(table / (rows * a_row), 0.0, 1.0))


class Handling(Protocol):
    """What a rank does besides summing, with `union` rows of a table of `rows`."""

    def prepare(self, union: int, rows: int) -> object:
        """Makes rows up, before they are handled."""

    def sparse(self, union: int, rows: int) -> None:
        """Finds their places in a sum of the union's rows, and puts this rank's there."""

    def dense(self, union: int, rows: int) -> None:
        """Makes the table, and takes the union's rows out of it."""

    def support(self, union: int, rows: int) -> None:
        """Makes a bitmap, and takes the union's rows from it."""


def measured(
    session: Session,
    rows: int,
    width: int,
    reduce: Callable[[Any], Any],
    dtype: np.dtype[Any],
    bits: int,
    handling: Handling,
) -> SparseCosts:
    """Times a few sums between all ranks, and the handling of rows on each. Every rank calls it.

    Args:
        rows, width: of the table, or of one like it.
        reduce: sums an array of `dtype` over all ranks, in place, all of it.
        bits: on the wire of an element; see `SparseCosts.by_bytes`.
        handling: what a rank does besides.

    Returns:
        The mean over ranks, the same to the bit at every rank.
    """
    size = int(np.clip(rows * width, *_LARGE))
    small, large = np.ones(_SMALL, dtype), np.ones(size, dtype)
    t_small = _least(lambda: reduce(small), _REPEATS)
    # On a slow network a few of the large ones are enough; the ranks must count alike.
    few = np.array([_SECONDS / max(t_small * (size / _SMALL), 1e-6)])
    repeats = int(np.clip(session.allreduce(few, op="avg")[0], 3, _REPEATS))
    t_large = _least(lambda: reduce(large), repeats)
    # A disturbed small sum must not make elements look free.
    element = max((t_large - t_small) / (size - _SMALL), t_large / size / 4)
    # Memory that is new costs more than memory that is used again, so the table is of the size in question.
    table = max(2, min(rows, _TABLE // width))
    half, quarter = table // 2, max(1, table // 4)
    for union in (half, quarter):
        handling.prepare(union, table)
    t_rows = _least(lambda: handling.sparse(half, table), _REPEATS)
    t_half = _least(lambda: handling.dense(half, table), _REPEATS)
    t_quarter = _least(lambda: handling.dense(quarter, table), _REPEATS)
    t_bits = _least(lambda: handling.support(quarter, table), _REPEATS)
    pick = max(0.0, (t_half - t_quarter) / max(1, half - quarter))
    cell = max(0.0, t_quarter - pick * quarter) / (table * width)
    found = [
        max(0.0, t_small - _SMALL * element),
        element,
        t_rows / half,
        cell,
        pick,
        t_bits / table + element / bits,
    ]
    return SparseCosts(*(float(v) for v in session.allreduce(np.array(found), op="avg")))


def _least(call: Callable[[], Any], times: int) -> float:
    best = np.inf
    for _ in range(times):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return float(best)
