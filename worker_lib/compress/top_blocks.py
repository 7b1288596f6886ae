"""Block top-k: each rank sends its k blocks of largest norm, and the switch the sums of their union.

Top-k by blocks is OmniReduce's (Fei et al., SIGCOMM 2021, section 5). It is biased: use it inside
`ErrorFeedback` or `EF21`.
"""

from __future__ import annotations

import numpy as np

from worker_lib.compress.base import Floats, Round
from worker_lib.compress.sparsifier import CountedBlocks, Numbers, chained_delta


class TopBlocks(CountedBlocks):
    """The k blocks of largest Euclidean norm; the rest counts as zero.

    delta = k / b: the k largest of b squares are at least k / b of their sum. No extra round, no state. A
    block with NaN or Inf is the largest. Blocks that are zero are not sent, even if fewer than k are left.

    Args:
        k, tau, block, seed: see `CountedBlocks`.

    Raises:
        UsageError: see `CountedBlocks`.
    """

    def alike(self) -> bool:
        """Each rank's own."""
        return False

    def choose(self, x: Floats, round: Round) -> Numbers:
        """The largest."""
        squares = block_squares(x, self.block)
        k = self.count(x.size)
        if k < squares.size:
            largest = np.argpartition(squares, squares.size - k)[squares.size - k :]
        else:
            largest = np.arange(squares.size)
        return np.sort(largest[squares[largest] > 0]).astype(np.intp)

    def delta(self, size: int, workers: int = 1) -> float | None:
        """k / b, less what the inner compressor scatters."""
        return chained_delta(self.share_of(size), self.inner.omega(self._values(size), workers))

    def describe(self) -> str:
        """Name and parameters."""
        return self._describe()


def block_squares(x: Floats, block: int) -> Floats:
    """Each block's squared Euclidean norm; infinite where there is NaN."""
    full = x.size // block
    rows = x[: full * block].reshape(full, block)
    with np.errstate(over="ignore", invalid="ignore"):
        squares: Floats = np.einsum("ij,ij->i", rows, rows)
        if full * block != x.size:
            rest = x[full * block :]
            squares = np.append(squares, rest @ rest)
    squares[np.isnan(squares)] = np.inf
    return squares
