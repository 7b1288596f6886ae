"""Exact and bounded sums through a switch: the same bits wherever an element is, whatever is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from switchagg.errors import MismatchError, UsageError
from tests.reference import exact
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together, try_together
from worker_lib import Session
from worker_lib.plan import DType, ReduceOp

F32 = np.float32
SPECIAL = np.array([0.3512, 5e7, 1.2e8, 3e38, 1e-45, np.inf, -np.inf, np.nan, -0.0, 7.0], F32)


def mixed(seed: int, rank: int, count: int) -> np.ndarray[Any, Any]:
    """Normal data of magnitudes from 2^-60 to 2^60, some of it zero blocks, with a few of SPECIAL."""
    rng = np.random.default_rng([seed, rank])
    x = np.ldexp(rng.standard_normal(count), rng.integers(-60, 60, count)).astype(F32)
    x[count // 3 : count // 2] = 0
    x[rng.integers(count, size=SPECIAL.size)] = SPECIAL
    return x


@pytest.mark.parametrize("transport", ["auto", "udp"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_neither_offset_nor_buckets_nor_losses_change_a_bit(op: str, transport: str) -> None:
    n, count, seed = 3, 40_000, seed_of_this_run()

    def call(session: Session) -> list[np.ndarray[Any, Any]]:
        x = mixed(seed, session.rank, count)
        whole = session.allreduce(x, op=op, accuracy="exact", out=np.empty_like(x))
        cuts = [0, 1, 1024, 5_000, 5_003, 30_000, count]
        works = [
            session.allreduce(x[a:b].copy(), op=op, accuracy="exact", async_op=True)
            for a, b in pairwise(cuts)
        ]
        buckets = np.concatenate([work.wait() for work in works])
        shifted = session.allreduce(np.concatenate([x[777:], x[:777]]), op=op, accuracy="exact")
        sparse = session.allreduce(x.copy(), op=op, accuracy="exact", blocks="sparse", block_size=16)
        rows = np.concatenate([x, np.zeros(-count % n, F32)]).reshape(n, -1)
        part = session.reduce_scatter(rows, op=op, accuracy="exact")
        return [whole, buckets, np.roll(shifted, 777), sparse, part]

    with EmbeddedController(faults=Faults(loss=0.05, reorder=0.05, seed=seed)) as host:
        ranks = together(host.url, n, call, transport=transport, timeout=60.0)
    wanted = exact.reduce(
        [mixed(seed, rank, count) for rank in range(n)],
        DType.F32,
        ReduceOp.AVG if op == "avg" else ReduceOp.SUM,
    )
    size = -(-count // n)
    for rank, (*whole, part) in enumerate(ranks):
        for found in whole:
            assert found.tobytes() == wanted.tobytes()
        mine = wanted[rank * size : (rank + 1) * size]
        assert part.ravel()[: mine.size].tobytes() == mine.tobytes()


@pytest.mark.parametrize("transport", ["auto", "udp"])
def test_the_default_takes_what_it_needs_of_the_input_before_it_writes_over_it(transport: str) -> None:
    """Two segments of heavy tails, of sums that cancel, of zeros, and of what takes more words, in place."""
    n, count, seed = 3, 600_000, seed_of_this_run()

    def given(rank: int) -> np.ndarray[Any, Any]:
        x = np.random.default_rng([seed, rank]).standard_t(2, count).astype(F32)
        if rank == 1:
            x[100_000:110_000] = -given(0)[100_000:110_000]
        x[520_000:540_000:2] = 0
        x[200_000:220_000:2] *= 2.0**-20  # on all ranks: second words
        return x

    def call(session: Session) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x = session.allreduce(given(session.rank), blocks="dense")
        feedback, memory = given(session.rank) / 2, given(session.rank) / 2
        session.allreduce(feedback, blocks="sparse", block_size=16, memory=memory)
        assert not memory.any()
        rows = given(session.rank).reshape(n, -1)
        part = session.reduce_scatter(rows, rows[session.rank : session.rank + 1])
        assert 1000 < session.stats()["refined_elements"] < 300_000
        return x, feedback, part

    with EmbeddedController(faults=Faults(loss=0.02, reorder=0.02, seed=seed)) as host:
        ranks = together(host.url, n, call, transport=transport, timeout=60.0)
    xs = np.array([given(rank) for rank in range(n)], np.float64)
    whole, feedback, _ = ranks[0]
    parts = np.concatenate([part.ravel() for _, _, part in ranks])  # within the bound, not of the same bits
    for found in (whole, parts):
        assert (np.abs(found - xs.sum(0)) <= 2.0**-12 * np.abs(xs).sum(0)).all()
    assert {found.tobytes() for found, _, _ in ranks} == {whole.tobytes()}
    assert {found.tobytes() for _, found, _ in ranks} == {whole.tobytes()} == {feedback.tobytes()}


def test_the_default_takes_large_tensors_at_any_address(host: EmbeddedController) -> None:
    """Results of this size are written past the cache, which asks for addresses of a kind."""
    count = (16 << 20) // 4 + 40

    def call(session: Session) -> None:
        for offset in (1, 2, 4, 6):
            x = np.frombuffer(bytearray(4 * count + 8), F32, count, offset)
            x[:] = np.arange(count) % 251 + 1
            session.allreduce(x, blocks="dense")
            assert (np.abs(x / (2 * (np.arange(count) % 251 + 1)) - 1) <= 2.0**-12).all()

    together(host.url, 2, call)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_small_sums_are_exact_without_being_asked_for(host: EmbeddedController, kind: str) -> None:
    seed = seed_of_this_run()
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
    code = {"float64": DType.F64, "float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}[kind]

    def given(rank: int) -> np.ndarray[Any, Any]:
        with np.errstate(over="ignore"):
            return (mixed(seed, rank, 2000) / (1 << 52 if kind == "float16" else 1)).astype(dtype)

    def call(session: Session) -> np.ndarray[Any, Any]:
        return session.allreduce(given(session.rank))

    stored = [given(rank).view(np.uint16) if kind == "bfloat16" else given(rank) for rank in range(4)]
    wanted = exact.reduce(stored, code)
    for found in together(host.url, 4, call):
        assert found.tobytes() == wanted.tobytes()


def test_a_loss_and_a_number_of_tokens_share_a_tensor(host: EmbeddedController) -> None:
    def call(session: Session) -> list[float]:
        return session.allreduce(np.array([0.3512, 1.2e8], F32)).tolist()

    assert together(host.url, 4, call) == [[F32(1.4048), F32(4.8e8)]] * 4


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_nan_and_inf_stay_at_their_elements(host: EmbeddedController, bits: int) -> None:
    def call(session: Session, specials: bool) -> np.ndarray[Any, Any]:
        x = np.random.default_rng(session.rank).standard_normal(70_000).astype(F32)
        x[[5, 40_000, 69_999]] = 0
        if specials and session.rank != 2:
            x[[5, 40_000, 69_999]] = np.inf, np.inf if session.rank else -np.inf, np.nan
        return session.allreduce(x, bits=bits)

    for found, plain in zip(
        together(host.url, 3, call, True), together(host.url, 3, call, False), strict=True
    ):
        assert found[5] == np.inf
        assert np.isnan(found[[40_000, 69_999]]).all()
        found[[5, 40_000, 69_999]] = plain[[5, 40_000, 69_999]]
        assert np.abs(found - plain).max() <= (0 if bits == 32 else 12 / (2 ** (bits - 1) // 3 - 1))


def test_rows_of_a_table_are_summed_exactly(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> np.ndarray[Any, Any]:
        rows = np.array([session.rank, 7, 90_000])
        values = np.stack([mixed(seed, session.rank, 64) for _ in rows])
        found = session.allreduce_sparse(rows, values, 100_000, accuracy="exact")
        return found.values[found.indices == 7][0]

    wanted = exact.reduce([mixed(seed, rank, 64) for rank in range(2)], DType.F32)
    for found in together(host.url, 2, call):
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("accuracy", ["exact", "bounded"])
def test_zeros_are_positive_in_place_too(host: EmbeddedController, accuracy: str) -> None:
    def call(session: Session) -> bytes:
        x = np.zeros(2048, F32)
        x[0] = 1
        if session.rank == 0:
            x[1024:] = -0.0
        session.allreduce(x, accuracy=accuracy, blocks="sparse", block_size=2048)
        return x.tobytes()

    wanted = np.zeros(2048, F32)
    wanted[0] = 2
    assert together(host.url, 2, call) == [wanted.tobytes()] * 2


@pytest.mark.parametrize("accuracy", ["exact", "bounded"])
def test_a_memory_keeps_what_was_not_sent_and_no_more(host: EmbeddedController, accuracy: str) -> None:
    """In chunks of which nothing is sent, too."""

    def call(session: Session) -> None:
        mine = session.rank == 0
        x, memory = np.zeros(2048, F32), np.zeros(2048, F32)
        if mine:
            x[0], x[5], memory[5] = 1, 3, -3
        else:
            x[1024:], memory[1024:] = 5, 0.5
        session.allreduce(x, accuracy=accuracy, blocks=np.array([mine]), block_size=2048, memory=memory)
        assert x.tolist() == [1.0, *[0.0] * 2047]
        assert memory.tolist() == [0.0] * 2048 if mine else [*[0.0] * 1024, *[5.5] * 1024]
        y, memory = np.array([np.inf if mine else 1], F32), np.array([5], F32)
        session.allreduce(y, accuracy=accuracy, memory=memory)
        assert (y[0], memory[0]) == (np.inf, 0)

    together(host.url, 2, call)


def test_integers_are_exact_anyway(host: EmbeddedController) -> None:
    def call(session: Session) -> list[int]:
        return session.allreduce(np.array([2**31 - 1, 5], np.int32), accuracy="exact").tolist()

    assert together(host.url, 2, call) == [[-2, 10]] * 2


def test_ranks_that_want_other_accuracies_are_told(host: EmbeddedController) -> None:
    def call(session: Session) -> Any:
        return session.allreduce(np.ones(5000, F32), accuracy="exact" if session.rank else "bounded")

    for outcome in try_together(host.url, 2, call):
        assert isinstance(outcome.error, MismatchError)
        assert "bits" in str(outcome.error)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"accuracy": "high"}, "accuracy is 'high'; accepted: 'bounded', 'exact', or None"),
        ({"accuracy": "exact", "bits": 16}, "bits is 16 with accuracy='exact'"),
        ({"accuracy": "exact", "min_bits": 16}, "min_bits is 16 with accuracy='exact'"),
    ],
)
def test_arguments_that_contradict_each_other(
    host: EmbeddedController, arguments: dict[str, Any], text: str
) -> None:
    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=text):
            session.allreduce(np.ones(4, F32), **arguments)

    together(host.url, 1, call)
