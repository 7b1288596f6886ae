"""Modular quantization: only the low bits of each integer travel, and a reference gives the rest.

    q = floor(x / unit + u), any integer;  lanes carry q mod 2^b, added mod 2^32
    sum of q = the integer congruent to the lane's sum mod 2^b that is nearest to n * reference / unit

So lanes hold neither the values nor their sum, only the distance of the sum from the reference: 8 bits serve
any number of workers, and single workers may be far off as long as the sum is not. The error depends on the
distance to the reference and not on the size of x, as with the lattices of Davies et al., New Bounds for
Distributed Mean Estimation and Variance Reduction, ICLR 2021, arXiv 2002.09268 (here the cubic lattice).

**Range and checks.** A sum is right if it is within [-2^(b-1), 2^(b-1)) units of the
reference. Beyond, it is wrong by a multiple of 2^b units, which the lane does not show. Hence the
checks: a word for each 4,096 elements with the sum of a_j q_j mod 2^32 under fixed odd random a_j, which the
switch adds like any other, and which the decoded sums must reproduce. One wrong lane is always found, since
a_j is odd; several wrong ones may cancel each other: once in some 2^24 blocks that have them, as errors are
independent of the a_j. A guard word counts ranks with NaN or Inf.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress import lanes
from worker_lib.compress.base import Compressor, Floats, Message, RangeError, Round, Words
from worker_lib.compress.lanes import CHECK_BLOCK, new_key, own_values, to_residues, to_sums

_WIDEST: Final = 16  # bits
_LEAST_UNIT: Final = 2.0**-1000


class Modular(Compressor):
    """Modular quantization against a reference. No extra round.

    With ``reference="last"`` the reference is the last average, which all ranks have; the first round, and
    the one after a `RangeError`, go in full. With ``reference="own"`` each rank decodes against its own x, as
    for averages of models near each other; there is no state, but a single rank may find its x too far from
    the average, and only that rank gets the `RangeError`. `refer` sets another reference for the next round.

    E|Q(x) - x|^2 <= d unit^2 / 4, whatever x is, so it has no omega.

    Args:
        unit: the grid's distance; None (with "last") sets it from the sums' moves so far, with room for
            `margin` times as much.
        bits: width of lanes, 2 to 16.
        reference: "last" or "own".
        margin: see `unit`; at least 1.
        seed: see `Compressor`.

    Raises:
        UsageError: parameters that cannot work.
    """

    unbiased = True
    remembers = True
    parameters = ("_unit", "bits", "reference", "margin")
    memory_names = ("reference",)  # float64; of the next round

    def __init__(
        self,
        unit: float | None = None,
        bits: int = 8,
        reference: str = "last",
        margin: float = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if unit is not None and (not isinstance(unit, int | float) or not 0 < unit < math.inf):
            raise UsageError(f"unit is {unit!r}; accepted: a number greater than 0, or None")
        if lanes.checked_bits(bits) > _WIDEST:
            raise UsageError(f"bits is {bits}; accepted: {lanes.MIN_BITS} to {_WIDEST}")
        if reference not in ("last", "own"):
            raise UsageError(f"reference is {reference!r}; accepted: 'last', 'own'")
        if reference == "own" and unit is None:
            raise UsageError("unit is None with reference='own': only what all ranks know can set it")
        if not isinstance(margin, int | float) or not 1 <= margin < math.inf:
            raise UsageError(f"margin is {margin!r}; accepted: a number from 1")
        self.bits, self.reference, self.margin = bits, reference, float(margin)
        self._unit = None if unit is None else float(unit)
        self._scalars = {"reach": None}  # recent distance of sums from their reference

    def refer(self, reference: Floats) -> None:
        """Sets the reference of the next round.

        Args:
            reference: float64 or float32 of x's size, the expected average. It must be the same at all ranks,
                or so near that all find the same sums.

        Raises:
            UsageError: with ``unit=None`` and before any round, no unit is known yet.
        """
        if self.unit is None:
            raise UsageError(
                "unit is None and no round has set one; give a unit to decode against a reference"
            )
        self.restore_memories({"reference": np.asarray(reference, np.float64)})

    @property
    def unit(self) -> float | None:
        """The grid's distance in the next round; None if that goes in full."""
        if self._unit is not None:
            return self._unit
        reach = self._scalars["reach"]
        if reach is None:
            return None
        # A positive unit even if sums no longer move.
        return max(self.margin * reach / float(1 << (self.bits - 1)), _LEAST_UNIT)

    # ------------------------------------------------------------------ one round

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if the reference has another size."""
        for reference in self._memory.values():
            if reference.size != size:
                raise UsageError(f"the reference has {reference.size} elements, and x has {size}")

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns low bits, checks and the guard; the vector in full if there is no reference."""
        unit = self.unit
        if unit is None or (self.reference == "last" and not self._memory):
            return Message(x, kept=(x, None, None))
        key = new_key(self._private_draws(round))
        words, unusable = to_residues(x, unit, self.bits, key)
        guarded = np.concatenate([words, np.array([unusable > 0], np.int32)])
        return Message(guarded, kept=(x, key, unit))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns exactly this rank's addend."""
        x, key, unit = message.kept
        return message.values if key is None else own_values(x, unit, key)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sum, from its low bits and the reference.

        Raises:
            RangeError: the sum is too far from the reference.
        """
        x, key, unit = message.kept
        if key is None:
            if np.isfinite(total).all():
                means = total.astype(np.float64) / round.world_size
                self._moved_on(means, float(np.abs(total).max()))
            self._done(total.size)
            return total
        if total[-1]:
            self._done(x.size)
            return np.full(x.size, np.nan, x.dtype)
        reference = self._memory.get("reference", x)
        found = to_sums(total, unit, self.bits, reference, round.world_size, x.dtype)
        if found.wrong.size:
            self._beyond(found.wrong, unit, round)
        self._moved_on(found.means, found.farthest * unit)
        self._done(x.size)
        return found.sums

    # ------------------------------------------------------------------ inside

    def _moved_on(self, means: npt.NDArray[np.float64], moved: float) -> None:
        self._memory = {"reference": means} if self.reference == "last" else {}
        if self._unit is None:
            self._scalars["reach"] = max(moved, (self._scalars["reach"] or 0.0) / 2)

    def _beyond(self, wrong: npt.NDArray[np.intp], unit: float, round: Round) -> None:
        self._memory = {}
        first = int(wrong[0]) * CHECK_BLOCK
        again = "; the next round goes in full" if self.reference == "last" else ""
        raise RangeError(
            f"sums in {wrong.size} blocks of {CHECK_BLOCK} elements, the first at element {first}, are more "
            f"than {2 ** (self.bits - 1)} units of {unit:g} from {round.world_size} times the reference, the "
            f"most that lanes of {self.bits} bits can tell{again}. Use a larger unit, a larger margin, or "
            "more bits."
        )

    def forget_shared(self) -> None:
        """Drops the reference, which new participants do not have: the next round goes in full."""
        super().forget_shared()
        self._memory = {}
