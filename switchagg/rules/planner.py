"""From the union of non-zero blocks to what rides in which packet, and the policy and arithmetic of skipping.

The tensor is cut into blocks of B elements (the last may be short). The blocks that are non-zero at any
worker, in order, make one stream of elements, and every E of them fill a packet:

    blocks      0   1   2   3   4   5   6   7            B = 4 elements each
    union       .   x   .   .   x   x   .   x
    stream          1111        4444 5555   7777
    packets         111144      4455 55     7777         E = 6: a block may straddle two packets

Packet p of a stream that begins at position s of the job has sequence number first_seq + s + p (mod 2^32)
and slot base + (seq mod P). The order is the same at every worker because the union is; a worker whose own
blocks of a packet are all zero sends a SKIP. Zero blocks: OmniReduce (SIGCOMM'21); many small ones to a
packet, because independent zeros leave few large blocks empty. Large tensors are cut in segments, each with a
stream of its own; `steps` has their order. No I/O; `switchagg/native/worker/codec.cpp` and `engine.cpp` carry
the same schedule out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.wire.header import HEADER_BYTES, IP_UDP_BYTES, MIN_WORDS

DEFAULT_WORDS: Final = 352  # K: with all headers 1,452 bytes, under an Ethernet frame's 1,500
DEFAULT_SLOTS: Final = 512  # P: a window of 256 packets, 365 KB
# The same where packets may be large (loopback, jumbo frames): eight of 8,144 bytes fill a 64 KB batch, and
# a window of 128 packets, 1 MB, outlasts the turn of another worker on the same core.
LARGE_WORDS: Final = 2032
LARGE_SLOTS: Final = 256
DEFAULT_BLOCK: Final = 64  # B, elements
MAX_BLOCK: Final = 65536
LANE_BITS: Final = (64, 32, 16, 8)

DENSE_SEGMENT: Final = 1 << 19  # elements, before rounding up; see `segment_elements`
SPARSE_SEGMENT: Final = 1 << 24
LEAD: Final = 2  # segments whose plans go out before the first stream

_VALID: Final = 1 << 31
_DENSE: Final = 1 << 30
_LANES_AT: Final = 20
_BLOCK: Final = (1 << 17) - 1


def default_shape(max_words: int) -> tuple[int, int]:
    """K and P of a job whose ranks ask for nothing.

    Args:
        max_words: most words a packet that the switch's interface can carry.

    Returns:
        (words a packet, slots).
    """
    if max_words >= LARGE_WORDS:
        return LARGE_WORDS, LARGE_SLOTS
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
    """What the workers of a job skip: the control plane's decision, changed between collectives only.

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


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job's packets go.

    Attributes:
        first_seq: sequence number of position 0.
        base: first slot of the job.
        slots: P, a power of two.
    """

    first_seq: int
    base: int
    slots: int

    def seq(self, position: int) -> int:
        """The sequence number of the job's packet at `position`, counted from 0."""
        return (self.first_seq + position) & 0xFFFFFFFF

    def slot(self, position: int) -> int:
        """The slot that it uses."""
        return self.base + (self.seq(position) & (self.slots - 1))


