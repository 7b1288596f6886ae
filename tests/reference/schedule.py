"""The order of a collective's packets: slots, segments, and the elements that each packet carries.

The tensor is cut into blocks of B elements (the last may be short). The blocks that are non-zero at any
worker, in order, make one stream of elements, and every E of them fill a packet:

    blocks      0   1   2   3   4   5   6   7            B = 4 elements each
    union       .   x   .   .   x   x   .   x
    stream          1111        4444 5555   7777
    packets         111144      4455 55     7777         E = 6: a block may straddle two packets

Packet p of a stream that begins at packet number s of the job has sequence number first_seq + s + p (mod
2^32) and slot base + (seq mod P). The order is the same at every worker because the union is; a worker whose
own blocks of a packet are all zero sends a SKIP. Zero blocks: OmniReduce (SIGCOMM'21); many small ones to a
packet, because independent zeros leave few large blocks empty. Large tensors are cut in segments, each with a
stream of its own. `switchagg/native/worker/stream.cpp` and `engine.cpp` do the same in the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError

DENSE_SEGMENT: Final = 1 << 19  # elements, before rounding up; see `segment_elements`
SPARSE_SEGMENT: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Placement:
    """The slots of a job's packets.

    Attributes:
        first_seq: sequence number of packet number 0.
        base: first slot of the job.
        slots: P, a power of two.
    """

    first_seq: int
    base: int
    slots: int

    def seq(self, number: int) -> int:
        """The sequence number of the job's packet `number`, counted from 0."""
        return (self.first_seq + number) & 0xFFFFFFFF

    def slot(self, number: int) -> int:
        """The slot that it uses."""
        return self.base + (self.seq(number) & (self.slots - 1))


@dataclass(frozen=True, slots=True)
class Run:
    """Elements of one block that one packet carries.

    Attributes:
        block: the block's number.
        offset: of the first of them in the block.
        element: index of the first of them in the tensor.
        count: how many.
        lane: of the first of them in the packet, 0 to E - 1.
    """

    block: int
    offset: int
    element: int
    count: int
    lane: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """The elements that each packet of a stream carries.

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
        """The elements that packet p carries, in lane order."""
        if not 0 <= p < self.packets:
            raise UsageError(f"packet {p} of a stream of {self.packets}")
        runs: list[Run] = []
        at = p * self.per_packet
        left = min(self.per_packet, self.length - at)
        lane = 0
        while left:
            # All blocks but the tensor's last are whole, and that one ends the stream.
            block, offset = int(self.sent[at // self.block]), at % self.block
            count = min(self.block - offset, left, self.elements - (block * self.block + offset))
            runs.append(Run(block, offset, block * self.block + offset, count, lane))
            at += count
            lane += count
            left -= count
        return runs

    def stream(self) -> npt.NDArray[np.int64]:
        """Index in the tensor of every element of the stream, in order; shape (length,)."""
        index = (self.sent[:, None] * self.block + np.arange(self.block, dtype=np.int64)).reshape(-1)
        return index[: self.length]

    def skips(self, own: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The packets that a worker sends as SKIPs: those none of whose blocks is non-zero there.

        Args:
            own: bool, one a block: non-zero at this worker.

        Returns:
            bool of shape (packets,).
        """
        _check_bitmap("own", own, self.blocks)
        flags = np.zeros(self.packets * self.per_packet, np.bool_)
        flags[: self.length] = np.repeat(own[self.sent], self.block)[: self.length]
        return ~np.asarray(flags.reshape(self.packets, self.per_packet).any(axis=1), np.bool_)


def segment_elements(block: int, *, sparse: bool) -> int:
    """Elements of each of a collective's segments but the last, which has what is left.

    Args:
        block: B. A segment is a multiple of 32 blocks, so that it has whole words of the bitmap.
        sparse: true if zero blocks are skipped, and the union of the last collective of as many elements that
            skipped them was under an eighth of the blocks; of the first, if the call itself asks for it.
    """
    unit = 32 * block
    wanted = SPARSE_SEGMENT if sparse else DENSE_SEGMENT
    return -(-wanted // unit) * unit


def _check_bitmap(name: str, bitmap: npt.NDArray[np.bool_], blocks: int) -> None:
    if bitmap.dtype != np.bool_ or bitmap.shape != (blocks,):
        raise UsageError(
            f"{name} is {bitmap.dtype} of shape {bitmap.shape}; needed: bool of shape ({blocks},)"
        )
