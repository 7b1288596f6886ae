"""Checks a measured result: is it within its bounds, and how much noise does it carry. No I/O.

Bounds on the error of one element, with n workers, 2^(E+1) the power of two above the chunk's largest
magnitude at any rank, and u the unit roundoff of the tensor's type:

    switchagg, 32 (64) bits   n/2 steps of 2^(E-s), s = 30 - ceil(log2 n) (62 - ...)    chunks of 65,536
    switchagg, default        n/2 steps of 2^(E+2-r), r = 31 - ceil(log2 n)             chunks of 1,024
                              (float64: n of 2^(E+2-3r))
    switchagg, exact          none
    switchagg, 16 and 8 bits  n steps of 2^(E+1)/Q, Q = floor((2^(b-1) - 1)/n)          chunks of 1,024
    a ring or tree            2n roundings, each of at most n 2^(E+1) u
    always                    the last rounding to the tensor's type, n 2^(E+1) u

Integers must be equal. Elements outside every rank's non-zero chunks must be zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.data import SLAB, SPAN, Reference, span_peaks
from switchagg.bench.grid import DEFAULT, EXACT, Cell, Variant, is_float
from worker_lib.plan import BOUNDED_CHUNK, NARROW_CHUNK, WIDE_CHUNK

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# 2^-24 is half of float16's smallest subnormal and bfloat16 reaches far below what the data holds.
_SUBNORMAL = {"float16": 2.0**-24}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check.

    Attributes:
        right: whether every element is within its bound.
        worst: the largest error in units of its bound; 0 for integers that are equal.
        signal, noise: sums of squares of the reference and of the error, for a signal-to-noise ratio.
        complaint: where and by how much it is wrong; empty when right.
    """

    right: bool
    worst: float
    signal: float
    noise: float
    complaint: str = ""


def judge(cell: Cell, variant: Variant, reference: Reference, result: NDArray[Any]) -> Verdict:
    """Compares one call's result, (elements,), with its reference."""
    if not is_float(cell.dtype):
        return _judge_integers(reference, result)
    bounds = error_bounds(cell, variant, reference.peaks)
    signal = noise = worst = 0.0
    for start in range(0, len(result), SLAB):
        total = reference.total[start : start + SLAB]
        error = result[start : start + SLAB].astype(np.float64) - total
        # Not `@`: the threads of a BLAS that compete for the cores cost far more than the sum.
        signal += float(np.einsum("i,i", total, total))
        noise += float(np.einsum("i,i", error, error))
        bound = bounds[start // SPAN : (start + SLAB) // SPAN]
        largest = span_peaks(error)
        within = largest <= bound
        if not within.all():
            # NaN is not within anything.
            wrong = ~(np.abs(error) <= np.repeat(bound, SPAN)[: len(error)])
            index = int(np.flatnonzero(wrong)[0])
            complaint = (
                f"{int(wrong.sum())} elements wrong from element {start + index} on: "
                f"{float(result[start + index])!r} where {float(total[index])!r} is the sum, "
                f"off by more than {bound[index // SPAN]:.3g}"
            )
            return Verdict(False, math.inf, signal, noise, complaint)
        shares = np.divide(largest, bound, out=np.zeros_like(bound), where=bound > 0)
        worst = max(worst, float(shares.max()))
    return Verdict(True, worst, signal, noise)


def _judge_integers(reference: Reference, result: NDArray[Any]) -> Verdict:
    expected = reference.total.astype(result.dtype)
    wrong = np.flatnonzero(expected != result)
    if not len(wrong):
        return Verdict(True, 0.0, 0.0, 0.0)
    index = int(wrong[0])
    found = f"{result[index]} where {expected[index]} is the sum"
    complaint = f"{len(wrong)} elements wrong from element {index} on: {found}"
    return Verdict(False, math.inf, 0.0, 0.0, complaint)


def error_bounds(cell: Cell, variant: Variant, peaks: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest error that an element may have, a span at a time; 0 where a chunk is zero at every rank.

    Args:
        peaks: the largest magnitude of each span at any rank, as `data.Reference` has it.
    """
    n = cell.workers
    unit = UNIT_ROUNDOFF[cell.dtype]
    if variant.system == "switchagg":
        chunk = {DEFAULT: BOUNDED_CHUNK, 32: WIDE_CHUNK, 64: WIDE_CHUNK}.get(variant.bits, NARROW_CHUNK)
        chunk_spans = chunk // SPAN
        top = _power_above(_chunk_peaks(peaks, chunk_spans))
        limb = 31 - math.ceil(math.log2(n))
        if variant.bits == EXACT:
            bound = 0.0 * top
        elif variant.bits == DEFAULT:
            bound = 2 * n * top * 2.0 ** (-3 * limb if cell.dtype == "float64" else -limb - 1)
        elif variant.bits >= 32:
            lanes = 30 if variant.bits == 32 else 62
            step = top * 2.0 ** -(lanes + 1 - math.ceil(math.log2(n)))
            bound = n / 2 * step
        else:
            bound = n * top / ((2 ** (variant.bits - 1) - 1) // n)
        # float64 arithmetic on both sides: the reference rounds as well.
        bound = bound + n * top * unit + n * n * top * UNIT_ROUNDOFF["float64"]
    else:
        if variant.system == "gloo-fp16":
            unit = UNIT_ROUNDOFF["float16"]
        top = _power_above(peaks)
        bound = (2 * n + 1) * n * top * unit
    tiny = _SUBNORMAL["float16"] if variant.system == "gloo-fp16" else _SUBNORMAL.get(cell.dtype, 0.0)
    return np.where(top > 0, bound + 2 * n * tiny, 0.0)


def _chunk_peaks(peaks: NDArray[np.float64], spans: int) -> NDArray[np.float64]:
    """Each span's peak raised to that of the chunk of `spans` spans that it lies in."""
    starts = np.arange(0, len(peaks), spans)
    return np.repeat(np.maximum.reduceat(peaks, starts), spans)[: len(peaks)]


def _power_above(peaks: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest power of two that is larger than each peak; 0 for 0."""
    return np.where(peaks > 0, np.ldexp(1.0, np.frexp(peaks)[1]), 0.0)


def decibels(signal: float, noise: float) -> float | None:
    """A signal-to-noise ratio in dB from two sums of squares; None where either is 0 or not finite."""
    if not (0 < signal < math.inf and 0 < noise < math.inf):
        return None
    return round(10 * math.log10(signal / noise), 1)
