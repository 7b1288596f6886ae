import math

import numpy as np
import pytest

from switchagg.bench.check import decibels, error_bounds, judge
from switchagg.bench.data import Draw, Reference, fill, reference
from switchagg.bench.grid import Cell, Overlap, Variant, numpy_dtype

DRAW = Draw(seed=5, round=0, call=0)


def cell(dtype: str = "float32", density: float = 1.0) -> Cell:
    return Cell(4, 65536 * numpy_dtype(dtype).itemsize, dtype, density, Overlap.ALL, block_size=64)


def tensors(c: Cell) -> list[np.ndarray]:
    out = [np.empty(c.elements, numpy_dtype(c.dtype)) for _ in range(c.workers)]
    for rank, x in enumerate(out):
        fill(c, DRAW, rank, x)
    return out


def ring_sum(c: Cell) -> tuple[Reference, np.ndarray]:
    (answer,) = reference(c, [DRAW])
    total = np.zeros(c.elements, numpy_dtype(c.dtype))
    for x in tensors(c):
        total += x
    return answer, total


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_a_plain_sum_is_right(dtype: str) -> None:
    answer, total = ring_sum(cell(dtype))
    verdict = judge(cell(dtype), Variant("gloo", 32), answer, total)
    assert verdict.right
    assert not verdict.complaint
    assert verdict.worst < 1


def test_one_bit_of_one_integer_is_wrong() -> None:
    answer, total = ring_sum(cell("int32"))
    total[1234] ^= 1
    verdict = judge(cell("int32"), Variant("switchagg", 32), answer, total)
    assert not verdict.right
    assert "1 elements wrong from element 1234" in verdict.complaint


@pytest.mark.parametrize("bad", [1e-3, float("nan"), float("inf")])
def test_one_wrong_float_is_wrong(bad: float) -> None:
    answer, total = ring_sum(cell())
    total[60_000] += bad
    for system in ("switchagg", "gloo"):
        verdict = judge(cell(), Variant(system, 32), answer, total)
        assert not verdict.right
        assert "from element 60000" in verdict.complaint


def test_a_rank_left_out_or_added_twice_is_wrong_even_with_8_bits() -> None:
    answer, total = ring_sum(cell())
    first = tensors(cell())[0]
    for wrong in (total - first, total + first, np.zeros_like(total)):
        for bits in (32, 16, 8):
            assert not judge(cell(), Variant("switchagg", bits), answer, wrong).right


def test_a_block_that_is_zero_everywhere_must_be_zero() -> None:
    c = Cell(4, 65536 * 4, "float32", 1 / 64, Overlap.ALL, block_size=1024)
    answer, total = ring_sum(c)
    assert judge(c, Variant("switchagg", 8), answer, total).right
    empty = int(np.flatnonzero(total == 0)[0])
    total[empty] = 1e-30
    assert not judge(c, Variant("switchagg", 8), answer, total).right


def test_bounds_hold_for_rounding_by_hand_and_are_not_slack() -> None:
    """Quantize as docs/protocol.md says, in float64, and compare the worst error with the bound."""
    c = cell()
    answer, _ = ring_sum(c)
    generator = np.random.default_rng(11)
    for bits in (32, 16, 8):
        chunk = 65536 if bits == 32 else 1024
        peaks = answer.peaks.reshape(-1, chunk // 1024).max(axis=1)
        top = np.repeat(np.exp2(np.floor(np.log2(peaks)) + 1), chunk)
        step = top * 2.0**-29 if bits == 32 else top / ((2 ** (bits - 1) - 1) // 4)
        total = np.zeros(c.elements)
        for x in tensors(c):
            v = x.astype(np.float64) / step
            total += np.rint(v) if bits == 32 else np.floor(v + generator.random(len(v)))
        verdict = judge(c, Variant("switchagg", bits), answer, (total * step).astype(np.float32))
        assert verdict.right, (bits, verdict)
        assert verdict.worst > 0.02, (bits, verdict)


def test_narrower_lanes_have_wider_bounds() -> None:
    peaks = np.array([1.0, 0.0, 3.0])
    bounds = [error_bounds(cell(), Variant("switchagg", bits), peaks) for bits in (32, 16, 8)]
    assert (bounds[0][[0, 2]] < bounds[1][[0, 2]]).all()
    assert (bounds[1][[0, 2]] < bounds[2][[0, 2]]).all()
    assert bounds[1][1] == bounds[2][1] == 0  # its own chunk
    assert bounds[0][1] == bounds[0][2]  # in one chunk of 65,536 with the others


def test_decibels() -> None:
    assert decibels(100.0, 1.0) == 20.0
    assert decibels(1.0, 0.0) is None
    assert decibels(1.0, math.nan) is None
    assert decibels(1.0, math.inf) is None
