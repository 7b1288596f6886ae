"""What sparsifiers have in common: blocks are chosen, and what is in them goes to a compressor of its own.

    x --choose blocks--> values --inner compressor--> message
                            |
          the same blocks at every rank: only these travel, end to end, with no bitmap
          blocks of each rank's own:     the vector with zeros elsewhere; the session sends the union

`chain(TopBlocks(tau=0.1), Dithering(levels=8))` makes one of several. Blocks are `block` neighbours; the last
may be short.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.planner import MAX_BLOCK
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.shared_exponent import SharedExponent

DEFAULT_BLOCK: Final = 64
Numbers = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The blocks of one round.

    Attributes:
        numbers: of the blocks, ascending.
        size: elements of the vector.
        values: what the inner compressor gets.
        alike: whether all ranks have chosen these.
    """

    numbers: Numbers
    size: int
    values: Floats
    alike: bool


class Sparsifier(Compressor):
    """Sends some blocks, through an inner compressor.

    Args:
        block: elements a block.
        seed: see `Compressor`.

    Attributes:
        inner: what the chosen blocks go through: the session's widest lanes unless `through` says otherwise.

    Raises:
        UsageError: a block size that plans cannot carry.
    """

    def __init__(self, block: int = DEFAULT_BLOCK, seed: int = 0) -> None:
        super().__init__(seed)
        if isinstance(block, bool) or not isinstance(block, int) or not 1 <= block <= MAX_BLOCK:
            raise UsageError(f"block is {block!r}; accepted: 1 to {MAX_BLOCK} elements")
        self.block = block
        self.inner: Compressor = SharedExponent()
        self._chosen: Chosen | None = None

    def through(self, inner: Compressor) -> Self:
        """One like this, whose blocks go through `inner`.

        Raises:
            UsageError: `inner` is no compressor, or one with a memory.
        """
        if not isinstance(inner, Compressor):
            raise UsageError(f"inner is a {type(inner).__name__}; accepted: a worker_lib.compress.Compressor")
        if inner.remembers:
            raise UsageError(
                f"inner is {inner.describe()}, which remembers every element, and gets other blocks each "
                "round; put the memory round the whole, as in ErrorFeedback(chain(TopBlocks(...), ...))"
            )
        other = copy.deepcopy(self)
        other.inner = inner
        return other

    @abstractmethod
    def choose(self, x: Floats, round: Round) -> Numbers:
        """This round's blocks, ascending. Called once a round."""

    @abstractmethod
    def alike(self) -> bool:
        """Whether all ranks choose the same blocks."""

    def factor(self, size: int) -> float:
        """What decoded values are multiplied by: 1, or what makes them right on average."""
        return 1.0

    # ------------------------------------------------------------------ one round

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where the blocks or the inner compressor do not go with the size."""
        self._chosen = None
        self.inner.prepare(self.most(size), round)

    def most(self, size: int) -> int:
        """Elements that the inner compressor gets of a vector of this size."""
        return size

    def share(self, x: Floats, round: Round) -> Words | None:
        """What the inner compressor shares."""
        self._chosen = self._choose(x, round)
        return self.inner.share(self._chosen.values, round)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """The inner compressor's message; where blocks are this rank's own, zero blocks are not sent."""
        chosen = self._choose(x, round) if self._chosen is None else self._chosen
        self._chosen = None
        inner = self.inner.encode(chosen.values, shared, round)
        kept = (inner, chosen.numbers, chosen.size, chosen.alike)
        if chosen.alike:
            auto = isinstance(inner.blocks, str) and inner.blocks == "auto"
            return replace(inner, blocks="dense" if auto else inner.blocks, kept=kept)
        if inner.values.size == chosen.size and isinstance(inner.blocks, str):
            mask = np.zeros(-(-chosen.size // self.block), np.bool_)
            mask[chosen.numbers] = True
            return replace(inner, blocks=mask, block_size=self.block, kept=kept)
        words = max(1, self.block * inner.values.size // chosen.size)
        return replace(inner, blocks="sparse", block_size=words, kept=kept)

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """What the inner message says, in its place."""
        return self._place(self.inner.own(message.kept[0], shared, round), message)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """The inner compressor's sum, in its place."""
        result = self._place(self.inner.decode(total, message.kept[0], shared, round), message)
        self._done(result.size)
        return result

    def parts(self) -> Iterator[Compressor]:
        """The inner compressor."""
        yield self.inner

    # ------------------------------------------------------------------ inside

    def _choose(self, x: Floats, round: Round) -> Chosen:
        numbers = self.choose(x, round)
        if self.alike():
            return Chosen(numbers, x.size, take_blocks(x, numbers, self.block), True)
        values = np.zeros_like(x)
        put_blocks(values, take_blocks(x, numbers, self.block), numbers, self.block)
        return Chosen(numbers, x.size, values, False)

    def _place(self, values: Floats, message: Message) -> Floats:
        _, numbers, size, alike = message.kept
        factor = self.factor(size)
        if factor != 1.0:
            values = values * values.dtype.type(factor)
        if not alike:
            return values
        result = np.zeros(size, values.dtype)
        put_blocks(result, values, numbers, self.block)
        return result


