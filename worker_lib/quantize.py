"""Scales of lanes, rounding to a tensor's type, and the bound on a sum's error.

The engine turns floats into lanes and back (`switchagg/native/worker/lane_kernels.cpp`). Compressors and
tensors of a GPU need these parts of it in Python; `tests/reference/quantize.py` is a readable form of the
whole. docs/protocol.md defines the arithmetic and proves `error_bound`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from switchagg.errors import UsageError
from worker_lib.plan import NO_EXPONENT, DType, ReduceOp

Values = npt.NDArray[Any]  # elements of a tensor, in the type that STORAGE names

STORAGE: Final[dict[DType, type[np.generic]]] = {
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.RAW: np.uint32,
}
_QUIET_BFLOAT16: Final = 0x7FC0


def widen(x: Values, dtype: DType) -> Values:
    """The floats that arithmetic is done in: float64 for float64, else float32. Exact."""
    if dtype is DType.BF16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return x.astype(np.float64 if dtype is DType.F64 else np.float32)


def narrow(y: Values, dtype: DType) -> Values:
    """Back to the tensor's type, rounded to nearest even."""
    if dtype is DType.BF16:
        bits = y.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(y), np.uint16(_QUIET_BFLOAT16), rounded.astype(np.uint16))
    with np.errstate(over="ignore"):
        return y.astype(STORAGE[dtype])


def lane_top(bits: int, workers: int) -> int:
    """Q: the largest magnitude of one worker's value in a lane of 16 or 8 bits.

    Raises:
        UsageError: so many workers cannot share so narrow a lane.
    """
    top = int(((1 << (bits - 1)) - 1) // workers)
    if top < 1:
        raise UsageError(
            f"bits is {bits}: {workers} workers cannot share lanes so narrow; accepted: up to "
            f"{(1 << (bits - 1)) - 1} workers, or more bits"
        )
    return top


def headroom(workers: int) -> int:
    """L: bits of a wide lane that the sum of so many workers' values needs; ceil(log2 n), and 9 for 256.

    From 129 workers on a float32 can round up to 2^(31-L), which 255 workers can share and 256 cannot.
    """
    return (workers - 1).bit_length() + (workers >= 256)


def dither_key(position: int, rank: int) -> int:
    """The key of a rank's stochastic rounding in the collective at `position` of the job; 32 bits."""
    k = (position * 0x9E3779B1 ^ (rank + 1) * 0x7FEB352D) & 0xFFFFFFFF
    k ^= k >> 15
    k = k * 0x846CA68B & 0xFFFFFFFF
    return k ^ k >> 16


def error_bound(
    dtype: DType, bits: int, workers: int, exponent: int, op: ReduceOp = ReduceOp.SUM
) -> Fraction:
    """A bound on |result - exact| for every element of a chunk, proved in docs/protocol.md ("How far off").

    It holds for every result that is finite, and every result is finite where |exact| plus this bound is
    not over the type's largest value. An average of finite values is always finite.

    Args:
        dtype, bits, workers, op: as in `dequantize`.
        exponent: the chunk's agreed exponent, as in a plan.

    Returns:
        Exact; for float64 it can be larger than any float. 0 for integers and chunks without an exponent.

    Raises:
        UsageError: the exponent is that of NaN and Inf.
    """
    if not dtype.is_float or exponent == NO_EXPONENT:
        return Fraction(0)
    if exponent >= dtype.not_finite:
        raise UsageError(f"exponent is {exponent}; accepted: that of a finite value")
    double = dtype is DType.F64
    eps = Fraction(1, 2 ** (53 if double else 24))
    eta = Fraction(1, 2 ** (1075 if double else 150))
    reach = Fraction(2) ** (max(exponent, 1) - (1023 if double else 127) + 1)  # X = 2^(E+1)
    average = op is ReduceOp.AVG
    if bits >= 32:
        unit = reach / 2 ** (bits - 1 - headroom(workers))
        each = unit if double and bits == 32 else unit / 2
        decode = (1 + eps) ** 3 - 1 if average else eps
    else:
        top = lane_top(bits, workers)
        unit = reach / top
        each = unit * (1 + eps * top + 4 * top * eta)
        decode = (1 + eps) ** 3 - 1
    scale = 1 if average else workers
    bound: Fraction = scale * each + scale * reach * decode + eta
    if dtype in (DType.F16, DType.BF16):
        half = dtype is DType.F16
        rounding = Fraction(1, 2**11 if half else 2**8)
        bound += (scale * reach * (1 + decode) + eta) * rounding + Fraction(1, 2**25 if half else 2**134)
    return bound
