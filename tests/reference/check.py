"""Check words, digests and claims, as docs/protocol.md (section 14) defines them, on whole numbers.

In the engine they are `switchagg/native/worker/check.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from worker_lib.plan import Words

WORDS: Final = 3
_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15
_PRIME: Final = (1 << 61) - 1
_POINT: Final = 0x1D8E4E27C47D124F


def mixed(x: int) -> int:
    """The output of splitmix64 for a state."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def weights(words: int) -> list[int]:
    """An odd integer with a sign for each word beside the check words."""
    upper = [mixed((i + 1) * _STEP & _MASK) >> 32 | 1 for i in range(words)]
    return [w - (w >> 31 << 32) for w in upper]


def _sum(words: Sequence[int]) -> int:
    """Weighted, of words as integers with a sign."""
    signed = (w - (w >> 31 << 32) for w in words)
    return sum(a * b for a, b in zip(signed, weights(len(words)), strict=True))


def check_words(words: Sequence[int], packet_number: int, digest: int, nonce: int) -> list[int]:
    """The three words that one rank sends behind `words`."""
    total = (_sum(words) + mixed(nonce) + packet_number * _STEP + mixed(digest)) & _MASK
    return [total & 0xFFFFFF, total >> 24 & 0xFFFFFF, 1 << 24 | total >> 48]


def holds(
    payload: Sequence[int], packet_number: int, digest: int, nonce: int, workers: int,
    *, everyone: bool = False, wraps: bool = False,
) -> bool:  # fmt: skip
    """True if a RESULT's words may be right; the arguments are those of `PacketCheck::holds`."""
    *words, low, middle, high = map(int, payload)
    ranks = high >> 24 or 256
    if ranks > workers or (everyone and ranks != workers):
        return False
    told = low + (middle << 24) + ((high & 0xFFFFFF) << 48)
    wanted = _sum(words) + ranks * (mixed(nonce) + packet_number * _STEP + mixed(digest))
    return (told - wanted) % (1 << (32 if wraps else 64)) == 0


def digest(before: int, words: Iterable[int], point: int = _POINT) -> int:
    """Extends a digest by words that ranks have agreed on."""
    for word in words:
        before = (before * point + int(word) + 1) % _PRIME
    return before


def claims(own: Sequence[bool]) -> Words:
    """A rank's words of claims: a count in 10 bits for each, three to a word."""
    out = np.zeros(-(-len(own) // 3), np.uint32)
    for i, mine in enumerate(own):
        out[i // 3] |= np.uint32(mine) << np.uint32(10 * (i % 3))
    return out