@dataclass(frozen=True, slots=True)
class Run:
    """Elements of one block that ride together in one packet.

    Attributes:
        block: the block's number.
        offset: of the first of them in the block.
        element: index of the first of them in the tensor.
        count: how many.
        position: lane of the first of them in the packet, 0 to E - 1.
    """

    block: int
    offset: int
    element: int
    count: int
    position: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """Which elements ride in which packet of a stream.

    Args:
        elements: N, in the tensor.
        block: B, elements a block.
        per_packet: E; see `elements_per_packet`.
        union: bool, one a block: non-zero at any worker. None: all are sent.

    Raises:
        UsageError: `union` has another shape, or a size is out of range.
    """

    elements: int
    block: int
    per_packet: int
    union: npt.NDArray[np.bool_] | None = None
    sent: npt.NDArray[np.int64] = field(init=False, repr=False)  # the union's blocks, in order

    def __post_init__(self) -> None:
        if self.elements < 0 or self.block < 1 or self.per_packet < 1:
            raise UsageError(
                f"{self.elements} elements in blocks of {self.block}, {self.per_packet} a packet;"
                " accepted: 0 elements and up, at least 1 a block and a packet"
            )
        if self.union is None:
            sent = np.arange(self.blocks, dtype=np.int64)
        else:
            _check_bitmap("union", self.union, self.blocks)
            sent = np.flatnonzero(self.union).astype(np.int64)
        object.__setattr__(self, "sent", sent)

    @property
    def blocks(self) -> int:
        """Blocks in the tensor."""
        return -(-self.elements // self.block)

    @property
    def length(self) -> int:
        """Elements in the stream."""
        total = self.sent.size * self.block
        if self.sent.size and self.sent[-1] == self.blocks - 1:
            total -= self.blocks * self.block - self.elements
        return total

    @property
    def packets(self) -> int:
        """Packets in the stream; the last is filled up with zeros."""
        return -(-self.length // self.per_packet)

    def packet(self, p: int) -> list[Run]:
        """What rides in packet p, in lane order."""
        if not 0 <= p < self.packets:
            raise UsageError(f"packet {p} of a stream of {self.packets}")
        runs: list[Run] = []
        at = p * self.per_packet
        left = min(self.per_packet, self.length - at)
        position = 0
        while left:
            # All blocks but the tensor's last are whole, and that one ends the stream.
            block, offset = int(self.sent[at // self.block]), at % self.block
            count = min(self.block - offset, left, self.elements - (block * self.block + offset))
            runs.append(Run(block, offset, block * self.block + offset, count, position))
            at += count
            position += count
            left -= count
        return runs

    def stream(self) -> npt.NDArray[np.int64]:
        """Index in the tensor of every element of the stream, in order; shape (length,)."""
        index = (self.sent[:, None] * self.block + np.arange(self.block, dtype=np.int64)).reshape(-1)
        return index[: self.length]

    def skips(self, own: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which packets a worker sends as SKIPs: those none of whose blocks is non-zero there.

        Args:
            own: bool, one a block: non-zero at this worker.

        Returns:
            bool of shape (packets,).
        """
        _check_bitmap("own", own, self.blocks)
        flags = np.zeros(self.packets * self.per_packet, np.bool_)
        flags[: self.length] = np.repeat(own[self.sent], self.block)[: self.length]
        return ~np.asarray(flags.reshape(self.packets, self.per_packet).any(axis=1), np.bool_)


# ---------------------------------------------------------------------- segments and steps


class StepKind(StrEnum):
    """What a step of a collective sends."""

    HEADER = "header"
    PLAN = "plan"
    STREAM = "stream"


def segment_elements(block: int, *, sparse: bool) -> int:
    """Elements of each of a collective's segments but the last, which has what is left.

    Args:
        block: B. A segment is a multiple of 32 blocks, so that it has whole words of the bitmap.
        sparse: whether the last collective skipped zero blocks and its union was under an eighth of them.
    """
    unit = 32 * block
    wanted = SPARSE_SEGMENT if sparse else DENSE_SEGMENT
    return -(-wanted // unit) * unit


def steps(segments: int, lead: int = LEAD) -> list[tuple[StepKind, int]]:
    """The order in which the parts of a collective are sent: (what, which segment); the header has segment 0.

        header  plan 0  plan 1  stream 0  plan 2  stream 1  plan 3  stream 2  stream 3        lead = 2

    The header comes first. Then plans run `lead` segments ahead of streams, so that nobody waits for a plan's
    round trip, and a segment that was scanned is still in the processor's cache when it is quantized.
    `switchagg/native/worker/engine.cpp` (`step_at`) is the same.

    Args:
        segments: how many; none where there are no elements.
        lead: at least 1; more than there are segments counts as all of them.

    Raises:
        UsageError: an argument is out of range.
    """
    if segments < 0 or lead < 1:
        raise UsageError(f"{segments} segments, lead {lead}; accepted: 0 and up, 1 and up")
    order = [(StepKind.HEADER, 0)]
    order += [(StepKind.PLAN, i) for i in range(min(lead, segments))]
    for i in range(segments):
        order.append((StepKind.STREAM, i))
        if i + lead < segments:
            order.append((StepKind.PLAN, i + lead))
    return order


# ---------------------------------------------------------------------- the cost of it


class Overlap(StrEnum):
    """How the non-zero blocks of different workers lie to each other."""

    ALL = "all"  # the same blocks at every worker
    RANDOM = "random"  # independent
    NONE = "none"  # no block at two workers, as far as there is room


def union_density(density: float, workers: int, overlap: Overlap) -> float:
    """U: the share of blocks that are non-zero at any worker, where each worker has a share `density`.

    Zero-skip helps by 1/U and not by 1/density (OmniReduce, SIGCOMM'21).

    Raises:
        UsageError: `density` is not between 0 and 1.
    """
    if not 0 <= density <= 1:
        raise UsageError(f"density is {density}; accepted: 0 to 1")
    match overlap:
        case Overlap.ALL:
            return density
        case Overlap.RANDOM:
            return float(1 - (1 - density) ** workers)
        case Overlap.NONE:
            return min(1.0, workers * density)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one worker sends and receives in one all-reduce; means, hence not whole numbers.

    Attributes:
        words_sent, words_received: 32-bit words of payload.
        packets: UDP packets each way; 0 for the ring, which is taken to have no headers.
    """

    words_sent: float
    words_received: float
    packets: float

    @property
    def bytes_sent(self) -> float:
        """With UDP, IPv4 and our header."""
        return 4 * self.words_sent + self.packets * (HEADER_BYTES + IP_UDP_BYTES)

    @property
    def bytes_received(self) -> float:
        """With UDP, IPv4 and our header."""
        return 4 * self.words_received + self.packets * (HEADER_BYTES + IP_UDP_BYTES)


def ring_traffic(elements: int, workers: int, element_bits: int = 32) -> Traffic:
    """Ring all-reduce: every worker sends and receives 2(n - 1)/n of the tensor."""
    words = 2 * (workers - 1) / workers * elements * element_bits / 32
    return Traffic(words, words, 0)


def dense_traffic(elements: int, bits: int = 32, words: int = DEFAULT_WORDS) -> Traffic:
    """In-network, every block sent: the tensor once each way, K = `words` (SwitchML, NSDI'21)."""
    packets = -(-elements // elements_per_packet(words, bits))
    return Traffic(packets * words, packets * words, packets)


def zero_skip_traffic(
    elements: int,
    workers: int,
    density: float,
    overlap: Overlap,
    *,
    bits: int = 32,
    words: int = DEFAULT_WORDS,
    block: int = DEFAULT_BLOCK,
) -> Traffic:
    """In-network, zero blocks skipped. Plans are not counted.

    The union comes down whole. A worker sends words in the packets that hold a block of its own, and SKIPs
    for the rest; its blocks are taken to lie independently among the union's.
    """
    share = union_density(density, workers, overlap)
    per_packet = elements_per_packet(words, bits)
    packets = share * elements / per_packet
    if share == 0:
        return Traffic(0, 0, 0)
    filled = 1 - (1 - density / share) ** max(1.0, per_packet / block)
    return Traffic(packets * words * filled, packets * words, packets)


def _check_bitmap(name: str, bitmap: npt.NDArray[np.bool_], blocks: int) -> None:
    if bitmap.dtype != np.bool_ or bitmap.shape != (blocks,):
        raise UsageError(
            f"{name} is {bitmap.dtype} of shape {bitmap.shape}; needed: bool of shape ({blocks},)"
        )
