"""IntSGD: integers under a scale that every rank computes from the last sums, without communication.

    alpha = sqrt(d) / sqrt(2 n r + eps^2),      r <- beta r + (1 - beta) |average|^2 after each round
    q = floor(alpha x + u), cut to what n ranks can share;   average = (sum of q) / (n alpha)

Mishchenko, Wang, Kovalev, Richtarik: IntSGD: Adaptive Floatless Compression of Stochastic Gradients, ICLR
2022, arXiv 2102.08374. There r is a moving average of |x_k - x_(k-1)|^2 / eta^2, which with the
step x_k = x_(k-1) - eta * average is |average|^2. The first round goes in full, as there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Floats, Message, Round, Words
from worker_lib.compress.lanes import square_of_words
from worker_lib.compress.rounding import Guard, GuardedGrid


class IntSGD(GuardedGrid):
    """Random rounding to integers under an adaptive scale. No extra round; the state is one number.

    The scale makes a worker's integers about 1 / sqrt(2) if workers' noise dominates, so that few bits
    are enough. Elements that do not fit are cut, which biases the sum: `cut` counts them.
    E|Q(x) - x|^2 <= d / (4 alpha^2) = (2 n r + eps^2) / 4, whatever x is, so it has no omega.

    Args:
        bits: width of lanes.
        beta: weight of the old r, in [0, 1).
        epsilon: keeps the scale finite if sums vanish; in units of |x|.
        seed: see `Compressor`.

    Attributes:
        cut: elements that were cut in the last round, over all ranks.

    Raises:
        UsageError: parameters that cannot work.
    """

    parameters = ("bits", "beta", "epsilon")

    def __init__(self, bits: int = 8, beta: float = 0.9, epsilon: float = 1e-8, seed: int = 0) -> None:
        super().__init__(bits, seed)
        if not isinstance(beta, int | float) or not 0 <= beta < 1:
            raise UsageError(f"beta is {beta!r}; accepted: from 0, less than 1")
        if not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
            raise UsageError(f"epsilon is {epsilon!r}; accepted: a number greater than 0")
        self.beta, self.epsilon = float(beta), float(epsilon)
        self.cut = 0
        self._scalars = {"square": None}  # r; without it, as after a change of members, a round goes in full

    def unit(self, size: int, round: Round) -> float:
        """Returns 1 / alpha."""
        square = self._scalars["square"]
        assert square is not None
        return math.sqrt((2 * round.world_size * square + self.epsilon**2) / size)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns integers; in the first round the vector itself."""
        if self._scalars["square"] is None:
            return Message(x, kept=(x.size, None))
        return super().encode(x, shared, round)

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns this rank's addend; in the first round as the session's widest lanes carry it."""
        if message.kept[1] is None:
            return message.values
        return super().own(message, shared, round)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the sum, and updates r."""
        if message.kept[1] is not None:
            return super().decode(total, message, shared, round)
        self.cut = 0
        self._learn(square_of(total), round)
        self._done(total.size)
        return total

    def _judge(
        self, guard: Guard, total: npt.NDArray[np.int32], size: int, unit: float, round: Round
    ) -> None:
        self.cut = guard.cut
        if guard.infinite:
            return
        if self.bits <= 16:
            square = square_of_words(total, size, self.bits)
        else:
            square = square_of_integers(total[:size])
        self._learn(unit**2 * square, round)

    def _learn(self, square: float, round: Round) -> None:
        """Updates r from the squared norm of the sum."""
        average = square / round.world_size**2
        if math.isfinite(average):
            known = self._scalars["square"]
            before = average if known is None else known
            self._scalars["square"] = self.beta * before + (1 - self.beta) * average


def square_of_integers(q: npt.NDArray[np.int32]) -> int:
    """Returns the squared norm, exact and so the same on every computer, whatever the order of adding."""
    wide = q.astype(np.int64)
    high, low = wide >> 16, wide & 0xFFFF
    return (int(high @ high) << 32) + (int(high @ low) << 17) + int(low @ low)


def square_of(x: Floats) -> float:
    """Returns the squared norm to some four digits, the same on every computer; infinite or NaN as x is."""
    largest = float(np.abs(x).max())
    if largest == 0 or not math.isfinite(largest):
        return largest
    steps = np.rint(x / x.dtype.type(largest) * 32767).astype(np.int32)
    return (largest / 32767) ** 2 * square_of_integers(steps)
