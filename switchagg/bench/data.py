"""The tensors of a benchmark, from seeds alone: the parent can make any rank's to check a sum against.

Values come from a pool of random numbers that each (seed, rank) makes once; a call reads the pool from a
random place on, cyclically. Which blocks are non-zero is drawn anew for every call. The pool's length is
prime, so that no chunk or packet boundary falls on its repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.grid import Cell, Overlap, is_float, numpy_dtype

POOL = 1_048_583
SPAN = 1024
"""Elements over which the largest magnitude is taken: the shortest chunk that any lane width has."""

SLAB = 64 * SPAN
"""Elements to work on at a time, so that temporaries stay in the cache."""

Array = NDArray[Any]


class Distribution(StrEnum):
    """Distribution of the values."""

    NORMAL = "normal"
    STUDENT_T3 = "student_t3"
    """Heavy tails: Student's t with 3 degrees of freedom. Its largest values dwarf most of a chunk."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Seeds of a call's tensors: equal draws give equal tensors in every process."""

    seed: int
    round: int
    call: int
    distribution: Distribution = Distribution.NORMAL


@dataclass(frozen=True, slots=True)
class Reference:
    """The right sum of one call.

    Attributes:
        total: (elements,) float64 for floats; int64 for integers, wrapping mod 2^64.
        peaks: (ceil(elements / SPAN),) float64, the largest magnitude at any rank, a span at a time.
        union: blocks that are non-zero at any rank.
    """

    total: Array
    peaks: NDArray[np.float64]
    union: int


@lru_cache(maxsize=64)
def _pool(seed: int, rank: int, dtype: str, distribution: Distribution) -> Array:
    generator = np.random.default_rng([seed, rank, 1])
    values: Array
    if not is_float(dtype):
        # Room for 32 workers' sum: a ring in C must not overflow a signed integer.
        limit = 1 << (8 * numpy_dtype(dtype).itemsize - 6)
        values = generator.integers(-limit, limit, POOL)
    elif distribution is Distribution.NORMAL:
        values = generator.standard_normal(POOL)
    else:
        values = generator.standard_t(3, POOL)
    return values.astype(numpy_dtype(dtype))


def _generator(draw: Draw, rank: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([draw.seed, draw.round, draw.call, rank, purpose])


def block_mask(cell: Cell, draw: Draw, rank: int) -> NDArray[np.bool_]:
    """Mask of a rank's non-zero blocks, `(cell.blocks,)`: a share `cell.density` of them, at least one.

    With `Overlap.NONE` the ranks' blocks are disjoint as far as they can be: where workers x density is
    over 1 they wrap round.
    """
    count = max(1, round(cell.density * cell.blocks))
    mask = np.zeros(cell.blocks, dtype=np.bool_)
    if count == cell.blocks:
        mask[:] = True
    elif cell.overlap is Overlap.NONE:
        order = _generator(draw, 0, 2).permutation(cell.blocks)
        mask[order[np.arange(rank * count, (rank + 1) * count) % cell.blocks]] = True
    else:
        generator = _generator(draw, 0 if cell.overlap is Overlap.ALL else rank, 2)
        mask[generator.choice(cell.blocks, count, replace=False, shuffle=False)] = True
    return mask


def fill(cell: Cell, draw: Draw, rank: int, out: Array) -> NDArray[np.bool_]:
    """Writes a rank's tensor of a call into `out`, (elements,) of the cell's dtype; returns its mask."""
    pool = _pool(draw.seed, rank, cell.dtype, draw.distribution)
    offset = int(_generator(draw, rank, 3).integers(POOL))
    mask = block_mask(cell, draw, rank)
    if mask.all():
        _read_pool(pool, offset, out)
        return mask
    out.fill(0)
    whole = cell.elements // cell.block_size
    rows = out[: whole * cell.block_size].reshape(whole, cell.block_size)
    chosen = np.flatnonzero(mask[:whole])
    values = np.empty(len(chosen) * cell.block_size, dtype=out.dtype)
    _read_pool(pool, offset, values)
    rows[chosen] = values.reshape(-1, cell.block_size)
    if mask[-1] and whole < cell.blocks:
        _read_pool(pool, (offset + len(values)) % POOL, out[whole * cell.block_size :])
    return mask


def _read_pool(pool: Array, offset: int, out: Array) -> None:
    done = 0
    while done < len(out):
        count = min(POOL - offset, len(out) - done)
        out[done : done + count] = pool[offset : offset + count]
        done += count
        offset = 0


def reference(cell: Cell, draws: Sequence[Draw]) -> list[Reference]:
    """The right sums of the calls `draws`, from all ranks' tensors."""
    scratch = np.empty(cell.elements, dtype=numpy_dtype(cell.dtype))
    answers = []
    for draw in draws:
        total = np.zeros(cell.elements, dtype=np.float64 if is_float(cell.dtype) else np.int64)
        peaks = np.zeros(-(-cell.elements // SPAN), dtype=np.float64)
        union = np.zeros(cell.blocks, dtype=np.bool_)
        for rank in range(cell.workers):
            union |= fill(cell, draw, rank, scratch)
            for start in range(0, cell.elements, SLAB):
                part = scratch[start : start + SLAB]
                total[start : start + SLAB] += part.astype(total.dtype, copy=False)
                largest = peaks[start // SPAN : (start + SLAB) // SPAN]
                np.maximum(largest, span_peaks(part), out=largest)
        answers.append(Reference(total, peaks, int(union.sum())))
    return answers


def span_peaks(values: Array) -> NDArray[np.float64]:
    """The largest magnitude in each span of SPAN elements, the last of which may be short."""
    whole = len(values) // SPAN * SPAN
    spans = values[:whole].reshape(-1, SPAN)
    peaks: NDArray[np.float64] = np.maximum(
        spans.max(axis=1).astype(np.float64), -spans.min(axis=1).astype(np.float64)
    )
    if whole < len(values):
        return np.append(peaks, np.abs(values[whole:].astype(np.float64)).max())
    return peaks
