"""Reference implementation of `worker_lib.compress.lanes` in NumPy; the native form gives the same bits."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from worker_lib.compress.lanes import (
    CHECK_BLOCK,
    FACTORS,
    Floats,
    Ints,
    Key,
    Sums,
    per_word,
    residue_size,
    words_for,
)

_FARTHEST: Final = 2.0**51  # units; the kernels count integers of that size in float64


def pack(q: Ints, bits: int) -> npt.NDArray[np.int32]:
    """Puts lanes into words.

    Args:
        q: int32, one-dimensional; any values: what does not fit runs over into the next lane, as in a sum.
        bits: width of lanes.

    Returns:
        int32 words, `words_for(q.size, bits)` of them.
    """
    if bits > 16:
        return q
    lanes = per_word(bits)
    words = words_for(q.size, bits)
    u = np.ascontiguousarray(q).view(np.uint32)
    if u.size != words * lanes:
        u = np.concatenate([u, np.zeros(words * lanes - u.size, np.uint32)])
    rows = u.reshape(words, lanes)
    out = rows[:, 0].copy()
    for lane in range(1, lanes):
        out += rows[:, lane] << np.uint32(bits * lane)
    return out.view(np.int32)


def unpack(words: npt.NDArray[np.int32], bits: int, count: int) -> Ints:
    """Takes sums of lanes out of summed words, where each sum fits its lane.

    Args:
        words: as `pack` gave them, summed mod 2^32.
        bits: width of lanes.
        count: lanes.

    Returns:
        int32, shape (count,).
    """
    if bits > 16:
        return words[:count]
    lanes = per_word(bits)
    spare = np.int32(32 - bits)
    rest = words.copy()
    out = np.empty((words.size, lanes), np.int32)
    for lane in range(lanes):
        # Sign-extend the lowest lane left; taking it away gives back what it borrowed from the one above.
        low = (rest << spare) >> spare
        out[:, lane] = low
        rest -= low
        rest >>= np.int32(bits)
    return out.reshape(-1)[:count]


def unpack_near(
    words: npt.NDArray[np.int32], bits: int, near: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Takes sums of lanes out of summed words, where each lies within half a lane of what is expected.

    Args:
        words: as `pack` gave them, summed mod 2^32.
        bits: width of lanes, at most 16.
        near: what is expected of each lane's sum, int64.

    Returns:
        int64, like `near`: the integers congruent to the lanes mod 2^bits in
        [near - 2^(bits-1), near + 2^(bits-1)).
    """
    lanes = per_word(bits)
    # A word knows its sums mod 2^32 only, and so does what is taken off it.
    guess = np.zeros(words.size * lanes, np.int32)
    guess[: near.size] = near.astype(np.int32)
    rows = guess.reshape(words.size, lanes)
    rest = words.copy()
    spare = np.int32(32 - bits)
    off = np.empty((words.size, lanes), np.int32)
    for lane in range(lanes):
        expected = rows[:, lane]
        rest -= expected
        off[:, lane] = (rest << spare) >> spare
        rest -= off[:, lane]
        rest >>= np.int32(bits)
    return near + off.reshape(-1)[: near.size]


def drawn(index: npt.NDArray[np.uint32], key: Key) -> npt.NDArray[np.uint32]:
    """32 random bits for each element: a hash of the key and its index."""
    h = index * np.uint32(0x9E3779B1) + np.uint32(key[0])
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x7FEB352D)
    h ^= h >> np.uint32(15)
    h += np.uint32(key[1])
    h *= np.uint32(0x846CA68B)
    return h ^ h >> np.uint32(16)


