"""Engines that share slots: whose packet is the last of a round adds it up, and writes no record of its own.

Such a packet is sent again all the same where the job moves to another switch.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from worker_lib import _native
from worker_lib.plan import BOUNDED, EXACT, DType, Kind, ReduceOp

from .generations import DONE, LOST, PENDING, SECOND, WORDS, Cluster, Sum
from .harness import ROOT
from .test_engine_change import of_which_rank_1_lacks_results, ones

Floats = np.ndarray[Any, np.dtype[np.float32]]
WORKERS = 3
# Elements: added up by each rank; in slots; by shares; in smaller segments than by UDP.
SIZES = (4_992, 8_000, 160_000, 300_000)
# Type, lanes, share of zero blocks at a rank.
LANES = ((DType.F32, 8, 0.3), (DType.F32, 32, 0), (DType.F32, 16, 0.3), (DType.F32, 32, 0.3),
         (DType.F32, EXACT, 0.3), (DType.F64, EXACT, 0.3), (DType.F32, 32, 0), (DType.F32, BOUNDED, 0.3),
         (DType.F64, 64, 0.3), (DType.I32, 32, 0.3), (DType.F32, 32, 0))  # fmt: skip


def reduced(cluster: Cluster, seed: int, moves: random.Random | None = None) -> list[bytes]:
    """The bits of all-reduces in all lanes, while the job moves from one switch to another."""
    works, outs = [], []
    for rank, engine in cluster.engines.items():
        rng = np.random.default_rng([seed, rank])
        for (dtype, bits, zeros), size in itertools.product(LANES, SIZES):
            if bits == BOUNDED and size == SIZES[-1]:  # the last bits depend on segments
                continue
            x = np.ldexp(rng.standard_normal(size), rng.integers(-8, 8, size))
            x[np.repeat(rng.random(size // 16) < zeros, 16)] = 0
            x = x.astype(np.float64 if dtype == DType.F64 else np.float32)
            if dtype == DType.I32:
                x = rng.integers(-(2**20), 2**20, size, np.int32)
            out = np.empty_like(x)
            call = _native.Call(
                kind=Kind.ALLREDUCE, op=ReduceOp.SUM, dtype=dtype, bits=bits, sparse=True, block=16,
                count=size, fingerprint_count=size, shape_crc=1, workers=WORKERS, rank=rank,
                input=x.ctypes.data, in_end=size, output=out.ctypes.data, out_end=size, zero_fill=True,
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


def _drawn(rng: np.random.Generator, size: int, exponents: tuple[int, int]) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(rng.standard_normal(size), rng.integers(*exponents, size)).astype(np.float32)


_TYPES: Final = {DType.F32: np.float32, DType.F64: np.float64, DType.F16: np.float16,
                 DType.I32: np.int32, DType.I64: np.int64}  # fmt: skip
_OTHERS: Final = [(DType.F32, 8), (DType.F32, 16), (DType.F32, EXACT), (DType.F32, BOUNDED), (DType.F64, 64),
                  (DType.F64, BOUNDED), (DType.F16, BOUNDED), (DType.F16, 16), (DType.I32, 32),
                  (DType.I64, 64)]  # fmt: skip


_LARGE: Final = (16_383, 16_384, 65_536, 70_001, 131_072, 262_145, 600_000)
_SMALL: Final = (1, 17, 1_000, 4_096, 5_461)  # three ranks' are 16,384 at most


def _case(
    seed: int,
    dtype: DType = DType.F32,
    bits: int = 32,
    sizes: tuple[int, ...] = _LARGE,
    workers: int = WORKERS,
) -> list[dict[str, Any]]:
    """Arguments of each rank for an all-reduce, with their masks and memories."""
    rng = np.random.default_rng(seed)
    kind = _TYPES[dtype]
    is_float = np.issubdtype(kind, np.floating)
    size = int(rng.choice(sizes))
    exponents = [(-8, 8), (-160, -120), (100, 130), (-3, 4)][rng.integers(4)]
    block = int(rng.choice([16, 64, 1000]))
    blocks = -(-size // block)
    op = [ReduceOp.SUM, ReduceOp.AVG][rng.integers(2)]
    special = rng.random() < 0.2  # such floats are not summed as they are, but as packets
    sparse = bool(seed % 3)
    zeros = not sparse and rng.random() < 0.5  # a chunk without exponent
    ranks: list[dict[str, Any]] = []
    for rank in range(workers):
        own = np.random.default_rng([seed, rank])
        x = _drawn(own, size, exponents)
        x[~np.isfinite(x)] = 3e38
        if special and rank == 1:
            x[own.integers(size)] = np.nan
        if zeros:
            x[:65_536] = -0.0
        with np.errstate(over="ignore"):
            x = x.astype(kind) if is_float else own.integers(-(2**20), 2**20, size, kind)
        made = {"x": x, "op": op, "block": block, "sparse": sparse, "mask": None, "memory": None}
        made |= {"dtype": dtype, "bits": bits}
        if rank and own.random() < 0.3 and sparse:
            wanted = own.random(blocks) < 0.9
            padded = np.resize(wanted, -(-blocks // 32) * 32)
            made["mask"] = np.packbits(padded, bitorder="little").view(np.uint32)
            x[~np.repeat(wanted, block)[:size]] = 0
        if own.random() < 0.3 and dtype == DType.F32:
            made["memory"] = _drawn(own, size, (exponents[0], exponents[0] + 4))
            made["memory"][~np.isfinite(made["memory"])] = 0
        made["out"] = x if own.random() < 0.5 else np.full(size, 7, kind)
        ranks.append(made)
    return ranks


def _results(cluster: Cluster, ranks: list[dict[str, Any]]) -> list[bytes]:
    works = []
    for rank, (each, engine) in enumerate(zip(ranks, cluster.engines.values(), strict=True)):
        size, mask, memory = each["x"].size, each.get("mask"), each.get("memory")
        call = _native.Call(
            kind=Kind.ALLREDUCE, op=each["op"], sparse=each["sparse"],
            dtype=each.get("dtype", DType.F32), bits=each.get("bits", 32),
            block=each["block"], count=size, fingerprint_count=size, shape_crc=1,
            workers=len(ranks), rank=rank, input=each["x"].ctypes.data, in_end=size,
            output=each["out"].ctypes.data, out_end=size, zero_fill=True,
            mask=0 if mask is None else mask.ctypes.data,
            memory=0 if memory is None else memory.ctypes.data,
        )  # fmt: skip
        work = engine.submit(call, 60 * SECOND, True, engine.generation)
        assert work is not None
        works.append((engine, work))
    assert [engine.wait(work, 60 * SECOND) for engine, work in works] == [DONE] * len(ranks)
    return [
        each[name].tobytes() for each in ranks for name in ("out", "memory") if each.get(name) is not None
    ]


def _packets(cluster: Cluster) -> int:
    return int(cluster.engines[0].stats()["positions"])


def test_sums_without_packets_have_the_same_bits() -> None:
    seed, without = seed_of_this_run(), 0
    with Cluster(WORKERS) as packets, Cluster(WORKERS, shared=True) as shared:
        for case in range(seed, seed + 50):
            before = _packets(shared)
            assert _results(shared, _case(case)) == _results(packets, _case(case)), f"case {case}"
            without += _packets(shared) - before < 30
    assert without > 10


def test_small_sums_without_packets_have_the_same_bits() -> None:
    seed, without = seed_of_this_run(), 0
    with Cluster(WORKERS) as packets, Cluster(WORKERS, shared=True) as shared:
        for case in range(seed, seed + 100):
            before = _packets(shared), _packets(packets)
            found, expected = (_results(each, _case(case, sizes=_SMALL)) for each in (shared, packets))
            assert found == expected, f"case {case}"
            without += _packets(shared) - before[0] == 1 < _packets(packets) - before[1]
    assert without > 20


def test_small_and_large_sums_follow_each_other_at_once() -> None:
    rng = np.random.default_rng(seed_of_this_run())
    with Cluster(WORKERS, shared=True) as cluster:
        for turn in range(80):
            works, sums = [], []
            for _ in range(8):
                size = int(rng.choice([1, 1_000, 5_461, 20_000, 150_000]))
                kind, sparse = [np.float32, np.int32][rng.integers(2)], bool(rng.integers(2))
                xs = [rng.integers(-(2**20), 2**20, size).astype(kind) for _ in range(WORKERS)]
                sums.append((sum(x.astype(np.int64) for x in xs), xs))
                works += [
                    (engine, _submit(engine, rank, WORKERS, xs[rank], True, sparse))
                    for rank, engine in cluster.engines.items()
                ]
            assert [engine.wait(work, 60 * SECOND) for engine, work in works] == [DONE] * len(works)
            assert all(np.array_equal(x, total) for total, xs in sums for x in xs), f"turn {turn}"


@pytest.mark.parametrize("words", [WORDS, 1030])  # of packets: through the cache, and maybe past it
@pytest.mark.parametrize(("dtype", "bits"), _OTHERS, ids=str)
def test_other_lanes_without_packets_have_the_same_bits(dtype: DType, bits: int, words: int) -> None:
    seed, without = seed_of_this_run(), 0
    udp = Cluster(WORKERS, shared=bits == BOUNDED)  # of these the last bits depend on segments
    udp.by_udp = set(range(WORKERS))
    memory = Cluster(WORKERS, shared=True)
    memory.words = udp.words = words
    with udp as packets, memory as shared:
        for case in range(seed, seed + 8):
            before = _packets(shared), _packets(packets)
            found, expected = (_results(each, _case(case, dtype, bits)) for each in (shared, packets))
            assert found == expected, f"case {case}"
            without += _packets(shared) - before[0] < (_packets(packets) - before[1]) / 2
    assert without > 0


def test_large_sums_without_packets_have_the_same_bits() -> None:
    """Of 16 MiB and more: one in place, two written past the cache, one of which begins amid a line."""
    size, seed = (1 << 22) + 77, seed_of_this_run()

    def ranks() -> list[dict[str, Any]]:
        found = []
        for rank in range(WORKERS):
            x = np.random.default_rng([seed, rank]).standard_normal(size, np.float32)
            out = [x, np.empty(size, np.float32), np.empty(size + 16, np.float32)[5:-11]][rank]
            found.append({"x": x, "out": out, "op": ReduceOp.SUM, "block": 64, "sparse": False})
        return found

    with Cluster(WORKERS) as packets, Cluster(WORKERS, shared=True) as shared:
        assert _results(shared, ranks()) == _results(packets, ranks())
        assert _packets(shared) < 300
        assert _packets(packets) > 60_000


@pytest.mark.parametrize(("workers", "segment"), [(8, 1 << 17), (9, 1 << 19)], ids=["8 ranks", "9 ranks"])
def test_large_sums_of_many_ranks_have_the_same_bits(workers: int, segment: int) -> None:
    """Of more than 8 ranks a segment is several units, and there are fewer plans."""
    seed = seed_of_this_run()

    def ranks(size: int) -> list[dict[str, Any]]:
        drawn = _case(seed + size, sizes=(size,), workers=workers)
        return [each | {"sparse": False, "mask": None, "block": 64} for each in drawn]

    with Cluster(workers) as packets, Cluster(workers, shared=True) as shared:
        for size in 600_000, 1_300_000:
            before = _packets(shared)
            assert _results(shared, ranks(size)) == _results(packets, ranks(size)), f"{size} elements"
            assert _packets(shared) - before == 1 + -(-size // segment)


_CLOCK: Final = """
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* now) {
  static __thread uint32_t random = 2463534242u;
  int error = (int)syscall(SYS_clock_gettime, clock, now);
  if (error || clock != CLOCK_MONOTONIC) return error;
  random ^= random << 13, random ^= random >> 17, random ^= random << 5;
  now->tv_nsec += random % 40000;
  if (now->tv_nsec >= 1000000000) now->tv_nsec -= 1000000000, ++now->tv_sec;
  return 0;
}
"""


def test_sums_have_the_same_bits_whichever_way_they_are_written(tmp_path: Path) -> None:
    """Writing past the cache follows the clock: by one that errs by 40 us it changes all the time."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, shim = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", shim], check=True)
    environment = {**os.environ, "LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {shim}"}
    errs = "import time; times = [time.monotonic_ns() for _ in range(9999)]; assert times != sorted(times)"
    subprocess.run([sys.executable, "-c", errs], env=environment, check=True)
    large = "without_packets_have_the_same_bits and not 64]"  # of the packets
    arguments = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", large, __file__]
    subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, cwd=ROOT, check=True)


