"""Results of which one rank needs the words: it receives them, and the others acknowledgements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.reference import exact
from tests.seeds import seed_of_this_run
from tests.switchagg.control.switch_trees import switch_tree
from tests.switchagg.control.test_tree_of_switches import at_leaves
from worker_lib import Session, _native
from worker_lib.plan import DType, Kind, ReduceOp, differing_fields

from .generations import DONE, MISMATCH, SECOND, Cluster
from .harness import together

N, RANKS = 96_000, 3
"""Elements of a tensor; more than 65,536, from which on results are directed."""
PART = N // RANKS
WORDS = 512
ANSWER = 16 + 4 * WORDS
"""Bytes of a RESULT with its words, as a repeat is answered."""
Array = npt.NDArray[Any]


def data() -> list[Array]:
    """Integers, a tensor for each rank."""
    rng = np.random.default_rng(seed_of_this_run())
    return [rng.integers(-(2**31), 2**31, N).astype(np.int32) for _ in range(RANKS)]


def floats() -> list[Array]:
    """Elements that cancel out, are zero at some ranks or small beside others, infinities and NaN."""
    rng = np.random.default_rng(seed_of_this_run())
    xs = [(rng.standard_normal(N) * 10.0 ** rng.integers(-12, 3, N)).astype(np.float32) for _ in range(RANKS)]
    xs[1][::3] = -xs[0][::3]
    xs[2][: N // 2] = 0
    for x in xs:
        x[np.repeat(rng.random(N // 64) < 0.3, 64)] = 0
        x[rng.integers(0, N, 2)] = [np.inf, np.nan]
    return xs


def received(session: Session, call: Callable[[], Any]) -> tuple[Any, int]:
    """The result of a call, and the bytes that came for it, less those of answers to repeats."""
    session.barrier()
    before = session.stats()
    result, after = call(), session.stats()
    came, repeats = (after[name] - before[name] for name in ("bytes_received", "retransmissions"))
    return result, came - repeats * ANSWER


def collectives(session: Session, xs: list[Array], ys: list[Array]) -> dict[str, tuple[Any, int]]:
    x, y, root = xs[session.rank], ys[session.rank], 1
    rows = x.reshape(RANKS, PART)
    return {
        "integers": received(session, lambda: session.reduce_scatter(x)),
        "bits": received(session, lambda: session.reduce_scatter(x, op="or")),
        "default": received(session, lambda: session.reduce_scatter(y)),
        "exact": received(session, lambda: session.reduce_scatter(y, accuracy="exact")),
        "reduce": received(session, lambda: session.reduce(x.copy(), root=root)),
        "gather": received(session, lambda: session.gather(x[:PART], root=root)),
        "scatter": received(session, lambda: session.scatter(rows, root=root, out=np.empty(PART, np.int32))),
    }


def check(found: Sequence[dict[str, tuple[Any, int]]], xs: list[Array], ys: list[Array]) -> None:
    """Holds the results of `collectives` at all ranks against what they must be."""
    total = np.sum(xs, axis=0, dtype=np.int32)
    wide = [y.astype(np.float64) for y in ys]
    with np.errstate(invalid="ignore"):
        near = np.sum(wide, axis=0)
    bound = 2.0**-12 * np.sum(np.abs(wide), axis=0) + 2.0**-150
    for rank, mine in enumerate(found):
        here = slice(rank * PART, (rank + 1) * PART)
        assert np.array_equal(mine["integers"][0], total[here])
        assert np.array_equal(mine["bits"][0], np.bitwise_or.reduce(xs)[here])
        rounded = exact.reduce([y[here][::50] for y in ys], DType.F32)
        assert mine["exact"][0][::50].tobytes() == rounded.tobytes()
        got, finite = mine["default"][0], np.isfinite(near[here])
        assert np.array_equal(got[~finite], near[here][~finite], equal_nan=True)
        assert (np.abs(got[finite] - near[here][finite]) <= bound[here][finite]).all()
        assert np.array_equal(mine["scatter"][0], xs[1][here])
    assert np.array_equal(found[1]["reduce"][0], total)
    assert np.array_equal(found[1]["gather"][0], np.stack([x[:PART] for x in xs]))


@pytest.mark.parametrize("transport", ["shm", "udp"])
def test_each_rank_receives_the_words_that_it_needs(host: EmbeddedController, transport: str) -> None:
    xs, ys = data(), floats()
    found = together(host.url, RANKS, collectives, xs, ys, words=WORDS, transport=transport)
    check(found, xs, ys)
    for rank, mine in enumerate(found):
        for name in ("integers", "bits", "scatter"):
            assert mine[name][1] < 2 * 4 * PART, f"{name} at rank {rank}"  # all would be three parts
        for name in ("reduce", "gather"):
            if rank != 1:
                assert mine[name][1] < 2 * N, f"{name} at rank {rank}"


def test_ranks_that_share_slots_have_the_same_results(host: EmbeddedController) -> None:
    xs, ys = data(), floats()
    check(together(host.url, RANKS, collectives, xs, ys, words=512, transport="slots"), xs, ys)


def test_what_is_lost_comes_again() -> None:
    xs, ys, seed = data(), floats(), seed_of_this_run()
    faults = Faults(loss=0.03, duplicate=0.03, reorder=0.05, seed=seed)
    with EmbeddedController(faults=faults) as host:
        check(together(host.url, RANKS, collectives, xs, ys, words=256, slots=64, transport="udp"), xs, ys)


@pytest.mark.parametrize("transport", ["udp", "auto"])
def test_on_a_tree_words_go_to_one_leaf(transport: str) -> None:
    xs, ys = data(), floats()
    with switch_tree(2) as it:
        found = at_leaves(it, [1, 2, 1], collectives, xs, ys, transport=transport, words=512)
        check([each.get() for each in found], xs, ys)
        # Rank 1 alone is at the second leaf, and so gets no other's words. Ranks 0 and 2 get each other's,
        # but none of those that the kernel drops is sent again, so nothing follows for what they received.
        assert found[1].get()["integers"][1] < 2 * 4 * PART
        it.all_free()


def _scatter(engine: _native.Engine, rank: int, x: Array, out: Array) -> _native.Collective:
    part = x.size // 2
    call = _native.Call(
        kind=Kind.REDUCE_SCATTER, op=ReduceOp.SUM, dtype=DType.I32, bits=32, block=16, count=x.size,
        fingerprint_count=x.size, workers=2, rank=rank, input=x.ctypes.data, in_end=x.size,
        output=out.ctypes.data, out_begin=rank * part, out_end=(rank + 1) * part, zero_fill=True, part=part,
    )  # fmt: skip
    work = engine.submit(call, 60 * SECOND, True, engine.generation)
    assert work is not None
    return work


@pytest.mark.parametrize("link", [False, True])
def test_no_rank_reads_a_bare_result_as_a_sum(link: bool) -> None:
    # Every rank has the names of the other, so that the switch sends all words to the wrong one.
    xs = [x[:80_000] for x in data()[:2]]
    total = xs[0] + xs[1]
    outs = [np.full(40_000, 7, np.int32) for _ in xs]
    with Cluster(2, link=link, receivers=(2, 1)) as cluster:
        works = [_scatter(cluster.engines[r], r, xs[r], outs[r]) for r in range(2)]
        for rank, work in enumerate(works):
            assert cluster.engines[rank].wait(work, 60 * SECOND) == DONE
            assert np.array_equal(outs[rank], total[rank * 40_000 : (rank + 1) * 40_000])
            stats = cluster.engines[rank].stats()
            assert stats["retransmissions"] >= 40_000 // 64 - 1
            assert stats["results_ignored"] >= 40_000 // 64 - 1


@pytest.mark.parametrize(("before", "after"), [((1, 2), ()), ((), (1, 2))])
def test_a_call_goes_over_to_a_switch_that_directs_or_does_not(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    xs = [x[:80_000] for x in data()[:2]]
    total = xs[0] + xs[1]
    outs = [np.full(40_000, 7, np.int32) for _ in xs]
    with Cluster(2, receivers=before) as cluster:
        works = [_scatter(cluster.engines[0], 0, xs[0], outs[0])]
        cluster.engines[0].wait(works[0], SECOND // 5)  # its header is sent
        cluster.receivers = list(after)
        cluster.replay()
        works.append(_scatter(cluster.engines[1], 1, xs[1], outs[1]))
        for rank, work in enumerate(works):
            assert cluster.engines[rank].wait(work, 60 * SECOND) == DONE
            assert np.array_equal(outs[rank], total[rank * 40_000 : (rank + 1) * 40_000])


def test_ranks_of_which_one_cannot_direct_are_told() -> None:
    xs = [np.ones(80_000, np.int32) for _ in range(2)]
    outs = [np.full(40_000, 7, np.int32) for _ in xs]
    with Cluster(2, receivers=(1, 2)) as cluster:
        cluster.receivers = []
        sockets, admissions = cluster._admit((0, 1))
        made = [{**admissions[0], "receivers": [1, 2]}, admissions[1]]
        engines = [_native.Engine(sockets[r].native, _native.Admission(**made[r])) for r in range(2)]
        works = [_scatter(engines[r], r, xs[r], outs[r]) for r in range(2)]
        for engine, work, out in zip(engines, works, outs, strict=True):
            assert engine.wait(work, 60 * SECOND) == MISMATCH
            assert differing_fields(work.difference) == ["whether each sum goes to one rank"]
            assert (out == 7).all()
            engine.close()
