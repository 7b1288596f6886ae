"""EF21: error feedback in the form of compressed differences, for compressors that contract.

    worker i:  c_i = C(x_i - g_i) is sent,   g_i += c_i
    everyone:  G += sum of c_i, and G is the result,      G = sum of g_i

Richtarik, Sokolov, Fatkhullin: EF21, NeurIPS 2021, arXiv 2106.05203, Algorithm 2. G is kept by every rank,
from the same sums, so it is equal everywhere to the bit and never sent.
"""

from __future__ import annotations

from switchagg.errors import UsageError
from worker_lib.compress.base import Round
from worker_lib.compress.memory import Following


class EF21(Following):
    """EF21 around a compressor that contracts: one with a delta. State: as `Following`'s, g_i and G.

    Args:
        inner: with a `delta`, such as `TopBlocks`, `RandomBlocks(scaled=False)`, or a fine quantizer. One
            without is refused in the first round.
    """

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where the inner compressor does not contract, or cannot."""
        super().check(size, round)
        if self.inner.delta(size, round.world_size) is None:
            raise UsageError(
                f"inner is {self.inner.describe()}, which has no delta in (0, 1] on {size} elements and "
                f"{round.world_size} workers; EF21 needs a contraction: TopBlocks, RandomBlocks("
                "scaled=False), or a quantizer with omega under 1"
            )

    def rate(self, size: int, workers: int) -> float:
        """All the way."""
        return 1.0

    def describe(self) -> str:
        """Name and what is inside."""
        return f"EF21({self.inner.describe()})"
