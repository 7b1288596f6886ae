"""The plan that opens every collective: what this rank calls, where it is not zero, how large its values are.

Plans are reduced through the switch with OR, so every rank gets the same words:

    words 0-4     fingerprint of the call             words 5-9     its complement, bit by bit
    word 10       rank 0: the job's skip policy        word 11       bit 0, rank 0: pause; bit 1: withdrawn
    then          bitmap, a bit a block (only where zero blocks are skipped)
    then          exponents, one-hot, 256 bits a chunk (float64: 2,048; only for sums of floats)

Where all that fits in K words it is one packet. Otherwise packet 0 is the twelve words alone, and the rest
follows in packets of K words; one that is all zero is a SKIP. Nothing after packet 0 may be sent before its
RESULT has come.

* A bit that is set in both the OR of a fingerprint word and the OR of its complement is one in which two
  ranks differ: ranks have called different things, and all of them see it.
* The OR of the bitmaps is the union. Bit b is in word b / 32, bit b % 32, counted from the least significant.
* The highest bit of the OR of one-hot exponents is their maximum. Bit 255 (2,047) says NaN or Inf.

`switchagg/native/worker/plan.cpp` is the same for the engine. No I/O.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.planner import MAX_BLOCK, SkipPolicy, lanes_code

Words = npt.NDArray[np.uint32]

HEADER_WORDS: Final = 12
NO_EXPONENT: Final = -1  # of a chunk that is all zero
WIDE_CHUNK: Final = 65536  # elements that share an exponent, 64- and 32-bit lanes
NARROW_CHUNK: Final = 1024  # the same, 16- and 8-bit lanes
POLICY_WORD: Final = 10
FLAGS_WORD: Final = 11
PAUSE: Final = 1  # in that word, from rank 0: all stop after this collective, for a change of membership
WITHDRAWN: Final = 2  # from any rank: it called this for another number of ranks, and all leave it


class Kind(IntEnum):
    """Which collective. The codes are on the wire."""

    ALLREDUCE = 0
    BROADCAST = 1
    ALLGATHER = 2
    REDUCE_SCATTER = 3
    BARRIER = 4
    FLOOR = 5  # for the benchmark: data packets with the words left untouched


class ReduceOp(IntEnum):
    """How contributions become a result. The codes are on the wire."""

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
        """Whether sums of it are scaled."""
        return self <= DType.BF16

    @property
    def label(self) -> str:
        """The name that NumPy and torch use; ``bytes`` for `RAW`."""
        return _DTYPE_LABELS[self]

    @property
    def lanes(self) -> tuple[int, ...]:
        """Accepted widths of lanes, the default first."""
        return _LANES[self]

    @property
    def exponent_bits(self) -> int:
        """Bits that a chunk's exponent takes in a plan."""
        return 2048 if self is DType.F64 else 256

    @property
    def not_finite(self) -> int:
        """The exponent that says NaN or Inf."""
        return self.exponent_bits - 1

    @property
    def top_exponent(self) -> int:
        """The largest exponent of a finite value (of float16 ones as float32)."""
        return 142 if self is DType.F16 else self.not_finite - 1


_DTYPE_LABELS: Final = {
    DType.F32: "float32", DType.F64: "float64", DType.F16: "float16", DType.BF16: "bfloat16",
    DType.I32: "int32", DType.I64: "int64", DType.RAW: "bytes",
}  # fmt: skip
_LANES: Final[dict[DType, tuple[int, ...]]] = {
    DType.F32: (32, 16, 8), DType.F64: (64, 32, 16, 8), DType.F16: (32, 16, 8), DType.BF16: (32, 16, 8),
    DType.I32: (32,), DType.I64: (64,), DType.RAW: (32,),
}  # fmt: skip


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
        """Whether the plan carries exponents."""
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
            self.kind << 24 | self.op << 16 | self.dtype << 8 | self.bits,
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


