"""The largest norm of any rank, of each block: found by one OR, for compressors whose scale all ranks share.

A norm is rounded up to a number of 8 exponent bits and a few of mantissa, and sent as one bit of 2^(8+m); the
highest bit of the OR is the largest norm.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.compress.base import Floats, Words

_EXPONENTS: Final = 8  # bits of a float32's exponent
_NOT_FINITE: Final = 255
_MOST_MANTISSA: Final = 7


class SharedNorms:
    """Norms of the blocks of a vector, as words for an OR and from them.

    Args:
        p: of the norm, 2 or infinity.
        block: elements under one norm; None for all.
        mantissa: bits of a norm, which make it up to 1 + 2^-mantissa too large and cost 2^(3 + mantissa)
            words.

    Raises:
        UsageError: so many bits of mantissa there are not.
    """

    def __init__(self, p: float, block: int | None, mantissa: int) -> None:
        if not isinstance(mantissa, int) or not 0 <= mantissa <= _MOST_MANTISSA:
            raise UsageError(f"norm_bits is {mantissa!r}; accepted: 0 to {_MOST_MANTISSA}")
        self._p, self._block, self._mantissa = p, block, mantissa

    def words(self, x: Floats) -> Words:
        """Returns one bit for each block's norm, of 2^(8 + mantissa)."""
        rows = self._rows(x)
        with np.errstate(over="ignore", invalid="ignore"):
            if math.isinf(self._p):
                norms = np.abs(rows).max(axis=1).astype(np.float64)
            else:
                wide = rows.astype(np.float64, copy=False)
                norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
            codes = self._codes(norms)
        return self._one_hot(codes, norms > 0)

    def of(self, shared: Words | None, divisor: float, dtype: np.dtype[Any]) -> Floats:
        """Returns each block's largest norm over a divisor: 0 if all ranks have zeros, NaN if any has NaN or
        Inf.
        """
        assert shared is not None
        rows = shared.reshape(-1, 1 << (_EXPONENTS - 5 + self._mantissa))
        last = rows.shape[1] - 1 - (rows[:, ::-1] != 0).argmax(axis=1)
        word = rows[np.arange(rows.shape[0]), last]
        code = 32 * last + np.frexp(word.astype(np.float64))[1] - 1
        exponent, mantissa = code >> self._mantissa, code & ((1 << self._mantissa) - 1)
        # The next number of the coarse grid: no norm with this code is above it.
        significand = (mantissa + 1) / 2.0**self._mantissa + (exponent > 0)
        norm = np.ldexp(significand, np.maximum(exponent, 1) - 127)
        units: Floats = np.minimum(norm / divisor, np.finfo(dtype).max).astype(dtype)
        units[exponent == _NOT_FINITE] = np.nan
        units[word == 0] = 0
        return units

    def _rows(self, x: Floats) -> Floats:
        """Returns x with a block a row, the last padded with zeros."""
        width = self._block or x.size
        rows = -(-x.size // width)
        if rows * width != x.size:
            x = np.concatenate([x, np.zeros(rows * width - x.size, x.dtype)])
        return x.reshape(rows, width)

    def _codes(self, norms: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Returns exponent and leading mantissa bits of each norm as a float32, truncated."""
        single = norms.astype(np.float32)
        # Rounding to float32 must not hide that the norm is above it.
        single = np.where(single < norms, np.nextafter(single, np.float32(np.inf)), single)
        codes = (single.view(np.uint32) >> np.uint32(23 - self._mantissa)).astype(np.int64)
        codes[~np.isfinite(single)] = _NOT_FINITE << self._mantissa
        return codes

    def _one_hot(self, codes: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> Words:
        words = 1 << (_EXPONENTS - 5 + self._mantissa)
        out = np.zeros((codes.size, words), np.uint32)
        rows = np.flatnonzero(there | (codes >= _NOT_FINITE << self._mantissa))
        hot = codes[rows]
        out[rows, hot >> 5] = np.uint32(1) << (hot & 31).astype(np.uint32)
        return out.reshape(-1)
