"""EF21: error feedback in the form of compressed differences, for compressors that contract.

    worker i:  c_i = C(x_i - g_i) is sent,   g_i += c_i
    everyone:  G += sum of c_i, and G is the result,      G = sum of g_i

Richtarik, Sokolov, Fatkhullin: EF21, NeurIPS 2021, arXiv 2106.05203, Algorithm 2. G is kept by every rank,
from the same sums, so it is equal everywhere to the bit and never sent.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Floats, Message, Round, Words
from worker_lib.compress.memory import Remembering, finite


class EF21(Remembering):
    """EF21 around a compressor that contracts: one with a delta.

    State: two vectors like x, "own" (g_i) and "sum" (G), zero at first. When other ranks take part than
    before, both begin at zero again.

    Args:
        inner: with a `delta`, such as `TopBlocks`, `RandomBlocks(scaled=False)`, or a fine quantizer. One
            without is refused in the first round.
    """

    def names(self) -> tuple[str, ...]:
        """g_i and G."""
        return ("own", "sum")

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` where the inner compressor does not contract, or cannot."""
        super().check(size, round)
        if self.inner.delta(size, round.world_size) is None:
            raise UsageError(
                f"inner is {self.inner.describe()}, which has no delta in (0, 1] on {size} elements and "
                f"{round.world_size} workers; EF21 needs a contraction: TopBlocks, RandomBlocks("
                "scaled=False), or a quantizer with omega under 1"
            )

    def ahead(self, x: Floats) -> Floats:
        """The difference to this rank's memory."""
        result: Floats = x - self._of("own", x)
        return result

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """g_i after this round."""
        inner, y = message.kept
        result: Floats = self._of("own", y) + self.inner.own(inner, shared, round)
        return result

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """G after this round."""
        inner, y = message.kept
        sent = self.inner.own(inner, shared, round)
        change = self.inner.decode(total, inner, shared, round)
        g, every = self._of("own", y), self._of("sum", y)
        result: Floats = every + change
        g += finite(sent, change)
        every += finite(change, change)
        self._done(result.size)
        return result

    def forget_shared(self) -> None:
        """G is the sum over ranks that no longer are the same."""
        super().forget_shared()
        self._memory = {}

    def describe(self) -> str:
        """Name and what is inside."""
        return f"EF21({self.inner.describe()})"
