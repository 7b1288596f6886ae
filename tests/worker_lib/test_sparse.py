"""Sparse sums against dense ones, on real sessions: the same, at every rank, whatever way they take."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from tests.worker_lib.test_changes import vanish
from worker_lib import MismatchError, Session, UsageError, WorkerLostError, sparse
from worker_lib.sparse import FLAT, PAGE, SparseCosts, SparseRows, sparse_costs

Array = npt.NDArray[Any]
Drawn = tuple[Array, Array]
N = 3


def drawn(seed: int, rank: int, rows: int, row: tuple[int, ...], kind: Any, share: float) -> Drawn:
    """Some rows, in no order, some of them twice; whole numbers, so that every type's sums are exact."""
    rng = np.random.default_rng((seed, rank, rows))
    count = rng.binomial(rows, share) if rank != 1 else 0
    indices = rng.integers(0, rows, count)
    return indices, rng.integers(-3, 4, (count, *row)).astype(kind)


def table(rows: int, row: tuple[int, ...], kind: Any, parts: list[Drawn]) -> Array:
    out = np.zeros((rows, *row), np.float64)
    for indices, values in parts:
        np.add.at(out, indices, values.astype(np.float64))
    return out.astype(kind)


@pytest.mark.parametrize("share", [0.0, 0.003, 0.3, 1.0])
@pytest.mark.parametrize(("rows", "row"), [(1, ()), (31, (2, 3)), (5000, ()), (700, (33,)), (9000, (2,))])
def test_sparse_and_dense_sums_are_the_same_at_every_rank(
    host: EmbeddedController, rows: int, row: tuple[int, ...], share: float
) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> list[bytes]:
        out = []
        for kind in (np.float32, np.int64, np.float64, ml_dtypes.bfloat16, np.uint32):
            parts = [drawn(seed, r, rows, row, kind, share) for r in range(N)]
            expected = table(rows, row, np.int64 if kind is np.uint32 else kind, parts).astype(kind)
            there = np.unique(np.concatenate([p[0] for p in parts]))
            indices, values = parts[session.rank]
            before = values.copy()
            for over in (0, 1, "auto", 0.3):
                found = session.allreduce_sparse(indices, values, rows, dense_over=over)
                assert isinstance(found, SparseRows)
                assert np.array_equal(found.indices, there)
                assert found.values.dtype == values.dtype
                assert np.array_equal(found.to_dense(), expected)
                dense = session.allreduce_sparse(indices, values, rows, result="dense", dense_over=over)
                assert np.array_equal(dense, expected)
                out.append(found.values.tobytes() + dense.tobytes())
            either = session.allreduce_sparse(indices, values, rows, result="auto", dense_over=0.5)
            assert isinstance(either, np.ndarray) == (there.size / rows > 0.5)
            assert np.array_equal(values, before)
        return out

    first, *others = together(host.url, N, call, words=64)
    assert all(each == first for each in others)


