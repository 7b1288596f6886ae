"""The same tensors through every kind of switch, with and without loss: the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.emulator.faults import Faults
from switchagg.emulator.p4_switch import P4Switch
from tests.reference import exact
from tests.seeds import seed_of_this_run
from tests.worker_lib.generations import DONE, SECOND, WORDS, Cluster
from worker_lib import _native
from worker_lib.plan import BOUNDED, EXACT, DType, Kind, ReduceOp

WORKERS = 3
PROGRAMS = Path(__file__).parents[2] / "p4"


def through(cluster: Cluster, xs: list[np.ndarray[Any, Any]], bits: int) -> list[np.ndarray[Any, Any]]:
    outs = [np.empty_like(x) for x in xs]
    works = []
    for engine, x, out in zip(cluster.engines.values(), xs, outs, strict=True):
        call = _native.Call(
            kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=DType.F32, bits=bits, sparse=True, block=16,
            count=x.size, fingerprint_count=x.size, shape_crc=1, workers=WORKERS, rank=len(works),
            input=x.ctypes.data, in_end=x.size, output=out.ctypes.data, out_end=x.size, zero_fill=True,
        )  # fmt: skip
        works.append((engine, engine.submit(call, 150 * SECOND, True, engine.generation)))
    assert [engine.wait(work, 150 * SECOND) for engine, work in works] == [DONE] * WORKERS
    return outs


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_no_switch_changes_a_bit(loss: float) -> None:
    seed = seed_of_this_run()
    rng = np.random.default_rng(seed)
    # Over 32 chunks, most of them zero, and values of many exponents: every step of a sum in limbs.
    xs = [np.zeros(140_000, np.float32) for _ in range(WORKERS)]
    for x in xs:
        for at in rng.integers(0, x.size // 16, 30) * 16:
            x[at : at + 16] = np.ldexp(rng.standard_normal(16), rng.integers(-20, 20, 16))
    faults = Faults(loss=loss, seed=seed) if loss else None
    macros = (f"AGG_WORDS={WORDS}", "AGG_SLOTS=512")
    switches: dict[str, Callable[[], Cluster]] = {
        "native, UDP": lambda: Cluster(WORKERS, faults=faults),
        "native, shared memory": lambda: Cluster(WORKERS, faults=faults, link=True),
        **{
            program: lambda program=program: Cluster(  # type: ignore[misc]
                WORKERS, switch=P4Switch(PROGRAMS / program, defines=macros, faults=faults)
            )
            for program in ("switchagg_v1model.p4", "switchagg_tna.p4")
        },
    }
    wanted = exact.reduce(xs, DType.F32)
    bounded = set()
    for name, made in switches.items():
        with made() as cluster:
            for out in through(cluster, xs, EXACT):
                assert out.tobytes() == wanted.tobytes(), name
            bounded |= {out.tobytes() for out in through(cluster, xs, BOUNDED)}
    assert len(bounded) == 1


@pytest.mark.parametrize("more", [1000, 3000])
def test_a_short_last_segment(more: int) -> None:
    rng = np.random.default_rng(seed_of_this_run())
    size = (1 << 19) + more
    xs = [
        np.ldexp(rng.standard_normal(size), rng.integers(-20, 20, size)).astype(np.float32)
        for _ in range(WORKERS)
    ]
    for x in xs:
        x[np.repeat(rng.random(size // 16 + 1) < 0.5, 16)[:size]] = 0
    some = np.r_[0:500, size - 500 : size]
    wanted = exact.reduce([x[some] for x in xs], DType.F32)
    with Cluster(WORKERS, link=True) as cluster:
        for _ in range(2):
            for out in through(cluster, xs, EXACT):
                assert out[some].tobytes() == wanted.tobytes()
            first, *others = through(cluster, xs, BOUNDED)
            assert all(out.tobytes() == first.tobytes() for out in others)
            magnitudes = np.sum([np.abs(x, dtype=np.float64) for x in xs], axis=0)
            error = np.abs(first - np.sum(xs, axis=0, dtype=np.float64))
            assert (error <= magnitudes * 2.0**-12).all()
