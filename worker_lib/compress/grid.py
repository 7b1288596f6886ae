"""A vector to words of lanes and back, natively: rounding, packing, peeling and scaling in one pass each.

The readable twins are `worker_lib.compress.rounding.round_at_random` with `worker_lib.compress.lanes.pack`,
and `lanes.unpack` with a multiplication; tests hold them against each other to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from worker_lib import _native
from worker_lib.compress.lanes import words_for

Floats = npt.NDArray[Any]
Key = tuple[int, int]  # two words of 32 bits


def new_key(draws: np.random.Generator) -> Key:
    """A key for one round's draws."""
    first, second = draws.integers(0, 1 << 32, 2, dtype=np.uint32)
    return int(first), int(second)


def to_words(
    x: Floats, units: Floats, block: int, bits: int, top: int, key: Key
) -> tuple[npt.NDArray[np.int32], int]:
    """Rounds a vector at random to multiples of its blocks' units, and packs them.

    Args:
        x: float32 or float64; finite wherever its unit is usable.
        units: one for each `block` elements, in x's type. Where it is 0 or not finite, elements become 0.
        block: elements.
        bits: width of lanes, 2 to 32.
        top: the largest magnitude, in units.
        key: of the draws; the same key gives the same rounding.

    Returns:
        The words, and how many elements were beyond `top` and have been cut.
    """
    x, units = np.ascontiguousarray(x), np.ascontiguousarray(units, x.dtype)
    words = np.empty(words_for(x.size, bits), np.int32)
    cut = _native.quantize_lanes(
        x.ctypes.data, x.size, x.dtype == np.float64, bits, units.ctypes.data, block, top, *key,
        words.ctypes.data,
    )  # fmt: skip
    return words, cut


def from_words(words: npt.NDArray[Any], count: int, bits: int, units: Floats, block: int) -> Floats:
    """Lanes, or sums of them, times their blocks' units.

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
    """The sum of squares of lanes of at most 16 bits, exact."""
    words = np.ascontiguousarray(words)
    return _native.square_lanes(words.ctypes.data, count, bits)
