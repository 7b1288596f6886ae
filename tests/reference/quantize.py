"""Floats to integers that a switch can add, integers to lanes of its 32-bit words, and back.

    scan        finds non-zero blocks, and the exponent of each chunk's largest value
    quantize    x -> q, from the exponent that all ranks agreed on, so that n of them cannot overflow a lane
    pack        q -> words, by arithmetic: a word is the sum of its lanes times 1, 2^8, 2^16, ...
    (the switch adds words, modulo 2^32)
    unpack      words -> sums of lanes, from the low end, giving back what a negative lane had borrowed
    dequantize  sum -> x

Integer blocks with a scale that is agreed in advance: SwitchML (NSDI'21), there with one scale a packet.
Every operation and its order is fixed here and in docs/protocol.md; IEEE arithmetic, round to nearest even,
subnormals kept, no fused multiply-add. So the result is the same to the bit on every worker. float16 and
bfloat16 go through float32; bfloat16 values are uint16 bit patterns here.
`switchagg/native/worker/lane_kernels.cpp` does the same in the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.plan import (
    NO_EXPONENT,
    WIDE_CHUNK,
    DType,
    ReduceOp,
    Words,
    pack_bitmap,
    unpack_bitmap,
)
from worker_lib.quantize import STORAGE, Values, headroom, lane_top, narrow, widen

Ints = npt.NDArray[Any]  # int32, or int64 in 64-bit lanes

_PATTERN: Final[dict[DType, type[np.generic]]] = {  # unsigned integers as wide as an element
    DType.F32: np.uint32,
    DType.F64: np.uint64,
    DType.F16: np.uint16,
    DType.BF16: np.uint16,
    DType.I32: np.uint32,
    DType.I64: np.uint64,
    DType.RAW: np.uint32,
}
QUIET_NAN: Final = {
    DType.F32: 0x7FC00000,
    DType.F64: 0x7FF8000000000000,
    DType.F16: 0x7E00,
    DType.BF16: 0x7FC0,
}
_LARGEST: Final = {
    DType.F32: 0x7F7FFFFF,
    DType.F64: 0x7FEFFFFFFFFFFFFF,
    DType.F16: 0x7BFF,
    DType.BF16: 0x7F7F,
}

# ---------------------------------------------------------------------- looking at the tensor


@dataclass(frozen=True, eq=False)
class Scan:
    """The findings of one pass over a tensor.

    Attributes:
        bitmap: bool, one a block: holds something else than zeros. Floats: +0 and -0 are zero.
        exponents: int16, one a chunk: biased exponent field of the largest finite magnitude (float16 and
            bfloat16: as float32), -1 if all are zero. Empty for integers and bytes.
        special: bool, one a chunk: it holds NaN or Inf.
        negative_zero: some block without anything but zeros has a negative one.
    """

    bitmap: npt.NDArray[np.bool_]
    exponents: npt.NDArray[np.int16]
    special: npt.NDArray[np.bool_]
    negative_zero: bool


def scan(
    x: Values, dtype: DType, block: int, chunk: int = WIDE_CHUNK, mask: npt.NDArray[np.bool_] | None = None
) -> Scan:
    """Finds a tensor's non-zero blocks and its chunks' exponents.

    Args:
        x: flat array, typed as `STORAGE` says.
        dtype: what it is.
        block: elements a block.
        chunk: elements a chunk.
        mask: bool, one a block: the only blocks to look at; the others count as zero.
    """
    bits = _patterns(x, dtype)
    if mask is not None:
        bits = np.where(np.repeat(mask, block)[: bits.size], bits, bits.dtype.type(0))
    blocks = _rows(bits, block)
    if not dtype.is_float:
        return Scan(_any(blocks), np.empty(0, np.int16), np.empty(0, np.bool_), False)
    magnitude = bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    bitmap = _any(_rows(magnitude, block))
    is_special = magnitude > bits.dtype.type(_LARGEST[dtype])
    top = _rows(np.where(is_special, bits.dtype.type(0), magnitude), chunk).max(axis=1, initial=0)
    if dtype is DType.F64:
        exponents = (top >> np.uint64(52)).astype(np.int16)
    else:
        wide = widen(top.view(STORAGE[dtype]), dtype)
        exponents = (wide.view(np.uint32) >> np.uint32(23)).astype(np.int16)
    exponents[top == 0] = NO_EXPONENT
    special = _any(_rows(is_special, chunk))
    return Scan(bitmap, exponents, special, bool((_any(blocks) & ~bitmap).any()))


def remembered(x: Values, memory: npt.NDArray[np.float32], dtype: DType) -> Values:
    """The values that error feedback sends: x + memory in float32 (Seide et al., Interspeech 2014)."""
    with np.errstate(over="ignore"):
        total: Values = widen(x, dtype) + memory
    return total


def dither(index: npt.NDArray[np.int64], key: int) -> npt.NDArray[np.uint32]:
    """16 random bits for each element: a hash of the key and its index in the tensor (mod 2^32)."""
    h = index.astype(np.uint32) * np.uint32(0x9E3779B1) + np.uint32(key)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    return h >> np.uint32(16)


def _unbiased(exponent: npt.NDArray[np.int16], dtype: DType) -> npt.NDArray[np.int32]:
    """E, such that every |x| of the chunk is under 2^(E+1)."""
    bias = 1023 if dtype is DType.F64 else 127
    return np.maximum(exponent.astype(np.int32), 1) - np.int32(bias)


def _top_exponent(dtype: DType) -> int:
    """The largest exponent of a finite value (of float16 ones as float32)."""
    return 142 if dtype is DType.F16 else dtype.not_finite - 1


def _fraction_bits(bits: int, workers: int) -> int:
    """s of wide lanes: a lane's unit is 2^(E-s)."""
    return bits - 2 - headroom(workers)


