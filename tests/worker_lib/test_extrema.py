"""Maximum and minimum over ranks, gathered and searched for, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from worker_lib import MismatchError, Session, UsageError, extrema

from .harness import together

pytestmark = pytest.mark.usefixtures("either_transport")

Array = npt.NDArray[Any]
K = 64
KINDS: list[Any] = [
    np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.bool_,
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64,
]  # fmt: skip
QUIET = {"float32": 0x7FC00000, "float64": 0x7FF8 << 48, "float16": 0x7E00, "bfloat16": 0x7FC0}


@pytest.fixture(scope="module")
def lossy() -> Iterator[EmbeddedController]:
    """A switch that loses and reorders one packet of twenty."""
    with EmbeddedController(faults=Faults(loss=0.05, reorder=0.05, seed=seed_of_this_run())) as controller:
        yield controller


@pytest.fixture(params=["gathered", "searched"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "searched":
        monkeypatch.setattr(extrema, "GATHERED_RANKS", 1)
        monkeypatch.setattr(extrema, "GATHERED_BYTES", 0)
    return str(request.param)


def of_any_bits(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> Array:
    """Any bit pattern; many zeros of both signs, infinities, and values that only some ranks share."""
    dtype = np.dtype(kind)
    if dtype == np.bool_:
        return rng.random(shape) < 0.3
    x = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
    few = np.array([0, 1, 2, 3]).astype(dtype)
    if dtype.kind not in "iu":
        few = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf], np.float32).astype(dtype)
    chosen = rng.random(shape) < 0.5
    x[chosen] = few[rng.integers(0, few.size, int(chosen.sum()))]
    return x


def extremum(rows: Array, op: str) -> Array:
    """The result as it should be, to the bit: NumPy's, but for the sign of zeros and the bits of NaN."""
    rows, dtype = rows.reshape(len(rows), -1), rows.dtype
    with np.errstate(invalid="ignore"):  # of signalling NaN
        wide = rows.astype(np.float64) if dtype.kind not in "iub" else rows
        found = (np.maximum if op == "max" else np.minimum).reduce(wide)
    if dtype.kind in "iub":
        return found
    zero, sign = wide == 0, np.signbit(wide)
    negative = ~(zero & ~sign).any(0) if op == "max" else (zero & sign).any(0)
    found = np.where(found == 0, np.where(negative, -0.0, 0.0), found).astype(dtype)
    bits = found.view(f"u{dtype.itemsize}")
    bits[np.isnan(wide).any(0)] = QUIET[dtype.name]
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.usefixtures("way")
def test_against_numpy(lossy: EmbeddedController, kind: Any) -> None:
    seed, n = seed_of_this_run(), 3

    def call(session: Session) -> None:
        rank = session.rank
        for shape, op in (((), "max"), ((0,), "min"), ((1,), "max"), ((5, 7), "min"), ((3, 1001), "max")):
            rows = of_any_bits(np.random.default_rng((seed, len(shape), *shape)), (n, *shape), kind)
            expected = extremum(rows, op).reshape(shape)
            x = np.array(rows[rank])
            out = np.zeros_like(x)
            assert session.allreduce(x, op, out=out) is out
            assert out.tobytes() == expected.tobytes()
            assert x.tobytes() == rows[rank].tobytes()
            result = session.reduce(x, 1, op)
            assert result is (x if rank == 1 else None)
            assert x.tobytes() == (expected if rank == 1 else rows[rank]).tobytes()
        for op in ("max", "min"):
            rows = of_any_bits(np.random.default_rng((seed, ord(op[1]))), (n, 2 * n, 35), kind)
            own, x = slice(2 * rank, 2 * rank + 2), rows[rank].copy()
            expected = extremum(rows, op).reshape(rows.shape[1:])
            assert session.reduce_scatter(x, op=op).tobytes() == expected[own].tobytes()
            session.reduce_scatter(x, x[own], op)
            assert x[own].tobytes() == expected[own].tobytes()
            x = rows[rank].copy()
            assert session.allreduce(x, op) is x
            assert x.tobytes() == expected.tobytes()

    together(lossy.url, n, call, words=K)


