"""Integers in lanes of 32-bit words, which the switch's plain addition sums: packing and unpacking, natively.

    word = q0 + q1 2^b + q2 2^2b + ...  mod 2^32        floor(32 / b) neighbours of the vector share a word

Sums of words are words of sums, whatever borrows pass between lanes. The receiver takes lanes off from the
low end: the low b bits of a word are the lowest sum mod 2^b. Its range tells it from other sums with these
bits (`from_words`: it lies in [-2^(b-1), 2^(b-1))), or a reference does (`to_sums`: it lies within 2^(b-1) of
that). Taking away the true sum undoes what it borrowed. As in docs/protocol.md, section 5, but with
neighbours in a word, so that a block of zeros is a block of zero words, and with lanes of any width.

Lanes that hold only the low bits of a sum (`to_residues`) carry checks behind them: a word for each
`CHECK_BLOCK` elements with the sum of a_j q_j mod 2^32 under fixed odd factors a_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib import _native

Floats = npt.NDArray[Any]
Key = tuple[int, int]  # two words of 32 bits, of the random draws
Ints = npt.NDArray[np.int32]
MIN_BITS: Final = 2
MAX_BITS: Final = 32
CHECK_BLOCK: Final = 4096  # elements a check word


def checked_bits(bits: Any) -> int:
    """Returns a valid width of lanes.

    Raises:
        UsageError: the width is not valid.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not MIN_BITS <= bits <= MAX_BITS:
        raise UsageError(f"bits is {bits!r}; accepted: {MIN_BITS} to {MAX_BITS}")
    return bits


def per_word(bits: int) -> int:
    """Returns the number of lanes of this width in a word."""
    return 32 // bits