def _times_power(x: Values, k: npt.NDArray[np.int32]) -> Values:
    """x * 2^k in two factors on the same side of 1, so that neither over- or underflows by itself."""
    one = x.dtype.type(1)
    first = np.sign(k) * (np.abs(k) // 2)
    product: Values = (x * np.ldexp(one, first)) * np.ldexp(one, k - first)
    return product


# ---------------------------------------------------------------------- elements <-> integers


def quantize(
    x: Values,
    exponent: npt.NDArray[np.int16],
    *,
    dtype: DType,
    bits: int,
    workers: int,
    index: npt.NDArray[np.int64] | None = None,
    key: int = 0,
) -> Ints:
    """One rank's integers.

    Args:
        x: elements, typed as `STORAGE` says.
        exponent: agreed exponent of each element's chunk; same shape as `x`. Elements of a chunk without
            one, and those that are not finite, become 0. Not looked at for integers.
        dtype, bits, workers: type, width of lanes, n.
        index: of each element in the tensor, for lanes of 16 and 8 bits.
        key: see `dither_key`.

    Returns:
        int64 for 64-bit lanes, else int32; no sum of n of them overflows its lane.
    """
    if not dtype.is_float:
        return x.view(np.int64 if bits == 64 else np.int32)
    e = _unbiased(exponent, dtype)
    wide = widen(x, dtype)
    wide = np.where((exponent != NO_EXPONENT) & np.isfinite(wide), wide, 0).astype(
        np.float64 if dtype is DType.F64 else np.float32
    )
    real = wide.dtype.type
    if bits >= 32:
        q = np.rint(_times_power(wide, np.int32(_fraction_bits(bits, workers)) - e))
        if dtype is DType.F64 and bits == 32:
            # A double just under 2^(E+1) rounds up to it, and 2^L of them would wrap.
            top = float((1 << (31 - headroom(workers))) - 1)
            q = np.clip(q, -top, top)
        return q.astype(np.int64 if bits == 64 else np.int32)
    if index is None:
        raise UsageError("lanes of 16 and 8 bits are rounded by element index; index is missing")
    v = np.rint(_times_power(wide, np.int32(15) - e) * real(lane_top(bits, workers))).astype(np.int32)
    return v + dither(index, key).astype(np.int32) >> 16


def dequantize(
    total: Ints,
    exponent: npt.NDArray[np.int16],
    *,
    dtype: DType,
    bits: int,
    workers: int,
    op: ReduceOp = ReduceOp.SUM,
) -> Values:
    """The result, from the sums of all ranks' integers.

    Args:
        total: as `unpack` returns it.
        exponent: as in `quantize`; elements of a chunk without one are +0.
        dtype, bits, workers: as in `quantize`.
        op: `SUM` or `AVG`.

    Returns:
        Elements, typed as `STORAGE` says.
    """
    if not dtype.is_float:
        return total.view(STORAGE[dtype])
    average = op is ReduceOp.AVG
    e = _unbiased(exponent, dtype)
    real = np.dtype(np.float64 if dtype is DType.F64 else np.float32).type
    y: Values = total.astype(real)
    largest = 0
    with np.errstate(over="ignore", under="ignore"):
        if bits >= 32:
            if average:
                y = y * (real(1) / real(workers))
            y = _times_power(y, e - np.int32(_fraction_bits(bits, workers)))
        else:
            largest = lane_top(bits, workers)
            y = y * real(1.0 / (largest * workers if average else largest))
            y = _times_power(y, e + np.int32(1))
    out = narrow(y, dtype)
    pattern = out.view(_PATTERN[dtype])
    # Rounding up must not make an infinity of finite values whose average, or only one of which, is finite.
    cut = (exponent >= _top_exponent(dtype)) & np.isinf(widen(out, dtype))
    if not average:
        cut &= np.abs(total.astype(np.int64)) <= largest
    limit = pattern.dtype.type(_LARGEST[dtype])
    sign = pattern & ~pattern.dtype.type(np.iinfo(pattern.dtype).max >> 1)
    pattern = np.where(cut, sign | limit, pattern)
    pattern = np.where(exponent == NO_EXPONENT, pattern.dtype.type(0), pattern)
    return pattern.view(STORAGE[dtype])


# ---------------------------------------------------------------------- integers <-> words


def pack(q: Ints, bits: int, words: int) -> Words:
    """Puts lanes into words, plane by plane: lane j of the first plane in word j, of the next one above it.

    Args:
        q: integers of shape (..., E).
        bits: width of lanes. 64: three limbs of 22, 22 and 20 bits, each a plane of E words.
        words: K.

    Returns:
        Shape (..., K).
    """
    planes = _planes(q.shape[-1], bits, words)
    out = np.zeros((*q.shape[:-1], words), np.uint32)
    if bits == 64:
        e = q.shape[-1]
        v = q.view(np.uint64)
        for i in range(3):
            out[..., i * e : (i + 1) * e] = v >> np.uint64(22 * i) & np.uint64(_LIMB)
        return out
    lanes = q.view(np.uint32).reshape(*q.shape[:-1], planes, words)
    for i in range(planes):
        out += lanes[..., i, :] << np.uint32(bits * i)
    return out


def unpack(words: Words, bits: int) -> Ints:
    """Takes sums of lanes out of summed words; the reverse of `pack` as long as no lane's sum overflowed.

    Args:
        words: shape (..., K).
        bits: width of lanes.

    Returns:
        int64 for 64-bit lanes, else int32; shape (..., E).
    """
    k = words.shape[-1]
    if bits == 64:
        e = k // 3
        wide = words[..., : 3 * e].astype(np.uint64)
        v = wide[..., :e] + (wide[..., e : 2 * e] << np.uint64(22)) + (wide[..., 2 * e :] << np.uint64(44))
        wide_lanes: Ints = v.view(np.int64)
        return wide_lanes
    rest = words.copy()
    lanes = []
    for _ in range(32 // bits):
        # Sign-extend the lowest lane left; taking it away gives back what it borrowed from the one above.
        low = (rest << np.uint32(32 - bits)).view(np.int32) >> np.int32(32 - bits)
        lanes.append(low)
        rest = (rest - low.view(np.uint32)) >> np.uint32(bits if bits < 32 else 0)
    return np.concatenate(lanes, axis=-1)


def payload(words: Words, dtype: DType) -> bytes:
    """One packet's words as they travel: big-endian, but bytes of exact moves as they lie in memory."""
    return words.astype("=u4" if dtype is DType.RAW else ">u4").tobytes()


def from_payload(data: bytes, dtype: DType) -> Words:
    """The reverse of `payload`."""
    return np.frombuffer(data, "=u4" if dtype is DType.RAW else ">u4").astype(np.uint32)


# ---------------------------------------------------------------------- NaN and Inf


def special_words(x: Values, dtype: DType, chunk: int) -> Words:
    """Bits of one chunk's elements: first those that are +Inf or NaN, then those that are -Inf or NaN.

    Args:
        x: at most `chunk` elements. chunk: a multiple of 32.
    """
    wide = np.zeros(chunk, np.float64 if dtype is DType.F64 else np.float32)
    wide[: x.size] = widen(x, dtype)
    nan = np.isnan(wide)
    return np.concatenate([pack_bitmap(nan | (wide == np.inf)), pack_bitmap(nan | (wide == -np.inf))])


def write_specials(out: Values, words: Words, dtype: DType) -> None:
    """Writes the NaN and Inf of all ranks over the results of one chunk."""
    positive, negative = (unpack_bitmap(half, half.size * 32)[: out.size] for half in np.split(words, 2))
    pattern = out.view(_PATTERN[dtype])
    infinity = _LARGEST[dtype] + 1
    pattern[positive] = infinity
    pattern[negative] = infinity | (np.iinfo(pattern.dtype).max >> 1) + 1
    pattern[positive & negative] = QUIET_NAN[dtype]


# ---------------------------------------------------------------------- small things

_LIMB: Final = (1 << 22) - 1


def _patterns(x: Values, dtype: DType) -> npt.NDArray[Any]:
    if x.ndim != 1 or x.dtype != STORAGE[dtype]:
        raise UsageError(
            f"x is {x.dtype} with {x.ndim} dimensions; needed for {dtype.label}:"
            f" {np.dtype(STORAGE[dtype])} with 1"
        )
    return x.view(_PATTERN[dtype])


def _any(rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(rows.any(axis=1), np.bool_)


def _rows(values: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """Rows of `width`, the last filled up with zeros."""
    rows = -(-values.size // width)
    if rows * width != values.size:
        values = np.concatenate([values, np.zeros(rows * width - values.size, values.dtype)])
    return values.reshape(rows, width)


def _planes(lanes: int, bits: int, words: int) -> int:
    planes = 32 // bits if bits <= 32 else 1
    if lanes != (words // 3 if bits == 64 else planes * words):
        raise UsageError(f"{lanes} lanes of {bits} bits do not fill {words} words")
    return planes
