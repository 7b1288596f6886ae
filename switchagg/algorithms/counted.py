"""A compressor that counts what it hands to the switch, for the log of a method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from worker_lib.compress.base import Compressor, Floats, Message, Round, Words

_BLOCK = 64  # elements; what a job skips unless it was told otherwise


class Counted(Compressor):
    """Does what `inner` does.

    Attributes:
        bits: of all messages so far: words that were shared, lanes of blocks that were sent, and a bit a
            block where ranks do not all send the same ones.
    """

    def __init__(self, inner: Compressor) -> None:
        super().__init__()
        self.inner = inner
        self.bits = 0
        self._shared_bits = 0

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """As the inner one."""
        return self.inner.unbiased

    def check(self, size: int, round: Round) -> None:
        """As the inner one."""
        self.inner.prepare(size, round)

    def share(self, x: Floats, round: Round) -> Words | None:
        """As the inner one."""
        words = self.inner.share(x, round)
        self._shared_bits = 0 if words is None else 32 * words.size
        return words

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """As the inner one."""
        message = self.inner.encode(x, shared, round)
        self.bits += self._shared_bits + sent_bits(message)
        return message

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """As the inner one."""
        return self.inner.own(message, shared, round)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """As the inner one."""
        result = self.inner.decode(total, message, shared, round)
        self._done(result.size)
        return result

    def omega(self, size: int, workers: int = 1) -> float | None:
        """As the inner one."""
        return self.inner.omega(size, workers)

    def parts(self) -> Iterator[Compressor]:
        """The inner one."""
        yield self.inner

    def describe(self) -> str:
        """As the inner one."""
        return self.inner.describe()


def sent_bits(message: Message) -> int:
    """Bits of the blocks that a rank sends of its message, and of the bitmap that says which."""
    values = message.values
    lane = message.bits or 8 * values.dtype.itemsize
    if isinstance(message.blocks, str):
        if message.blocks == "dense":
            return message.payload_bits
        starts = np.arange(0, values.size, message.block_size or _BLOCK)
        sent = np.logical_or.reduceat(values != 0, starts) if values.size else np.zeros(0, np.bool_)
        if sent.all():
            return message.payload_bits
    else:
        sent = np.asarray(message.blocks, np.bool_)
    block = message.block_size or _BLOCK
    inside = int(np.count_nonzero(np.repeat(sent, block)[: values.size]))
    return inside * lane + int(sent.size)