# Where each field of a fingerprint stands: word, bits, and what to call it.
_FIELDS: Final = (
    (0, 0xFF000000, "operation"),
    (0, 0x00FF0000, "reduction"),
    (0, 0x0000FF00, "dtype"),
    (0, 0x000000FF, "bits"),
    (1, 0xFFFFFFFF, "position in the job"),
    (2, 0xFFFFFFFF, "number of elements"),
    (3, 0xFFFFFFFF, "shape"),
    (4, 0xFF000000, "root"),
    (4, 0x00400000, "whether the block size is left to the job"),
    (4, 0x00200000, "whether the job decides if zero blocks are skipped"),
    (4, 0x00100000, "whether zero blocks are skipped"),
    (4, 0x000E0000, "min_bits of lanes left to the job"),
    (4, 0x0001FFFF, "block size"),
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
    """What a plan's RESULTs say; the same at every rank.

    Attributes:
        policy: rank 0's policy word; see `switchagg.rules.planner.SkipPolicy`.
        union: bool of shape (blocks,): non-zero at any rank; all True where every block is sent.
        exponents: int16 of shape (chunks,): the largest at any rank; -1 where all are zero.
    """

    policy: int
    union: npt.NDArray[np.bool_]
    exponents: npt.NDArray[np.int16]


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
        kind, op, dtype = Kind(f0 >> 24), ReduceOp(f0 >> 16 & 0xFF), DType(f0 >> 8 & 0xFF)
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


def differing_fields(differing: Sequence[int]) -> list[str]:
    """The names of what ranks called differently, from what `difference` returns."""
    return [name for word, mask, name in _FIELDS if differing[word] & mask]


def mismatch_message(differing: Sequence[int], call: Call) -> str | None:
    """What to tell a user whose ranks called different things; None where they did not.

    Args:
        differing: as `difference` returns it.
        call: what this rank called.
    """
    names = differing_fields(differing)
    return f"ranks disagree on {', '.join(names)}; this rank called {call}" if names else None


def pack_bitmap(bitmap: npt.NDArray[np.bool_]) -> Words:
    """One bit a block; bit b in word b / 32, bit b % 32."""
    data = np.zeros(-(-bitmap.size // 32) * 4, np.uint8)
    bits = np.packbits(bitmap, bitorder="little")
    data[: bits.size] = bits
    return data.view("<u4").astype(np.uint32)


def unpack_bitmap(words: Words, blocks: int) -> npt.NDArray[np.bool_]:
    """The reverse of `pack_bitmap`, for `blocks` blocks."""
    return np.unpackbits(words.astype("<u4").view(np.uint8), count=blocks, bitorder="little").view(np.bool_)


def pack_exponents(exponents: npt.NDArray[np.int16], dtype: DType) -> Words:
    """One-hot words of every chunk's exponent; none set for `NO_EXPONENT`."""
    words = np.zeros((exponents.size, dtype.exponent_bits // 32), np.uint32)
    chunk = np.flatnonzero(exponents != NO_EXPONENT)
    e = exponents[chunk].astype(np.int64)
    words[chunk, e // 32] = np.uint32(1) << (e % 32).astype(np.uint32)
    return words.reshape(-1)


def unpack_exponents(words: Words, dtype: DType) -> npt.NDArray[np.int16]:
    """The highest bit set in every chunk's words; `NO_EXPONENT` where there is none."""
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little").reshape(
        -1, dtype.exponent_bits
    )
    highest = dtype.exponent_bits - 1 - np.argmax(bits[:, ::-1], axis=1)
    return np.where(bits.any(axis=1), highest, NO_EXPONENT).astype(np.int16)


def encode(
    call: Call,
    words: int,
    bitmap: npt.NDArray[np.bool_],
    exponents: npt.NDArray[np.int16],
    policy: int = 0,
) -> list[Words | None]:
    """A rank's plan, packet by packet.

    Args:
        call: what this rank calls.
        words: K.
        bitmap: bool of shape (blocks,): this rank's non-zero blocks; not looked at where every block is sent.
        exponents: int16 of shape (chunks,), -1 for none.
        policy: the job's policy word at rank 0, else 0.

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
            pack_exponents(exponents, call.dtype) if call.scaled else np.empty(0, np.uint32),
        ]
    )
    head = header_words(call, policy)
    if call.plan_words <= words:
        return [_padded(np.concatenate([head, rest]), words)]
    tail = [_padded(rest[at : at + words], words) for at in range(0, rest.size, words)]
    return [_padded(head, words), *(packet if packet.any() else None for packet in tail)]


def decode(call: Call, results: Sequence[Words | None]) -> Agreed:
    """What all ranks agreed on, from the RESULTs of the whole plan; None is a RESULT without words.

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
    return Agreed(
        policy=int(first[POLICY_WORD]),
        union=unpack_bitmap(rest[: call.bitmap_words], call.blocks)
        if call.sparse
        else np.ones(call.blocks, np.bool_),
        exponents=unpack_exponents(rest[call.bitmap_words :][: call.exponent_words], call.dtype),
    )


def _padded(values: Words, words: int) -> Words:
    out = np.zeros(words, np.uint32)
    out[: values.size] = values
    return out
