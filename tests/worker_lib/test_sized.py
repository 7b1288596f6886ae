"""All-gathers of rows whose number differs between ranks, and of Python objects."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from worker_lib import MismatchError, Session, UsageError

from .harness import together

pytestmark = pytest.mark.usefixtures("either_transport")


@pytest.fixture(scope="module")
def lossy() -> Iterator[EmbeddedController]:
    """A switch that loses and reorders one packet of twenty."""
    with EmbeddedController(faults=Faults(loss=0.05, reorder=0.05, seed=seed_of_this_run())) as controller:
        yield controller


@pytest.mark.parametrize("n", [2, 3, 5])
def test_rows_of_any_number(lossy: EmbeddedController, n: int) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        rng, rank = np.random.default_rng((seed, n)), session.rank  # the same at every rank
        for _ in range(10):
            kind = rng.choice(["bool", "int8", "uint16", "float32", "complex128", "S3"])
            row = tuple(int(d) for d in rng.choice([0, 1, 2, 3, 40], int(rng.integers(0, 3))))
            counts = [int(c) for c in rng.choice([0, 1, 2, 5, 300], n)]
            every = [rng.integers(0, 2, (c, *row)).astype(kind) for c in counts]
            begin = sum(counts[:rank])
            for given in (None, counts, np.array(counts)):
                found = session.allgatherv(every[rank], given)
                assert [each.tolist() for each in found] == [each.tolist() for each in every]
                assert {each.dtype for each in found} == {np.dtype(kind)}
                out = np.zeros((sum(counts), *row), kind)
                mine = out[begin : begin + counts[rank]]
                mine[...] = every[rank]
                found = session.allgatherv(mine, given, out, async_op=True).wait()  # in place
                assert out.tolist() == np.concatenate(every).tolist()
                assert all(np.shares_memory(each, out) for each in found if each.size)

    together(lossy.url, n, call, words=64)


def test_counts_that_cannot_be(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.ones((2, 3))
        for counts in ([2], [2, 2, 2], [2, -1], [3, 3]):
            with pytest.raises(
                UsageError, match=r"counts is \[.*2 rows on rank . *; accepted: .* each of 2 ranks"
            ):
                session.allgatherv(x, counts)
        with pytest.raises(UsageError, match=r"x has shape \(\)"):
            session.allgatherv(np.array(1.0))
        with pytest.raises(UsageError, match=r"needed: float64 of shape \(4, 3\)"):
            session.allgatherv(x, [2, 2], np.ones((3, 3)))
        out = np.ones((4, 3))
        with pytest.raises(UsageError, match=r"pass x = out\[\d:\d\] to work in place"):
            session.allgatherv(out[1:3], [2, 2], out)
        session.barrier()

    together(host.url, 2, call)


def test_ranks_that_disagree(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        first = session.rank == 0
        x = np.ones((2, 3), np.float32)
        for one, other in (
            (lambda: session.allgatherv(x), lambda: session.allgatherv(x.astype(np.int32))),
            (lambda: session.allgatherv(x), lambda: session.allgatherv(x.reshape(3, 2))),
            (lambda: session.allgatherv(x), lambda: session.allgatherv(x, [2, 2])),
            (lambda: session.allgatherv(x, [2, 2]), lambda: session.allgatherv(x, [1, 2])),
            (lambda: session.allgatherv(x, [2, 2]), lambda: session.allgather(x)),
            (lambda: session.broadcast_object(1, 0), lambda: session.broadcast_object(1, 1)),
            (lambda: session.allgather_object(1), lambda: session.allgatherv(np.zeros(3, np.uint8))),
        ):
            with pytest.raises(MismatchError, match=f"Rank {session.rank} called "):
                (one if first else other)()
        assert [len(rows) for rows in session.allgatherv(x)] == [2, 2]

    together(host.url, 2, call)


def test_objects(lossy: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        rng = np.random.default_rng(seed)
        things: list[Any] = [
            {"rank": r, "x": rng.bytes(int(rng.integers(0, 40_000))), "none": None} for r in range(n)
        ]
        found = session.allgather_object(things[rank])
        assert found == things
        assert found[rank] is not things[rank]
        for root in range(n):
            mine = things[rank] if rank == root else threading.Lock()  # not looked at
            item = session.broadcast_object(mine, root)
            assert item == things[root]
            assert (item is mine) == (rank == root)
        works = [
            session.broadcast_object(rank, 1, async_op=True),
            session.allgather_object("x", async_op=True),
        ]
        assert [work.wait() for work in reversed(works)] == [["x"] * n, 1]

    together(lossy.url, 3, call, words=64)


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_objects_that_cannot_be_pickled_or_unpickled(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        with pytest.raises(UsageError, match="a lock, cannot be pickled"):
            session.allgather_object(threading.Lock())
        if session.rank == 0:
            session.broadcast_object(Unreadable())
        else:
            with pytest.raises(UsageError, match="rank 0's object cannot be unpickled here: ValueError"):
                session.broadcast_object()
        with pytest.raises(UsageError, match="root is 2"):
            session.broadcast_object(1, 2)
        session.barrier()

    together(host.url, 2, call)


def test_in_a_group_of_one() -> None:
    with worker_lib.connect(world_size=1) as session:
        x = np.arange(6).reshape(2, 3)
        (rows,) = session.allgatherv(x)
        assert rows.tolist() == x.tolist()
        assert session.allgatherv(x, [2], async_op=True).wait()[0].tolist() == x.tolist()
        item = {"a": 1}
        assert session.broadcast_object(item) is item
        assert session.allgather_object(item) == [item]