class CountedBlocks(Sparsifier):
    """A sparsifier that chooses so many blocks: k, or a share tau of them.

    Args:
        k: blocks.
        tau: share of the blocks, in (0, 1], rounded up. One of the two.
        block, seed: see `Sparsifier`.

    Raises:
        UsageError: neither or both, or out of bounds; k over the number of blocks is refused in the first
            round.
    """

    def __init__(
        self, k: int | None = None, tau: float | None = None, block: int = DEFAULT_BLOCK, seed: int = 0
    ) -> None:
        super().__init__(block, seed)
        if (k is None) == (tau is None):
            raise UsageError(f"k is {k!r} and tau is {tau!r}; give one of them")
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
            raise UsageError(f"k is {k!r}; accepted: blocks from 1")
        if tau is not None and (not isinstance(tau, int | float) or not 0 < tau <= 1):
            raise UsageError(f"tau is {tau!r}; accepted: greater than 0, at most 1")
        self.k, self.tau = k, tau

    def blocks(self, size: int) -> int:
        """Blocks of a vector of this size."""
        return -(-size // self.block)

    def count(self, size: int) -> int:
        """Blocks that are chosen of a vector of this size.

        Raises:
            UsageError: k is more than there are.
        """
        blocks = self.blocks(size)
        if self.k is None:
            assert self.tau is not None
            return math.ceil(self.tau * blocks)
        if self.k > blocks:
            raise UsageError(
                f"k is {self.k}; accepted: at most {blocks}, the blocks of {self.block} in {size} elements"
            )
        return self.k

    def share_of(self, size: int) -> float:
        """Chosen blocks over all blocks."""
        return self.count(size) / self.blocks(size)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where k is more than there are, or the inner compressor cannot."""
        self.count(size)
        super().check(size, round)

    def _values(self, size: int) -> int:
        """Elements in the chosen blocks, at most."""
        return min(size, self.count(size) * self.block)

    def _describe(self, *more: str) -> str:
        count = f"k={self.k}" if self.tau is None else f"tau={self.tau:g}"
        inner = "" if self.inner.describe() == SharedExponent().describe() else f" > {self.inner.describe()}"
        return f"{type(self).__name__}({', '.join((count, f'block={self.block}', *more))}){inner}"


def take_blocks(x: Floats, numbers: Numbers, block: int) -> Floats:
    """The blocks of these numbers end to end; a short last block is filled up with zeros."""
    full = x.size // block
    rows = x[: full * block].reshape(full, block)
    if numbers.size and numbers[-1] == full:
        out = np.zeros((numbers.size, block), x.dtype)
        np.take(rows, numbers[:-1], axis=0, out=out[:-1])
        out[-1, : x.size - full * block] = x[full * block :]
        return out.reshape(-1)
    return rows[numbers].reshape(-1)


def put_blocks(target: Floats, values: Floats, numbers: Numbers, block: int) -> None:
    """Writes what `take_blocks` took to where it was."""
    full = target.size // block
    rows = target[: full * block].reshape(full, block)
    its = values.reshape(numbers.size, block)
    if numbers.size and numbers[-1] == full:
        rows[numbers[:-1]] = its[:-1]
        target[full * block :] = its[-1, : target.size - full * block]
    else:
        rows[numbers] = its


def chained_omega(outer: float | None, inner: float | None) -> float | None:
    """Of an unbiased compressor after another: (1 + a)(1 + b) - 1."""
    return None if outer is None or inner is None else (1 + outer) * (1 + inner) - 1


def chained_delta(outer: float | None, inner_omega: float | None) -> float | None:
    """Of an unbiased compressor Q after one, T, that keeps some elements as they are.

    E|Q(t) - x|^2 = |x|^2 - |t|^2 + E|Q(t) - t|^2 <= |x|^2 - (1 - omega) |t|^2, and E|t|^2 >= delta |x|^2.
    """
    if outer is None or inner_omega is None or inner_omega >= 1:
        return None
    return outer * (1 - inner_omega)
