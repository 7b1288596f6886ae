"""Signed integers of b bits, several to a 32-bit word, by arithmetic: what the switch's plain addition sums.

    word = q0 + q1 2^b + q2 2^2b + ...  mod 2^32        floor(32 / b) neighbours of the vector share a word

Sums of words are words of sums, whatever borrows pass between lanes. The receiver takes lanes off from the
low end: the low b bits of a word are the lowest sum mod 2^b, which is told apart from others either by its
range (`unpack`: it lies in [-2^(b-1), 2^(b-1))) or by something near it that the receiver knows
(`unpack_near`: it lies within 2^(b-1) of that). Taking away the true sum undoes what it borrowed. As in
docs/protocol.md, section 5, but with neighbours in a word, so that a block of zeros is a block of zero words,
and with lanes of any width.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError

Ints = npt.NDArray[np.int32]
MIN_BITS: Final = 2
MAX_BITS: Final = 32


def checked_bits(bits: Any) -> int:
    """A width that lanes can have.

    Raises:
        UsageError: it is not one.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or not MIN_BITS <= bits <= MAX_BITS:
        raise UsageError(f"bits is {bits!r}; accepted: {MIN_BITS} to {MAX_BITS}")
    return bits


def per_word(bits: int) -> int:
    """Lanes of this width in a word."""
    return 32 // bits


def words_for(count: int, bits: int) -> int:
    """Words that hold `count` lanes."""
    return -(-count // per_word(bits))


def top(bits: int, workers: int) -> int:
    """The largest magnitude of one worker's value where `workers` share lanes of this width.

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
    """The narrowest lanes that hold every sum of magnitude up to `largest_sum`."""
    return 1 + int(largest_sum).bit_length()


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
