"""What compressors with a memory of their own have in common: an inner compressor that gets something else
than x.

    x --minus or plus a memory--> y --inner--> message;  after the sum the memory moves by what was sent

A round whose sum is not finite somewhere leaves the memory there as it was: one NaN must not stay for ever.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words


class Remembering(Compressor):
    """Compresses something made of x and a memory.

    Args:
        inner: what it goes through.

    Raises:
        UsageError: `inner` is no compressor.
    """

    remembers = True

    def __init__(self, inner: Compressor) -> None:
        super().__init__()
        if not isinstance(inner, Compressor):
            raise UsageError(f"inner is a {type(inner).__name__}; accepted: a worker_lib.compress.Compressor")
        self.inner = inner
        self._memory: dict[str, Floats] = {}

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Of the memories."""

    @abstractmethod
    def ahead(self, x: Floats) -> Floats:
        """What goes to the inner compressor; a new array."""

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where the inner compressor cannot, or a memory has another size."""
        for name, memory in self._memory.items():
            if memory.size != size:
                raise UsageError(f"memory {name!r} has {memory.size} elements, and x has {size}")
        self.inner.prepare(size, round)

    def share(self, x: Floats, round: Round) -> Words | None:
        """What the inner compressor shares."""
        return self.inner.share(self.ahead(x), round)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """The inner compressor's message."""
        y = self.ahead(x)
        inner = self.inner.encode(y, shared, round)
        return replace(inner, kept=(inner, y))

    def parts(self) -> Iterator[Compressor]:
        """The inner compressor."""
        yield self.inner

    def memories(self) -> dict[str, Floats]:
        """The memories; none before the first round."""
        return dict(self._memory)

    def restore_memories(self, memories: Mapping[str, Floats]) -> None:
        """Takes over copies of them."""
        if set(memories) != set(self.names()):
            raise UsageError(f"memories are {sorted(memories)}; needed: {sorted(self.names())}")
        self._memory = {name: np.array(memory).reshape(-1) for name, memory in memories.items()}

    def _restart(self, stream: int) -> None:
        super()._restart(stream)
        self._memory = {}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._memory = {}
        super()._load(state)

    def _of(self, name: str, x: Floats) -> Floats:
        """A memory, in x's type; zeros at first."""
        memory = self._memory.get(name)
        if memory is None or memory.dtype != x.dtype:
            memory = np.zeros_like(x) if memory is None else memory.astype(x.dtype)
            self._memory[name] = memory
        return memory


class Following(Remembering):
    """Compresses the difference of x to a memory that follows it, h_i, as everybody's sum H follows the sum.

    State: two vectors like x, "own" (h_i) and "sum" (H), zero at first. When other ranks take part than
    before, both begin at zero again. H is kept by every rank, from the same sums, so it is equal everywhere
    to the bit and never sent.
    """

    def names(self) -> tuple[str, ...]:
        """h_i and H."""
        return ("own", "sum")

    @abstractmethod
    def rate(self, size: int, workers: int) -> float:
        """How far memories move towards what was sent, over 0 and up to 1."""

    def ahead(self, x: Floats) -> Floats:
        """The difference to this rank's memory."""
        result: Floats = x - self._of("own", x)
        return result

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """h_i and what was sent."""
        inner, y = message.kept
        result: Floats = self._of("own", y) + self.inner.own(inner, shared, round)
        return result

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """H and the sum of what was sent; then both memories move."""
        inner, y = message.kept
        sent = self.inner.own(inner, shared, round)
        change = self.inner.decode(total, inner, shared, round)
        h, every = self._of("own", y), self._of("sum", y)
        result: Floats = every + change
        rate = y.dtype.type(self.rate(y.size, round.world_size))
        h += rate * finite(sent, change)
        every += rate * finite(change, change)
        self._done(result.size)
        return result

    def forget_shared(self) -> None:
        """H is the sum over ranks that no longer are the same."""
        super().forget_shared()
        self._memory = {}


def finite(change: Floats, total: Floats) -> Floats:
    """A memory's change, but nothing where the sum is not finite."""
    there = np.isfinite(total)
    if there.all():
        return change
    return np.where(there, change, change.dtype.type(0))
