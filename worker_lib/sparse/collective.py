"""The sparse all-reduce: rows with their numbers in, the sum over ranks out.

    row numbers --OR of bitmaps--> union --costs--> few:  the union's rows, end to end --sum-->
                                               `--> many: the whole table              --sum-->  rows or table

Every rank knows the union before a value is sent, so all of them turn to the dense sum at the same call, and
what is summed is never more than what the result holds. (SparCML's SSAR and DSAR, arXiv 1802.08021,
sections 5 and 6, which find out on the way; a switch can tell first.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.sparse.costs import SparseCosts, measured
from worker_lib.sparse.support import MAX_ROWS, Rows, bitmap, flatten, union
from worker_lib.tensors import SUMMABLE, view

if TYPE_CHECKING:
    from worker_lib.session import Session

Array = npt.NDArray[Any]

RESULTS: Final = ("sparse", "dense", "auto")
MAX_ELEMENTS: Final = 1 << 32  # of one sum: what a plan's fingerprint can count
_CLEAR: Final = 1 / 64  # share of a table up to which being sparse needs no measuring
_SMALL: Final = 1 << 16  # elements of a table up to which it is not worth it


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Some rows of a table; the others are zero.

    Attributes:
        indices: int64, ascending, each once; shape (k,).
        values: shape (k, *row); for index-value pairs (k,).
        rows: of the table.
    """

    indices: Rows
    values: Array
    rows: int

    def to_dense(self) -> Array:
        """The table, (rows, *row)."""
        out = np.zeros((self.rows, *self.values.shape[1:]), self.values.dtype)
        out[self.indices] = self.values
        return out


def allreduce_sparse(
    session: Session,
    indices: Any,
    values: Any,
    rows: int,
    op: str,
    bits: int | None,
    result: str,
    dense_over: str | float,
    timeout: float | None,
) -> SparseRows | Array:
    """See `worker_lib.Session.allreduce_sparse`."""
    mine = checked_rows(indices, values, rows)
    rows = mine.rows
    row, dtype = mine.values.shape[1:], mine.values.dtype
    width = math.prod(row)
    if result not in RESULTS:
        raise UsageError(f"result is {result!r}; accepted: {', '.join(map(repr, RESULTS))}")
    limit = _checked_limit(dense_over)
    if rows * width > MAX_ELEMENTS and (result == "dense" or limit == 0):
        raise UsageError(
            f"the table has {rows} rows of {width}; accepted for a dense sum or result: {MAX_ELEMENTS} "
            "elements in all. Ask for result='sparse', and leave dense_over to 'auto'"
        )
    lanes = session._lanes(view(mine.values, "values", write=False), op, bits, None)[1]
    if session.world_size == 1:
        return mine.to_dense() if result == "dense" else SparseRows(mine.indices, mine.values.copy(), rows)
    call = (
        f"allreduce_sparse({dtype}, {rows} rows of shape {row}, {op}, {lanes} bits, result {result!r}, "
        f"dense over {dense_over})"
    )
    there = union(mine.indices, rows, call, lambda words: session.allreduce(words, op="or", timeout=timeout))
    if there.size * width > MAX_ELEMENTS:
        raise UsageError(
            f"{there.size} rows of {width} at some rank; accepted: {MAX_ELEMENTS} elements in all"
        )

    def reduce(x: Array) -> Array:
        if x.size:
            session.allreduce(x.reshape(-1), op=op, bits=bits, blocks="dense", timeout=timeout)
        return x

    share = there.size / rows
    if limit is None and rows * width <= MAX_ELEMENTS and rows * width > _SMALL and share > _CLEAR:
        costs = _costs_of(session, dtype, rows, row, bits, lanes)
        limit = costs.break_even(rows, width, result)
    if limit is not None and share > limit and rows * width <= MAX_ELEMENTS:
        table = reduce(mine.to_dense())
        return _rows_of(table, there) if result == "sparse" else table
    part = SparseRows(there, reduce(_compact(mine, there)), rows)
    return part.to_dense() if result == "dense" else part


def sparse_costs(
    session: Session,
    dtype: Any,
    rows: int,
    row: tuple[int, ...] = (),
    op: str = "sum",
    bits: int | None = None,
) -> SparseCosts:
    """What `allreduce_sparse` finds its break-even by: measured now if it has not been. All ranks call it.

    Args:
        dtype: of the values.
        rows: of the table; what is measured holds for tables of up to twice or half as many.
        row: the shape of a row.
        op, bits: as in the sum.

    Raises:
        UsageError: such values cannot be summed.
    """
    kind = np.dtype(dtype)
    lanes = session._lanes(view(np.empty(0, kind), "values", write=False), op, bits, None)[1]
    return _costs_of(session, kind, rows, row, bits, lanes)


