import numpy as np
import pytest

from switchagg.bench.data import SPAN, Distribution, Draw, block_mask, fill, reference, span_peaks
from switchagg.bench.grid import LANES, Cell, Overlap, numpy_dtype

DRAW = Draw(seed=3, round=1, call=0)


def cell(
    density: float, overlap: Overlap = Overlap.RANDOM, size: int = 40_004, dtype: str = "float32"
) -> Cell:
    return Cell(4, size, dtype, density, overlap, block_size=16)


def tensor(c: Cell, draw: Draw, rank: int) -> np.ndarray:
    out = np.full(c.elements, 7, numpy_dtype(c.dtype))
    fill(c, draw, rank, out)
    return out


def blocks_in(c: Cell, x: np.ndarray) -> np.ndarray:
    padded = np.zeros(c.blocks * c.block_size, x.dtype)
    padded[: len(x)] = x
    return padded.reshape(-1, c.block_size).any(axis=1)


@pytest.mark.parametrize("density", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("overlap", list(Overlap))
def test_the_mask_is_that_of_the_tensor_and_has_the_density(density: float, overlap: Overlap) -> None:
    c = cell(density, overlap)
    for rank in range(c.workers):
        mask = block_mask(c, DRAW, rank)
        assert np.array_equal(blocks_in(c, tensor(c, DRAW, rank)), mask)
        assert mask.sum() == max(1, round(density * c.blocks))


def test_overlap_is_what_it_says() -> None:
    masks = {o: [block_mask(cell(0.2, o), DRAW, rank) for rank in range(4)] for o in Overlap}
    assert all(np.array_equal(masks[Overlap.ALL][0], mask) for mask in masks[Overlap.ALL])
    assert np.sum(masks[Overlap.NONE], axis=0).max() == 1
    union = np.any(masks[Overlap.RANDOM], axis=0).mean()
    assert 0.5 < union < 0.7  # 1 - 0.8^4 = 0.59


def test_disjoint_blocks_cover_everything_when_there_are_enough() -> None:
    masks = [block_mask(cell(0.5, Overlap.NONE), DRAW, rank) for rank in range(4)]
    assert np.any(masks, axis=0).all()


def test_each_call_and_rank_has_other_values_in_other_places() -> None:
    c = cell(0.3)
    same = tensor(c, DRAW, 0)
    assert np.array_equal(same, tensor(c, DRAW, 0))
    for draw, rank in ((Draw(3, 2, 0), 0), (Draw(3, 1, 1), 0), (Draw(4, 1, 0), 0), (DRAW, 1)):
        other = tensor(c, draw, rank)
        assert not np.array_equal(blocks_in(c, other), blocks_in(c, same))


@pytest.mark.parametrize("dtype", LANES)
def test_the_reference_is_the_sum(dtype: str) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    c = cell(0.3, dtype=dtype, size=40_000)
    (answer,) = reference(c, [DRAW])
    tensors = [tensor(c, DRAW, rank) for rank in range(4)]
    wide = np.int64 if dtype.startswith("int") else np.float64
    assert np.array_equal(answer.total, np.sum([x.astype(wide) for x in tensors], axis=0))
    assert answer.union == np.any([blocks_in(c, x) for x in tensors], axis=0).sum()
    top = np.max([np.abs(x.astype(np.float64)) for x in tensors], axis=0)
    assert np.array_equal(answer.peaks, span_peaks(top))


def test_span_peaks_of_a_short_last_span() -> None:
    x = np.zeros(2 * SPAN + 1, np.float32)
    x[5], x[-1] = -3, 2
    assert span_peaks(x).tolist() == [3, 0, 2]


def test_heavy_tails_are_heavier() -> None:
    c = cell(1.0, size=4 << 20)
    normal = tensor(c, DRAW, 0)
    heavy = tensor(c, Draw(3, 1, 0, Distribution.STUDENT_T3), 0)
    assert np.abs(heavy).max() > 5 * np.abs(normal).max()
