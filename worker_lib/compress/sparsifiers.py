"""Sparsifiers: they choose blocks, and an inner compressor takes the values in these.

    x --choose blocks--> values --inner compressor--> message
                            |
          the same blocks at every rank: only these travel, end to end, with no bitmap
          blocks of each rank's own:     the vector with zeros elsewhere; the session sends the union

`chain(TopBlocks(tau=0.1), Dithering(levels=8))` makes one compressor of several. Blocks are `block`
neighbours; the last may be short.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from switchagg.rules.planner import MAX_BLOCK
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.shared_exponent import SharedExponent

DEFAULT_BLOCK: Final = 64
Numbers = npt.NDArray[np.intp]


class Sparsifier(Compressor):
    """Sends some blocks, through an inner compressor.

    Args:
        block: elements a block.
        seed: see `Compressor`.

    Attributes:
        inner: the compressor of the chosen blocks; the session's widest lanes unless `through` sets another.
        same_blocks: true if all ranks choose the same blocks.

    Raises:
        UsageError: a block size that plans cannot carry.
    """

    same_blocks = False

    def __init__(self, block: int = DEFAULT_BLOCK, seed: int = 0) -> None:
        super().__init__(seed)
        if isinstance(block, bool) or not isinstance(block, int) or not 1 <= block <= MAX_BLOCK:
            raise UsageError(f"block is {block!r}; accepted: 1 to {MAX_BLOCK} elements")
        self.block = block
        self.inner: Compressor = SharedExponent()
        self._chosen: tuple[Numbers, Floats] | None = None  # blocks, and the inner compressor's input

    def through(self, inner: Compressor) -> Self:
        """Returns a copy whose blocks go through `inner`.

        Raises:
            UsageError: `inner` is no compressor, or one with a memory.
        """
        if not isinstance(inner, Compressor):
            raise UsageError(f"inner is a {type(inner).__name__}; accepted: a worker_lib.compress.Compressor")
        if inner.remembers:
            raise UsageError(
                f"inner is {inner.describe()}, which remembers every element but would get other blocks "
                "each round; put the memory round the whole, as in ErrorFeedback(chain(TopBlocks(...), ...))"
            )
        other = copy.deepcopy(self)
        other.inner = inner
        return other

    @abstractmethod
    def choose(self, x: Floats, round: Round) -> Numbers:
        """Returns this round's blocks, ascending. Called once a round."""

    def factor(self, size: int) -> float:
        """Returns the factor of decoded values: 1, or the one that makes them unbiased."""
        return 1.0

    # ------------------------------------------------------------------ one round

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if the blocks or the inner compressor do not fit the size."""
        self._chosen = None
        self.inner.prepare(self.most(size), round)

    def most(self, size: int) -> int:
        """Returns the most elements that the inner compressor gets of a vector of this size."""
        return size

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        """Returns the inner compressor's shared words."""
        self._chosen = self._choose(x, round)
        return self.inner.share(self._chosen[1], round)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns the inner compressor's message. If blocks are this rank's own, zero blocks are not sent."""
        numbers, values = self._choose(x, round) if self._chosen is None else self._chosen
        self._chosen = None
        inner = self.inner.encode(values, shared, round)
        kept = (inner, numbers, x.size)
        if self.same_blocks:
            auto = isinstance(inner.blocks, str) and inner.blocks == "auto"
            return replace(inner, blocks="dense" if auto else inner.blocks, kept=kept)
        if inner.values.size == x.size and isinstance(inner.blocks, str):
            mask = np.zeros(-(-x.size // self.block), np.bool_)
            mask[numbers] = True
            return replace(inner, blocks=mask, block_size=self.block, kept=kept)
        words = max(1, self.block * inner.values.size // x.size)
        return replace(inner, blocks="sparse", block_size=words, kept=kept)

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the inner compressor's addend, in its place."""
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

    def _choose(self, x: Floats, round: Round) -> tuple[Numbers, Floats]:
        numbers = self.choose(x, round)
        values = take_blocks(x, numbers, self.block)
        return numbers, values if self.same_blocks else placed_blocks(values, numbers, self.block, x.size)

    def _place(self, values: Floats, message: Message) -> Floats:
        _, numbers, size = message.kept
        factor = self.factor(size)
        if factor != 1.0:
            values = values * values.dtype.type(factor)
        return placed_blocks(values, numbers, self.block, size) if self.same_blocks else values

    def describe(self) -> str:
        """Returns name and parameters, and the inner compressor's if it is not the default."""
        own, inner = super().describe(), self.inner.describe()
        return own if inner == SharedExponent().describe() else f"{own} > {inner}"


