"""The elements that each rank sends and keeps: reduce, gather, scatter, all-to-all, and calls in place."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from worker_lib import MismatchError, Session, SessionBrokenError, UsageError, WorkerLostError
from worker_lib.arguments import SumOptions
from worker_lib.calls import prepare_sum, repeated

from .harness import together

pytestmark = pytest.mark.usefixtures("either_transport")

Array = npt.NDArray[Any]
K = 64
BF16 = np.dtype(ml_dtypes.bfloat16)
RECORD = np.dtype([("a", np.int8), ("b", np.float64), ("c", "S3")])
MOVED: list[Any] = [np.bool_, np.int8, np.uint16, np.float32, np.int64, np.complex128, RECORD]
SUMS: list[tuple[Any, dict[str, Any]]] = [
    *((np.float32, {"bits": bits}) for bits in (32, 16, 8)),
    *((np.float32, {"accuracy": accuracy}) for accuracy in ("exact", "bounded", None)),
    *((np.float64, {"bits": bits}) for bits in (64, 32, 16, 8)),
    *((np.float64, {"accuracy": accuracy}) for accuracy in ("exact", "bounded")),
    *((kind, {"bits": bits}) for kind in (np.float16, BF16) for bits in (None, 32, 16)),
    (np.int32, {}),
    (np.uint64, {}),
]


def named(value: Any) -> str:
    """The name of a test's type or options."""
    return (
        " ".join(f"{k} {v}" for k, v in value.items()) or "-"
        if isinstance(value, dict)
        else np.dtype(value).name
    )


@pytest.fixture(scope="module")
def lossy() -> Iterator[EmbeddedController]:
    """A switch that loses and reorders one packet of twenty."""
    with EmbeddedController(faults=Faults(loss=0.05, reorder=0.05, seed=seed_of_this_run())) as controller:
        yield controller


