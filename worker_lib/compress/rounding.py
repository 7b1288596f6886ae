"""Stochastic rounding to a grid, unbiased, in lanes that the switch can add.

    q = floor(x / unit + u),  u uniform in [0, 1)      E q = x / unit,  variance f (1 - f) with fraction f

`StochasticRounding` has a fixed grid, so ranks need not agree on it in each round: fixed-point numbers. Two
guard words at the end count the elements that did not fit and the ranks with NaN or Inf; their sum informs
all ranks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress import lanes
from worker_lib.compress.base import Compressor, Floats, Message, RangeError, Round, Words
from worker_lib.compress.lanes import from_words, new_key, to_words

GUARD: Final = 2  # words: ranks with NaN or Inf; elements that were cut
_MOST_CUT: Final = 1 << 20  # that one rank counts, so that the sum of all fits a word


@dataclass(frozen=True, slots=True)
class Guard:
    """The sum of all ranks' guard words.

    Attributes:
        infinite: ranks that had NaN or Inf.
        cut: elements, over all ranks, that did not fit and were cut.
    """

    infinite: int
    cut: int

    @staticmethod
    def words(infinite: bool, cut: int) -> npt.NDArray[np.int32]:
        """Returns one rank's guard words."""
        return np.array([infinite, min(cut, _MOST_CUT)], np.int32)

    @classmethod
    def of(cls, total: npt.NDArray[np.int32]) -> Guard:
        """Returns the guard at the end of a sum."""
        return cls(int(total[-GUARD]), int(total[-1]))


class GuardedGrid(Compressor):
    """Random rounding to one unit for the whole vector, with a guard behind the lanes.

    Subclasses define the unit and the treatment of elements that were cut.

    Args:
        bits: width of lanes.
        seed: see `Compressor`.
    """

    unbiased = True
    _blocks = "auto"

    def __init__(self, bits: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.bits = lanes.checked_bits(bits)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if this number of ranks cannot share lanes so narrow."""
        lanes.top(self.bits, round.world_size)

    @abstractmethod
    def unit(self, size: int, round: Round) -> float:
        """Returns the distance between two values of this round's grid, the same at all ranks."""

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns the vector rounded, cut and packed, with the guard behind it."""
        infinite = not bool(np.isfinite(x).all())
        values = np.where(np.isfinite(x), x, x.dtype.type(0)) if infinite else x
        units = np.full(1, self.unit(x.size, round), x.dtype)
        top, key = lanes.top(self.bits, round.world_size), new_key(self._private_draws(round))
        words, cut = to_words(values, units, x.size, self.bits, top, key)
        sent = np.concatenate([words, Guard.words(infinite, cut)])
        return Message(sent, blocks=self._blocks, kept=(x.size, units))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns exactly this rank's addend."""
        size, units = message.kept
        return from_words(message.values, size, self.bits, units, size)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sum; NaN everywhere if any rank had NaN or Inf."""
        size, units = message.kept
        guard = Guard.of(total)
        self._judge(guard, total, size, float(units[0]), round)
        result = from_words(total, size, self.bits, units, size)
        if guard.infinite:
            result[:] = np.nan
        self._done(size)
        return result

    def _judge(
        self, guard: Guard, total: npt.NDArray[np.int32], size: int, unit: float, round: Round
    ) -> None:
        """Acts on the guard and the sums; nothing by default. May raise `RangeError`."""


class StochasticRounding(GuardedGrid):
    """Fixed-point numbers: multiples of `unit`, rounded at random.

    No extra round, no state. E|Q(x) - x|^2 <= d unit^2 / 4, whatever x is, so it has no omega. An element
    that does not fit raises `RangeError` at all ranks.

    Args:
        unit: the grid's distance.
        bits: width of lanes; a rank's value must be within unit * floor((2^(bits-1) - 1) / n).
        seed: see `Compressor`.
        blocks: ``"dense"`` sends everything without a plan: in a sealed job the path then sees sizes only.

    Raises:
        UsageError: a unit that is not a positive number, or such a width, or such blocks.
    """

    parameters = ("_unit", "bits")

    def __init__(self, unit: float, bits: int = 16, seed: int = 0, *, blocks: str = "auto") -> None:
        super().__init__(bits, seed)
        if blocks not in ("auto", "sparse", "dense"):
            raise UsageError(f"blocks is {blocks!r}; accepted: 'auto', 'sparse', 'dense'")
        self._blocks = blocks
        if not isinstance(unit, int | float) or not 0 < unit < math.inf:
            raise UsageError(f"unit is {unit!r}; accepted: a number greater than 0")
        self._unit = float(unit)

    def unit(self, size: int, round: Round) -> float:
        """Returns the given unit."""
        return self._unit

    def _judge(
        self, guard: Guard, total: npt.NDArray[np.int32], size: int, unit: float, round: Round
    ) -> None:
        if guard.cut:
            reach = lanes.top(self.bits, round.world_size) * unit
            raise RangeError(
                f"{guard.cut} elements are beyond +-{reach:g}, the most that {round.world_size} workers can "
                f"share in lanes of {self.bits} bits and units of {unit:g}; use a larger unit or more "
                "bits"
            )
