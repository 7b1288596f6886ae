"""Error feedback: what compression leaves out of one vector is added to the next.

    p = x + e,   C(p) is sent,   e = p - C(p)

EF-SGD (Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv 1901.09847, Algorithm 2), with the
memory in units of x, which is the same while the step size does not change. After Seide et al., 1-bit SGD
(Interspeech 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from worker_lib.compress.base import Floats, Message, Round, Words
from worker_lib.compress.memory import Remembering


class ErrorFeedback(Remembering):
    """Error feedback around any compressor. The memory is this rank's alone: d numbers, "residual".

    Args:
        inner: what x and the residual go through.
    """

    def names(self) -> tuple[str, ...]:
        """One memory."""
        return ("residual",)

    def ahead(self, x: Floats) -> Floats:
        """x and what was left out so far."""
        result: Floats = x + self._of("residual", x)
        return result

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """What was sent."""
        return self.inner.own(message.kept[0], shared, round)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """The sum of what was sent; what was not goes to the residual."""
        inner, y = message.kept
        left = y - self.inner.own(inner, shared, round)
        result = self.inner.decode(total, inner, shared, round)
        residual = self._of("residual", y)
        there = np.isfinite(result)
        if there.all():
            residual[:] = left
        else:
            residual[there] = left[there]
        self._done(result.size)
        return result

    def describe(self) -> str:
        """Name and what is inside."""
        return f"ErrorFeedback({self.inner.describe()})"
