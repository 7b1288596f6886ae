"""Exact sums by Python's integers: an oracle that knows nothing of packets, and the words that elements need.

`switchagg/native/worker/limbs.cpp` and `stream.cpp` give the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker_lib.plan import DType, ReduceOp
from worker_lib.quantize import STORAGE, Values

# Of each type: bits of the stored mantissa, bits of the exponent field.
_FORMATS = {DType.F32: (23, 8), DType.F64: (52, 11), DType.F16: (10, 5), DType.BF16: (7, 8)}


def bits_of(x: Values) -> npt.NDArray[np.unsignedinteger]:
    """The elements as unsigned integers."""
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def integers(x: Values, dtype: DType) -> list[int]:
    """Elements as multiples of the type's smallest subnormal; 0 for those that are not finite."""
    mantissa_bits, exponent_bits = _FORMATS[dtype]
    found = []
    for bits in bits_of(x).tolist():
        field = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = bits & ((1 << mantissa_bits) - 1)
        if field == (1 << exponent_bits) - 1:
            found.append(0)
            continue
        value = (mantissa | bool(field) << mantissa_bits) << max(field - 1, 0)
        found.append(-value if bits >> (mantissa_bits + exponent_bits) else value)
    return found


def rounded(total: int, divisor: int, dtype: DType) -> int:
    """The bits of `total` / `divisor` smallest subnormals, rounded once, to nearest even."""
    mantissa_bits, exponent_bits = _FORMATS[dtype]
    sign, magnitude = (1 if total < 0 else 0) << (mantissa_bits + exponent_bits), abs(total)
    places = max((magnitude // divisor).bit_length() - (mantissa_bits + 1), 0)
    quotient, rest = divmod(magnitude, divisor << places)
    twice = 2 * rest
    if twice > divisor << places or (twice == divisor << places and quotient & 1):
        quotient += 1
    # The field grows by one where rounding carries into it; a subnormal that does becomes normal.
    bits = quotient + (places << mantissa_bits)
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    return sign | min(bits, infinity) if total else 0


def reduce(xs: list[Values], dtype: DType, op: ReduceOp = ReduceOp.SUM) -> Values:
    """The correctly rounded sum or average over ranks; NaN and signed infinities as IEEE 754 sums them."""
    divisor = len(xs) if op is ReduceOp.AVG else 1
    totals = [sum(column) for column in zip(*(integers(x, dtype) for x in xs), strict=True)]
    result = np.array([rounded(total, divisor, dtype) for total in totals], bits_of(xs[0]).dtype)
    mantissa_bits, exponent_bits = _FORMATS[dtype]
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    sign = 1 << (mantissa_bits + exponent_bits)
    raw = np.stack([bits_of(x) for x in xs]).astype(np.uint64)
    special = raw & np.uint64(infinity) == infinity
    nan = (special & (raw & np.uint64((1 << mantissa_bits) - 1) != 0)).any(axis=0)
    plus = (special & (raw & np.uint64(sign) == 0)).any(axis=0)
    minus = (special & (raw & np.uint64(sign) != 0)).any(axis=0)
    result[plus] = infinity
    result[minus] = sign | infinity
    result[nan | (plus & minus)] = infinity | 1 << (mantissa_bits - 1)
    return result.view(STORAGE[dtype])


def words_needed(lowest: int, highest: int, dtype: DType, workers: int) -> int:
    """Words an element of a chunk whose exponent fields go from `lowest` to `highest`, as in float32."""
    precision = {DType.F32: 24, DType.F64: 53, DType.F16: 11, DType.BF16: 8}[dtype]
    limb = 31 - (workers - 1).bit_length()
    return -(-(max(highest, 1) - max(lowest, 1) + precision) // limb)
