"""Stochastic rounding to a grid, right on average, in lanes that the switch can add.

    q = floor(x / unit + u),  u uniform in [0, 1)      E q = x / unit,  variance f (1 - f) with fraction f

`StochasticRounding` has a grid that never changes, so no rank has to say anything about it: fixed-point
numbers. Its words end in a guard of two words, in which ranks count what would not fit and what is not
finite; the sum tells all of them.
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
from worker_lib.compress.grid import Key, from_words, new_key, to_words

GUARD: Final = 2  # words: ranks with something that is not finite; elements that had to be cut
_MOST_CUT: Final = 1 << 20  # that one rank counts, so that the sum of all fits a word


def drawn(index: npt.NDArray[np.uint32], key: Key) -> npt.NDArray[np.uint32]:
    """32 random bits for each element: a hash of the key and its index."""
    h = index * np.uint32(0x9E3779B1) + np.uint32(key[0])
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x7FEB352D)
    h ^= h >> np.uint32(15)
    h += np.uint32(key[1])
    h *= np.uint32(0x846CA68B)
    return h ^ h >> np.uint32(16)


def round_at_random(x: Floats, units: Any, top: int, key: Key) -> tuple[lanes.Ints, int]:
    """Multiples of units around x, each of the two nearest with the probability that makes it right.

    What `worker_lib.compress.grid.to_words` does, before it packs. u has 24 bits for float32 and 32 for
    float64, so the mean is right to 2^-24 and 2^-32 units.

    Args:
        x: finite values.
        units: positive number, or an array that goes with x, of x's type.
        top: the largest magnitude of a result.
        key: of the draws.

    Returns:
        int32 multiples, and how many were cut to `top`. Zero gives zero.
    """
    real = x.dtype.type
    v = x / units
    limit = real(top)
    if float(limit) > top:
        limit = np.nextafter(limit, real(0))  # a float32 may have rounded it up
    cut = int(np.count_nonzero(np.abs(v) > limit))
    h = drawn(np.arange(x.size, dtype=np.uint32), key)
    u = (h >> np.uint32(8)).astype(real) * real(2.0**-24) if real is np.float32 else h * 2.0**-32
    # Where v is top, adding u may round up to top + 1.
    return np.clip(np.floor(v + u), -limit, limit).astype(np.int32), cut


@dataclass(frozen=True, slots=True)
class Guard:
    """What the sum of all ranks' guard words says.

    Attributes:
        infinite: ranks that had NaN or Inf.
        cut: elements, over all ranks, that did not fit and were cut.
    """

    infinite: int
    cut: int

    @staticmethod
    def words(infinite: bool, cut: int) -> npt.NDArray[np.int32]:
        """One rank's."""
        return np.array([infinite, min(cut, _MOST_CUT)], np.int32)

    @classmethod
    def of(cls, total: npt.NDArray[np.int32]) -> Guard:
        """From the last words of a sum."""
        return cls(int(total[-GUARD]), int(total[-1]))


class GuardedGrid(Compressor):
    """Random rounding to one unit for the whole vector, with a guard behind the lanes.

    Subclasses say what the unit is, and what becomes of elements that had to be cut.

    Args:
        bits: width of lanes.
        seed: see `Compressor`.
    """

    unbiased = True

    def __init__(self, bits: int, seed: int = 0) -> None:
        super().__init__(seed)
        self.bits = lanes.checked_bits(bits)

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where so many ranks cannot share lanes so narrow."""
        lanes.top(self.bits, round.world_size)

    @abstractmethod
    def unit(self, size: int, round: Round) -> float:
        """The distance between two values of this round's grid, the same at all ranks."""

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Rounded, cut, packed, and the guard."""
        infinite = not bool(np.isfinite(x).all())
        values = np.where(np.isfinite(x), x, x.dtype.type(0)) if infinite else x
        units = np.full(1, self.unit(x.size, round), x.dtype)
        top, key = lanes.top(self.bits, round.world_size), new_key(self._private_draws(round))
        words, cut = to_words(values, units, x.size, self.bits, top, key)
        return Message(np.concatenate([words, Guard.words(infinite, cut)]), kept=(x.size, units))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Exactly this rank's addend."""
        size, units = message.kept
        return from_words(message.values, size, self.bits, units, size)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """The sum, or NaN everywhere where any rank had NaN or Inf."""
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
        """What the guard, and the sums of so many lanes in units, mean for this method."""


class StochasticRounding(GuardedGrid):
    """Fixed-point numbers: multiples of `unit`, rounded at random.

    No extra round, no state. E|Q(x) - x|^2 <= d unit^2 / 4, whatever x is, so it has no omega. What would not
    fit raises `RangeError` at all ranks.

    Args:
        unit: the grid's distance.
        bits: width of lanes; a rank's value must be within unit * floor((2^(bits-1) - 1) / n).
        seed: see `Compressor`.

    Raises:
        UsageError: a unit that is not a positive number, or such a width.
    """

    def __init__(self, unit: float, bits: int = 16, seed: int = 0) -> None:
        super().__init__(bits, seed)
        if not isinstance(unit, int | float) or not 0 < unit < math.inf:
            raise UsageError(f"unit is {unit!r}; accepted: a number greater than 0")
        self._unit = float(unit)

    def unit(self, size: int, round: Round) -> float:
        """As it was given."""
        return self._unit

    def describe(self) -> str:
        """Name and grid."""
        return f"StochasticRounding(unit={self._unit:g}, bits={self.bits})"

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