class CountedBlocks(Sparsifier):
    """A sparsifier that chooses a fixed number of blocks: k, or a share tau of them.

    Args:
        k: blocks.
        tau: share of the blocks, in (0, 1], rounded up. One of the two.
        block, seed: see `Sparsifier`.

    Raises:
        UsageError: neither or both, or out of bounds; k over the number of blocks is refused in the first
            round.
    """

    parameters: tuple[str, ...] = ("block",)

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
        self.parameters = ("tau" if k is None else "k", *type(self).parameters)

    def blocks(self, size: int) -> int:
        """Returns the number of blocks of a vector of this size."""
        return -(-size // self.block)

    def count(self, size: int) -> int:
        """Returns the number of blocks chosen of a vector of this size.

        Raises:
            UsageError: k is over the number of blocks.
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
        """Returns the share of chosen blocks."""
        return self.count(size) / self.blocks(size)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if k is over the number of blocks or the inner compressor refuses."""
        self.count(size)
        super().check(size, round)

    def _values(self, size: int) -> int:
        """Returns the number of elements that the inner compressor's constants are for: those in the chosen
        blocks, since zeros add no variance; a sparsifier inside chooses among all that it gets."""
        of_all = isinstance(self.inner, CountedBlocks)
        return min(size, self.most(size) if of_all else self.count(size) * self.block)


def take_blocks(x: Floats, numbers: Numbers, block: int) -> Floats:
    """Returns the blocks of these numbers end to end; a short last block is padded with zeros."""
    full = x.size // block
    rows = x[: full * block].reshape(full, block)
    if numbers.size and numbers[-1] == full:
        out = np.zeros((numbers.size, block), x.dtype)
        np.take(rows, numbers[:-1], axis=0, out=out[:-1])
        out[-1, : x.size - full * block] = x[full * block :]
        return out.reshape(-1)
    return rows[numbers].reshape(-1)


def placed_blocks(values: Floats, numbers: Numbers, block: int, size: int) -> Floats:
    """Returns a vector of `size` with blocks that `take_blocks` returned in their places, zeros elsewhere."""
    target = np.zeros(size, values.dtype)
    full = size // block
    rows = target[: full * block].reshape(full, block)
    its = values.reshape(numbers.size, block)
    if numbers.size and numbers[-1] == full:
        rows[numbers[:-1]] = its[:-1]
        target[full * block :] = its[-1, : size - full * block]
    else:
        rows[numbers] = its
    return target


def chained_omega(outer: float | None, inner: float | None) -> float | None:
    """Returns the omega of an unbiased compressor after another: (1 + a)(1 + b) - 1."""
    return None if outer is None or inner is None else (1 + outer) * (1 + inner) - 1


def chained_delta(outer: float | None, inner_omega: float | None) -> float | None:
    """Returns the delta of an unbiased compressor Q after one, T, that keeps some elements as they are.

    E|Q(t) - x|^2 = |x|^2 - |t|^2 + E|Q(t) - t|^2 <= |x|^2 - (1 - omega) |t|^2, and E|t|^2 >= delta |x|^2.
    """
    if outer is None or inner_omega is None or inner_omega >= 1:
        return None
    return outer * (1 - inner_omega)


class RandomBlocks(CountedBlocks):
    """k of b blocks, each choice of k equally likely, multiplied by b / k so as to be unbiased.

    With the same blocks everywhere no bitmap and no index travels, only the k blocks, and compressing
    commutes with adding. Blocks of each rank's own make a larger union, up to n k of them (random
    sparsification: Wangni et al., NeurIPS 2018; rand-k: Stich et al., Sparsified SGD with Memory, NeurIPS
    2018).

    omega = b / k - 1. No extra round; the state is the number of the round.

    Args:
        k, tau, block: see `CountedBlocks`. independent: each rank chooses its own blocks; by default all
        choose the same, from the seed. scaled: values are multiplied by b / k. Without, it is biased with
        delta = k / b, as error feedback needs. seed: see `Compressor`.

    Raises:
        UsageError: see `CountedBlocks`.
    """

    parameters = ("block", "independent", "scaled", "seed")

    def __init__(
        self,
        k: int | None = None,
        tau: float | None = None,
        block: int = DEFAULT_BLOCK,
        independent: bool = False,
        scaled: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(k, tau, block, seed)
        self.independent = independent
        self.same_blocks = self.draws_shared = not independent
        self.scaled = scaled

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """True if values are scaled and the inner compressor is unbiased."""
        return self.scaled and self.inner.unbiased

    def choose(self, x: Floats, round: Round) -> Numbers:
        """Returns k of the blocks, drawn without replacement."""
        blocks, k = self.blocks(x.size), self.count(x.size)
        if self.independent:
            keys = self._private_draws(round).integers(0, 1 << 63, blocks, dtype=np.uint64)
        else:
            keys = self._shared_keys(blocks)
        return np.sort(np.argpartition(keys, k - 1)[:k])

    def factor(self, size: int) -> float:
        """Returns b / k if values are scaled."""
        return 1 / self.share_of(size) if self.scaled else 1.0

    def most(self, size: int) -> int:
        """Returns the elements of k blocks; all elements if each rank chooses its own."""
        return size if self.independent else self.count(size) * self.block

    def omega(self, size: int, workers: int = 1) -> float | None:
        """Returns b / k - 1, chained with the inner compressor's."""
        if not self.scaled:
            return None
        return chained_omega(1 / self.share_of(size) - 1, self.inner.omega(self._values(size), workers))

    def shared_omega(self, size: int, workers: int = 1) -> float:
        """Returns b / k - 1 if all ranks draw the same blocks, chained with the inner compressor's."""
        own = 1.0 if self.independent or not self.scaled else 1 / self.share_of(size)
        return own * (1 + self.inner.shared_omega(self._values(size), workers)) - 1

    def delta(self, size: int, workers: int = 1) -> float | None:
        """Returns k / b if values are not scaled."""
        if self.scaled:
            return super().delta(size, workers)
        return chained_delta(self.share_of(size), self.inner.omega(self._values(size), workers))


class Threshold(Sparsifier):
    """Hard threshold: blocks whose largest magnitude is at least `value`; the rest counts as zero.

    Sahu et al., Rethinking gradient sparsification as total error minimization (NeurIPS 2021),
    argue for it over top-k with error feedback: the volume follows the gradients, and the threshold bounds
    the error.

    |C(x) - x|_inf < value, whatever x is; relative to |x| there is no bound, hence no delta. No extra round,
    no state. A block with NaN or Inf is sent.

    Args:
        value: the threshold.
        block, seed: see `Sparsifier`.

    Raises:
        UsageError: a value that is not a positive number.
    """

    parameters = ("value", "block")

    def __init__(self, value: float, block: int = DEFAULT_BLOCK, seed: int = 0) -> None:
        super().__init__(block, seed)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"value is {value!r}; accepted: a number greater than 0")
        self.value = float(value)

    def choose(self, x: Floats, round: Round) -> Numbers:
        """Returns the blocks that reach the value."""
        full = x.size // self.block
        largest: npt.NDArray[Any] = np.abs(x[: full * self.block]).reshape(full, self.block).max(axis=1)
        if full * self.block != x.size:
            largest = np.append(largest, np.abs(x[full * self.block :]).max())
        return np.flatnonzero(~(largest < self.value))


class TopBlocks(CountedBlocks):
    """Block top-k: the k blocks of largest Euclidean norm; the rest counts as zero.

    Top-k by blocks is OmniReduce's (Fei et al., SIGCOMM 2021). It is biased: use it inside
    `ErrorFeedback` or `EF21`.

    delta = k / b: the k largest of b squares are at least k / b of their sum. No extra round, no state. A
    block with NaN or Inf is the largest. Blocks that are zero are not sent, even if fewer than k are left.

    Args:
        k, tau, block, seed: see `CountedBlocks`.

    Raises:
        UsageError: see `CountedBlocks`.
    """

    def choose(self, x: Floats, round: Round) -> Numbers:
        """Returns the k largest."""
        squares = block_squares(x, self.block)
        k = self.count(x.size)
        if k < squares.size:
            largest = np.argpartition(squares, squares.size - k)[squares.size - k :]
        else:
            largest = np.arange(squares.size)
        return np.sort(largest[squares[largest] > 0]).astype(np.intp)

    def delta(self, size: int, workers: int = 1) -> float | None:
        """Returns k / b, chained with the inner compressor's omega."""
        return chained_delta(self.share_of(size), self.inner.omega(self._values(size), workers))


def block_squares(x: Floats, block: int) -> Floats:
    """Returns each block's squared Euclidean norm; infinite if it has NaN."""
    full = x.size // block
    rows = x[: full * block].reshape(full, block)
    with np.errstate(over="ignore", invalid="ignore"):
        squares: Floats = np.einsum("ij,ij->i", rows, rows)
        if full * block != x.size:
            rest = x[full * block :]
            squares = np.append(squares, rest @ rest)
    squares[np.isnan(squares)] = np.inf
    return squares


def chain(*parts: Compressor) -> Compressor:
    """Returns one compressor of several: each sparsifier's blocks go through the next.

    chain(RandomBlocks(tau=0.1), Dithering(levels=8)). Memories (`ErrorFeedback`, `EF21`, `Differences`) go
    round the whole: ErrorFeedback(chain(...)).

    Raises:
        UsageError: no parts, or another than the last is not a sparsifier.
    """
    if not parts:
        raise UsageError("chain of nothing; accepted: sparsifiers, then at most one other compressor")
    *before, last = parts
    for part in reversed(before):
        if not isinstance(part, Sparsifier):
            raise UsageError(
                f"{type(part).__name__} comes before {type(last).__name__}; accepted: sparsifiers "
                "(RandomBlocks, TopBlocks, Threshold), then at most one other compressor"
            )
        last = part.through(last)
    return last