def test_floats_are_within_the_bound_of_their_lanes_whatever_way_they_take(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    rows = 3000

    def part(rank: int) -> Drawn:
        rng = np.random.default_rng((seed, rank))
        return np.flatnonzero(rng.random(rows) < 0.2), rng.standard_normal(rows).astype(np.float32)

    def call(session: Session) -> list[bytes]:
        exact = np.zeros(rows)
        for r in range(2):
            indices, noise = part(r)
            exact[indices] += noise[indices]
        largest = max(float(np.abs(part(r)[1]).max()) for r in range(2))
        indices, noise = part(session.rank)
        out = []
        for bits, step in ((32, 2.0**-24), (16, 1 / 2**13), (8, 1 / 2**5)):
            for over in (0, 1):
                average = session.allreduce_sparse(
                    indices, noise[indices], rows, "avg", bits, result="dense", dense_over=over
                )
                assert np.abs(average - exact / 2).max() <= 2 * largest * step
                assert not average[exact == 0].any()
                out.append(average.tobytes())
        return out

    first, second = together(host.url, 2, call)
    assert first == second


def test_tables_that_no_memory_holds(host: EmbeddedController) -> None:
    seed = seed_of_this_run()
    rows = 1 << 45  # three levels of bitmaps

    def part(rank: int) -> Array:
        rng = np.random.default_rng((seed, rank))
        near = rng.integers(0, 3, 50) * (rows // 3) + rng.integers(0, 2 * PAGE, 50)
        return np.concatenate([near, rng.integers(0, rows, 50), [rows - 1 - rank, 0]])

    def call(session: Session) -> int:
        both = np.concatenate([part(0), part(1)])
        there, counts = np.unique(both, return_counts=True)
        before = session.stats()
        found = session.allreduce_sparse(part(session.rank), np.ones(102, np.int32), rows)
        assert np.array_equal(found.indices, there)
        assert np.array_equal(found.values, counts)
        with pytest.raises(UsageError, match="rows of 1; accepted for a dense sum or result: 4294967296"):
            session.allreduce_sparse([1], np.ones(1), rows, result="dense")
        after, monitor = session.stats(), session._state.monitor
        assert monitor is not None
        repeats = after["retransmissions"] - before["retransmissions"]
        return int(after["bytes_sent"] - before["bytes_sent"] - repeats * (16 + 4 * monitor.member.words))

    assert rows // PAGE > FLAT
    assert max(together(host.url, 2, call)) < 4_000_000  # about 150 pages of 8 KB, and their plans


def test_a_table_costs_its_union_and_a_bit_a_row(host: EmbeddedController) -> None:
    rows, width = 100_000, 64

    def call(session: Session) -> int:
        rng = np.random.default_rng(session.rank)
        indices = rng.choice(rows, 50, replace=False)
        before = session.stats()
        found = session.allreduce_sparse(indices, np.ones((50, width), np.float32), rows)
        assert 50 < found.indices.size <= 100
        after = session.stats()
        assert after["bytes_sent"] - before["bytes_sent"] > 50 * width * 4
        repeats = after["retransmissions"] - before["retransmissions"]
        return int(after["bytes_sent"] - before["bytes_sent"] - repeats * 1452)

    for sent in together(host.url, 2, call, words=352):
        assert sent < 100 * width * 4 + rows // 8 + 8 * 1452  # a few packets not quite full


def test_ranks_that_call_other_things_are_told_and_go_on(host: EmbeddedController) -> None:
    ones = np.ones(2, np.float32)
    calls: list[Any] = [
        lambda s: s.allreduce_sparse([1, 2], ones, 1000),
        lambda s: s.allreduce_sparse([1, 2], ones, 1001),  # the same bitmap
        lambda s: s.allreduce_sparse([1, 2], ones.astype(np.float64), 1000),
        lambda s: s.allreduce_sparse([1, 2], ones, 1000, "avg"),
        lambda s: s.allreduce_sparse([1, 2], ones, 1000, bits=16),
        lambda s: s.allreduce_sparse([1, 2], ones, 1000, result="dense"),
        lambda s: s.allreduce_sparse([1, 2], ones, 1000, dense_over=0.5),
        lambda s: s.allreduce_sparse([1, 2], np.ones((2, 2), np.float32), 1000),
    ]

    def call(session: Session) -> None:
        for other in calls[1:]:
            with pytest.raises(MismatchError, match=r"allreduce_sparse\(float"):
                (calls[0] if session.rank else other)(session)
        assert np.array_equal(calls[0](session).values, 2 * ones)

    together(host.url, 2, call)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0, 5], np.ones(2), 5), "an index is 5; accepted: 0 to 4"),
        (([0, -1], np.ones(2), 5), "an index is -1"),
        (([0.5], np.ones(1), 5), "indices are float64"),
        (([[0]], np.ones(1), 5), r"of shape \(1, 1\)"),
        (([0], np.ones(2), 5), r"shape \(2,\) for 1 indices"),
        (([0], np.ones(1, np.int8), 5), "type int8"),
        (([0], np.ones((1, 0)), 5), "at least one element"),
        (([0], np.ones(1), 0), "rows is 0"),
        (([0], np.ones(1), 2**48 + 1), "1 to 281474976710656"),
        (([0], np.ones(1), 5, "max"), "op is 'max'"),
        (([0], np.ones(1, np.int32), 5, "avg"), "average of integers"),
        (([0], np.ones(1, np.float32), 5, "sum", 64), "accepted for float32: 32, 16, 8"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[Any, ...], said: str) -> None:
    import worker_lib

    with worker_lib.connect(rank=0, world_size=1) as session, pytest.raises(UsageError, match=said):
        session.allreduce_sparse(*arguments)