def round_at_random(x: Floats, units: Any, top: int, key: Key) -> tuple[Ints, int]:
    """Multiples of units around x, each of the two nearest with the probability that makes it right.

    What `worker_lib.compress.grid.to_words` does, before it packs. u has 24 bits for float32 and 32 for
    float64, so the mean is right to 2^-24 and 2^-32 units.

    Args:
        x: finite values.
        units: positive number, or an array that goes with x, of x's type.
        top: the largest magnitude of a result.
        key: of the draws.

    Returns:
        int32 multiples, and how many were cut to `top`. Zero gives zero.
    """
    real = x.dtype.type
    v = x / units
    limit = real(top)
    if float(limit) > top:
        limit = np.nextafter(limit, real(0))  # a float32 may have rounded it up
    cut = int(np.count_nonzero(np.abs(v) > limit))
    h = drawn(np.arange(x.size, dtype=np.uint32), key)
    u = (h >> np.uint32(8)).astype(real) * real(2.0**-24) if real is np.float32 else h * 2.0**-32
    # If v is top, adding u may round up to top + 1.
    return np.clip(np.floor(v + u), -limit, limit).astype(np.int32), cut


def integers(x: Floats, unit: float, key: Key) -> tuple[npt.NDArray[np.int64], int]:
    """floor(x / unit + u); and how many are not usable."""
    v = x.astype(np.float64) / unit
    usable = np.abs(v) < _FARTHEST  # not NaN either
    u = drawn(np.arange(x.size, dtype=np.uint32), key) * 2.0**-32
    return np.floor(np.where(usable, v, 0) + u).astype(np.int64), int((~usable).sum())


def to_residues(x: Floats, unit: float, bits: int, key: Key) -> tuple[npt.NDArray[np.int32], int]:
    """As `worker_lib.compress.lanes.to_residues`."""
    q, unusable = integers(x, unit, key)
    low = q.astype(np.int32)
    return np.concatenate([pack(low, bits), checks(low)]), unusable


def to_sums(
    total: npt.NDArray[np.int32],
    unit: float,
    bits: int,
    reference: npt.NDArray[np.float64],
    workers: int,
    dtype: np.dtype[Any],
) -> Sums:
    """As `worker_lib.compress.lanes.to_sums`."""
    near = np.rint(reference * (workers / unit)).astype(np.int64)
    packed = words_for(reference.size, bits)
    q = unpack_near(total[:packed], bits, near)
    wrong = checks(q.astype(np.int32)) != total[packed : residue_size(reference.size, bits)]
    sums = q * unit
    farthest = int(np.abs(q - near).max(initial=0))
    return Sums(sums.astype(dtype), sums / workers, farthest, np.flatnonzero(wrong))


def checks(q: Ints) -> npt.NDArray[np.int32]:
    """A check word for each block of integers: sum of a_j q_j mod 2^32. Of sums, it is the sum of checks."""
    blocks = -(-q.size // CHECK_BLOCK)
    u = np.zeros(blocks * CHECK_BLOCK, np.uint32)
    u[: q.size] = q.view(np.uint32)
    products = u.reshape(blocks, CHECK_BLOCK) * FACTORS
    words: npt.NDArray[np.uint32] = products.sum(axis=1, dtype=np.uint32)
    return words.view(np.int32)


def _signs(count: int, key: Key, dtype: np.dtype[Any]) -> Floats:
    return np.where(drawn(np.arange(count, dtype=np.uint32), key) >> np.uint32(31), -1, 1).astype(dtype)


def _hadamard(rows: Floats) -> Floats:
    """Of each row; the sums in the order of the native form."""
    half = rows.shape[1] // 2
    for _ in range(half.bit_length()):
        a, b = rows[:, :half], rows[:, half:]
        rows = np.stack([a + b, a - b], axis=2).reshape(rows.shape)
    return rows


def rotate(x: Floats, block: int, key: Key) -> Floats:
    """As `worker_lib.compress.rotation.rotate`."""
    padded = np.zeros(-(-x.size // block) * block, x.dtype)
    padded[: x.size] = x * _signs(x.size, key, x.dtype)
    out: Floats = _hadamard(padded.reshape(-1, block)).reshape(-1) * x.dtype.type(1 / math.sqrt(block))
    return out


def unrotate(y: Floats, count: int, block: int, key: Key) -> Floats:
    """As `worker_lib.compress.rotation.unrotate`."""
    z = _hadamard(y.reshape(-1, block)).reshape(-1) * y.dtype.type(1 / math.sqrt(block))
    out: Floats = z[:count] * _signs(count, key, y.dtype)
    return out
