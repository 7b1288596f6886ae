"""Blocks chosen at random: the same at every rank from a shared seed, or by each rank for itself.

With the same blocks everywhere no bitmap and no index travels, only the k blocks; and compressing commutes
with adding: the sum of the ranks' compressed vectors is the compressed sum. Blocks of each rank's own make a
union that is larger, up to n k of them (random sparsification: Wangni et al., NeurIPS 2018; rand-k: Stich et
al., Sparsified SGD with Memory, NeurIPS 2018).
"""

from __future__ import annotations

import numpy as np

from worker_lib.compress.base import Floats, Round
from worker_lib.compress.sparsifier import (
    DEFAULT_BLOCK,
    CountedBlocks,
    Numbers,
    chained_delta,
    chained_omega,
)


class RandomBlocks(CountedBlocks):
    """k of b blocks, each choice of k equally likely, multiplied by b / k so as to be right on average.

    omega = b / k - 1. No extra round; the state is the number of the round.

    Args:
        k, tau, block: see `CountedBlocks`.
        independent: whether each rank chooses for itself.
        scaled: whether values are multiplied by b / k. Without, it is biased with delta = k / b, which is
            what error feedback wants.
        seed: see `Compressor`.

    Raises:
        UsageError: see `CountedBlocks`.
    """

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
        self.scaled = scaled

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Where values are scaled, and what they go through is unbiased."""
        return self.scaled and self.inner.unbiased

    def alike(self) -> bool:
        """Unless each rank chooses for itself."""
        return not self.independent

    def choose(self, x: Floats, round: Round) -> Numbers:
        """k of the blocks, without replacement."""
        blocks, k = self.blocks(x.size), self.count(x.size)
        if self.independent:
            keys = self._private_draws(round).integers(0, 1 << 63, blocks, dtype=np.uint64)
        else:
            keys = self._shared_keys(blocks)
        return np.sort(np.argpartition(keys, k - 1)[:k])

    def factor(self, size: int) -> float:
        """b / k where it is scaled."""
        return 1 / self.share_of(size) if self.scaled else 1.0

    def most(self, size: int) -> int:
        """k blocks, or with blocks of each rank's own all elements."""
        return size if self.independent else self.count(size) * self.block

    def omega(self, size: int, workers: int = 1) -> float | None:
        """b / k - 1, and the inner compressor's on top."""
        if not self.scaled:
            return None
        return chained_omega(1 / self.share_of(size) - 1, self.inner.omega(self._values(size), workers))

    def delta(self, size: int, workers: int = 1) -> float | None:
        """k / b where it is not scaled."""
        if self.scaled:
            return super().delta(size, workers)
        return chained_delta(self.share_of(size), self.inner.omega(self._values(size), workers))

    def describe(self) -> str:
        """Name and parameters."""
        return self._describe(f"independent={self.independent}", f"scaled={self.scaled}", f"seed={self.seed}")
