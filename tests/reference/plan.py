"""The plan that opens every collective: the call, this rank's non-zero blocks, its chunks' exponents.

Plans are reduced through the switch with OR, so every rank gets the same words:

    words 0-4     fingerprint of the call             words 5-9     its complement, bit by bit
    word 10       rank 0: the job's skip policy        word 11       bit 0, rank 0: pause; bit 1: withdrawn;
                                                                     a stripe's weight (`deal.py`)
    then          bitmap, a bit a block (only where zero blocks are skipped)
    then          exponents, one-hot, 256 bits a chunk (float64: 2,048; only for sums of floats)

A plan that fits in K words is one packet. Otherwise packet 0 has the twelve words alone, and the rest follows
in packets of K words; one that is all zero is a SKIP. Nothing after packet 0 may be sent before its RESULT
has come.

* A bit that is set in both the OR of a fingerprint word and the OR of its complement is one in which two
  ranks differ: ranks have called different things, and all of them see it.
* The OR of the bitmaps is the union. Bit b is in word b / 32, bit b % 32, counted from the least significant.
* The highest bit of the OR of one-hot exponents is their maximum; bit 255 (2,047) of them says that the chunk
  holds NaN or Inf.

`switchagg/native/worker/plan.cpp` does the same in the engine.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.planner import MAX_BLOCK, SkipPolicy, lanes_code
from worker_lib.plan import (
    HEADER_WORDS,
    NARROW_CHUNK,
    NO_EXPONENT,
    VERSION,
    WIDE_CHUNK,
    DType,
    Kind,
    ReduceOp,
    Words,
    pack_bitmap,
    unpack_bitmap,
)

POLICY_WORD: Final = 10
FLAGS_WORD: Final = 11
PAUSE: Final = 1  # in that word, from rank 0: all stop after this collective, for a change of membership
WITHDRAWN: Final = 2  # from any rank: it called this for another number of ranks, and all leave it


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, as all ranks must call it.

    Attributes:
        kind, op, dtype, bits: the operation; `bits` is the width of lanes.
        count: elements of the tensor that is reduced (for exact moves: 32-bit words).
        shape: of this rank's input, as its caller sees it.
        position: of the collective in the job, counted from 0.
        element_type: for exact moves, the name of the caller's element type; it is part of the fingerprint,
            since `dtype` is then `RAW`.
        input_count: elements of this rank's input, as its caller sees it; `count` if None.
        root: of a broadcast.
        sparse: whether zero blocks are skipped.
        block: elements a block.
        auto_zeros, auto_block: whether `sparse` and `block` are left to the job's policy.
        auto_lanes: 0, or `bits` is left to the policy too, and is no narrower than this.

    Raises:
        UsageError: a value is out of range, or two of them do not go together.
    """

    kind: Kind
    op: ReduceOp
    dtype: DType
    bits: int
    count: int
    shape: tuple[int, ...]
    position: int = 0
    element_type: str = ""
    input_count: int | None = None
    root: int = 0
    sparse: bool = True
    block: int = 64
    auto_zeros: bool = False
    auto_block: bool = False
    auto_lanes: int = 0

    def __post_init__(self) -> None:
        if self.bits not in self.dtype.lanes:
            accepted = ", ".join(map(str, self.dtype.lanes))
            raise UsageError(f"bits is {self.bits!r}; accepted for {self.dtype.label}: {accepted}")
        if self.op is ReduceOp.AVG and not self.dtype.is_float:
            raise UsageError(f"average of {self.dtype.label}; accepted: floats. Sum integers and divide")
        if not 1 <= self.block <= MAX_BLOCK:
            raise UsageError(f"block is {self.block}; accepted: 1 to {MAX_BLOCK} elements")
        if not 0 <= self.root <= 0xFF:
            raise UsageError(f"root is {self.root}; accepted: 0 to 255")
        if self.count < 0:
            raise UsageError(f"count is {self.count}; accepted: 0 and up")

    def __str__(self) -> str:
        shape = tuple(int(d) for d in self.shape)
        if self.op is ReduceOp.OR:
            inside = f"{self.element_type or self.dtype.label}, shape={shape}"
            if self.kind is Kind.BROADCAST:
                inside += f", root={self.root}"
        else:
            inside = f"{self.dtype.label}, shape={shape}, {self.op.name.lower()}, {self.bits} bits"
        return f"{self.kind.name.lower()}({inside})"

    def under(self, policy: SkipPolicy, workers: int = 1) -> Call:
        """The call with what it leaves to the policy settled; all ranks do so alike before they scan.

        Args:
            workers: n; more than 127 cannot share lanes of 8 bits.
        """
        bits = self.bits
        if self.auto_lanes:
            at_least = max(policy.bits or 64, self.auto_lanes, 8 if workers <= 127 else 16)
            bits = min((b for b in self.dtype.lanes if b >= at_least), default=self.dtype.lanes[0])
        return replace(
            self,
            sparse=not policy.dense if self.auto_zeros else self.sparse,
            block=policy.block if self.auto_block else self.block,
            bits=bits,
        )

    @property
    def scaled(self) -> bool:
        """True where the plan carries exponents."""
        return self.op is not ReduceOp.OR and self.dtype.is_float

    @property
    def chunk(self) -> int:
        """C: elements that share an exponent."""
        return WIDE_CHUNK if self.bits >= 32 else NARROW_CHUNK

    @property
    def chunks(self) -> int:
        """Chunks that have an exponent; 0 where nothing is scaled."""
        return -(-self.count // self.chunk) if self.scaled else 0

    @property
    def blocks(self) -> int:
        """Blocks in the tensor."""
        return -(-self.count // self.block)

    @property
    def bitmap_words(self) -> int:
        """Words that the bitmap takes in the plan; 0 where every block is sent."""
        return -(-self.blocks // 32) if self.sparse else 0

    @property
    def exponent_words(self) -> int:
        """Words that all exponents take in the plan."""
        return self.chunks * self.dtype.exponent_bits // 32

    @property
    def plan_words(self) -> int:
        """Words of the whole plan."""
        return HEADER_WORDS + self.bitmap_words + self.exponent_words

    def plan_packets(self, words: int) -> int:
        """Packets of the plan, with K = `words`."""
        if self.plan_words <= words:
            return 1
        rest = self.plan_words - HEADER_WORDS
        return 1 + -(-rest // words)

    def fingerprint(self) -> tuple[int, int, int, int, int]:
        """The five words that must be the same at every rank."""
        shape = tuple(int(d) for d in self.shape)
        text = repr((self.element_type, *shape) if self.element_type else shape)
        return (
            VERSION << 28 | self.kind << 24 | self.op << 16 | self.dtype << 8 | self.bits,
            self.position & 0xFFFFFFFF,
            (self.count if self.input_count is None else self.input_count) & 0xFFFFFFFF,
            zlib.crc32(text.encode()),
            self.root << 24
            | self.auto_block << 22
            | self.auto_zeros << 21
            | self.sparse << 20
            | lanes_code(self.auto_lanes) << 17
            | self.block,
        )


@dataclass(frozen=True, slots=True)
class Header:
    """A plan's first words, parsed: the fields of `Call` that a fingerprint holds, and what rank 0 adds."""

    kind: Kind
    op: ReduceOp
    dtype: DType
    bits: int
    position: int
    count: int
    shape_crc: int
    root: int
    sparse: bool
    block: int
    policy: int
    pause: bool = False
    withdrawn: bool = False


@dataclass(frozen=True, eq=False)
class Agreed:
    """The content of a plan's RESULTs; the same at every rank.

    Attributes:
        policy: rank 0's policy word; see `switchagg.rules.planner.SkipPolicy`.
        union: bool of shape (blocks,): non-zero at any rank; all True where every block is sent.
        exponents: int16 of shape (chunks,): the largest at any rank; -1 where all are zero.
        special: bool of shape (chunks,): NaN or Inf at some rank.
    """

    policy: int
    union: npt.NDArray[np.bool_]
    exponents: npt.NDArray[np.int16]
    special: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


def header_words(call: Call, policy: int = 0, pause: bool = False, withdrawn: bool = False) -> Words:
    """The first twelve words of a rank's plan; `policy` is 0, and `pause` False, at all ranks but rank 0."""
    words = np.zeros(HEADER_WORDS, np.uint32)
    words[:5] = call.fingerprint()
    words[5:10] = ~words[:5]
    words[POLICY_WORD] = policy
    words[FLAGS_WORD] = (PAUSE if pause else 0) | (WITHDRAWN if withdrawn else 0)
    return words


def parse_header(words: Words) -> Header:
    """The fields of a plan's first words, where all ranks agree.

    Raises:
        UsageError: fewer than twelve words, or an unknown code.
    """
    if len(words) < HEADER_WORDS:
        raise UsageError(f"{len(words)} words; a plan has at least {HEADER_WORDS}")
    f0, position, count, crc, f4 = (int(w) for w in words[:5])
    try:
        kind, op, dtype = Kind(f0 >> 24 & 0xF), ReduceOp(f0 >> 16 & 0xFF), DType(f0 >> 8 & 0xFF)
    except ValueError as error:
        raise UsageError(f"fingerprint word 0x{f0:08x}: {error}") from None
    return Header(
        kind, op, dtype, f0 & 0xFF, position, count, crc,
        root=f4 >> 24, sparse=bool(f4 & 0x100000), block=f4 & 0x1FFFF, policy=int(words[POLICY_WORD]),
        pause=bool(words[FLAGS_WORD] & PAUSE), withdrawn=bool(words[FLAGS_WORD] & WITHDRAWN),
    )  # fmt: skip


def difference(words: Words) -> tuple[int, ...]:
    """From the RESULT of packet 0: the bits of each fingerprint word in which ranks differ."""
    return tuple(int(a & b) for a, b in zip(words[:5], words[5:10], strict=True))


def pack_exponents(
    exponents: npt.NDArray[np.int16], dtype: DType, special: npt.NDArray[np.bool_] | None = None
) -> Words:
    """One-hot words of every chunk's exponent, none set for `NO_EXPONENT`, and the bit of special chunks."""
    words = np.zeros((exponents.size, dtype.exponent_bits // 32), np.uint32)
    chunk = np.flatnonzero(exponents != NO_EXPONENT)
    e = exponents[chunk].astype(np.int64)
    words[chunk, e // 32] = np.uint32(1) << (e % 32).astype(np.uint32)
    if special is not None:
        words[special, -1] |= np.uint32(1 << 31)
    return words.reshape(-1)


def unpack_exponents(words: Words, dtype: DType) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """The highest exponent in every chunk's words, `NO_EXPONENT` where there is none; and special chunks."""
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little").reshape(
        -1, dtype.exponent_bits
    )
    finite = bits[:, :-1]
    highest = dtype.exponent_bits - 2 - np.argmax(finite[:, ::-1], axis=1)
    return np.where(finite.any(axis=1), highest, NO_EXPONENT).astype(np.int16), bits[:, -1].astype(np.bool_)


def encode(
    call: Call,
    words: int,
    bitmap: npt.NDArray[np.bool_],
    exponents: npt.NDArray[np.int16],
    policy: int = 0,
    special: npt.NDArray[np.bool_] | None = None,
) -> list[Words | None]:
    """A rank's plan, packet by packet.

    Args:
        call: what this rank calls.
        words: K.
        bitmap: bool of shape (blocks,): this rank's non-zero blocks; not looked at where every block is sent.
        exponents: int16 of shape (chunks,), -1 for none.
        policy: the job's policy word at rank 0, else 0.
        special: bool of shape (chunks,): this rank has NaN or Inf there; by default nowhere.

    Returns:
        One array of K words a packet; None for a SKIP.

    Raises:
        UsageError: an array has another shape.
    """
    if call.sparse and bitmap.shape != (call.blocks,):
        raise UsageError(f"bitmap has shape {bitmap.shape}; needed: ({call.blocks},)")
    if exponents.shape != (call.chunks,):
        raise UsageError(f"exponents have shape {exponents.shape}; needed: ({call.chunks},)")
    rest = np.concatenate(
        [
            pack_bitmap(bitmap) if call.sparse else np.empty(0, np.uint32),
            pack_exponents(exponents, call.dtype, special) if call.scaled else np.empty(0, np.uint32),
        ]
    )
    head = header_words(call, policy)
    if call.plan_words <= words:
        return [_padded(np.concatenate([head, rest]), words)]
    tail = [_padded(rest[at : at + words], words) for at in range(0, rest.size, words)]
    return [_padded(head, words), *(packet if packet.any() else None for packet in tail)]


def decode(call: Call, results: Sequence[Words | None]) -> Agreed:
    """Reads what all ranks agreed on from the RESULTs of the plan; None is a RESULT without words.

    The caller has looked at `difference` of the first one.

    Raises:
        UsageError: not as many packets as the plan has.
    """
    first = results[0] if results else None
    if first is None or len(results) != call.plan_packets(first.size):
        raise UsageError(f"{len(results)} results; a plan's first is never empty, and they must all be there")
    words = first.size
    if len(results) == 1:
        rest = first[HEADER_WORDS:]
    else:
        rest = np.concatenate([np.zeros(words, np.uint32) if r is None else r for r in results[1:]])
    exponents, special = unpack_exponents(rest[call.bitmap_words :][: call.exponent_words], call.dtype)
    return Agreed(
        policy=int(first[POLICY_WORD]),
        union=unpack_bitmap(rest[: call.bitmap_words], call.blocks)
        if call.sparse
        else np.ones(call.blocks, np.bool_),
        exponents=exponents,
        special=special,
    )


def _padded(values: Words, words: int) -> Words:
    out = np.zeros(words, np.uint32)
    out[: values.size] = values
    return out
