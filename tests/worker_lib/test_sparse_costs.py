"""The break-even is where both ways cost the same."""

from __future__ import annotations

import numpy as np
import pytest

from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from worker_lib.sparse import SparseCosts


def test_below_it_sparse_is_cheaper_and_above_it_dense() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    inside = 0
    for _ in range(300):
        costs = SparseCosts(*(10 ** rng.uniform(-3, 1, 6)))
        rows, width = int(rng.integers(1, 10**6)), int(rng.integers(1, 100))
        share = costs.break_even(rows, width)
        assert 0 <= share <= 1
        for u in np.linspace(0, 1, 21) * rows:
            cheaper = costs.sparse(u, width) < costs.dense(rows, width, u)
            if abs(u / rows - share) > 1e-9:
                assert cheaper == (u / rows < share)
        inside += 0 < share < 1
        with_support = costs.break_even(rows, width, supported=False)
        assert with_support <= share
        if 0 < with_support < 1:
            u = with_support * rows
            assert costs.support(rows) + costs.sparse(u, width) == pytest.approx(costs.dense(rows, width, u))
    assert inside > 30


def test_where_only_bytes_count_it_is_the_bitmap_that_decides() -> None:
    for bits in (8, 16, 32, 96):
        for width in (1, 7, 64):
            costs = SparseCosts.by_bytes(bits)
            assert costs.break_even(10**6, width) == 1
            assert costs.break_even(10**6, width, supported=False) == pytest.approx(1 - 1 / (bits * width))


def test_a_dense_result_is_dense_earlier() -> None:
    costs = SparseCosts(0.0, 1.0, row=3.0, cell=0.5, pick=1.0)
    sparse, auto, dense = (costs.break_even(1000, 4, result) for result in ("sparse", "auto", "dense"))
    assert dense == pytest.approx(4 / 7)
    assert dense < auto < sparse


@pytest.mark.parametrize("wrong", [(-1.0, 1.0), (0.0, 0.0), (0.0, 1.0, float("nan"))])
def test_costs_that_cannot_be(wrong: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="not negative, element over 0"):
        SparseCosts(*wrong)