def of_any_bytes(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> Array:
    dtype = np.dtype(kind)
    data = rng.integers(0, 2 if dtype == np.bool_ else 256, (int(np.prod(shape)), dtype.itemsize), np.uint8)
    data[rng.random(len(data)) < 0.3] = 0
    return data.reshape(-1).view(dtype).reshape(shape)


def numbers(rng: np.random.Generator, count: int, dtype: Any) -> Array:
    """All that makes a sum's rank read its input late: zero blocks, both zeros, NaN, Inf, far exponents."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        x = rng.integers(-1000, 1000, count).astype(kind)
    else:
        x = rng.standard_normal(count)
        far = rng.random(count) < 0.2
        x[far] *= 2.0 ** rng.integers(-24, 3, int(far.sum()))
        x = x.astype(kind)
    x[rng.random(count) < 0.1] = 0
    for start in rng.integers(0, max(count, 1), 8):
        x[start : start + 500] = 0
        if kind.kind not in "iu":
            x[start : start + 200] = kind.type(-0.0)
    if kind.kind not in "iu" and count > 2000:
        x[rng.integers(0, count, 3)] = [np.nan, np.inf, -np.inf]
    return x


# ---------------------------------------------------------------------- in place


@pytest.mark.parametrize("kind", MOVED, ids=str)
def test_an_allgather_of_a_row_of_its_result(lossy: EmbeddedController, kind: Any) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        for size in (0, 1, 3, 4 * K + 1, 20_001):
            rows = of_any_bytes(np.random.default_rng((seed, size)), (n, size), kind)
            out = np.full(rows.shape, rows.reshape(-1)[:1] if size else 0, rows.dtype)
            out[rank] = rows[rank]
            assert session.allgather(out[rank], out) is out
            assert out.tobytes() == rows.tobytes()
            out = np.zeros_like(rows)
            out[rank] = rows[rank]
            assert session.allgather_async(out[rank], out).wait() is out
            assert out.tobytes() == rows.tobytes()

    together(lossy.url, 3, call, words=K)


@pytest.mark.parametrize(("kind", "options"), SUMS, ids=named)
def test_a_reduce_scatter_to_a_part_of_its_input(
    lossy: EmbeddedController, kind: Any, options: dict[str, Any]
) -> None:
    """The same calls in two jobs, in place and not: narrow lanes round at random, by the call's number."""
    seed = seed_of_this_run()
    op = "sum" if np.dtype(kind).kind in "iu" else "avg"

    def call(session: Session, in_place: bool) -> list[bytes]:
        n, rank = session.world_size, session.rank
        found = []
        for size in (0, 1, 701, 6_000):
            x = numbers(np.random.default_rng((seed, size, rank)), n * size, kind)
            kept = x.copy()
            part = slice(rank * size, (rank + 1) * size)
            out = x[part] if in_place else np.full(size, 7, x.dtype)
            assert session.reduce_scatter(x, out, op, **options) is out
            found.append(out.tobytes())
            x[part] = kept[part]
            assert x.tobytes() == kept.tobytes()  # what is not its part is left alone
        return found

    apart = together(lossy.url, 3, call, False, words=K)
    assert together(lossy.url, 3, call, True, words=K) == apart


@pytest.mark.parametrize("options", [{}, {"bits": 16}, {"accuracy": "exact"}], ids=str)
def test_tensors_of_several_segments_in_place(host: EmbeddedController, options: dict[str, Any]) -> None:
    seed, size = seed_of_this_run(), 600_001

    def call(session: Session, in_place: bool) -> bytes:
        rank = session.rank
        x = numbers(np.random.default_rng((seed, rank)), 2 * size, np.float32)
        part = x[rank * size : (rank + 1) * size]
        out = part if in_place else np.empty_like(part)
        session.reduce_scatter(x, out, **options)
        whole = np.full((2, size), 7, np.float32)
        whole[rank] = out
        rows = session.allgather(whole[rank] if in_place else out, whole)
        assert rows[rank].tobytes() == out.tobytes()
        return rows.tobytes()

    apart = together(host.url, 2, call, False)
    assert apart[0] == apart[1]
    assert together(host.url, 2, call, True) == apart


def test_other_overlaps_are_refused(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        out, other = np.zeros((n, 8)), (session.rank + 1) % session.world_size
        for wrong in (out[other], out.reshape(-1)[4 * rank + 1 :][:8]):
            with pytest.raises(UsageError, match=rf"out overlaps x; pass x = out\[{rank}\] to work in place"):
                session.allgather(wrong, out)
        x = np.zeros(4 * n)
        own = rf"pass this rank's part of x, x\[{4 * rank}:{4 * rank + 4}\], to work in place"
        for wrong in (x[4 * other :][:4], x[rank + 1 :][:4]):
            if wrong.ctypes.data != x[4 * rank :].ctypes.data:
                with pytest.raises(UsageError, match=own):
                    session.reduce_scatter(x, wrong)
        session.barrier()

    together(host.url, 2, call)


# ---------------------------------------------------------------------- to and from one rank


@pytest.mark.parametrize(("kind", "options"), SUMS, ids=named)
def test_reduce_is_an_allreduce_at_the_root(
    lossy: EmbeddedController, kind: Any, options: dict[str, Any]
) -> None:
    seed = seed_of_this_run()

    def call(session: Session, name: str) -> list[bytes]:
        rng, found = np.random.default_rng(seed), []
        for turn in range(6):
            size, root = int(rng.choice([0, 1, 90, 3_000, 9_000])), int(rng.integers(session.world_size))
            x = numbers(np.random.default_rng((seed, turn, session.rank)), size, kind)
            kept, given = x.tobytes(), turn % 2 == 0
            out = np.full(size, 7, x.dtype) if given else None
            if name == "allreduce":
                found.append(session.allreduce(x, out=out, **options).tobytes() * (session.rank == root))
                continue
            result = session.reduce(x, root, out=out, **options)
            assert given <= (x.tobytes() == kept)
            if session.rank == root:
                assert result is (out if given else x)
                found.append(result.tobytes())
                continue
            assert result is None
            assert x.tobytes() == kept
            assert out is None or out.tobytes() == np.full(size, 7, x.dtype).tobytes()
            found.append(b"")
        return found

    assert together(lossy.url, 3, call, "reduce", words=K) == together(
        lossy.url, 3, call, "allreduce", words=K
    )


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int16, np.uint64], ids=str)
def test_or_at_the_root_and_in_parts(lossy: EmbeddedController, kind: Any) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        for size in (0, 1, 3, 2_001):
            rows = of_any_bytes(np.random.default_rng((seed, size)), (n, n * size), kind)
            expected = np.bitwise_or.reduce(rows)
            x = rows[rank].copy()
            x.flags.writeable = rank == 1
            result = session.reduce(x, 1, "or")
            assert (result is None) if rank != 1 else (result is x and np.array_equal(x, expected))
            x = rows[rank].copy()
            part = session.reduce_scatter(x, op="or")
            assert np.array_equal(part, expected[rank * size : (rank + 1) * size])
            session.reduce_scatter(x, x[rank * size : (rank + 1) * size], op="or")
            rows[rank, rank * size : (rank + 1) * size] = part
            assert np.array_equal(x, rows[rank])

    together(lossy.url, 3, call, words=K)