def test_settings_that_cannot_be() -> None:
    import worker_lib

    with worker_lib.connect(rank=0, world_size=1) as session:
        for wrong in (-0.1, 1.5, "never", float("nan")):
            with pytest.raises(UsageError, match=r"dense_over is .*0 to 1"):
                session.allreduce_sparse([0], np.ones(1), 5, dense_over=wrong)
        with pytest.raises(UsageError, match="'sparse', 'dense', 'auto'"):
            session.allreduce_sparse([0], np.ones(1), 5, result="csr")
        alone = session.allreduce_sparse([3, 1, 3], np.array([1.0, 2.0, 4.0]), 5)
        assert alone.indices.tolist() == [1, 3]
        assert alone.values.tolist() == [2, 5]


# ---------------------------------------------------------------------- when it is dense


def test_all_ranks_turn_dense_at_the_break_even_that_they_measured(host: EmbeddedController) -> None:
    rows = 1 << 18

    def call(session: Session) -> tuple[SparseCosts, list[bool]]:
        costs = sparse_costs(session, np.float32, rows)
        limit = costs.break_even(rows, 1, "auto")
        kinds = []
        for share in (0.9 * limit, min(1.0, 1.1 * limit)):
            mine = np.arange(session.rank, int(share * rows), N)  # together the first ones of the table
            found = session.allreduce_sparse(mine, np.ones(mine.size, np.float32), rows, result="auto")
            kinds.append(isinstance(found, np.ndarray))
        return costs, kinds

    results = together(host.url, N, call)
    assert all(each == results[0] for each in results)
    costs, kinds = results[0]
    assert not kinds[0]
    assert kinds[1] == (0 < costs.break_even(rows, 1, "auto") < 1)


def test_ranks_that_are_left_after_a_loss_measure_again(host: EmbeddedController) -> None:
    def reduced(session: Session) -> tuple[int, int]:
        mine = np.arange(session.rank, 1 << 17, 2)
        found = session.allreduce_sparse(mine, np.ones(mine.size, np.float32), 1 << 17)
        return found.indices.size, int(found.values.sum())

    all_have_it = threading.Barrier(3)

    def call(session: Session) -> Any:
        before = reduced(session)
        all_have_it.wait(60)
        if session.rank == 1:
            return vanish(session)
        with pytest.raises(WorkerLostError):
            session.barrier()
        return before, reduced(session), {key[0] for key in session._sparse_costs}

    for result in together(host.url, 3, call, on_loss="shrink", deadline=5.0):
        if result is not None:
            before, after, generations = result
            assert before == (1 << 17, (3 << 16) - 1)  # row 0 is rank 0 alone
            assert after == (1 << 17, 1 << 17)
            assert generations == {1}


def test_nothing_is_measured_where_it_cannot_pay(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "_measured", None)  # would raise

    def call(session: Session) -> None:
        few = np.arange(100)
        session.allreduce_sparse(few, np.ones(100), 1_000_000)
        session.allreduce_sparse(few, np.ones(100), 100)
        with pytest.raises(TypeError):
            session.allreduce_sparse(np.arange(100_000), np.ones(100_000), 1_000_000)

    together(host.url, 2, call)
