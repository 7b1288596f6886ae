"""Whole collectives in memory: every rank's plan and stream, a switch that adds or ors, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.errors import UsageError
from tests.reference import plan, stream
from tests.reference.plan import Agreed, Call
from tests.reference.quantize import scan
from tests.seeds import seed_of_this_run
from worker_lib.plan import DType, Kind, ReduceOp, Words
from worker_lib.quantize import STORAGE

Array = npt.NDArray[Any]


@pytest.fixture
def rng() -> np.random.Generator:
    seed = seed_of_this_run()
    return np.random.default_rng(seed)


def switch(packets: Sequence[Words | None], op: ReduceOp) -> Words | None:
    filled = [p for p in packets if p is not None]
    combine = np.bitwise_or if op is ReduceOp.OR else np.add
    return reduce(combine, filled) if filled else None


def collective(
    call: Call, xs: Array, words: int, seed: int = 0
) -> tuple[Array, Agreed, list[list[Words | None]]]:
    """The result, what was agreed, and every rank's stream; ranks' packets come in an order of `seed`."""
    n = len(xs)
    scans = [scan(x, call.dtype, call.block, call.chunk) for x in xs]
    plans = [
        plan.encode(call, words, s.bitmap, s.exponents[: call.chunks], special=s.special[: call.chunks])
        for s in scans
    ]
    agreed = plan.decode(call, [switch(p, ReduceOp.OR) for p in zip(*plans, strict=True)])
    streams = [
        stream.encode(call, agreed, x, s.bitmap, words=words, workers=n, rank=r)
        for r, (x, s) in enumerate(zip(xs, scans, strict=True))
    ]
    order = np.random.default_rng(seed).permutation(n)
    firsts = stream.special_packets(call, agreed, words)
    results = [
        switch([p[r] for r in order], ReduceOp.OR if i < firsts else call.op)
        for i, p in enumerate(zip(*streams, strict=True))
    ]
    return stream.decode(call, agreed, results, words=words, workers=n), agreed, streams


def sparse_tensor(rng: np.random.Generator, n: int, count: int, block: int, dtype: DType) -> Array:
    full = rng.normal(size=(n, count)) * 1000
    keep = np.repeat(rng.random((n, -(-count // block))) < 0.1, block, axis=1)[:, :count]
    x = np.where(keep, full, 0)
    if dtype is DType.BF16:
        return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return x.astype(STORAGE[dtype])


CASES = [(d, b) for d in (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I32, DType.I64) for b in d.lanes]


@pytest.mark.parametrize(("dtype", "bits"), CASES, ids=lambda v: getattr(v, "label", v))
def test_skipping_blocks_changes_no_bit_of_the_result(
    rng: np.random.Generator, dtype: DType, bits: int
) -> None:
    for count, block, words, n in ((0, 64, 16, 2), (1, 64, 16, 3), (5_000, 7, 17, 4), (70_000, 64, 352, 8)):
        xs = sparse_tensor(rng, n, count, block, dtype)
        xs[0, : count // 2] = 0
        call = Call(Kind.ALLREDUCE, ReduceOp.SUM, dtype, bits, count, (count,), position=9, block=block)
        dense = Call(
            Kind.ALLREDUCE, ReduceOp.SUM, dtype, bits, count, (count,), position=9, block=block, sparse=False
        )
        result, _, sent = collective(call, xs, words)
        again, _, _ = collective(call, xs, words, seed=1)
        everything, _, all_sent = collective(dense, xs, words)
        assert result.tobytes() == again.tobytes() == everything.tobytes()
        if count > 1000:
            assert len(sent[0]) < len(all_sent[0])
            assert any(p is None for p in sent[0])
            assert not any(p is None for p in all_sent[0])
        if not dtype.is_float:
            assert np.array_equal(result, xs.sum(axis=0, dtype=xs.dtype))


def test_bytes_move_exactly(rng: np.random.Generator) -> None:
    n, each, words = 5, 333, 32
    mine = rng.integers(0, 1 << 32, (n, each), dtype=np.uint64).astype(np.uint32)
    mine[2] = 0
    xs = np.zeros((n, n * each), np.uint32)
    for r in range(n):
        xs[r, r * each : (r + 1) * each] = mine[r]
    call = Call(Kind.ALLGATHER, ReduceOp.OR, DType.RAW, 32, n * each, (each,), element_type="float32")
    result, agreed, streams = collective(call, xs, words)
    assert np.array_equal(result.reshape(n, each), mine)
    assert not agreed.union.all()
    assert all(p is None for p in streams[2])


def test_what_no_rank_sends_is_positive_zero_and_specials_stay_in_place() -> None:
    count, n = 3 * 65536, 2
    xs = np.zeros((n, count), np.float32)
    xs[:, 100] = -0.0
    xs[0, 65536 + 5] = np.nan
    xs[:, 65536 + 70] = np.inf, -np.inf
    xs[:, 65536 + 71] = -np.inf, 3.0
    xs[:, 65536 + 72] = 1.0, 3.0
    xs[1, 2 * 65536 + 70] = 2.5
    call = Call(Kind.ALLREDUCE, ReduceOp.SUM, DType.F32, 32, count, (count,))
    result, agreed, _ = collective(call, xs, 352)
    assert agreed.union.sum() == 3
    assert agreed.exponents.tolist() == [-1, 128, 128]
    assert agreed.special.tolist() == [False, True, False]
    assert (result[:65536].view(np.uint32) == 0).all()
    assert result[65536:][[5, 70]].view(np.uint32).tolist() == [0x7FC00000] * 2
    assert result[65536:][[71, 72]].tolist() == [-np.inf, 4.0]
    assert result[2 * 65536 + 70] == 2.5
    assert np.count_nonzero(result) == 5


def test_nothing_but_zeros_sends_nothing() -> None:
    call = Call(Kind.ALLREDUCE, ReduceOp.AVG, DType.F32, 8, 1000, (1000,))
    result, _, streams = collective(call, np.zeros((3, 1000), np.float32), 64)
    assert streams == [[], [], []]
    assert not result.any()


def test_missing_results_are_refused() -> None:
    call = Call(Kind.ALLREDUCE, ReduceOp.SUM, DType.I32, 32, 100, (100,), sparse=False)
    agreed = Agreed(0, np.ones(call.blocks, np.bool_), np.empty(0, np.int16))
    with pytest.raises(UsageError, match="1 results of a stream of 7"):
        stream.decode(call, agreed, [None], words=16, workers=2)