def _costs_of(
    session: Session, dtype: Any, rows: int, row: tuple[int, ...], bits: int | None, lanes: int
) -> SparseCosts:
    def reduce(x: Array) -> None:
        # Averages of equal values stay as they are, however often; sums would soon be infinite.
        op = "sum" if dtype.kind in "iu" else "avg"
        session.allreduce(x, op=op, bits=bits, blocks="dense")

    # A change of membership makes all ranks measure again: a rank that came back has nothing yet.
    key = (session._generation, dtype.name, rows.bit_length(), row, lanes)
    known = session._sparse_costs
    if key not in known:
        for old in [k for k in known if k[0] != key[0]]:
            del known[old]
        on_wire = 96 if lanes == 64 else lanes
        handling = _Handling(dtype, row)
        known[key] = measured(session, rows, math.prod(row), reduce, dtype, on_wire, handling)
    return known[key]


class _Handling:
    """What a rank does with rows besides summing them, on made-up rows, to be timed."""

    def __init__(self, dtype: Any, row: tuple[int, ...]) -> None:
        self._dtype, self._row = dtype, row
        self._rng = np.random.default_rng(1)
        self._made: dict[tuple[int, int], tuple[SparseRows, Rows]] = {}

    def prepare(self, union: int, rows: int) -> tuple[SparseRows, Rows]:
        """Half of `union` rows of a table of `rows`, and all of them."""
        if (union, rows) not in self._made:
            there = np.sort(self._rng.choice(rows, union, replace=False))
            own = there[np.sort(self._rng.choice(union, (union + 1) // 2, replace=False))]
            mine = SparseRows(own, np.ones((own.size, *self._row), self._dtype), rows)
            self._made[union, rows] = mine, there
        return self._made[union, rows]

    def sparse(self, union: int, rows: int) -> None:
        _compact(*self.prepare(union, rows))

    def dense(self, union: int, rows: int) -> None:
        mine, there = self.prepare(union, rows)
        _rows_of(mine.to_dense(), there)

    def support(self, union: int, rows: int) -> None:
        mine, _ = self.prepare(union, rows)
        flatten(bitmap(mine.indices, rows), rows)


def checked_rows(indices: Any, values: Any, rows: int) -> SparseRows:
    """Rows as a caller gives them: in any order, rows that come twice added up.

    Raises:
        UsageError: types, shapes or numbers that cannot be.
    """
    if not isinstance(rows, int | np.integer) or isinstance(rows, bool) or not 1 <= rows <= MAX_ROWS:
        raise UsageError(f"rows is {rows!r}; accepted: the table's number of rows, 1 to {MAX_ROWS}")
    numbers, x = np.asarray(indices), np.asarray(values)
    if numbers.size == 0 and numbers.ndim == 1:
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UsageError(
            f"indices are {numbers.dtype} of shape {numbers.shape}; accepted: integers, one dimension"
        )
    if x.dtype.name not in SUMMABLE:
        raise UsageError(f"values have type {x.dtype}; accepted: {', '.join(SUMMABLE)}")
    if x.ndim < 1 or x.shape[0] != numbers.size:
        raise UsageError(f"values have shape {x.shape} for {numbers.size} indices; needed: one row for each")
    if math.prod(x.shape[1:]) < 1:
        raise UsageError(f"values have shape {x.shape}; accepted: rows of at least one element")
    if numbers.size and not (int(numbers.min()) >= 0 and int(numbers.max()) < rows):
        wrong = numbers[(numbers < 0) | (numbers >= rows)][0]
        raise UsageError(f"an index is {wrong}; accepted: 0 to {rows - 1}")
    numbers = numbers.astype(np.int64)
    if numbers.size < 2 or bool((numbers[1:] > numbers[:-1]).all()):
        return SparseRows(numbers, x, int(rows))
    order = np.argsort(numbers, kind="stable")
    numbers, x = numbers[order], x[order]
    first = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
    if first.size < numbers.size:
        numbers, x = numbers[first], np.add.reduceat(x, first, axis=0, dtype=x.dtype)
    return SparseRows(numbers, x, int(rows))


def _checked_limit(dense_over: str | float) -> float | None:
    """The share of rows past which the sum is dense; None where costs are to tell."""
    if isinstance(dense_over, str):
        if dense_over != "auto":
            raise UsageError(f"dense_over is {dense_over!r}; accepted: 'auto', or a share of rows, 0 to 1")
        return None
    if not 0 <= dense_over <= 1:
        raise UsageError(f"dense_over is {dense_over!r}; accepted: 'auto', or a share of rows, 0 to 1")
    return float(dense_over)


def _compact(mine: SparseRows, there: Rows) -> Array:
    """This rank's rows among the union's; shape (len(there), *row)."""
    if mine.indices.size == there.size:
        return np.array(mine.values, order="C")
    out = np.zeros((there.size, *mine.values.shape[1:]), mine.values.dtype)
    if mine.indices.size:
        out[_places(mine, there)] = mine.values
    return out


def _places(mine: SparseRows, there: Rows) -> npt.NDArray[np.bool_] | Rows:
    """Where among the union's rows this rank's are."""
    if mine.rows > 64 * there.size:  # not worth a flag a row
        return np.searchsorted(there, mine.indices)
    flags = np.zeros(mine.rows, np.bool_)
    flags[mine.indices] = True
    return flags[there]


def _rows_of(table: Array, there: Rows) -> SparseRows:
    return SparseRows(there, table[there], table.shape[0])
