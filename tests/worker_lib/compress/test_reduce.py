"""Compressors through a session: types, order, errors, and what becomes of their state."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from tests.worker_lib.harness import ProcessEnded, processes, together
from worker_lib import MismatchError, Session, UsageError, WorkerLostError
from worker_lib.compress import (
    EF21,
    Differences,
    Dithering,
    ErrorFeedback,
    IntSGD,
    Modular,
    RandomBlocks,
    RangeError,
    SharedExponent,
    StochasticRounding,
    TopBlocks,
)

Array = npt.NDArray[Any]


def vector(rank: int, size: int = 1000, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(rank).standard_normal(size).astype(dtype)


def test_in_place_out_sum_and_average(host: EmbeddedController) -> None:
    def call(session: Session) -> list[Array]:
        x = vector(session.rank)
        kept = x.copy()
        out = np.empty_like(x)
        results = []
        for op in ("sum", "avg"):
            c = StochasticRounding(2.0**-8)
            assert session.allreduce(x, op=op, compressor=c, out=out) is out
            assert np.array_equal(x, kept)
            results.append(out.copy())
        y = x.reshape(10, 100).copy()
        assert session.allreduce(y, compressor=StochasticRounding(2.0**-8)) is y
        assert np.array_equal(y.reshape(-1), results[0])  # the same draws: a compressor's begin with its seed
        return results

    every = together(host.url, 3, call)
    exact = np.sum([vector(r, dtype=np.float64) for r in range(3)], axis=0)
    total, average = every[0]
    assert np.abs(total - exact).max() <= 3 * 2.0**-8
    assert np.array_equal(average, total / np.float32(3))
    assert all(np.array_equal(a, b) for other in every for a, b in zip(other, every[0], strict=True))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16", "torch"])
def test_types(host: EmbeddedController, kind: str) -> None:
    if kind == "bfloat16":
        dtype: Any = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        dtype = np.float32
    else:
        dtype = np.dtype(kind)

    def call(session: Session) -> Array:
        x: Any = (np.arange(100) % 7 - session.rank).astype(dtype)
        if kind == "torch":
            x = torch.from_numpy(x)
        session.allreduce(x, compressor=StochasticRounding(1.0, bits=8))
        return np.asarray(x).astype(np.float64)

    for result in together(host.url, 2, call):
        assert np.array_equal(result, 2 * (np.arange(100) % 7) - 1)


def test_an_empty_tensor_and_a_world_of_one(host: EmbeddedController) -> None:
    def alone(session: Session) -> Array:
        c = Dithering(levels=4)
        assert session.allreduce(np.empty(0, np.float32), compressor=c).size == 0
        x = np.array([1.0, -1.0, 0.5], np.float32)
        session.allreduce(x, compressor=SharedExponent(8))
        return x

    def two(session: Session) -> None:
        assert session.allreduce(np.empty(0, np.float32), compressor=Dithering(levels=4)).size == 0

    assert np.array_equal(together(host.url, 1, alone)[0], np.array([1.0, -1.0, 0.5], np.float32))
    together(host.url, 2, two)


def test_several_are_on_their_way(host: EmbeddedController) -> None:
    def call(session: Session) -> list[Array]:
        makers = [lambda: Dithering(levels=100, seed=3), lambda: SharedExponent(16), SharedExponent]
        xs = [vector(session.rank, 5000 + i) for i in range(9)]
        works = [session.allreduce_async(x, compressor=makers[i % 3]()) for i, x in enumerate(xs)]
        for work in reversed(works):
            work.wait()
            assert work.done()
            work.wait()  # again: the same
        return xs

    every = together(host.url, 2, call)
    for i in range(9):
        exact = vector(0, 5000 + i) + vector(1, 5000 + i)
        assert np.array_equal(every[0][i], every[1][i])
        assert np.abs(every[0][i] - exact).max() < 0.15


def test_one_reduction_at_a_time(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        c = SharedExponent(16)
        x, y = vector(session.rank), vector(session.rank)
        work = session.allreduce_async(x, compressor=c)
        with pytest.raises(UsageError, match="wait for it first"):
            session.allreduce(y, compressor=c)
        work.wait()
        session.allreduce(y, compressor=c)
        with pytest.raises(UsageError, match="one compressor for each tensor"):
            session.allreduce(y[:10].copy(), compressor=c)

    together(host.url, 2, call)


def test_wrong_arguments(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = vector(session.rank)
        for match, arguments in (
            ("bits is given", {"bits": 8}),
            ("blocks is given", {"blocks": "dense"}),
            ("memory is given", {"memory": np.zeros_like(x)}),
            ("op is 'max'", {"op": "max"}),
            ("out is", {"out": np.empty(3, np.float32)}),
        ):
            with pytest.raises(UsageError, match=match):
                session.allreduce(x, compressor=SharedExponent(), **arguments)
        with pytest.raises(UsageError, match="int32"):
            session.allreduce(np.zeros(3, np.int32), compressor=SharedExponent())
        with pytest.raises(UsageError, match="compressor is a str"):
            session.allreduce(x, compressor="topk")  # type: ignore[arg-type]
        session.allreduce(x, compressor=SharedExponent())

    together(host.url, 2, call)


def test_ranks_with_different_compressors_are_told(host: EmbeddedController) -> None:
    def call(session: Session) -> Array:
        c = StochasticRounding(1.0 + session.rank)
        x = vector(session.rank)
        kept = x.copy()
        with pytest.raises(MismatchError, match=r"StochasticRounding\(unit="):
            session.allreduce(x, compressor=c)
        assert np.array_equal(x, kept)
        assert c.step == 0
        session.allreduce(x, compressor=StochasticRounding(0.25))
        assert session.allreduce_async(x, compressor=SharedExponent()).wait() is x
        return x

    every = together(host.url, 2, call)
    assert np.array_equal(every[0], every[1])


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_is_not_finite_is_nan_everywhere(host: EmbeddedController, poison: float) -> None:
    def call(session: Session) -> list[Array]:
        results = []
        for c in (StochasticRounding(0.01), Dithering(levels=7), Dithering(levels=7, block=100)):
            x = vector(session.rank)
            if session.rank == 1:
                x[150] = poison
            session.allreduce(x, compressor=c)
            results.append(x)
        return results

    for whole, one, blocks in together(host.url, 3, call):
        assert np.isnan(whole).all()
        assert np.isnan(one).all()
        assert np.array_equal(np.flatnonzero(np.isnan(blocks)), np.arange(100, 200))


def test_beyond_its_range_nothing_is_written_and_the_next_round_works(host: EmbeddedController) -> None:
    def call(session: Session) -> list[Array]:
        c = Modular(unit=1.0)
        x = np.full(10_000, 100.0, np.float32)
        session.allreduce(x.copy(), compressor=c)
        x[4000] += 1000 * session.rank
        kept = x.copy()
        with pytest.raises(RangeError, match="goes in full"):
            session.allreduce(x, compressor=c)
        assert np.array_equal(x, kept)
        session.allreduce(np.full(10_000, 100.0, np.float32), compressor=c)
        work = session.allreduce_async(x, compressor=c)
        with pytest.raises(RangeError, match="goes in full") as first:
            work.wait()
        with pytest.raises(RangeError) as second:
            work.wait()
        assert second.value is first.value
        assert np.array_equal(x, kept)
        c = Modular(unit=1.0)
        session.allreduce(x, compressor=c)
        return x

    for result in together(host.url, 2, call):
        assert np.array_equal(result, np.where(np.arange(10_000) == 4000, 1200, 200))


def test_with_other_ranks_shared_state_begins_anew(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = vector(session.rank, dtype=np.float64)
        cs = [
            Differences(Dithering(levels=64)),
            EF21(TopBlocks(tau=0.5)),
            IntSGD(16),
            Modular(),
            RandomBlocks(k=3),
        ]
        feedback = ErrorFeedback(TopBlocks(k=1))
        group = session.group([0, 2])
        for _ in range(5):
            for c in [*cs, feedback]:
                session.allreduce(x.copy(), compressor=c)
        if group is None:
            return
        residual = feedback.memories()["residual"].copy()
        assert residual.any()
        exact = vector(0, dtype=np.float64) + vector(2, dtype=np.float64)
        for c in cs[:1] + cs[2:4]:  # full, or as good as
            y = group.allreduce(x.copy(), compressor=c)
            assert np.abs(y - exact).max() < 0.5, c.describe()
            assert c.step == 1
        for c in (cs[1], cs[4]):
            y = group.allreduce(x.copy(), compressor=c)
            blocks = np.abs(y[:960].reshape(15, 64)).any(axis=1)
            assert not blocks.all()  # what the three of them knew is not in it
        assert np.array_equal(feedback.memories()["residual"], residual)
        group.allreduce(x.copy(), compressor=feedback)
        group.close()

    together(host.url, 3, call)


def trains_on(session: Session, victim: int) -> list[tuple[int, Array]]:
    """Reductions with a norm round and a memory; one rank dies between two of them, or in one."""
    c = Differences(Dithering(levels=64))
    place = session.rank
    x = vector(place, dtype=np.float64)
    results = []
    died = False
    while len(results) < 30:
        if place == victim and len(results) == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        out = np.empty_like(x)
        try:
            session.allreduce(x, compressor=c, out=out)
        except WorkerLostError:
            assert not died
            died = True
            continue  # the compressor is as it was; with other ranks it begins anew
        results.append((session.world_size, out))
    return results


def test_a_rank_is_lost_and_the_others_go_on(host: EmbeddedController) -> None:
    with processes(host.url, 3, trains_on, 0, deadline=60.0, on_loss="shrink") as ranks:
        with pytest.raises(ProcessEnded):
            ranks[0].finish().get()
        first, second = (ranks[i].finish(40).get() for i in (1, 2))
    assert [n for n, _ in first] == [n for n, _ in second]
    assert {n for n, _ in first} == {2, 3}
    for (n, a), (_, b) in zip(first, second, strict=True):
        assert np.array_equal(a, b)
        exact = np.sum([vector(r, dtype=np.float64) for r in range(3 - n, 3)], axis=0)
        assert np.abs(a - exact).max() < 0.5, n
