"""Shapes, sizes, and the ways in which collectives can be called; over real sockets."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import worker_lib
from switchagg.control.client import ControllerClient
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.rules.planner import SkipPolicy
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from worker_lib import AdmissionError, MismatchError, Session, SessionBrokenError, SwitchError, UsageError

from .harness import in_threads, job_name, together

pytestmark = pytest.mark.usefixtures("both_transports")

Array = npt.NDArray[Any]
K = 64
RECORD = np.dtype([("a", np.int8), ("b", np.float64), ("c", "S3")])


def sizes() -> list[int]:
    around = (K, 2 * K, 16 * K, 1024, 65536, 65536 + K)
    return [0, 1, 2, *(size + d for size in around for d in (-1, 0, 1))]


def test_every_size(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        for size in sizes():
            for kind, bits in (
                (np.int32, 32),
                (np.float32, 32),
                (np.float32, 16),
                (np.float32, 8),
                (np.float64, 64),
            ):
                x = np.arange(size, dtype=kind) % 5 + session.rank
                lanes = None if kind is np.int32 else bits
                expected = 3 * (np.arange(size, dtype=kind) % 5) + 3
                session.allreduce(x, bits=lanes)
                if bits >= 32:
                    assert np.array_equal(x, expected), f"{kind}, {bits} bits, {size} elements"
                elif size:
                    step = 8 / (2 ** (bits - 1) // 3 - 1)
                    assert np.abs(x - expected).max() <= 3 * step, f"{bits} bits, {size} elements"

    together(host.url, 3, call, words=K)


def test_tensors_of_several_segments(host: EmbeddedController) -> None:
    # The engine cuts large tensors, dense and sparse ones differently; a mismatch between them must not
    # confuse it.
    seed = seed_of_this_run()
    cuts = [(1 << 20) - 1, (1 << 20) + 1, 700_001, (1 << 22) + 65]

    def call(session: Session) -> None:
        rng = np.random.default_rng(seed)  # the same at every rank
        for turn in range(12):
            size = cuts[int(rng.integers(len(cuts)))]
            x = np.zeros(size, np.int32)
            block = int(rng.choice([1, 64, 100, 4096]))
            if rng.random() < 0.5:
                x[rng.integers(0, size, 20)] = session.rank + 1
            else:
                x[:] = rng.integers(-1000, 1000)
            work = session.allreduce_async(x.copy(), block_size=block)
            if rng.random() < 0.3:
                with pytest.raises(MismatchError):
                    session.allreduce(x[: session.rank * 1000])  # nothing at all, at rank 0
            expected = np.where(x == session.rank + 1, 3, 2 * x) if np.count_nonzero(x) <= 20 else 2 * x
            assert np.array_equal(work.wait(), expected), f"turn {turn}: {size} elements in blocks of {block}"

    together(host.url, 2, call)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4), (1, 1, 1, 1, 7)])
def test_every_shape(host: EmbeddedController, shape: tuple[int, ...]) -> None:
    def call(session: Session) -> None:
        x = np.full(shape, session.rank + 1, np.float32)
        assert session.allreduce(x) is x
        assert x.shape == shape
        assert np.array_equal(x, np.full(shape, 3, np.float32))
        y = np.full(shape, session.rank, np.int16)
        session.broadcast(y, root=1)
        assert np.array_equal(y, np.full(shape, 1, np.int16))
        rows = session.allgather(y)
        assert rows.shape == (2, *shape)
        assert rows.dtype == np.int16

    together(host.url, 2, call)


@pytest.mark.parametrize("block", [1, 7, 64, 100, 65536])
@pytest.mark.parametrize("bits", [32, 16, 8])
def test_block_sizes(host: EmbeddedController, block: int, bits: int) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        rng = np.random.default_rng((seed, block, bits))  # the same at every rank
        inputs = rng.standard_normal((3, 10_001)).astype(np.float32)
        inputs[np.repeat(rng.random((3, 1001)) < 0.8, 10, axis=1)[:, :10_001]] = 0
        exact = inputs.sum(axis=0, dtype=np.float64)
        step = 16.0 / (2**29 if bits == 32 else 2 ** (bits - 1) // 3 - 1)
        results = []
        for blocks in ("auto", "dense", inputs[session.rank] != 0 if block == 1 else "auto"):
            x = inputs[session.rank].copy()
            session.allreduce(x, bits=bits, blocks=blocks, block_size=block)
            assert np.abs(x - exact).max() <= 3 * step + 2.0**-20  # and what float32 rounds off
            assert not x[exact == 0][(inputs[:, exact == 0] == 0).all(axis=0)].any()
            results.append(x)
        if bits == 32:  # what is sent does not change the sum
            assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()

    together(host.url, 3, call, words=K)


def test_a_mask_says_which_blocks_are_looked_at(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.zeros(1000, np.float32)
        mask = np.zeros(10, np.bool_)
        mask[session.rank] = mask[9] = True
        x[session.rank * 100 : session.rank * 100 + 100] = 1
        x[950:] = 2
        out = np.full_like(x, 77)
        assert session.allreduce(x, blocks=mask, block_size=100, out=out) is out
        expected = np.zeros(1000, np.float32)
        expected[:300] = 1
        expected[950:] = 6
        assert np.array_equal(out, expected)
        assert session.allreduce(x, blocks=mask.tolist(), block_size=100) is x
        assert np.array_equal(x, expected)
        y = np.ones(1000, np.int32)
        out = np.empty_like(y)
        session.allreduce(y, blocks=np.zeros(10, np.bool_), block_size=100, out=out)
        assert not out.any()  # not even looked at

    together(host.url, 3, call)


def test_out_leaves_the_input_alone(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.arange(5000, dtype=np.float64)
        x.flags.writeable = False
        out = np.full_like(x, np.nan)
        assert session.allreduce(x, out=out) is out
        assert np.array_equal(out, 2 * x)
        assert np.array_equal(x, np.arange(5000))
        sparse = np.where(x > 4000, x, 0)
        assert session.allreduce(sparse, out=out) is out
        assert np.array_equal(out, 2 * sparse)
        same_memory = sparse[:]
        assert session.allreduce(sparse, out=same_memory) is same_memory
        assert np.array_equal(sparse, out)

    together(host.url, 2, call)


# ---------------------------------------------------------------------- or


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int16, np.uint32, np.int64], ids=str)
def test_or_of_any_integers(host: EmbeddedController, kind: Any) -> None:
    seed = seed_of_this_run()
    sizes = (0, 1, 3, 4 * K + 1, 3001, 100_000)

    def drawn(rank: int, size: int) -> Array:
        rng = np.random.default_rng((seed, rank, size))
        x = rng.integers(0, 2 if kind is np.bool_ else 100, size).astype(kind)
        x[rng.random(size) < 0.9] = 0
        x[size // 3 : size // 2] = 0  # blocks of zeros at all ranks
        return x

    def call(session: Session) -> None:
        for size in sizes:
            expected = drawn(0, size) | drawn(1, size) | drawn(2, size)
            for blocks in ("auto", "dense", "sparse"):
                x = drawn(session.rank, size)
                out = np.ones_like(x)
                assert session.allreduce(x, op="or", blocks=blocks, out=out) is out
                assert np.array_equal(out, expected)
                assert np.array_equal(x, drawn(session.rank, size))
                work = session.allreduce_async(x, op="or", blocks=blocks)
                assert work.wait() is x
                assert np.array_equal(x, expected)

    together(host.url, 3, call, words=K)


def test_or_and_sum_are_different_calls(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        with pytest.raises(MismatchError, match=r"reduction.*shape \(9,\), (or\)|sum, 32 bits\))"):
            session.allreduce(np.ones(9, np.int32), op="sum" if session.rank else "or")
        assert session.allreduce(np.array([1 << session.rank]), op="or")[0] == 3

    together(host.url, 2, call)


# ---------------------------------------------------------------------- exact moves


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 4 * K - 1, 4 * K, 4 * K + 1, 3001])
@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.uint16, np.float32, np.complex128, RECORD], ids=str)
def test_moves_of_any_bytes(host: EmbeddedController, size: int, kind: Any) -> None:
    seed = seed_of_this_run()
    dtype = np.dtype(kind)
    rng = np.random.default_rng((seed, size))
    data = rng.integers(0, 256, (3, size * dtype.itemsize), np.uint8)
    if dtype == np.bool_:
        data &= 1
    arrays = [row.view(dtype) for row in data]

    def call(session: Session) -> None:
        for root in range(3):
            x = arrays[session.rank].copy()
            assert session.broadcast(x, root=root) is x
            assert x.tobytes() == arrays[root].tobytes()
        rows = session.allgather(arrays[session.rank])
        assert rows.dtype == dtype
        assert rows.shape == (3, size)
        assert rows.tobytes() == data.tobytes()
        out = np.empty((3, size), dtype)
        assert session.allgather(arrays[session.rank], out=out) is out
        assert out.tobytes() == data.tobytes()

    together(host.url, 3, call, words=K)


def test_a_read_only_array_can_be_sent(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.arange(10)
        x.flags.writeable = session.rank != 0
        session.broadcast(x, root=0)

    together(host.url, 2, call)


@pytest.mark.parametrize("rows", [0, 3, 6, 300])
@pytest.mark.parametrize(
    ("kind", "bits"), [(np.int32, None), (np.int64, None), (np.float32, None), (np.float32, 8)]
)
def test_reduce_scatter(
    host: EmbeddedController, rows: int, kind: type[np.generic], bits: int | None
) -> None:
    def call(session: Session) -> None:
        x = np.arange(rows * 7, dtype=kind).reshape(rows, 7) % 9 + session.rank
        kept = x.copy()
        part = session.reduce_scatter(x, bits=bits)
        expected = (3 * (kept - session.rank) + 3)[session.rank * rows // 3 : (session.rank + 1) * rows // 3]
        assert part.shape == expected.shape
        assert part.dtype == kind
        if part.size:
            assert np.abs(part.astype(np.float64) - expected).max() <= (0 if bits is None else 3 * 16 / 42)
        assert np.array_equal(x, kept)
        out = np.empty((rows // 3, 7), kind)
        assert session.reduce_scatter(x, out=out, bits=bits) is out

    together(host.url, 3, call, words=K)


def test_reduce_scatter_of_sparse_floats_leaves_nothing_uninitialised(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.zeros(3000, np.float32)
        x[5] = 1
        out = np.full(1000, 9, np.float32)
        session.reduce_scatter(x, out=out, op="avg")
        assert out[5] == (1 if session.rank == 0 else 0)
        assert np.count_nonzero(out) == (session.rank == 0)

    together(host.url, 3, call)


def test_a_barrier_waits_for_everyone(host: EmbeddedController) -> None:
    arrived: list[int] = []

    def call(session: Session) -> None:
        for turn in range(5):
            time.sleep(0.01 * session.rank)
            arrived.append(turn)
            session.barrier()
            assert arrived.count(turn) == 3
            session.barrier()

    together(host.url, 3, call)


# ---------------------------------------------------------------------- several at once


def test_many_in_flight_waited_for_out_of_order() -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        rng = np.random.default_rng((seed, session.rank))
        arrays = [np.full(int(size), i, np.int32) for i, size in enumerate(range(1, 30_000, 997))]
        works = [session.allreduce_async(x) for x in arrays]
        for i in rng.permutation(len(works)):
            assert works[i].wait() is arrays[i]
            assert works[i].done()
            assert np.array_equal(arrays[i], np.full_like(arrays[i], 3 * i))
        assert works[0].wait() is arrays[0]  # again
        y = np.ones(10, np.float32)
        session.allreduce(y)
        assert np.array_equal(y, np.full(10, 3))

    with EmbeddedController(faults=Faults(loss=0.02, reorder=0.05)) as host:
        together(host.url, 3, call)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_a_memory_gets_what_the_lanes_leave_out(host: EmbeddedController, kind: str, bits: int) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
    count = 70_000  # two kinds of packets, and more than one chunk
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng([seed, session.rank])
        x = rng.normal(size=count).astype(dtype)
        x[1000:1400] = 0
        x[64 * 100 * (session.rank + 1) :][:64] = 0  # a block that only the others have
        x[2048 + session.rank] = np.nan if session.rank == 1 else 1
        left = np.zeros(count, np.float32)
        out = np.zeros(count, dtype)
        session.allreduce(x, bits=bits, out=out, memory=left)
        return x.astype(np.float64), left.astype(np.float64), out.astype(np.float64)

    ranks = together(host.url, 2, call, words=K)
    carried = sum(x - left for x, left, _ in ranks)
    out = ranks[0][2]
    nan = np.isnan(out)
    assert np.flatnonzero(nan).tolist() == [2049]
    assert ranks[1][1][2049] == 0
    for x, left, _ in ranks:
        assert (left[x == 0] == 0).all()
        assert np.abs(left).max() < 8 / (2 ** (bits - 1) // 2 - 1)
        assert left.any()
    rounding = {"float32": 2.0**-20, "float16": 2.0**-8, "bfloat16": 2.0**-5}[kind]  # of the result itself
    assert np.abs(carried - out)[~nan].max() <= rounding


def test_every_collective_can_be_asynchronous(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        r, n = session.rank, session.world_size
        summed, copied = np.full(10_000, float(r)), np.full(7, r, np.int16)  # 14 bytes: no whole words
        parts, name = np.arange(3 * 5, dtype=np.int64).reshape(3, 5) * (r + 1), np.full(3, r, np.uint8)
        works = [
            session.allgather_async(name),
            session.broadcast_async(copied, root=2),
            session.allreduce_async(summed),
            session.barrier_async(),
            session.reduce_scatter_async(parts),
        ]
        gathered, *_, mine = [work.wait() for work in reversed(works)][::-1]
        assert gathered.tolist() == [[other] * 3 for other in range(n)]
        assert copied.tolist() == [2] * 7
        assert (summed == 3).all()
        assert mine.tolist() == [[6 * (5 * r + i) for i in range(5)]]
        assert all(work.done() for work in works)

    together(host.url, 3, call, words=K)


def test_asynchronous_calls_in_a_group_of_one() -> None:
    with worker_lib.connect(world_size=1) as session:
        x = np.arange(4.0)
        assert session.broadcast_async(x).wait() is x
        assert session.allgather_async(x).wait().tolist() == [[0, 1, 2, 3]]
        assert session.reduce_scatter_async(x).wait().tolist() == [0, 1, 2, 3]
        assert session.barrier_async().done()


def test_asynchronous_and_synchronous_calls_mix(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        for _ in range(20):
            x, y, z = np.ones(50_000, np.float32), np.ones(10, np.int64), np.zeros(3, np.uint8)
            first = session.allreduce_async(x)
            session.allreduce(y)
            last = session.allreduce_async(x[:0])
            z[:] = session.rank
            session.broadcast(z, root=1)
            last.wait()
            first.wait()
            assert x.sum() == 2 * x.size
            assert y.sum() == 2 * y.size
            assert z.sum() == 3

    together(host.url, 2, call)


def test_work_runs_without_anybody_waiting(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        work = session.allreduce_async(np.ones(100_000, np.float32))
        eventually(work.done)

    together(host.url, 2, call)


def test_work_that_nobody_waits_for_keeps_its_tensor(host: EmbeddedController) -> None:
    started = threading.Event()

    def call(session: Session) -> None:
        if session.rank == 1:
            started.wait(60)
            session.allreduce(np.ones(100_000, np.float32))
            session.barrier()
            return
        x = np.ones(100_000, np.float32)
        out = np.zeros_like(x)
        alive = weakref.ref(x), weakref.ref(out)
        session.allreduce_async(x, out=out)  # the Work is dropped at once
        del x, out
        gc.collect()
        time.sleep(0.05)
        assert alive[0]() is not None
        assert alive[1]() is not None
        started.set()
        session.barrier()  # in call order: that one is done
        gc.collect()
        assert alive[0]() is None
        assert alive[1]() is None

    together(host.url, 2, call)


def test_a_work_that_was_waited_for_lets_its_input_go(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x, out = np.ones(1000, np.float32), np.empty(1000, np.float32)
        alive = weakref.ref(x)
        work = session.allreduce_async(x, out=out)
        del x
        work.wait()
        gc.collect()
        assert alive() is None
        assert work.wait() is out

    together(host.url, 2, call)


def test_calls_from_several_threads_are_ordered(host: EmbeddedController) -> None:
    # Order between threads of one rank is free, so all calls are alike.
    def call(session: Session) -> None:
        def some() -> None:
            known = np.empty(3000, np.float32)
            for _ in range(15):
                x, y = np.full((2, 3000), session.rank + 1, np.float32)
                known[:] = session.rank + 1
                work = session.allreduce_async(x)
                session.allreduce(y)
                session.allreduce(known)
                work.wait()
                for each in (x, y, known):
                    assert np.array_equal(each, np.full(3000, 3, np.float32))
                session.stats()

        for outcome in in_threads([some] * 4):
            outcome.get()
        recent = [record.number for record in session.recent()]
        assert recent == sorted(set(recent))
        assert (len(recent), recent[-1]) == (32, 179)

    together(host.url, 2, call)


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
def test_closing_while_another_thread_waits(host: EmbeddedController, known: bool) -> None:
    over = threading.Event()  # until then rank 1 stays, so that its leaving is not what ends the wait

    def call(session: Session) -> None:
        x = np.ones(10, np.float32)
        session.allreduce(x)
        if session.rank == 1:
            assert over.wait(60)
            return

        def wait() -> None:
            session.allreduce(x if known else np.ones(10, np.float32))  # nobody else calls it

        def close() -> None:
            time.sleep(0.1)
            session.close()

        try:
            waited, closed = in_threads([wait, close])
        finally:
            over.set()
        assert isinstance(waited.error, SessionBrokenError)
        closed.get()

    together(host.url, 2, call)


# ---------------------------------------------------------------------- groups


def test_groups(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        # Crosswise; both groups at the same time, with their own slots.
        even, odd = session.group([2, 0]), session.group([1, 3])
        group = even or odd
        assert group is not None
        assert (even is None) != (odd is None)
        with group:
            assert group.world_size == 2
            assert group.rank == {2: 0, 0: 1, 1: 0, 3: 1}[session.rank]
            for _ in range(3):
                x = np.full(1000, session.rank, np.int32)
                group.allreduce(x)
                assert np.array_equal(x, np.full(1000, 2 if session.rank % 2 == 0 else 4))
                session.allreduce(x)
                assert np.array_equal(x, np.full(1000, 12))
        session.barrier()

    together(host.url, 4, call)


def test_ranks_with_different_lists_do_not_meet(host: EmbeddedController) -> None:
    """Ranks 0 and 2 fit each other in number and size, but rank 0 means rank 1."""

    def call(rank: int) -> str:
        with worker_lib.connect(host.url, "job", rank, 3, timeout=3.0) as session:
            try:
                session.group([0, 1] if rank == 0 else [0, 2])
            except AdmissionError as error:
                return f"{error} {error.__notes__}"
        return ""

    first, second, third = (outcome.get() for outcome in in_threads([partial(call, r) for r in range(3)], 60))
    assert "same list" in first
    assert "[0, 1]" in first
    assert second == ""
    assert "[0, 2]" in third


def test_ranks_outside_a_group_get_none(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        group = session.group([0, 2])
        assert (group is None) == (session.rank == 1)
        if group is not None:
            x = np.ones(10, np.float64)
            group.allreduce(x, op="avg")
            assert np.array_equal(x, np.ones(10))
            with pytest.raises(UsageError, match="group of a group"):
                group.group([0])
            group.close()
        x = np.ones(10)
        session.allreduce(x)
        assert x[0] == 3

    together(host.url, 3, call)


def test_many_overlapping_groups_at_once_and_their_slots_come_back(host: EmbeddedController) -> None:
    n, slots, words = 5, 4, 32
    client = ControllerClient(host.url)

    def free() -> int:
        return int(client.slots()["free"])

    before = free()

    def call(session: Session) -> int:
        pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
        groups = [session.group(pair, slots=slots, words=words) for pair in [*pairs, tuple(range(n))]]
        session.barrier()
        taken = before - free()
        session.barrier()
        work = []
        for turn in range(3):  # all of a rank's groups are under way together
            for pair, group in zip(pairs, groups, strict=False):
                if group is not None:
                    x = np.full(3 * words * slots + turn, 10**session.rank, np.int32)
                    work.append((pair, group.allreduce_async(x)))
        for pair, each in reversed(work):
            assert np.array_equal(np.unique(each.wait()), [sum(10**r for r in pair)])
        everybody = groups[-1]
        assert everybody is not None
        everybody.barrier()
        for group in groups:
            if group is not None:
                group.close()
        session.barrier()
        for turn in range(12):  # made and closed, again and again
            group = session.group([turn % n, (turn + 1 + turn % 2) % n], slots=slots)
            if group is not None:
                with group:
                    assert group.allreduce(np.ones(5, np.int32))[0] == 2
        session.barrier()
        return taken

    taken = together(host.url, n, call, words=K, slots=64)
    assert min(taken) == max(taken) == 64 + 11 * slots
    eventually(lambda: free() == before)


def test_a_group_that_the_switch_has_no_room_for_is_refused_at_all_its_ranks() -> None:
    with EmbeddedController(capacity=64) as host:

        def call(session: Session) -> None:
            if session.rank < 2:
                with pytest.raises(SwitchError, match="slots"):
                    session.group([0, 1], slots=64)
            else:
                assert session.group([0, 1], slots=64) is None
            session.barrier()  # who is refused has waited for room until then
            group = session.group([0, 2], slots=16)  # the next one is not disturbed
            if group is not None:
                with group:
                    assert group.allreduce(np.ones(5, np.int32))[0] == 2
            session.barrier()

        together(host.url, 3, call, slots=32, join_timeout=5.0)


def test_a_group_of_one(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        group = session.group([1])
        if session.rank != 1:
            assert group is None
            return
        assert group is not None
        check_alone(group)

    together(host.url, 2, call)


def test_a_world_of_one_needs_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWITCHAGG_CONTROLLER", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with worker_lib.connect() as session:
        check_alone(session)
    with pytest.raises(SessionBrokenError, match="closed"):
        session.allreduce(np.ones(3))


def check_alone(session: Session) -> None:
    assert (session.rank, session.world_size) == (0, 1)
    x = np.array([1.5, -0.0, np.nan, 3e38], np.float32)
    kept = x.tobytes()
    assert session.allreduce(x) is x
    assert session.allreduce(x, op="avg", bits=8) is x
    assert x.tobytes() == kept
    out = np.zeros_like(x)
    assert session.allreduce(x, out=out) is out
    assert out.tobytes() == kept
    work = session.allreduce_async(x)
    assert work.done()
    assert work.wait() is x
    assert session.broadcast(x) is x
    assert session.allgather(x).tobytes() == kept
    assert session.allgather(x).shape == (1, 4)
    assert session.reduce_scatter(x).tobytes() == kept
    session.barrier()
    assert session.stats()["packets_sent"] == 0
    with pytest.raises(UsageError, match="bits is 4"):
        session.allreduce(x, bits=4)
    with pytest.raises(UsageError, match="root is 1"):
        session.broadcast(x, root=1)


# ---------------------------------------------------------------------- stats


def test_stats_add_up(host: EmbeddedController) -> None:
    transports = set()

    def call(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
        transports.add(session.transport)
        x = np.ones(64 * 1000, np.float32)
        session.allreduce(x)
        dense = session.stats()
        x[:] = 0
        x[64 * 10 * session.rank : 64 * 10 * (session.rank + 1)] = 1  # 10 blocks a rank, at other places
        session.allreduce(x)
        return dense, session.stats()

    for dense, both in together(host.url, 3, call):
        for stats in (dense, both):
            # Not equal: repeats count among the packets sent, plans among both.
            assert (
                stats["packets_data"] + stats["packets_skip"] + stats["retransmissions"]
                == stats["packets_sent"]
            )
            assert stats["blocks_skipped"] == stats["blocks_total"] - stats["blocks_union"]
            assert stats["bytes_received"] > 0
            assert set(stats["seconds"]) == {"scan", "quantize", "wire", "wait", "decode"}
            assert all(value >= 0 for value in stats["seconds"].values())
        assert dense["collectives"] == 1
        assert both["collectives"] == 2
        assert dense["blocks_total"] == dense["blocks_union"] == 1000
        assert both["blocks_total"] == 2000
        assert both["blocks_union"] == 1030
        assert both["blocks_skipped"] == 970
        # Round trips are those of sums in packets; large sums go beside shared slots.
        assert (dense["rtt_seconds"] > 0) == (transports != {"slots"})
        assert both["rtt_seconds"] > 0
        assert dense["bytes_sent"] >= 64 * 1000 * 4
        # Bytes have repeats among them, of which a busy machine makes many.
        assert both["packets_data"] - dense["packets_data"] < dense["packets_data"] / 4


def test_names_can_be_used_again(host: EmbeddedController) -> None:
    job = job_name()
    for _ in range(3):
        together(host.url, 2, lambda session: session.barrier(), job=job)


def test_a_rank_may_close_before_the_others_have_their_results() -> None:
    # Its packets are there; the switch has what the others still miss.
    def call(session: Session) -> float:
        return float(session.allreduce(np.ones(2000, np.float32)).sum())

    with EmbeddedController(faults=Faults(loss=0.2)) as host:
        for _ in range(10):
            assert together(host.url, 3, call) == [6000.0] * 3


def test_a_dense_policy_sends_zero_blocks_too() -> None:
    def traffic(session: Session) -> tuple[int, int]:
        x = np.zeros(100_000, np.float32)
        x[:64] = 1
        session.allreduce(x, bits=32)
        assert x[:64].tolist() == [2.0] * 64
        assert not x[64:].any()
        stats = session.stats()
        return stats["packets_data"], stats["blocks_skipped"]

    with EmbeddedController(words=64, slots=64) as host:
        for packets, skipped in together(host.url, 2, traffic):
            assert packets < 100
            assert skipped == 1562
    with EmbeddedController(words=64, slots=64, policy=SkipPolicy(dense=True)) as host:
        for packets, skipped in together(host.url, 2, traffic):
            assert packets > 100_000 // 64
            assert skipped == 0


def test_work_started_while_another_thread_waits_goes_on_without_it(host: EmbeddedController) -> None:
    called = threading.Event()

    def call(session: Session) -> None:
        x = np.full(1000, session.rank + 1, np.float32)
        if session.rank == 0:
            engine = session._state.engine
            assert engine is not None
            waiter = threading.Thread(target=session.barrier)
            waiter.start()
            eventually(lambda: engine.begun == 1)  # the waiter drives the engine now: rank 1 is late
            work = session.allreduce_async(x)
            called.set()
        else:
            assert called.wait(60)
            session.barrier()
            work = session.allreduce_async(x)
        eventually(work.done)
        assert (work.wait() == 3).all()
        session.barrier()

    together(host.url, 2, call)
