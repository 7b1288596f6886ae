"""Engines that share slots: whose packet is the last of a round adds it up, and writes no record of its own.

Such a packet is sent again all the same where the job moves to another switch.
"""

from __future__ import annotations

import random
import time

import numpy as np

from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from worker_lib import _native
from worker_lib.plan import BOUNDED, EXACT, DType, Kind, ReduceOp

from .generations import DONE, LOST, PENDING, SECOND, WORDS, Cluster, Sum
from .test_engine_change import ELEMENTS, of_which_rank_1_lacks_results, ones

WORKERS, SIZE = 3, 160_000
LANES = ((DType.F32, 8), (DType.F32, 16), (DType.F32, 32), (DType.F32, EXACT), (DType.F64, EXACT),
         (DType.F32, BOUNDED), (DType.F64, 64), (DType.I32, 32))  # fmt: skip


def reduced(cluster: Cluster, seed: int, moves: random.Random | None = None) -> list[bytes]:
    """The bits of all-reduces in all lanes, while the job moves from one switch to another."""
    works, outs = [], []
    for rank, engine in cluster.engines.items():
        rng = np.random.default_rng([seed, rank])
        for dtype, bits in LANES:
            x = np.ldexp(rng.standard_normal(SIZE), rng.integers(-8, 8, SIZE))
            x[np.repeat(rng.random(SIZE // 16) < 0.3, 16)] = 0
            x = x.astype(np.float64 if dtype == DType.F64 else np.float32)
            if dtype == DType.I32:
                x = rng.integers(-(2**20), 2**20, SIZE, np.int32)
            out = np.empty_like(x)
            call = _native.Call(
                kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=dtype, bits=bits, sparse=True, block=16,
                count=SIZE, fingerprint_count=SIZE, shape_crc=1, workers=WORKERS, rank=rank,
                input=x.ctypes.data, in_end=SIZE, output=out.ctypes.data, out_end=SIZE, zero_fill=True,
            )  # fmt: skip
            outs.append((x, out))
            work = engine.submit(call, 150 * SECOND, True, engine.generation)
            assert work is not None
            works.append((engine, work))
    while moves and cluster.job < 2000 and any(work.status == PENDING for _, work in works):
        time.sleep(moves.uniform(0, 0.002))
        cluster.shared = moves.random() < 0.8
        cluster.by_udp = set(moves.choices(range(WORKERS), k=moves.random() < 0.1))
        cluster.replay()
    assert [engine.wait(work, 150 * SECOND) for engine, work in works] == [DONE] * len(works)
    return [out.tobytes() for _, out in outs]


def test_moves_at_any_moment_change_no_bit() -> None:
    seed = seed_of_this_run()
    with Cluster(WORKERS) as cluster:
        undisturbed = reduced(cluster, seed)
    with Cluster(WORKERS, shared=True) as cluster:
        moved = reduced(cluster, seed, random.Random(seed))
    assert moved == undisturbed


def test_packets_of_which_there_is_no_record_are_sent_again_to_another_switch() -> None:
    """Rank 1 has added up, and looks for no RESULT before the job moves; the others have all RESULTs."""
    with Cluster(WORKERS, shared=True) as cluster:
        sums = of_which_rank_1_lacks_results(cluster)
        assert [sums[2].wait(), sums[1].native.status] == [DONE, PENDING]
        cluster.replay()
        assert [each.wait() for each in sums] == [DONE] * WORKERS
        assert all((each.x == 6).all() for each in sums)


def test_a_fenced_rank_completes_no_round() -> None:
    """It is fenced when it has only sent the header: the others wait for all else of it."""
    with Cluster(WORKERS, shared=True) as cluster:
        sums = [Sum(engine, ones(1, 4 * WORDS), background=p < 2) for p, engine in cluster.engines.items()]
        late = cluster.engines[2]
        while late.stats()["positions"] < 1:
            late.wait(sums[2].native, 1000)
        eventually(lambda: all(cluster.engines[p].stats()["positions"] == 5 for p in range(2)))
        cluster.fence(2)
        assert sums[2].wait(0.05) == PENDING
        assert late.stats()["positions"] == 5
        assert [each.native.status for each in sums] == [PENDING] * WORKERS
        assert [engine.stats()["results"] for engine in cluster.engines.values()] == [1] * WORKERS
        cluster.stop(2)
        assert cluster.change((0, 1)) == 0
        assert [each.wait(0) for each in sums[:2]] == [LOST] * 2


def test_counts_are_those_of_packets_that_have_records() -> None:
    packets = 3 + -(-ELEMENTS // WORDS)
    with Cluster(WORKERS, shared=True) as cluster:
        sums = [Sum(engine, ones(1)) for engine in cluster.engines.values()]
        assert [each.wait() for each in sums] == [DONE] * WORKERS
        for engine in cluster.engines.values():
            stats = engine.stats()
            for name in ("positions", "packets_data", "packets_sent", "results"):
                assert stats[name] == packets, name
            assert stats["bytes_sent"] == packets * (16 + 4 * WORDS)
        counts = cluster.switch.job_counters(cluster.job)
    wanted = {"accepted": 3 * packets, "stored": packets, "ored": 2 * 3, "added": 2 * (packets - 3)}
    assert {name: counts[name] for name in wanted} == wanted
    assert counts["results"] == packets
