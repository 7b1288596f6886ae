"""Codes, sizes and bitmaps of a plan: the words that open every collective and that all ranks agree on.

docs/protocol.md ("Plan") defines the format. The engine writes and reads plans
(`switchagg/native/worker/plan.cpp`); Python names the codes, makes the bitmaps that callers give as masks,
and names the fields that ranks disagree on. `tests/reference/plan.py` is a readable form of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

VERSION: Final = 3  # of plans and streams; ranks of another one are told so
HEADER_WORDS: Final = 12
NO_EXPONENT: Final = -1  # of a chunk that is all zero
WIDE_CHUNK: Final = 65536  # elements that share an exponent, 64- and 32-bit lanes
BOUNDED_CHUNK: Final = 4096  # the same, sums within the bound
NARROW_CHUNK: Final = 1024  # the same, 16- and 8-bit lanes, and exact sums
# In place of a lane's width: exact sums, and sums within a bound for each element by itself.
EXACT: Final = 0
BOUNDED: Final = 1


class Kind(IntEnum):
    """The collective. The codes are on the wire."""

    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    REDUCE_SCATTER = 3
    BARRIER = 4
    NO_OP = 5  # no-op baseline of the benchmark: data packets whose words nobody touches
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    ALL_TO_ALL = 9
    ALLGATHERV = 10
    EXTREMUM = 11  # max or min: exact moves, of which the ranks make the result
    COMPRESSED = 12  # all-reduce of what a compressor makes for this number of ranks


class ReduceOp(IntEnum):
    """The operation that makes a result of contributions. The codes are on the wire."""

    SUM = 0
    AVG = 1  # floats only
    OR = 2  # exact moves: all ranks but one have zeros


class DType(IntEnum):
    """Element types. The codes are on the wire; unsigned integers use the codes of the signed ones."""

    F32 = 0
    F64 = 1
    F16 = 2
    BF16 = 3
    I32 = 4
    I64 = 5
    RAW = 6  # 32-bit words of bytes, for exact moves

    @property
    def is_float(self) -> bool:
        """True where sums are scaled."""
        return self <= DType.BF16

    @property
    def label(self) -> str:
        """The name that NumPy and torch use; ``bytes`` for `RAW`."""
        return _LABELS[self]

    @property
    def lanes(self) -> tuple[int, ...]:
        """Accepted widths of lanes in bits, the default first."""
        return _LANES[self]

    @property
    def exponent_bits(self) -> int:
        """Bits that a chunk's exponent takes in a plan."""
        return 2048 if self is DType.F64 else 256

    @property
    def not_finite(self) -> int:
        """The exponent field of NaN and Inf."""
        return self.exponent_bits - 1


_LABELS: Final = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "bytes")
_LANES: Final = ((32, 16, 8), (64, 32, 16, 8), (32, 16, 8), (32, 16, 8), (32,), (64,), (32,))

# The fields of a fingerprint: word, bits, name.
_FIELDS: Final = (
    (0, 0xF0000000, "version of the plan"),
    (0, 0x0F000000, "operation"),
    (0, 0x00800000, "whether sums are checked"),
    (0, 0x00400000, "whether sums are sealed"),
    (0, 0x003F0000, "reduction"),
    (0, 0x0000FF00, "dtype"),
    (0, 0x000000FF, "bits"),
    (1, 0xFFFFFFFF, "position in the job"),
    (2, 0xFFFFFFFF, "number of elements"),
    (3, 0xFFFFFFFF, "shape"),
    (4, 0xFF000000, "root"),
    (4, 0x00800000, "whether each sum goes to one rank"),
    (4, 0x00400000, "whether the block size is left to the job"),
    (4, 0x00200000, "whether the job decides if zero blocks are skipped"),
    (4, 0x00100000, "whether zero blocks are skipped"),
    (4, 0x000E0000, "min_bits of lanes left to the job"),
    (4, 0x0001FFFF, "block size"),
)


def differing_fields(differing: Sequence[int]) -> list[str]:
    """Names the fields that ranks called differently.

    Args:
        differing: for each of the five fingerprint words, the bits in which ranks differ.
    """
    return [name for word, mask, name in _FIELDS if differing[word] & mask]


def pack_bitmap(bitmap: npt.NDArray[np.bool_]) -> Words:
    """Packs a bool a block into words: block b is bit b % 32 of word b / 32."""
    data = np.zeros(-(-bitmap.size // 32) * 4, np.uint8)
    bits = np.packbits(bitmap, bitorder="little")
    data[: bits.size] = bits
    return data.view("<u4").astype(np.uint32)


def unpack_bitmap(words: Words, blocks: int) -> npt.NDArray[np.bool_]:
    """The reverse of `pack_bitmap`, for `blocks` blocks."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), count=blocks, bitorder="little").view(np.bool_)