# ---------------------------------------------------------------------- exact moves


@pytest.mark.parametrize("n", [2, 3, 5])
def test_moves_between_all_ranks(lossy: EmbeddedController, n: int) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        rng, rank = np.random.default_rng((seed, n)), session.rank  # the same at every rank
        for _ in range(12):
            kind = MOVED[int(rng.integers(len(MOVED)))]
            row = tuple(int(d) for d in rng.choice([0, 1, 2, 3, 7, 40], int(rng.integers(0, 4))))
            rows, root = of_any_bytes(rng, (n, *row), kind), int(rng.integers(n))
            kept = rows.tobytes()
            for asynchronous in (False, True):

                def ran(result: Any, asynchronous: bool = asynchronous) -> Any:
                    return result.wait() if asynchronous else result

                settings = {"async_op": asynchronous}
                own = np.ascontiguousarray(rows[rank]).reshape(row)
                out = np.empty_like(rows) if asynchronous else None
                result = ran(session.gather(own, root, out, **settings))
                if rank == root:
                    assert result is out or not asynchronous
                    assert result.dtype == kind
                    assert result.shape == rows.shape
                    assert result.tobytes() == kept
                else:
                    assert result is None
                out = np.empty(row, kind)
                sent = rows if rank == root else None
                assert ran(session.scatter(sent, root, out, **settings)) is out
                assert out.tobytes() == own.tobytes()
            parts = of_any_bytes(rng, (n, 2 * n, *row), kind)
            expected = np.ascontiguousarray(parts[:, 2 * rank : 2 * rank + 2]).tobytes()
            x = parts[rank].copy()
            assert session.all_to_all(x).tobytes() == expected
            assert session.all_to_all(x, x, async_op=True).wait() is x
            assert x.tobytes() == expected
            assert rows.tobytes() == kept

    together(lossy.url, n, call, words=K)


