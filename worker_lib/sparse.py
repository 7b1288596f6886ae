"""The sparse all-reduce: rows of a table with their numbers in, the sum over ranks out.

    row numbers --OR of bitmaps--> union --costs--> few:  the union's rows, end to end --sum-->
                                               `--> many: the whole table              --sum-->  rows or table

**Union.** Every rank knows the union of row numbers before a value is sent, so all of them turn to the dense
sum at the same call. The bitmap has a bit a row; of large tables a bit a page of 65,536 rows first, then the
bits of pages that some rank has, one after the other. Two words in front of the first bitmap are a hash of
what each rank calls, and its complement: where the OR of both overlaps, ranks differ, and all of them see it
(the plan's own check knows the bitmap's size and no more).

**Costs.** The whole table is summed where that is cheaper:

    sparse   round + union * (width * element + row)
    dense    round + rows * width * (element + cell) + union * pick

SparCML (Renggli et al., arXiv 1802.08021) compares the bytes that travel: there a pair
takes an index and a value, so that dense is cheaper from half the table on. Here indices are a bit a row, and
dense saves the handling of rows; so the break-even depends on machine and network, and is measured.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import MismatchError, UsageError
from worker_lib.arguments import SUMMABLE, SumOptions, view
from worker_lib.calls import prepare_sum, sum_lanes
from worker_lib.plan import BOUNDED, EXACT, Words, pack_bitmap, unpack_bitmap
from worker_lib.work import Work

if TYPE_CHECKING:
    from worker_lib.session import Session

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

RESULTS: Final = ("sparse", "dense", "auto")
MAX_ROWS: Final = 1 << 48
MAX_ELEMENTS: Final = 1 << 32  # of one sum: as many as a plan's fingerprint can count
PAGE: Final = 1 << 16  # rows
FLAT: Final = 1 << 22  # rows up to which there is one bitmap of all
_CLEAR: Final = 1 / 64  # share of a table up to which being sparse needs no measuring
_SMALL_TABLE: Final = 1 << 16  # elements of a table up to which measuring is not worth it
_SMALL: Final = 1 << 14  # elements of the sums that are timed
_LARGE: Final = (1 << 16, 1 << 18)  # as many as the table has, within these
_TABLE: Final = 1 << 21  # elements of the largest table that is handled
_SECONDS: Final = 0.4  # for the larger sums, about
_REPEATS: Final = 25  # the least counts: a disturbance only adds to a measurement


@dataclass(frozen=True, slots=True)
class SparseCosts:
    """Costs in seconds, or in any other unit that is the same throughout.

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
        """Returns costs that are bytes on the wire and nothing else, as where the network is the bottleneck.

        Args:
            bits: on the wire of an element: 8, 16, 32; 96 for lanes of 64 bits, which take three words.
        """
        return cls(0.0, bits / 8, bit=1 / 8)

    def support(self, rows: int) -> float:
        """The cost of exchanging the supports of a table."""
        return self.round + rows * self.bit

    def sparse(self, union: float, width: int) -> float:
        """The cost of summing `union` rows of `width` elements, once the union is known."""
        return self.round + union * (width * self.element + self.row)

    def dense(self, rows: int, width: int, union: float) -> float:
        """The cost of summing the whole table, of which `union` rows are of interest."""
        return self.round + rows * width * (self.element + self.cell) + union * self.pick

    def break_even(self, rows: int, width: int, result: str = "sparse", *, supported: bool = True) -> float:
        """Share of a table's rows from which the sum of the whole table is cheaper.

        Args:
            rows: of the table.
            width: elements a row.
            result: the form that is wanted: ``"sparse"``, ``"dense"``, or ``"auto"``, whichever there is.
            supported: true if the supports are exchanged anyway; else that is part of the sparse sum's cost.

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
    lanes = _lanes(session, mine.values, op, bits)
    if session.world_size == 1:
        return mine.to_dense() if result == "dense" else SparseRows(mine.indices, mine.values.copy(), rows)
    width_of_lanes = {EXACT: "exact", BOUNDED: "bounded"}.get(lanes, f"{lanes} bits")
    call = (
        f"allreduce_sparse({dtype}, {rows} rows of shape {row}, {op}, {width_of_lanes}, result {result!r}, "
        f"dense over {dense_over})"
    )
    ored = SumOptions("or", public=True)  # as plans are, which say the same of blocks

    def at_some_rank(words: Array) -> Array:
        state = session._state
        found: Array = Work(
            state, lambda: prepare_sum(state, words, None, ored), timeout, background=False
        ).wait()
        return found

    there = union(mine.indices, rows, call, at_some_rank)
    if there.size * width > MAX_ELEMENTS:
        raise UsageError(
            f"{there.size} rows of {width} at some rank; accepted: {MAX_ELEMENTS} elements in all"
        )

    def reduce(x: Array) -> Array:
        if x.size:
            session.allreduce(x.reshape(-1), op=op, bits=bits, blocks="dense", timeout=timeout)
        return x

    share = there.size / rows
    if limit is None and rows * width <= MAX_ELEMENTS and rows * width > _SMALL_TABLE and share > _CLEAR:
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
    """Returns the costs by which `allreduce_sparse` finds its break-even. All ranks call it.

    They are measured now if they have not been.

    Args:
        dtype: of the values.
        rows: of the table; costs hold for tables of up to twice or half as many.
        row: the shape of a row.
        op, bits: as in the sum.

    Raises:
        UsageError: such values cannot be summed.
    """
    kind = np.dtype(dtype)
    lanes = _lanes(session, np.empty(0, kind), op, bits)
    return _costs_of(session, kind, rows, row, bits, lanes)


def _costs_of(
    session: Session, dtype: np.dtype[Any], rows: int, row: tuple[int, ...], bits: int | None, lanes: int
) -> SparseCosts:
    # A change of membership makes all ranks measure again: a rank that came back has nothing yet.
    key = (session._state.generation, dtype.name, rows.bit_length(), row, lanes)
    known = session._sparse_costs
    if key not in known:
        for old in [k for k in known if k[0] != key[0]]:
            del known[old]
        known[key] = _measured(session, dtype, rows, row, bits, _wire_bits(dtype, lanes))
    return known[key]


def _lanes(session: Session, values: Array, op: str, bits: int | None) -> int:
    """The lanes of a large sum; those of small ones may be wider."""
    dtype = SUMMABLE.get(values.dtype.name)
    asked = "bounded" if bits is None and dtype is not None and dtype.is_float else bits
    return sum_lanes(session._state, view(values, "values", write=False), op, asked)[1]


def _wire_bits(dtype: np.dtype[Any], lanes: int) -> int:
    """Bits of an element on the wire; of sums in limbs as they mostly are."""
    if lanes in (EXACT, BOUNDED):
        return 96 if dtype.itemsize == 8 else 64 if lanes == EXACT else 32
    return 96 if lanes == 64 else lanes


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
    """The share of rows past which the sum is dense; None where costs decide."""
    if dense_over == "auto":
        return None
    if isinstance(dense_over, str) or not 0 <= dense_over <= 1:
        raise UsageError(f"dense_over is {dense_over!r}; accepted: 'auto', or a share of rows, 0 to 1")
    return float(dense_over)


def _compact(mine: SparseRows, there: Rows) -> Array:
    """This rank's rows among the union's; shape (len(there), *row)."""
    if mine.indices.size == there.size:
        return np.array(mine.values, order="C")
    if mine.rows > 64 * there.size:  # not worth a flag a row
        places: npt.NDArray[Any] = np.searchsorted(there, mine.indices)
    else:
        flags = np.zeros(mine.rows, np.bool_)
        flags[mine.indices] = True
        places = flags[there]
    out = np.zeros((there.size, *mine.values.shape[1:]), mine.values.dtype)
    out[places] = mine.values
    return out


def _rows_of(table: Array, there: Rows) -> SparseRows:
    return SparseRows(there, table[there], table.shape[0])


def union(mine: Rows, rows: int, call: str | None, ored: Callable[[Words], Words]) -> Rows:
    """The union of all ranks' rows, the same at every rank, ascending.

    Args:
        mine: this rank's rows, ascending, each once; 0 to rows - 1.
        rows: of the table, at most `MAX_ROWS`.
        call: the call in words, the same at all ranks; None if ranks have compared it before.
        ored: returns the OR of all ranks' words, in place or not.

    Raises:
        MismatchError: ranks have called different things; nothing was summed.
    """
    if rows <= FLAT:
        return flatten(_exchange(bitmap(mine, rows), call, ored), rows)
    pages = union(np.unique(mine // PAGE), -(-rows // PAGE), call, ored)
    if not pages.size:
        return pages
    # Only pages that some rank has, end to end: row r of the i-th of them is bit i * PAGE + r % PAGE.
    here = np.searchsorted(pages, mine // PAGE) * PAGE + mine % PAGE
    found = flatten(_exchange(bitmap(here, pages.size * PAGE), None, ored), pages.size * PAGE)
    return np.asarray(pages[found // PAGE] * PAGE + found % PAGE)


def _exchange(bits: Words, call: str | None, ored: Callable[[Words], Words]) -> Words:
    if call is None:
        return ored(bits)
    code = zlib.crc32(call.encode())
    out = ored(np.concatenate([np.array([code, code ^ 0xFFFFFFFF], np.uint32), bits]))
    if out[0] & out[1]:
        raise MismatchError(
            f"ranks called different things: this one called {call}, others another type, shape, operation, "
            "number of rows or setting. Nothing was changed; the session can go on."
        )
    return out[2:]


def bitmap(mine: Rows, rows: int) -> Words:
    """A bit a row, as in plans; shape (ceil(rows / 32),)."""
    flags = np.zeros(rows, np.bool_)
    flags[mine] = True
    return pack_bitmap(flags)


def flatten(words: Words, rows: int) -> Rows:
    """The rows whose bits are set, ascending."""
    return np.asarray(np.flatnonzero(unpack_bitmap(words, rows)), np.int64)


def _measured(
    session: Session, dtype: np.dtype[Any], rows: int, row: tuple[int, ...], bits: int | None, on_wire: int
) -> SparseCosts:
    """Times a few sums between all ranks, and the handling of rows on each. Every rank calls it.

    Args:
        dtype, rows, row, bits: as in `sparse_costs`.
        on_wire: bits of an element; see `SparseCosts.by_bytes`.

    Returns:
        The mean over ranks, the same to the bit at every rank.
    """
    # Averages of equal values stay as they are, however often; sums would soon be infinite.
    op = "sum" if dtype.kind in "iu" else "avg"

    def timed_sum(size: int, repeats: int) -> float:
        x = np.ones(size, dtype)
        return _least(lambda: session.allreduce(x, op=op, bits=bits, blocks="dense"), repeats)

    width = math.prod(row)
    size = int(np.clip(rows * width, *_LARGE))
    t_small = timed_sum(_SMALL, _REPEATS)
    # On a slow network a few of the large ones are enough; the ranks must count alike.
    enough = np.array([_SECONDS / max(t_small * (size / _SMALL), 1e-6)])
    t_large = timed_sum(size, int(np.clip(session.allreduce(enough, op="avg")[0], 3, _REPEATS)))
    # A disturbed small sum must not make elements look free.
    element = max((t_large - t_small) / (size - _SMALL), t_large / size / 4)
    # Memory that is new costs more than memory that is used again, so the table is of the size in question.
    table = max(2, min(rows, _TABLE // width))
    half, quarter = table // 2, max(1, table // 4)
    rng = np.random.default_rng(1)

    def made_up(union: int) -> tuple[SparseRows, Rows]:
        """Half of `union` rows of the table, and all of them."""
        there = np.sort(rng.choice(table, union, replace=False))
        own = there[np.sort(rng.choice(union, (union + 1) // 2, replace=False))]
        return SparseRows(own, np.ones((own.size, *row), dtype), table), there

    many, many_there = made_up(half)
    few, few_there = made_up(quarter)
    t_rows = _least(lambda: _compact(many, many_there), _REPEATS)
    t_half = _least(lambda: _rows_of(many.to_dense(), many_there), _REPEATS)
    t_quarter = _least(lambda: _rows_of(few.to_dense(), few_there), _REPEATS)
    t_bits = _least(lambda: flatten(bitmap(few.indices, table), table), _REPEATS)
    pick = max(0.0, (t_half - t_quarter) / max(1, half - quarter))
    cell = max(0.0, t_quarter - pick * quarter) / (table * width)
    found = [
        max(0.0, t_small - _SMALL * element),
        element,
        t_rows / half,
        cell,
        pick,
        t_bits / table + element / on_wire,
    ]
    return SparseCosts(*(float(v) for v in session.allreduce(np.array(found), op="avg")))


def _least(call: Callable[[], Any], times: int) -> float:
    best = np.inf
    for _ in range(times):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return float(best)
