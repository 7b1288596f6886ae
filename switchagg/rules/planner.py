"""Sizes of packets, pools and blocks, and the job's skip policy with its code on the wire. No I/O.

The elements that each packet of a stream carries follow from these: docs/protocol.md ("Stream") defines it,
`switchagg/native/worker/stream.cpp` does it, and `tests/reference/schedule.py` is a readable form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from switchagg.errors import UsageError
from switchagg.wire.header import MIN_WORDS

DEFAULT_WORDS: Final = 352  # K: with all headers 1,452 bytes, under an Ethernet frame's 1,500
DEFAULT_SLOTS: Final = 512  # P: a window of 256 packets, 365 KB
# The same where packets may be large (loopback, jumbo frames): eight of 8,144 bytes fill a 64 KB batch, and
# a window of 128 packets, 1 MB, outlasts the turn of another worker on the same core.
LARGE_WORDS: Final = 2032
LARGE_SLOTS: Final = 256
# Half of them where the workers add up the words themselves, in their caches; half again for so many workers.
MANY_WORKERS: Final = 16
DEFAULT_BLOCK: Final = 64  # B, elements
MAX_BLOCK: Final = 65536
LANE_BITS: Final = (64, 32, 16, 8)

_VALID: Final = 1 << 31
_DENSE: Final = 1 << 30
_LANES_AT: Final = 20
_BLOCK: Final = (1 << 17) - 1


def default_shape(max_words: int, workers: int = 1, *, shared: bool = False) -> tuple[int, int]:
    """K and P of a job whose ranks ask for nothing.

    Args:
        max_words: most words a packet that the switch's interface can carry.
        workers: of the job.
        shared: they share its slots in memory.

    Returns:
        (words a packet, slots).
    """
    if max_words >= LARGE_WORDS:
        return LARGE_WORDS, LARGE_SLOTS >> shared >> (workers >= MANY_WORKERS)
    return min(DEFAULT_WORDS, max_words), DEFAULT_SLOTS


def elements_per_packet(words: int, bits: int) -> int:
    """E, the elements that K words hold in lanes of `bits`; a 64-bit one takes three words.

    Raises:
        UsageError: `bits` is not 64, 32, 16 or 8, or `words` is under 16.
    """
    if words < MIN_WORDS:
        raise UsageError(f"words is {words}; accepted: {MIN_WORDS} and up")
    match bits:
        case 64:
            return words // 3
        case 32 | 16 | 8:
            return words * (32 // bits)
        case _:
            raise UsageError(f"bits is {bits!r}; accepted: {', '.join(map(str, LANE_BITS))}")


def lanes_code(bits: int | None) -> int:
    """Lanes on the wire: 1, 2, 3, 4 for 8, 16, 32, 64 bits; 0 for None."""
    return bits.bit_length() - 3 if bits else 0


@dataclass(frozen=True, slots=True)
class SkipPolicy:
    """The elements that a job's workers skip: the control plane's decision, changed between collectives only.

    Attributes:
        block: elements that are sent or skipped together, 1 to 65,536.
        dense: send every block, without looking for zeros.
        bits: width of the lanes of calls that leave it to the job; None for each type's own.

    Raises:
        UsageError: a value is out of range.
    """

    block: int = DEFAULT_BLOCK
    dense: bool = False
    bits: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.block <= MAX_BLOCK:
            raise UsageError(f"block is {self.block}; accepted: 1 to {MAX_BLOCK} elements")
        if self.bits is not None and self.bits not in LANE_BITS:
            raise UsageError(f"bits is {self.bits}; accepted: {', '.join(map(str, LANE_BITS))}, or None")

    def __str__(self) -> str:
        lanes = f", lanes of {self.bits} bits" if self.bits else ""
        return f"{'dense' if self.dense else f'sparse, blocks of {self.block}'}{lanes}"

    def word(self) -> int:
        """The policy word of a plan's header.

        Bit 31 set, bit 30 dense, bits 20 to 22 the lanes (`lanes_code`), bits 0 to 16 the block size.
        """
        return _VALID | (_DENSE if self.dense else 0) | lanes_code(self.bits) << _LANES_AT | self.block

    @classmethod
    def from_word(cls, word: int) -> Self | None:
        """The policy in a plan's header; None where the word carries none.

        Raises:
            UsageError: the word is marked valid, and its block size or lanes are out of range.
        """
        if not word & _VALID:
            return None
        code = word >> _LANES_AT & 7
        return cls(word & _BLOCK, bool(word & _DENSE), 4 << code if code else None)