@pytest.mark.parametrize("by_udp", [set(), {1}], ids=["shared", "one by UDP"])
def test_all_ranks_sum_without_packets_or_none(by_udp: set[int]) -> None:
    cluster = Cluster(WORKERS, shared=True)
    cluster.by_udp = by_udp
    size = 70_001
    given = [np.random.default_rng([7, rank]).standard_normal(size, np.float32) for rank in range(WORKERS)]
    ranks = [{"x": x, "out": x.copy(), "op": ReduceOp.SUM, "block": 64, "sparse": False} for x in given]
    with cluster:
        results = _results(cluster, ranks)
        assert (_packets(cluster) > size // WORDS) == bool(by_udp)
        packets = 1 + -(-size // WORDS)  # counted all the same, also that of the header and plan
        for engine in [] if by_udp else cluster.engines.values():  # by UDP some are sent again
            stats = engine.stats()
            for name in "packets_data", "packets_sent", "packets_received", "results":
                assert stats[name] == packets, name
            assert stats["bytes_sent"] == stats["bytes_received"] == packets * (16 + 4 * WORDS)
    assert results == [results[0]] * WORKERS
    assert np.allclose(ranks[0]["out"], np.sum(given, axis=0, dtype=np.float64), atol=1e-6)


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


def _in_huge_pages() -> set[str]:
    """The addresses where this process has memory of jobs with huge pages in it."""
    parts = re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    jobs = [part for part in parts if "memfd:switchagg" in part.partition("\n")[0]]
    return {part.split()[0] for part in jobs if re.search(r"ShmemPmdMapped: *[1-9]", part)}


def test_large_sums_put_the_memory_of_a_job_into_huge_pages() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage")
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    if release < (6, 6) or not setting.exists():
        pytest.skip(f"Linux {os.uname().release} is before 6.6, or has no huge pages")
    shared = (setting / "shmem_enabled").read_text()
    if "[never]" not in shared or int((setting / "hpage_pmd_size").read_text()) != 2 << 20:
        pytest.skip(f"huge pages of shared memory are not of 2 MB, or their setting is not never: {shared}")
    with Cluster(WORKERS, shared=True) as cluster:
        before = _in_huge_pages()
        for elements in 5_000, 8_000, 300_000, 300_000:
            xs = [np.full(elements, 1 + rank, np.float32) for rank in range(WORKERS)]
            call = {"op": ReduceOp.SUM, "block": 64, "sparse": True}
            _results(cluster, [{"x": x, "out": x} | call for x in xs])
            assert all((x == 6).all() for x in xs)
            assert elements == 300_000 or _in_huge_pages() <= before
        assert len(_in_huge_pages() - before) >= WORKERS


def _submitted(
    engine: _native.Engine, rank: int, workers: int, background: bool = True
) -> tuple[Any, Floats]:
    x = np.full(70_000, 1 + rank, np.float32)
    return _submit(engine, rank, workers, x, background), x


def _submit(
    engine: _native.Engine, rank: int, workers: int, x: Any, background: bool, sparse: bool = False
) -> Any:
    call = _native.Call(
        kind=Kind.ALLREDUCE, op=ReduceOp.SUM, bits=32, sparse=sparse, block=64, workers=workers, rank=rank,
        dtype=DType.F32 if x.dtype == np.float32 else DType.I32, count=x.size, fingerprint_count=x.size,
        shape_crc=1, input=x.ctypes.data, in_end=x.size, output=x.ctypes.data, out_end=x.size,
    )  # fmt: skip
    return engine.submit(call, 60 * SECOND, background, engine.generation)


def _begun(cluster: Cluster) -> list[tuple[_native.Engine, Any, Floats]]:
    """Starts a sum without slots of which rank 2 has sent its header and plan, and then does nothing."""
    found = [
        (engine, *_submitted(engine, rank, WORKERS, rank < 2)) for rank, engine in cluster.engines.items()
    ]
    late, work, _ = found[2]
    while late.stats()["positions"] < 1:  # with the plan behind the header
        late.wait(work, 1000)
    eventually(lambda: all(engine.late == 0b100 for engine in list(cluster.engines.values())[:2]))
    return found


def test_a_rank_that_is_late_within_a_sum_is_named() -> None:
    with Cluster(WORKERS, shared=True) as cluster:
        sums = _begun(cluster)
        assert [engine.wait(work, SECOND // 20) for engine, work, _ in sums[:2]] == [PENDING] * 2
        assert [engine.wait(work, 60 * SECOND) for engine, work, _ in reversed(sums)] == [DONE] * WORKERS
        assert all((x == 6).all() for _, _, x in sums)
        assert [engine.late for engine in cluster.engines.values()] == [0] * WORKERS


def test_a_fenced_rank_adds_up_nothing() -> None:
    with Cluster(WORKERS, shared=True) as cluster:
        sums = _begun(cluster)
        cluster.fence(2)
        assert [engine.wait(work, SECOND // 20) for engine, work, _ in reversed(sums)] == [PENDING] * WORKERS
        cluster.stop(2)
        for engine, _, _ in sums[:2]:
            engine.fail_from(0)
        assert cluster.change((0, 1)) == 0
        assert [engine.wait(work, 0) for engine, work, _ in sums[:2]] == [LOST] * 2
        again = [(engine, *_submitted(engine, rank, 2)) for rank, (engine, _, _) in enumerate(sums[:2])]
        assert [engine.wait(work, 60 * SECOND) for engine, work, _ in again] == [DONE] * 2
        assert all((x == 3).all() for _, _, x in again)


@pytest.mark.parametrize("by_udp", [set(), {0, 1}], ids=["shared", "by UDP"])
def test_a_rank_is_lost_in_a_sum_that_goes_on_after_a_move(by_udp: set[int]) -> None:
    with Cluster(WORKERS, shared=True) as cluster:
        sums = _begun(cluster)
        cluster.by_udp = by_udp
        cluster.replay(gone=[2])
        assert [engine.wait(work, SECOND // 20) for engine, work, _ in sums[:2]] == [PENDING] * 2
        assert [engine.late for engine, _, _ in sums[:2]] == [0b100] * 2
        assert cluster.change((0, 1)) == 0
        assert [engine.wait(work, 0) for engine, work, _ in sums[:2]] == [LOST] * 2
        again = [(engine, *_submitted(engine, rank, 2)) for rank, (engine, _, _) in enumerate(sums[:2])]
        assert [engine.wait(work, 60 * SECOND) for engine, work, _ in again] == [DONE] * 2
        assert all((x == 3).all() for _, _, x in again)


@pytest.mark.parametrize("by_udp", [set(), {0}, {0, 1, 2}], ids=["shared", "rank 0 by UDP", "all by UDP"])
def test_a_sum_goes_on_in_the_old_memory_after_a_move(by_udp: set[int]) -> None:
    with Cluster(WORKERS, shared=True) as cluster:
        sums = _begun(cluster)
        cluster.by_udp = by_udp
        cluster.replay()
        cluster.replay()
        assert [engine.wait(work, 60 * SECOND) for engine, work, _ in reversed(sums)] == [DONE] * WORKERS
        more = [(engine, *_submitted(engine, rank, WORKERS)) for rank, engine in cluster.engines.items()]
        assert [engine.wait(work, 60 * SECOND) for engine, work, _ in more] == [DONE] * WORKERS
        assert all((x == 6).all() for _, _, x in sums + more)
        assert _packets(cluster) < 10


def test_counts_are_those_of_packets_that_have_records() -> None:
    packets = 1 + 200
    with Cluster(WORKERS, shared=True) as cluster:
        sums = [Sum(engine, ones(1, 200 * WORDS)) for engine in cluster.engines.values()]
        assert [each.wait() for each in sums] == [DONE] * WORKERS
        for engine in cluster.engines.values():
            stats = engine.stats()
            for name in ("positions", "packets_data", "packets_sent", "results"):
                assert stats[name] == packets, name
            assert stats["bytes_sent"] == packets * (16 + 4 * WORDS)
        counts = cluster.switch.job_counters(cluster.job)
    wanted = {"accepted": 3 * packets, "stored": packets, "ored": 2, "added": 2 * (packets - 1)}
    assert {name: counts[name] for name in wanted} == wanted
    assert counts["results"] == packets