def words_for(count: int, bits: int) -> int:
    """Returns the number of words that hold `count` lanes."""
    return -(-count // per_word(bits))


def top(bits: int, workers: int) -> int:
    """Returns the largest magnitude of one worker's value if `workers` share lanes of this width.

    Raises:
        UsageError: so many workers cannot share so narrow a lane.
    """
    largest = int(((1 << (bits - 1)) - 1) // workers)
    if largest < 1:
        raise UsageError(
            f"bits is {bits}: {workers} workers cannot share lanes so narrow; needed: at least "
            f"{bits_for(workers)}"
        )
    return largest


def bits_for(largest_sum: int) -> int:
    """Returns the narrowest width that holds every sum of magnitude up to `largest_sum`."""
    return 1 + int(largest_sum).bit_length()


def new_key(draws: np.random.Generator) -> Key:
    """Returns a key for one round's draws."""
    first, second = draws.integers(0, 1 << 32, 2, dtype=np.uint32)
    return int(first), int(second)


def to_words(
    x: Floats, units: Floats, block: int, bits: int, top: int, key: Key
) -> tuple[npt.NDArray[np.int32], int]:
    """Rounds a vector at random to multiples of its blocks' units, and packs them.

    Args:
        x: float32 or float64; finite wherever its unit is usable.
        units: one for each `block` elements, in x's type. If it is 0 or not finite, elements become 0.
        block: elements.
        bits: width of lanes, 2 to 32.
        top: the largest magnitude, in units.
        key: of the draws; the same key gives the same rounding.

    Returns:
        The words, and the number of elements beyond `top`, which are cut to it.
    """
    x, units = np.ascontiguousarray(x), np.ascontiguousarray(units, x.dtype)
    words = np.empty(words_for(x.size, bits), np.int32)
    cut = _native.quantize_lanes(
        x.ctypes.data, x.size, x.dtype == np.float64, bits, units.ctypes.data, block, top, *key,
        words.ctypes.data,
    )  # fmt: skip
    return words, cut


def from_words(words: npt.NDArray[Any], count: int, bits: int, units: Floats, block: int) -> Floats:
    """Returns lanes, or sums of them, times their blocks' units.

    Args:
        words: at least `worker_lib.compress.lanes.words_for(count, bits)`.
        count: elements.
        bits, units, block: as in `to_words`; a unit that is NaN makes its block NaN.

    Returns:
        Shape (count,), in the units' type.
    """
    words, units = np.ascontiguousarray(words), np.ascontiguousarray(units)
    x = np.empty(count, units.dtype)
    _native.dequantize_lanes(
        words.ctypes.data, count, units.dtype == np.float64, bits, units.ctypes.data, block, x.ctypes.data
    )
    return x


def square_of_words(words: npt.NDArray[Any], count: int, bits: int) -> int:
    """Returns the exact sum of squares of lanes of at most 16 bits."""
    words = np.ascontiguousarray(words)
    return _native.square_lanes(words.ctypes.data, count, bits)


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums found in words near a reference.

    Attributes:
        sums: sums of the ranks' values, in their type.
        means: the sums over the number of workers, float64.
        farthest: the largest distance of a sum to the reference's, in units.
        wrong: numbers of the check blocks whose sums are wrong.
    """

    sums: Floats
    means: npt.NDArray[np.float64]
    farthest: int
    wrong: npt.NDArray[np.intp]


def residue_size(count: int, bits: int) -> int:
    """Returns the number of words for `count` elements, with checks."""
    return words_for(count, bits) + -(-count // CHECK_BLOCK)


def to_residues(x: Floats, unit: float, bits: int, key: Key) -> tuple[npt.NDArray[np.int32], int]:
    """Rounds x at random to integers in units, and packs their low bits.

    Args:
        x: float32 or float64.
        unit: positive.
        bits: width of lanes, 2 to 16.
        key: of the draws.

    Returns:
        `residue_size` words, and the number of elements that are not finite or over 2^51 units; they count as
        0.
    """
    x = np.ascontiguousarray(x)
    words = np.empty(residue_size(x.size, bits), np.int32)
    unusable = _native.to_residues(
        x.ctypes.data, x.size, x.dtype == np.float64, bits, unit, FACTORS.ctypes.data, *key, words.ctypes.data
    )
    return words, unusable


def own_values(x: Floats, unit: float, key: Key) -> Floats:
    """Returns the addend that the words of x carry: multiples of the unit, in x's type."""
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    _native.residue_values(x.ctypes.data, x.size, x.dtype == np.float64, unit, *key, out.ctypes.data)
    return out


def to_sums(
    total: npt.NDArray[np.int32],
    unit: float,
    bits: int,
    reference: Floats,
    workers: int,
    dtype: np.dtype[Any],
) -> Sums:
    """Returns the sums nearest to a reference that agree with the summed words.

    Args:
        total: summed words; at least `residue_size`.
        unit, bits: as in `to_residues`.
        reference: the expected mean.
        workers: number of addends.
        dtype: type of the sums.
    """
    total, reference = np.ascontiguousarray(total), np.ascontiguousarray(reference, np.float64)
    sums, means = np.empty(reference.size, dtype), np.empty(reference.size)
    wrong = np.zeros(-(-reference.size // CHECK_BLOCK), np.uint8)
    farthest = _native.from_residues(
        total.ctypes.data, reference.size, sums.dtype == np.float64, bits, unit, FACTORS.ctypes.data,
        reference.ctypes.data, workers, sums.ctypes.data, means.ctypes.data, wrong.ctypes.data,
    )  # fmt: skip
    return Sums(sums, means, farthest, np.flatnonzero(wrong))


def _factors() -> npt.NDArray[np.uint32]:
    """Returns odd factors that differ from each other and from each other's negatives mod 2^24.

    So no two errors of 2^8 units, each alone in its word, cancel. Made from raw words, which are the same in
    every version of NumPy.
    """
    raw = np.random.PCG64(0x5EED).random_raw(3 * CHECK_BLOCK)
    _, first = np.unique(raw & np.uint64(0x3FFFFF), return_index=True)
    chosen = raw[np.sort(first)[:CHECK_BLOCK]]
    low = (chosen & np.uint64(0x3FFFFF)).astype(np.uint32)
    high = (chosen >> np.uint64(56)).astype(np.uint32)
    factors: npt.NDArray[np.uint32] = (high << np.uint32(24)) | (low << np.uint32(1)) | np.uint32(1)
    return factors


FACTORS: Final = _factors()
