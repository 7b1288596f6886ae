"""Which rows of a table exist at any rank: the union of all ranks' row numbers, by OR.

    rows here    2 5 5 900001      sorted, each once
    bitmap       a bit a row; large tables: a bit a page of 65,536 rows first, then the bits of pages that
                 some rank has, one after the other
    union        the same at every rank, ascending

Two words in front of the first bitmap say what each rank calls, and their complement: where the OR of both
overlaps, ranks differ, and all of them see it (the plan's own check knows the bitmap's size and no more).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import MismatchError
from worker_lib.plan import Words, pack_bitmap, unpack_bitmap

Rows = npt.NDArray[np.int64]

PAGE: Final = 1 << 16  # rows
FLAT: Final = 1 << 22  # rows up to which there is one bitmap of all
MAX_ROWS: Final = 1 << 48


def union(mine: Rows, rows: int, call: str, ored: Callable[[Words], Words]) -> Rows:
    """The union of all ranks' rows.

    Args:
        mine: this rank's rows, ascending, each once; 0 to rows - 1.
        rows: of the table, at most `MAX_ROWS`.
        call: what is called, in words; the same at all ranks.
        ored: the OR of all ranks' words, in place or not.

    Raises:
        MismatchError: ranks have called different things; nothing was summed.
    """
    return _union(mine, rows, call, ored)


def _union(mine: Rows, rows: int, call: str | None, ored: Callable[[Words], Words]) -> Rows:
    if rows <= FLAT:
        return flatten(_exchange(bitmap(mine, rows), call, ored), rows)
    pages = _union(_distinct(mine // PAGE), -(-rows // PAGE), call, ored)
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


def _distinct(ascending: Rows) -> Rows:
    if not ascending.size:
        return ascending
    return np.asarray(ascending[np.concatenate([[True], ascending[1:] != ascending[:-1]])])