def test_asynchronous_ones_among_others(lossy: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        n, rank = session.world_size, session.rank
        rows = np.random.default_rng(seed).standard_normal((n, 3_001)).astype(np.float32)
        rows[1, 5] = np.nan
        works = []
        for op in ("max", "min", "max"):
            works.append(session.allreduce(rows[rank].copy(), op, async_op=True))
            works.append(session.allreduce(rows[rank].copy(), async_op=True))
            works.append(session.reduce(rows[rank].copy(), 0, op, async_op=True))
        again = session.allreduce(rows[rank].copy(), "max")
        for i, op in reversed([*enumerate(("max", "min", "max"))]):
            expected = extremum(rows, op).tobytes()
            assert works[3 * i].wait().tobytes() == expected
            at_root = works[3 * i + 2].wait()
            assert (at_root is None) if rank else at_root.tobytes() == expected
            works[3 * i + 1].wait()
        assert again.tobytes() == extremum(rows, "max").tobytes()

    together(lossy.url, 5, call, words=K)


@pytest.mark.usefixtures("way")
def test_arrays_of_several_segments(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> None:
        rows = np.random.default_rng(seed).integers(-(2**40), 2**40, (2, 700_001))
        x = session.allreduce(rows[session.rank].copy(), "min")
        assert np.array_equal(x, rows.min(0))

    together(host.url, 2, call)


def test_more_ranks_than_are_gathered_for(host: EmbeddedController) -> None:
    seed, n = seed_of_this_run(), extrema.GATHERED_RANKS + 2
    assert extrema.searched(n, extrema.GATHERED_BYTES + 1)
    assert not extrema.searched(n, extrema.GATHERED_BYTES)
    assert not extrema.searched(extrema.GATHERED_RANKS, 1 << 40)

    def call(session: Session) -> None:
        size = extrema.GATHERED_BYTES // 4 + 1
        rows = np.random.default_rng(seed).standard_normal((n, size)).astype(np.float32)
        before = session.stats()["collectives"]
        x = session.allreduce(rows[session.rank].copy(), "max")
        assert session.stats()["collectives"] == before + 11
        assert np.array_equal(x, rows.max(0))

    together(host.url, n, call)


def test_ranks_that_call_different_ones(host: EmbeddedController, way: str) -> None:
    def call(session: Session) -> None:
        one = session.rank == 1
        x = np.arange(3000, dtype=np.float32) * (1 - 2 * session.rank)
        kept = x.tobytes()
        calls: list[tuple[Any, Any]] = [
            (lambda: session.allreduce(x, "max"), lambda: session.allreduce(x, "min")),
            (lambda: session.allreduce(x, "max"), lambda: session.allreduce(x)),
            (lambda: session.allreduce(x, "max"), lambda: session.reduce(x, 0, "max")),
            (lambda: session.reduce(x, 1, "max"), lambda: session.reduce(x, 0, "max")),
            (lambda: session.allreduce(x, "max"), lambda: session.allreduce(x[:-1], "max")),
            (lambda: session.allreduce(x, "max"), lambda: session.allreduce(x.view(np.int32), "max")),
        ]
        if way == "searched":
            calls.append((lambda: session.allreduce(x, "max", async_op=True).wait(), calls[0][0]))
        for first, second in calls:
            with pytest.raises(MismatchError, match=rf"Rank {session.rank} called (all)?reduce\("):
                (second if one else first)()
            assert x.tobytes() == kept
        assert session.allreduce(x, "max")[1] == 1

    together(host.url, 2, call)


def test_in_a_group_of_one() -> None:
    with worker_lib.connect(world_size=1) as session:
        x = np.array([np.nan, -0.0, 3], np.float16)
        kept = x.tobytes()
        out = np.zeros_like(x)
        assert session.allreduce(x, "max", out=out) is out
        assert session.reduce(x, 0, "min") is x
        assert session.allreduce(x, "max", async_op=True).wait() is x
        assert session.reduce_scatter(x, op="min").tobytes() == kept == out.tobytes() == x.tobytes()
        with pytest.raises(UsageError, match="complex64"):
            session.allreduce(np.ones(3, np.complex64), "max")
