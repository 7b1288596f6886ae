"""Membership changes at the engine: what is complete stays, what is not fails everywhere, sums are exact."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from typing import Any

import numpy as np
import pytest

from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from worker_lib import _native
from worker_lib.plan import Kind

from .generations import DONE, LOST, MOVED, PENDING, SECOND, TIMEOUT, Cluster, Sum
from .harness import in_threads

ELEMENTS = 40_000  # 625 packets: many windows


def ones(value: int, n: int = ELEMENTS) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.full(n, value, np.int32)


@pytest.mark.parametrize("way", [{}, {"link": True}, {"shared": True}], ids=str)
def test_a_rank_dies_in_the_middle_and_the_others_go_on(way: dict[str, bool]) -> None:
    with Cluster(3, **way) as cluster:
        first = [Sum(cluster.engines[p], ones(p + 1)) for p in range(3)]
        assert [s.wait() for s in first] == [DONE] * 3
        kept = ones(7)
        stuck = [
            Sum(cluster.engines[0], ones(1)),
            Sum(cluster.engines[1], kept, in_place=False),
        ]
        behind = Sum(cluster.engines[0], ones(1))
        assert stuck[0].wait(0.05) == PENDING
        cluster.stop(2)
        cluster.fence(2)
        assert cluster.change((0, 1)) == 1
        assert [s.wait(0) for s in (*stuck, behind)] == [LOST] * 3
        assert np.array_equal(kept, ones(7))
        after = [Sum(cluster.engines[p], ones(10 * p + 1)) for p in range(2)]
        assert [s.wait() for s in after] == [DONE] * 2
        for s in after:
            assert np.array_equal(s.x, ones(12))
        assert cluster.engines[0].generation == 1
        stats = cluster.engines[0].stats()
        assert stats["completed"] == 2
        assert stats["elements"] == 2 * ELEMENTS
        assert stats["bytes_reduced"] == 8 * ELEMENTS
        assert stats["packets_sent"] >= max(stats["positions"], 2 * ELEMENTS // 64)
        # Large sums take no packet numbers where slots are shared.
        assert (stats["positions"] < ELEMENTS // 64) == ("shared" in way)


def test_a_rank_is_lost_before_what_is_sent_again_at_another_switch_is_complete() -> None:
    with Cluster(3) as cluster:
        assert [s.wait() for s in [Sum(cluster.engines[p], ones(p + 1)) for p in range(3)]] == [DONE] * 3
        stuck = [Sum(cluster.engines[p], ones(1)) for p in range(2)]
        assert [s.wait(0.05) for s in stuck] == [PENDING] * 2
        cluster.replay()
        cluster.stop(2)
        cluster.fence(2)
        assert cluster.change((0, 1)) == 1
        assert [s.wait(0) for s in stuck] == [LOST] * 2
        after = [Sum(cluster.engines[p], ones(p + 1)) for p in range(2)]
        assert [s.wait() for s in after] == [DONE] * 2
        assert all(np.array_equal(s.x, ones(3)) for s in after)


def test_a_frozen_engine_awaits_nothing_of_incomplete_collectives() -> None:
    """They fail. No rank lacks anything else, so a lost rank need not have sent that again."""
    with Cluster(3) as cluster:
        assert [s.wait() for s in [Sum(cluster.engines[p], ones(p + 1)) for p in range(3)]] == [DONE] * 3
        stuck = [Sum(cluster.engines[p], ones(1)) for p in range(2)]
        assert [s.wait(0.05) for s in stuck] == [PENDING] * 2
        cluster.replay(gone=[2])
        assert [engine.replaying for engine in cluster.engines.values()] == [True] * 2
        assert [engine.freeze() for engine in cluster.engines.values()] == [1] * 2
        assert [engine.replaying for engine in cluster.engines.values()] == [False] * 2
        cluster.fence(2)
        assert cluster.change((0, 1)) == 1
        assert [s.wait(0) for s in stuck] == [LOST] * 2


@pytest.mark.parametrize("gone", [True, False])
def test_a_frozen_engine_awaits_what_others_may_lack_of_complete_collectives(gone: bool) -> None:
    """Rank 0 is complete, rank 1 is not, and rank 2 ends before or after it has sent that again."""
    with Cluster(3) as cluster:
        sums = of_which_rank_1_lacks_results(cluster)
        lowest = [engine.suspend()[0] for engine in cluster.engines.values()]
        assert lowest[1] < lowest[0]
        cluster.replay(gone=[2] if gone else [])
        zero, one = cluster.engines[0], cluster.engines[1]
        if gone:
            assert sums[1].wait(0.2) == PENDING
        else:
            eventually(lambda: not zero.replaying and not one.replaying)
            cluster.stop(2)
        assert [zero.freeze(), one.freeze()] == [1, 0 if gone else 1]
        assert [zero.replaying, one.replaying] == [gone, False]
        zero.abort()
        assert zero.replaying == gone  # it will never hold them


def of_which_rank_1_lacks_results(cluster: Cluster) -> list[Sum]:
    """Sums of three ranks that rank 0 has; rank 1 has not looked since it sent its last packet."""
    packets = 4  # they all fit the window
    sums = [Sum(cluster.engines[p], ones(p + 1, 64 * packets), background=p != 1) for p in range(3)]
    # Driven a slice at a time, in which an engine receives before it sends.
    while cluster.engines[1].stats()["positions"] < 1 + packets:
        cluster.engines[1].wait(sums[1].native, 1000)
    assert sums[0].wait() == DONE
    return sums


def test_whoever_lacks_a_result_of_a_complete_collective_fetches_it() -> None:
    """Rank 0 has it all; rank 1 has not looked since it sent its last packet; rank 2 is gone."""
    with Cluster(3) as cluster:
        sums = of_which_rank_1_lacks_results(cluster)
        cluster.stop(2)
        cluster.fence(2)
        assert cluster.change((0, 1)) == 1
        assert sums[1].wait(0) == DONE
        assert np.array_equal(sums[1].x, ones(6, sums[1].x.size))


def test_an_engine_on_its_way_to_another_switch_fetches_results_from_the_old_one() -> None:
    """As where a rank is lost while the job leaves a switch that is drained."""
    with Cluster(3) as cluster:
        sums = of_which_rank_1_lacks_results(cluster)
        cluster.engines[1].suspend()
        assert sums[1].wait(0.05) == PENDING
        cluster.stop(2)
        cluster.fence(2)
        assert cluster.change((0, 1)) == 1
        assert sums[1].wait(0) == DONE
        assert np.array_equal(sums[1].x, ones(6, sums[1].x.size))


def test_frozen_engines_complete_nothing_and_time_out_all_the_same() -> None:
    with Cluster(2) as cluster:
        assert [e.freeze() for e in cluster.engines.values()] == [0, 0]
        sums = [Sum(e, ones(1), seconds=0.2) for e in cluster.engines.values()]
        assert [s.wait() for s in sums] == [TIMEOUT] * 2
        assert cluster.engines[0].broken
        assert not cluster.engines[0].finish(1, SECOND)
        assert cluster.engines[0].stats()["positions"] == 0


def test_a_later_collective_is_not_done_before_an_earlier_one() -> None:
    """Under loss RESULTs come in any order; statuses come in call order."""
    with Cluster(2, faults=Faults(loss=0.2, seed=5)) as cluster:
        works = [[Sum(e, ones(i + 1, 64)) for i in range(60)] for e in cluster.engines.values()]
        deadline = time.monotonic() + 30
        while works[0][-1].native.status == PENDING and time.monotonic() < deadline:
            seen = [s.native.status for s in reversed(works[0])]  # the last first, so none is missed
            assert seen == sorted(seen)
            time.sleep(0.0002)
        for rank in works:
            assert [s.wait() for s in rank] == [DONE] * 60
            assert [int(s.x[0]) for s in rank] == [2 * (i + 1) for i in range(60)]


def attention(engine: _native.Engine) -> int:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    engine.set_pause_eventfd(descriptor)
    return descriptor


def test_a_pause_stops_all_ranks_after_the_same_collective() -> None:
    with Cluster(3) as cluster:
        bells = [attention(e) for e in cluster.engines.values()]
        cluster.engines[1].request_pause()  # only rank 0's counts
        first = [Sum(e, ones(1, 100)) for e in cluster.engines.values()]
        assert [s.wait() for s in first] == [DONE] * 3
        cluster.engines[0].request_pause()
        second = [Sum(e, ones(2)) for e in cluster.engines.values()]
        third = [Sum(cluster.engines[p], ones(3)) for p in range(2)]
        assert [s.wait() for s in second] == [DONE] * 3
        for bell in bells:
            assert select.select([bell], [], [], 60)[0]
            assert os.eventfd_read(bell) == 1
        assert [s.wait(0.05) for s in third] == [PENDING] * 2
        assert all(e.halted for e in cluster.engines.values())
        # A fourth comes, and everything not begun is carried out with it.
        assert cluster.change((0, 1, 2, 3)) == 2
        third += [Sum(cluster.engines[p], ones(3)) for p in (2, 3)]
        assert [s.wait() for s in third] == [DONE] * 4
        for s in third:
            assert np.array_equal(s.x, ones(12))
            assert s.native.generation == cluster.engines[0].generation * (s is not third[3])
        for bell in bells:
            os.close(bell)


def test_a_collective_that_depends_on_the_number_of_ranks_is_left_undone_by_all() -> None:
    with Cluster(2) as cluster:
        for e in cluster.engines.values():
            e.freeze()
        early = Sum(cluster.engines[0], ones(5), kind=Kind.REDUCE_SCATTER)
        cluster.change((0, 1, 2))
        late = [Sum(cluster.engines[p], ones(5), kind=Kind.REDUCE_SCATTER) for p in (1, 2)]
        assert [s.wait() for s in (early, *late)] == [MOVED] * 3
        again = [Sum(cluster.engines[p], ones(p)) for p in range(3)]
        assert [s.wait() for s in again] == [DONE] * 3
        assert np.array_equal(again[0].x, ones(3))


def test_a_withdrawn_collective_is_left_undone_by_ranks_that_call_another() -> None:
    with Cluster(2) as cluster:
        for e in cluster.engines.values():
            e.freeze()
        early = Sum(cluster.engines[0], ones(5), kind=Kind.ALLGATHERV)
        cluster.change((0, 1, 2))
        late = [Sum(cluster.engines[p], ones(7), kind=Kind.ALLREDUCE) for p in (1, 2)]
        assert [s.wait() for s in (early, *late)] == [MOVED] * 3
        again = [Sum(cluster.engines[p], ones(p)) for p in range(3)]
        assert [s.wait() for s in again] == [DONE] * 3


def test_calls_for_a_former_generation_are_not_taken() -> None:
    with Cluster(2) as cluster:
        cluster.change((0, 1))
        call = _native.Call(4, 2, 6, 32, 0, True, 64, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, True)
        assert cluster.engines[0].submit(call, SECOND, False, 0) is None
        assert cluster.engines[0].calls == 0
        assert cluster.engines[0].submit(call, SECOND, False, 1) is not None


def test_a_rank_that_has_left_dooms_what_it_did_not_begin() -> None:
    with Cluster(2) as cluster:
        sums = [Sum(e, ones(1)) for e in cluster.engines.values()]
        assert [s.wait() for s in sums] == [DONE] * 2
        assert cluster.engines[1].begun == 1
        waiting = [Sum(cluster.engines[0], ones(1)) for _ in range(3)]
        assert waiting[0].wait(0.02) == PENDING
        cluster.engines[0].fail_from(cluster.engines[1].begun)
        assert [s.wait() for s in waiting] == [LOST] * 3
        assert Sum(cluster.engines[0], ones(1)).wait() == LOST
        assert not cluster.engines[0].broken


def test_silence_counts_from_the_collective_that_it_is_asked_for() -> None:
    with Cluster(2) as cluster:
        sums = [Sum(e, ones(1)) for e in cluster.engines.values()]
        assert [s.wait() for s in sums] == [DONE] * 2
        one = cluster.engines[0]
        assert (one.begun, one.completed, one.silence_ns(0)) == (1, 1, 0)
        waiting = Sum(one, ones(1))
        eventually(lambda: one.begun == 2)
        assert one.completed == 1
        eventually(lambda: one.silence_ns(1) >= 20_000_000)
        assert waiting.wait(0) == PENDING
        assert one.silence_ns(2) == 0  # it is complete elsewhere


@pytest.mark.parametrize("link", [False, True])
def test_random_changes_under_loss(link: bool) -> None:
    """Ranks die and come back at any moment, with several collectives in flight; whatever completes is exact.

    A worker goes on after a loss as soon as it has seen one of its collectives fail, as a session does.
    """
    seed = seed_of_this_run()
    draw = random.Random(seed)
    faults = Faults(loss=0.02, duplicate=0.01, reorder=0.02, seed=seed)
    with Cluster(5, faults=faults, link=link, seed=seed) as cluster:
        stop = threading.Event()
        # Each rank's completed sums, by (generation of the cluster, index in it).
        members: dict[int, tuple[int, ...]] = {0: cluster.places}
        completed: dict[tuple[int, int], set[int]] = {}
        book = threading.Lock()
        born = dict.fromkeys(cluster.places, 0)  # the generation in which an engine was made

        def work(place: int, engine: _native.Engine) -> None:
            local = random.Random(seed * 31 + place)
            index: dict[int, int] = {}
            flight: list[tuple[int, Sum]] = []
            while not stop.is_set() and not engine.broken:
                flight.append((place, Sum(engine, ones(1 << place, 64 * 20))))
                if len(flight) < local.randrange(1, 5):
                    continue
                failed = False
                for _, s in flight:
                    while (status := s.wait(0.2)) == PENDING and not stop.is_set():
                        pass
                    if status == DONE:
                        generation = s.native.generation + born[place]
                        at = (generation, s.native.call_number)
                        assert len(set(s.x.tolist())) == 1
                        with book:
                            completed.setdefault(at, set()).add(int(s.x[0]))
                        assert index.get(generation, -1) < s.native.call_number
                        index[generation] = s.native.call_number
                    failed |= status != DONE
                flight.clear()

        threads = {
            p: threading.Thread(target=work, args=(p, e), daemon=True) for p, e in cluster.engines.items()
        }
        for thread in threads.values():
            thread.start()
        for change in range(1, 13):
            time.sleep(draw.uniform(0.0, 0.15))
            here = list(cluster.places)
            away = [p for p in range(5) if p not in here]
            if len(here) > 1 and (not away or draw.random() < 0.6):
                gone = draw.sample(here, draw.randrange(1, min(3, len(here))))
                for p in gone:
                    cluster.fence(p)
                    cluster.stop(p)
                places = tuple(p for p in here if p not in gone)
            else:
                for bell_rank in here[:1]:
                    cluster.engines[bell_rank].request_pause()
                wait_until_frozen(cluster)
                places = tuple(sorted([*here, draw.choice(away)]))
            with book:
                members[change] = places
                for p in places:
                    if p not in here:
                        born[p] = change
            cluster.change(places)
            for p in places:
                if p not in here:
                    threads[p] = threading.Thread(target=work, args=(p, cluster.engines[p]), daemon=True)
                    threads[p].start()
        eventually(lambda: len(completed) > len(members))
        for e in cluster.engines.values():
            e.abort()  # before a thread stops, and lets go of what is summed
        stop.set()
        for thread in threads.values():
            thread.join(60)
            assert not thread.is_alive()
    for (generation, _), sums in completed.items():
        assert sums == {sum(1 << p for p in members[generation])}


def wait_until_frozen(cluster: Cluster) -> None:
    deadline = time.monotonic() + 60
    while not all(e.halted for e in cluster.engines.values()):
        assert time.monotonic() < deadline, "not all ranks paused"
        time.sleep(0.001)


def test_engines_change_while_many_threads_wait() -> None:
    with Cluster(2) as cluster:
        works = [Sum(cluster.engines[0], ones(1)) for _ in range(4)]

        def change() -> int:
            time.sleep(0.05)
            cluster.stop(1)
            cluster.fence(1)
            return cluster.change((0,))

        *waited, changed = in_threads([*(s.wait for s in works), change])
        assert [w.get() for w in waited] == [LOST] * 4
        assert changed.get() == 0
        alone = Sum(cluster.engines[0], ones(3))
        assert alone.wait() == DONE
        assert np.array_equal(alone.x, ones(3))
