"""Error feedback in a call, `memory=`: what is added first, what is left afterwards; over real sessions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from tests.seeds import seed_of_this_run
from worker_lib import Session, UsageError

from .harness import together

pytestmark = pytest.mark.usefixtures("either_transport")

Array = npt.NDArray[Any]
COUNT = 70_000  # more than one segment's first packets, and a chunk that is not full


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_nothing_is_lost(host: EmbeddedController, kind: str) -> None:
    """Rounds of sums: what went in is what came out and what is left."""
    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
    seed = seed_of_this_run()
    rounding = {"float32": 2.0**-18, "float16": 2.0**-6, "bfloat16": 2.0**-3}[kind]  # of results

    def call(session: Session) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng([seed, session.rank])
        memory = np.zeros(COUNT, np.float32)
        given, got = np.zeros(COUNT), np.zeros(COUNT)
        for turn, bits in enumerate((16, 8, 32, "auto", 8)):
            x = rng.normal(size=COUNT).astype(dtype)
            x[3000:9000] = 0
            given += x.astype(np.float64)
            blocks: Any = rng.random(-(-COUNT // 64)) < 0.5 if turn in (1, 2) else "auto"
            out = x if turn % 2 else np.zeros_like(x)
            before = x.copy()
            session.allreduce(x, bits=bits, blocks=blocks, block_size=64, out=out, memory=memory)
            assert out is x or np.array_equal(x, before)  # an input of its own is left alone
            got += out.astype(np.float64)
        return given, got, memory

    ranks = together(host.url, 2, call, words=64)
    assert np.array_equal(ranks[0][1], ranks[1][1])
    total = sum(given - memory.astype(np.float64) for given, _, memory in ranks)
    assert any(memory.any() for _, _, memory in ranks)
    assert np.abs(total - ranks[0][1]).max() < 5 * rounding


def test_an_element_that_is_not_finite_is_forgotten(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x, memory = np.ones(4096, np.float32), np.full(4096, 0.25, np.float32)
        if session.rank == 1:
            x[1500] = np.inf
        session.allreduce(x, bits=8, memory=memory)
        assert x[1500] == np.inf
        assert np.isfinite(np.delete(x, 1500)).all()
        assert memory[1500] == 0 or session.rank == 0  # or every later step were Inf too
        assert np.isfinite(memory).all()
        session.allreduce(np.zeros(4096, np.float32), bits=32, memory=memory)
        assert not memory.any()  # wide lanes leave nothing

    together(host.url, 2, call, words=64)


def test_a_group_of_one_adds_what_it_remembers() -> None:
    with worker_lib.connect(world_size=1, rank=0) as session:
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
            x, memory = np.ones(5, dtype), np.full(5, 0.5, np.float32)
            out = np.zeros(5, dtype)
            session.allreduce(x, bits=8, memory=memory, out=out)
            assert (out == 1.5).all()
            assert (x == 1).all()
            assert not memory.any()
        torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")
        y, left = torch.ones(5, dtype=torch.bfloat16), torch.full((5,), 0.5)
        session.allreduce(y, memory=left)
        assert (y == 1.5).all()
        assert not left.any()


def test_memories_that_cannot_be(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x, memory = np.ones(8, np.float32), np.zeros(8, np.float32)
        for bad, said in (
            (memory[:4], "shape"),
            (memory.astype(np.float64), "float64"),
            (x, "overlaps x"),
        ):
            with pytest.raises(UsageError, match=said):
                session.allreduce(x, bits=16, memory=bad)
        with pytest.raises(UsageError, match="overlaps the result"):
            session.allreduce(x, bits=16, memory=memory, out=memory)
        with pytest.raises(UsageError, match="float64"):
            session.allreduce(x.astype(np.float64), memory=memory)

    together(host.url, 2, call, words=64)
