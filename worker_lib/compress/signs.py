"""Signs: one bit of each element and a magnitude that all ranks share. 1-bit compression that a switch adds.

    1. each rank: mean |x| of each block; SUM over ranks: the mean over ranks, s
    2. q = 1 where x >= 0, else 0; lanes that count to n; the switch adds them
    3. sum = s (2 (sum of q) - n)

1-bit SGD (Seide et al., Interspeech 2014) and 1-bit Adam (Tang et al., ICML 2021, arXiv 2102.02888) scale by
each worker's own magnitude, and a server decodes before it adds. A switch cannot, so the magnitude is the
mean of all ranks', and a lane has the bits of a count: 2 for up to 3 ranks, 3 for up to 7, 4 for up to 15.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress import lanes
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.lanes import from_words, to_words


class Signs(Compressor):
    """Signs of the elements times the ranks' mean magnitude. Biased: use it inside `ErrorFeedback`.

    A round costs a sum of one number a block, then the sum of the signs; no state. If all ranks have the same
    mean magnitude in a block of B elements, |C(x) - x|^2 <= (1 - 1/B) |x|^2 there; a rank whose mean is under
    half of the others' gets more error than it has values, so that there is no `delta`. A block that is zero
    at all ranks stays zero and is not sent; one with NaN or Inf at any rank is NaN at every rank.

    Args:
        block: elements under one magnitude; None for all.
        seed: see `Compressor`; nothing is drawn.

    Raises:
        UsageError: a block that is no number of elements.
    """

    parameters = ("block",)

    def __init__(self, block: int | None = 1024, seed: int = 0) -> None:
        super().__init__(seed)
        if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
            raise UsageError(f"block is {block!r}; accepted: elements from 1, or None for all under one")
        self.block = block

    def share(self, x: Floats, round: Round) -> Words | Message | None:
        """Returns the mean magnitude of each block, for a sum."""
        starts = np.arange(0, x.size, self.block or x.size)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.add.reduceat(np.abs(x), starts, dtype=np.float64)
            means = sums / np.diff(starts, append=x.size)
        return Message(means.astype(x.dtype), blocks="dense")

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns packed signs."""
        assert shared is not None
        scales = shared / x.dtype.type(round.world_size)
        there = (np.isfinite(scales) & (scales > 0)).astype(x.dtype)
        # Half of the ranks count 0 and 1, the other half -1 and 0: so a lane's signed range holds the sum.
        signs = (x >= 0).astype(x.dtype)
        if not self._counts_up(round.rank, round.world_size):
            signs -= 1
        words, _ = to_words(signs, there, self.block or x.size, _bits(round), 1, (0, 0))
        return Message(words, kept=(x.size, np.where(np.isfinite(scales), scales, np.nan)))

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns this rank's addend; 0 in blocks that are NaN in the sum."""
        size, scales = message.kept
        scales = np.where(np.isnan(scales), 0, scales)
        ahead = -1 if self._counts_up(round.rank, round.world_size) else 1
        return self._values(message.values, size, scales, ahead, round)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the ranks' signs added up, times the magnitude."""
        size, scales = message.kept
        result = self._values(total, size, scales, round.world_size % 2, round)
        self._done(result.size)
        return result

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _counts_up(rank: int, workers: int) -> bool:
        return rank < workers // 2

    def _values(self, words: npt.NDArray[Any], size: int, scales: Floats, ahead: int, round: Round) -> Floats:
        """Returns (2 q + ahead) s for lanes q."""
        block = self.block or size
        values = from_words(words, size, _bits(round), 2 * scales, block)
        if ahead:
            values += ahead * np.repeat(scales, block)[:size]
        return values


def _bits(round: Round) -> int:
    """Returns the width of lanes that count to the number of ranks."""
    return max(lanes.MIN_BITS, round.world_size.bit_length())
