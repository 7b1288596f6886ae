"""Hard threshold: each rank sends the blocks in which some magnitude reaches a value.

Sahu et al., Rethinking gradient sparsification as total error minimization (NeurIPS 2021, section 4), argue
for it over top-k with error feedback: how much is sent follows the gradients, and the error stays bounded by
the threshold.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Floats, Round
from worker_lib.compress.sparsifier import DEFAULT_BLOCK, Numbers, Sparsifier


class Threshold(Sparsifier):
    """Blocks whose largest magnitude is at least `value`; the rest counts as zero.

    |C(x) - x|_inf < value, whatever x is; relative to |x| there is no bound, hence no delta. No extra round,
    no state. A block with NaN or Inf is sent.

    Args:
        value: the least largest magnitude.
        block, seed: see `Sparsifier`.

    Raises:
        UsageError: a value that is not a positive number.
    """

    def __init__(self, value: float, block: int = DEFAULT_BLOCK, seed: int = 0) -> None:
        super().__init__(block, seed)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"value is {value!r}; accepted: a number greater than 0")
        self.value = float(value)

    def alike(self) -> bool:
        """Each rank's own."""
        return False

    def choose(self, x: Floats, round: Round) -> Numbers:
        """Those that reach the value."""
        full = x.size // self.block
        largest: npt.NDArray[Any] = np.abs(x[: full * self.block]).reshape(full, self.block).max(axis=1)
        if full * self.block != x.size:
            largest = np.append(largest, np.abs(x[full * self.block :]).max())
        return np.flatnonzero(~(largest < self.value))

    def describe(self) -> str:
        """Name and parameters."""
        inner = f" > {self.inner.describe()}"
        return f"Threshold(value={self.value:g}, block={self.block}){inner}"
