"""Low bits of integers in lanes, with checks, and the sums found again near a reference: natively.

`twin_words` and `twin_sums` are the readable form of `to_words` and `to_sums`; tests hold them against each
other to the bit. Everything is computed in float64.

    words = lanes of q mod 2^bits, then a check word for each CHECK_BLOCK elements:  sum of a_j q_j mod 2^32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from worker_lib import _native
from worker_lib.compress import lanes
from worker_lib.compress.grid import Key
from worker_lib.compress.rounding import drawn

Floats = npt.NDArray[Any]
CHECK_BLOCK: Final = 4096  # elements a check word
_FARTHEST: Final = 2.0**51  # units; the kernels count integers of that size in float64


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What summed words say.

    Attributes:
        sums: of the ranks' values, in their type.
        means: the same over the number of workers, float64.
        farthest: the largest distance of a sum to what was expected, in units.
        wrong: numbers of the check blocks whose sums cannot be right.
    """

    sums: Floats
    means: npt.NDArray[np.float64]
    farthest: int
    wrong: npt.NDArray[np.intp]


def size_of(count: int, bits: int) -> int:
    """Words for so many elements, with checks."""
    return lanes.words_for(count, bits) + -(-count // CHECK_BLOCK)


def to_words(x: Floats, unit: float, bits: int, key: Key) -> tuple[npt.NDArray[np.int32], int]:
    """Low bits of x in units, rounded at random.

    Args:
        x: float32 or float64.
        unit: positive.
        bits: width of lanes, 2 to 16.
        key: of the draws.

    Returns:
        `size_of` words, and how many elements are not finite or over 2^51 units; they count as 0.
    """
    x = np.ascontiguousarray(x)
    words = np.empty(size_of(x.size, bits), np.int32)
    unusable = _native.to_residues(
        x.ctypes.data, x.size, x.dtype == np.float64, bits, unit, FACTORS.ctypes.data, *key, words.ctypes.data
    )
    return words, unusable


def own_values(x: Floats, unit: float, key: Key) -> Floats:
    """What the words of x alone say: multiples of the unit, in x's type."""
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    _native.residue_values(x.ctypes.data, x.size, x.dtype == np.float64, unit, *key, out.ctypes.data)
    return out


def to_sums(
    total: npt.NDArray[np.int32],
    unit: float,
    bits: int,
    reference: npt.NDArray[np.float64],
    workers: int,
    dtype: np.dtype[Any],
) -> Sums:
    """Sums from summed words and what the mean is expected to be.

    Args:
        total: summed words; at least `size_of`.
        unit, bits: as in `to_words`.
        reference: of the mean, float64.
        workers: how many were summed.
        dtype: of the sums.
    """
    total, reference = np.ascontiguousarray(total), np.ascontiguousarray(reference)
    sums, means = np.empty(reference.size, dtype), np.empty(reference.size)
    wrong = np.zeros(-(-reference.size // CHECK_BLOCK), np.uint8)
    farthest = _native.from_residues(
        total.ctypes.data, reference.size, sums.dtype == np.float64, bits, unit, FACTORS.ctypes.data,
        reference.ctypes.data, workers, sums.ctypes.data, means.ctypes.data, wrong.ctypes.data,
    )  # fmt: skip
    return Sums(sums, means, farthest, np.flatnonzero(wrong))


# ---------------------------------------------------------------------- the readable twins


def twin_integers(x: Floats, unit: float, key: Key) -> tuple[npt.NDArray[np.int64], int]:
    """floor(x / unit + u); and how many are not usable."""
    v = x.astype(np.float64) / unit
    usable = np.abs(v) < _FARTHEST  # not NaN either
    u = drawn(np.arange(x.size, dtype=np.uint32), key) * 2.0**-32
    return np.floor(np.where(usable, v, 0) + u).astype(np.int64), int((~usable).sum())


def twin_words(x: Floats, unit: float, bits: int, key: Key) -> tuple[npt.NDArray[np.int32], int]:
    """See `to_words`."""
    q, unusable = twin_integers(x, unit, key)
    low = q.astype(np.int32)
    return np.concatenate([lanes.pack(low, bits), checks(low)]), unusable


def twin_sums(
    total: npt.NDArray[np.int32],
    unit: float,
    bits: int,
    reference: npt.NDArray[np.float64],
    workers: int,
    dtype: np.dtype[Any],
) -> Sums:
    """See `to_sums`."""
    near = np.rint(reference * (workers / unit)).astype(np.int64)
    packed = lanes.words_for(reference.size, bits)
    q = lanes.unpack_near(total[:packed], bits, near)
    wrong = checks(q.astype(np.int32)) != total[packed : size_of(reference.size, bits)]
    sums = q * unit
    farthest = int(np.abs(q - near).max(initial=0))
    return Sums(sums.astype(dtype), sums / workers, farthest, np.flatnonzero(wrong))


def checks(q: lanes.Ints) -> npt.NDArray[np.int32]:
    """A check word for each block of integers: sum of a_j q_j mod 2^32. Of sums, it is the sum of checks."""
    blocks = -(-q.size // CHECK_BLOCK)
    u = np.zeros(blocks * CHECK_BLOCK, np.uint32)
    u[: q.size] = q.view(np.uint32)
    products = u.reshape(blocks, CHECK_BLOCK) * FACTORS
    words: npt.NDArray[np.uint32] = products.sum(axis=1, dtype=np.uint32)
    return words.view(np.int32)


def _factors() -> npt.NDArray[np.uint32]:
    """Odd, and different from each other and each other's negatives mod 2^24.

    So no two errors of 2^8 units, each alone in its word, cancel. From raw words, which no version of NumPy
    draws otherwise.
    """
    raw = np.random.PCG64(0x5EED).random_raw(3 * CHECK_BLOCK)
    _, first = np.unique(raw & np.uint64(0x3FFFFF), return_index=True)
    chosen = raw[np.sort(first)[:CHECK_BLOCK]]
    low = (chosen & np.uint64(0x3FFFFF)).astype(np.uint32)
    high = (chosen >> np.uint64(56)).astype(np.uint32)
    factors: npt.NDArray[np.uint32] = (high << np.uint32(24)) | (low << np.uint32(1)) | np.uint32(1)
    return factors


FACTORS: Final = _factors()
