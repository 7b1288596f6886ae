"""Rounding to integers under an exponent that all ranks share: the session's own lanes, and the default.

The scale of each chunk is the largest exponent at any rank, which the plan of every collective finds anyway
(docs/protocol.md, sections 4 to 7): no extra round and no state. 32-bit lanes round to nearest; 16- and 8-bit
lanes round at random and are unbiased.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Compressor, Floats, Message, Round, Words
from worker_lib.compress.dithering import dithering_variance
from worker_lib.plan import NARROW_CHUNK
from worker_lib.quantize import lane_top


class SharedExponent(Compressor):
    """The session's own lanes as a compressor.

    `own` is exact with lanes of 16 and 8 bits. With wider ones it is x itself, which the lanes carry within
    `worker_lib.quantize.error_bound`.

    Args:
        bits: 32, 16 or 8; None for the widest of the type (64 for float64). Narrow lanes of float64 go
            through float32.

    Raises:
        UsageError: another width.
    """

    unbiased = True
    parameters = ("bits",)

    def __init__(self, bits: int | None = None) -> None:
        super().__init__()
        if bits not in (None, 32, 16, 8):
            raise UsageError(f"bits is {bits!r}; accepted: 32, 16, 8, or None for the type's widest")
        self.bits = bits

    @property
    def narrow(self) -> bool:
        """True if lanes are rounded at random."""
        return self.bits is not None and self.bits < 32

    def check(self, size: int, round: Round) -> None:
        """Raises `UsageError` if this number of ranks cannot share lanes so narrow."""
        if self.bits is not None and self.bits < 32:
            lane_top(self.bits, round.world_size)

    def encode(self, x: Floats, shared: Words | None, round: Round) -> Message:
        """Returns the vector as it is; the session makes lanes of it."""
        if not self.narrow:
            return Message(x, self.bits, kept=x.dtype)
        values = x.astype(np.float32, copy=False)
        return Message(values, self.bits, memory=np.zeros(values.size, np.float32), kept=x.dtype)

    def own(self, message: Message, shared: Words | None, round: Round) -> Floats:
        """Returns the addend that the session's lanes carried."""
        if message.memory is None:
            return message.values
        return (message.values - message.memory).astype(message.kept, copy=False)

    def decode(self, total: npt.NDArray[Any], message: Message, shared: Words | None, round: Round) -> Floats:
        self._done(total.size)
        return total.astype(message.kept, copy=False)

    def omega(self, size: int, workers: int = 1) -> float | None:
        """Returns 0 with wide lanes, whose rounding is of the order of a float's; else the dithering's.

        With Q lanes each way a unit is at most 2 M / Q, M being the chunk's largest magnitude; a value v
        units from 0 varies by at most min(1/4, |v|) units^2 (docs/protocol.md, section 6), and
        |x|_inf |x|_1 <= (1 + sqrt(m)) / 2 |x|_2^2 on m elements.
        """
        if self.bits is None or self.bits == 32:
            return 0.0
        return dithering_variance(min(size, NARROW_CHUNK), lane_top(self.bits, workers), math.inf, 2.0)
