"""Random dithering: rounding at random to s levels of a norm that all ranks share.

    1. each rank: norm of each block, as a number of 8 exponent bits and a few of mantissa, one bit of 2^(8+m)
    2. OR over ranks: the highest bit is the largest norm, rounded up: M
    3. q = floor(s x / M + u), |q| <= s, in lanes that hold n s; the switch adds them
    4. sum = M / s * (sum of q)

QSGD (Alistarh et al., NeurIPS 2017) with its norm p = 2, and the p-norm quantization of DIANA
(Mishchenko et al., arXiv 1901.09269) scale by each worker's own norm, which a switch could not
add. Here the scale is that of the largest worker, so the others scatter as much as that one does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress import lanes
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.lanes import from_words, new_key, to_words
from worker_lib.compress.shared_norms import SharedNorms


def dithering_variance(size: int, levels: int, p: float, slack: float) -> float:
    """Returns omega of rounding |x| / M at random to multiples of 1 / levels.

    A value of v units varies by f (1 - f) units^2, f being v's fraction, which is at most min(1/4, |v|). With
    units of M / s, summed over d elements: at most min(d M^2 / (4 s^2), M |x|_1 / s). What |x|_1 can be for
    given |x|_2 = 1 gives omega (Alistarh et al., QSGD, NeurIPS 2017, has 1/s for the 1/4).

    Args:
        size: d, elements under one norm.
        levels: s.
        p: of the norm, 2 or infinity.
        slack: M over the largest norm of any rank, at least 1.
    """
    if math.isinf(p):
        # |x|_inf |x|_1 <= (1 + sqrt d) / 2 |x|_2^2, with equality at (1 + sqrt d, 1, ..., 1) / norm.
        return min(size * slack**2 / (4 * levels**2), slack * (1 + math.sqrt(size)) / (2 * levels))
    return min(size * slack**2 / (4 * levels**2), slack * math.sqrt(size) / levels)


class Dithering(Compressor):
    """Random dithering with norms that all ranks share. One OR round before the sum; no state.

    A block with NaN or Inf at any rank is NaN at every rank. A block whose norm over s is below the type's
    smallest number (and 2^-149) counts as zero.

    Args:
        levels: s, values each way; by default as many as the lanes take.
        bits: width of lanes; by default the narrowest that hold n s. At least one of the two.
        p: of the norm, 2 or `math.inf`. With infinity the grid is finer; 2 is QSGD's.
        block: elements under one norm; all of them by default.
        norm_bits: mantissa bits of a shared norm, 0 to 7, which makes it up to 1 + 2^-norm_bits too large and
            costs 2^(3 + norm_bits) words; 3 by default, 0 with blocks.
        seed: see `Compressor`.

    Raises:
        UsageError: parameters that cannot work.
    """

    unbiased = True
    parameters = ("levels", "bits", "p", "block", "norm_bits")

    def __init__(
        self,
        levels: int | None = None,
        bits: int | None = None,
        p: float = math.inf,
        block: int | None = None,
        norm_bits: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if levels is None and bits is None:
            raise UsageError("neither levels nor bits is given; one of them sets the grid")
        if levels is not None and (not isinstance(levels, int) or levels < 1):
            raise UsageError(f"levels is {levels!r}; accepted: an integer from 1")
        if p not in (2, math.inf):
            raise UsageError(f"p is {p!r}; accepted: 2, math.inf")
        if block is not None and (not isinstance(block, int) or block < 1):
            raise UsageError(f"block is {block!r}; accepted: elements from 1, or None for all under one norm")
        if norm_bits is None:
            norm_bits = 3 if block is None else 0
        self._norms = SharedNorms(float(p), block, norm_bits)
        self.levels = levels
        self.bits = None if bits is None else lanes.checked_bits(bits)
        self.p = float(p)
        self.block = block
        self.norm_bits = norm_bits

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if this number of ranks cannot share the lanes."""
        self._grid(round.world_size)

    def share(self, x: Floats, round: Round) -> Words | None:
        """Returns one bit for each block's norm, of 2^(8 + norm_bits)."""
        return self._norms.words(x)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns packed levels."""
        levels, bits = self._grid(round.world_size)
        units = self._units(shared, levels, x.dtype)
        key = new_key(self._private_draws(round))
        words, _ = to_words(x, units, self.block or x.size, bits, levels, key)
        return Message(words, kept=(x.size, units))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns exactly this rank's addend; 0 in blocks that are NaN in the sum."""
        size, units = message.kept
        return self._values(message.values, size, np.where(np.isnan(units), 0, units), round)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns sums of levels times the norms."""
        size, units = message.kept
        result = self._values(total, size, units, round)
        self._done(result.size)
        return result

    def omega(self, size: int, workers: int = 1) -> float | None:
        """Returns omega for the rank of the largest norm; see `dithering_variance`."""
        levels, _ = self._grid(workers)
        return dithering_variance(min(size, self.block or size), levels, self.p, 1 + 2.0**-self.norm_bits)

    # ------------------------------------------------------------------ inside

    def _grid(self, workers: int) -> tuple[int, int]:
        """Returns s and the width of lanes."""
        if self.levels is None:
            assert self.bits is not None
            return lanes.top(self.bits, workers), self.bits
        needed = lanes.bits_for(self.levels * workers)
        bits = needed if self.bits is None else self.bits
        if needed > min(bits, lanes.MAX_BITS):
            raise UsageError(
                f"levels is {self.levels}: the sum of {workers} workers needs lanes of {needed} bits, and "
                f"bits is {bits if self.bits else 'at most 32'}"
            )
        return self.levels, bits

    def _units(self, shared: Words | None, levels: int, dtype: np.dtype[Any]) -> Floats:
        """Returns each block's M / s: 0 if all ranks have zeros, NaN if any has NaN or Inf."""
        return self._norms.of(shared, levels, dtype)

    def _values(self, words: npt.NDArray[Any], size: int, units: Floats, round: Round) -> Floats:
        """Returns lanes times units."""
        return from_words(words, size, self._grid(round.world_size)[1], units, self.block or size)