def test_rows_of_the_root_s_own_array(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        rows = np.arange(n * 5, dtype=np.int16).reshape(n, 5)
        mine = rows[rank].copy() * (rank != 1)
        out = session.scatter(rows if rank == 1 else None, 1, rows[1] if rank == 1 else mine)
        assert out.tolist() == list(range(5 * rank, 5 * rank + 5))
        gathered = np.zeros((n, 5), np.int16)
        gathered[rank] = out
        assert (session.gather(gathered[rank], 1, gathered) is gathered) == (rank == 1)
        if rank == 1:
            assert np.array_equal(gathered, rows)
        assert session.scatter(rows if rank == 2 else None, 2, None if rank == 2 else mine).shape == (5,)

    together(host.url, 3, call)


def test_torch_tensors(host: EmbeddedController) -> None:
    torch = pytest.importorskip("torch")

    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        x = torch.full((n, 3), float(rank))
        assert session.all_to_all(x).tolist() == [[float(r)] * 3 for r in range(n)]
        out = torch.zeros(n, 3, dtype=torch.bfloat16)
        out[rank] = rank
        assert session.allgather(out[rank], out) is out
        assert out[:, 0].tolist() == [float(r) for r in range(n)]
        session.reduce_scatter(out, out[rank : rank + 1])
        assert out[rank].tolist() == [3.0 * rank] * 3
        gathered = session.gather(x, root=2)
        assert (gathered is None) == (rank != 2)
        part = session.scatter(x if rank == 0 else None, 0, torch.ones(3))
        assert part.tolist() == [0.0] * 3
        assert session.reduce(x, op="max") is (x if rank == 0 else None)
        assert x[0, 0] == (2 if rank == 0 else rank)

    together(host.url, 3, call)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_known_call_waits_and_fails_as_the_first_did(host: EmbeddedController, library: str) -> None:
    xp: Any = pytest.importorskip(library)

    def call(session: Session) -> None:
        x, y = xp.zeros(1000, dtype=xp.float32), xp.zeros(1000, dtype=xp.int32)
        for turn in range(4):
            for z in (x, y):
                z[:] = turn + session.rank
                if session.rank == turn % 2:
                    time.sleep(0.12)  # longer than the engine runs at once
                session.allreduce(z)
                assert z[0] == z[999] == 2 * turn + 1
        with pytest.raises(MismatchError, match=rf"Rank {session.rank} called allreduce.*shape \(1000,\)"):
            session.allreduce((x, y)[session.rank])
        x[:] = 5
        session.allreduce(x)
        assert x[0] == 10
        x = x.view(xp.int32)  # the same bytes, and another call
        x[:] = 7
        session.allreduce(x)
        assert x[0] == 14
        assert len(session._state.known_calls) == 3
        if session.rank == 1:
            session.close()
        with pytest.raises(SessionBrokenError if session.rank else WorkerLostError) as caught:
            session.allreduce(y)
        assert session.rank or re.search(r"allreduce\(int32, shape \(1000,\), sum", str(caught.value))
        assert session.recent()[-1].call.startswith("allreduce(int32, shape (1000,)")

    together(host.url, 2, call)


def test_a_sum_that_is_repeated_is_prepared_once_for_each_membership(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        state, x = session._state, np.empty(3000, np.float32)
        sum_ = repeated(x, SumOptions("avg", 32))
        for turn in range(4):
            x[:] = session.rank + turn
            if turn == 3 and session.rank:
                time.sleep(0.12)  # longer than the engine runs at once
            work = session._repeat(sum_, x, None, background=turn == 1, lazy=turn == 1)
            if work is not None:  # it is not done yet
                work.wait()
            assert np.allclose(x, 0.5 + turn)
        with pytest.raises(UsageError, match="timeout is 0; accepted: seconds greater than 0"):
            session._repeat(sum_, x, 0, background=False, lazy=False)
        session.allreduce(x)  # it is not broken
        first = prepare_sum(state, x, None, sum_).call
        assert prepare_sum(state, x, None, sum_).call is first
        state.generation += 1
        assert prepare_sum(state, x, None, sum_).call is not first
        state.generation -= 1
        with pytest.raises(UsageError, match="op is 'median'"):
            session._repeat(repeated(x, SumOptions("median")), x, None, background=False, lazy=False)

    together(host.url, 2, call)


def test_a_tensor_whose_memory_holds_other_numbers_is_refused(host: EmbeddedController) -> None:
    torch = pytest.importorskip("torch")

    def call(session: Session) -> None:
        x = torch.ones(5)
        assert session.allreduce(x)[0] == 2
        for lazy in (torch._neg_view(x), torch._efficientzerotensor(5)):
            with pytest.raises(UsageError, match=r"x is a lazy view .*resolve_neg"):
                session.allreduce(lazy)
            assert session.allreduce(lazy.resolve_neg().clone())[0] == 2 * lazy[0]
        with pytest.raises(UsageError, match="requires grad"):
            session.allreduce(x.requires_grad_())

    together(host.url, 2, call)


@pytest.mark.parametrize("module", [None, ModuleType("torch")], ids=["blocked", "half imported"])
def test_arrays_are_summed_where_torch_cannot_be_had(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch, module: ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", module)

    def call(session: Session) -> None:
        assert session.allreduce(np.ones(9, np.float32).view(np.recarray))[0] == 2
        assert session.allreduce(np.ones(9, bool), op="or").all()

    together(host.url, 2, call)


def test_one_array_called_in_many_ways_again_and_again(host: EmbeddedController) -> None:
    ways: list[dict[str, Any]] = [
        {"bits": 32}, {"bits": 16}, {"accuracy": "exact"}, {"accuracy": "bounded"}, {"op": "avg", "bits": 32},
        {"blocks": "dense", "bits": 32}, {"block_size": 16, "bits": 32}, {},
    ]  # fmt: skip

    def call(session: Session) -> None:
        known = session._state.known_calls
        x, out = np.empty(4096, np.float32), np.empty(4096, np.float32)
        for turn in range(3):
            for shape in ((4096,), (64, 64)):
                for way in [*ways, *({**way, "out": out.reshape(shape)} for way in ways)]:
                    x[:] = session.rank + turn + 1
                    result = session.allreduce(x.reshape(shape), **way)
                    expected = 6 + 3 * turn if way.get("op") != "avg" else 2 + turn
                    assert np.allclose(result, expected, rtol=0.01), (way, turn)
            x[:] = session.rank + turn + 1
            assert session.allreduce(x, out=x, bits=32)[0] == 6 + 3 * turn
            assert len(known) == 4 * len(ways) + 1
        for wrong in ({"bits": [8]}, {"bits": 24}, {"block_size": 0}, {"op": "median"}, {"out": out[1:]}):
            with pytest.raises(UsageError):
                session.allreduce(x, **wrong)
        x.setflags(write=False)
        with pytest.raises(UsageError, match="read-only"):
            session.allreduce(x, bits=32)

    together(host.url, 3, call)
