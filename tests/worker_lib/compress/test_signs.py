"""Signs: the sum is s (2 count - n), in the fewest bits; what is lost is fed back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference import lanes as reference_lanes
from tests.seeds import seed_of_this_run
from worker_lib import UsageError
from worker_lib.compress import EF21, ErrorFeedback, Message, Round, Signs

from .table import Array, Table


def vectors(workers: int, size: int, dtype: Any = np.float32) -> list[Array]:
    rng = np.random.default_rng(seed_of_this_run())
    return [rng.standard_normal(size).astype(dtype) for _ in range(workers)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 8, 15, 16])
def test_it_is_the_formula(workers: int, dtype: Any) -> None:
    xs = vectors(workers, 1000, dtype)
    for x in xs:
        x[256:512] = 0  # a block that is zero at all ranks
        x[3] = abs(x[3])  # all ranks agree here, so that the count reaches both ends
        x[4] = -abs(x[4])
    table = Table([Signs(block=256) for _ in xs])
    total, owns = table.round(xs)
    for begin in range(0, 1000, 256):
        part = slice(begin, min(begin + 256, 1000))
        scale = np.mean([np.abs(x[part]).mean(dtype=np.float64) for x in xs])
        signs = np.sum([np.where(x[part] >= 0, 1, -1) for x in xs], axis=0)
        expected = scale * signs if begin != 256 else np.zeros(256)
        assert np.allclose(total[part], expected, rtol=1e-5, atol=1e-6)
    assert np.allclose(total, np.sum(owns, axis=0, dtype=np.float64), atol=1e-5 * workers)
    bits = max(2, workers.bit_length())
    assert table.messages[0].values.size == -(-1000 // (32 // bits))
    words = table.messages[0].values[-(-256 // (32 // bits)) : 512 // (32 // bits)]
    assert not words.any()  # a block of zeros is a block of zero words


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("workers", [3, 7, 8])
def test_words_and_sums_are_the_reference_to_the_bit(workers: int, dtype: Any) -> None:
    xs = vectors(workers, 1000, dtype)
    rounds = [Round(rank, workers) for rank in range(workers)]
    means = [Signs(block=256).share(x, r) for x, r in zip(xs, rounds, strict=True)]
    shared = np.sum([m.values for m in means if isinstance(m, Message)], axis=0, dtype=dtype)
    table = Table([Signs(block=256) for _ in xs])
    total, _ = table.round(xs)
    bits = max(2, workers.bit_length())
    counts = np.zeros(1000, np.int32)
    for rank, (x, message) in enumerate(zip(xs, table.messages, strict=True)):
        q = np.where(x >= 0, 1, 0).astype(np.int32) - (0 if rank < workers // 2 else 1)
        assert message.values.tobytes() == reference_lanes.pack(q, bits).tobytes()
        counts += q
    s = np.repeat(shared / dtype(workers), 256)[:1000]
    expected = counts.astype(dtype) * (2 * s) + (workers % 2) * s
    assert total.tobytes() == expected.astype(dtype).tobytes()


def test_one_rank_contracts_as_the_paper_says() -> None:
    (x,) = vectors(1, 4096, np.float64)
    total, _ = Table([Signs(block=64)]).round([x])
    blocks = x.reshape(-1, 64)
    left = np.square((total - x).reshape(-1, 64)).sum(axis=1)
    squares = np.square(blocks).sum(axis=1)
    assert np.allclose(left, squares - np.square(np.abs(blocks).sum(axis=1)) / 64)
    assert (left <= (1 - 1 / 64) * squares).all()


def test_with_error_feedback_nothing_is_lost() -> None:
    xs = vectors(5, 2048)
    exact = np.sum(xs, axis=0, dtype=np.float64)
    table = Table([ErrorFeedback(Signs(block=128)) for _ in xs])
    rounds, total = 200, np.zeros(2048)
    for _ in range(rounds):
        total += table.round(xs)[0]
    assert np.linalg.norm(total / rounds - exact) < 0.1 * np.linalg.norm(exact)


def test_a_residual_that_fades() -> None:
    xs = vectors(2, 512)
    whole, fading = (Table([ErrorFeedback(Signs(), decay=b) for _ in xs]) for b in (1.0, 0.5))
    for table in (whole, fading):
        table.round(xs)
    left = [table.compressors[0].memories()["residual"].copy() for table in (whole, fading)]
    assert np.array_equal(left[0], left[1])  # the first residual is the same
    for c, scale in ((whole.compressors[0], 1.0), (fading.compressors[0], 0.5)):
        assert isinstance(c, ErrorFeedback)
        assert np.allclose(c.ahead(xs[0]), xs[0] + scale * left[0], rtol=1e-6)
    assert whole.compressors[0].tag() != fading.compressors[0].tag()
    for wrong in (0.0, 1.5, None):
        with pytest.raises(UsageError, match="decay is"):
            ErrorFeedback(Signs(), decay=wrong)  # type: ignore[arg-type]


def test_what_is_not_finite_stays_in_its_block() -> None:
    xs = vectors(3, 4096)
    xs[1][1030], xs[2][2050] = np.nan, np.inf
    table = Table([ErrorFeedback(Signs()) for _ in xs])
    total, _ = table.round(xs)
    assert np.isnan(total[1024:3072]).all()
    assert np.isfinite(total[:1024]).all()
    assert np.isfinite(total[3072:]).all()
    assert np.isfinite(table.round([np.ones(4096, np.float32)] * 3)[0]).all()


def test_what_is_refused() -> None:
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(UsageError, match="block is"):
            Signs(block=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="EF21 needs a contraction"):
        EF21(Signs()).prepare(100, Round(0, 2))
