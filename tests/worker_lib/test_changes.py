"""Sessions when ranks are lost, leave and come back: who is told what, when, and that sums stay exact."""

from __future__ import annotations

import ctypes
import math
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.control.jobs.records import OPEN
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run
from tests.waiting import eventually
from worker_lib import (
    AdmissionError,
    MismatchError,
    Session,
    SessionBrokenError,
    SwitchError,
    WorkerLostError,
    extrema,
)
from worker_lib.compress import SharedExponent, StochasticRounding

from .harness import Outcome, ProcessEnded, in_threads, job_name, processes, say, together, try_together

I32 = np.int32


def vanish(session: Session) -> None:
    """As if the session's process had ended: no leave, and its connection closes."""
    assert session._state.monitor is not None
    assert session._state.engine is not None
    session._state.monitor.drop()
    session._state.engine.close()
    session._state.closed = True


def sum_of(session: Session, n: int = 5000) -> int:
    """An all-reduce that says who took part: bit p for the rank that joined as p."""
    x = np.full(n, 1 << session.places[session.rank], I32)
    session.allreduce(x)
    assert len(set(x.tolist())) == 1
    return int(x[0])


def back(*arguments: Any, **settings: Any) -> Session:
    """Connects, as soon as the controller knows that the place is free."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return worker_lib.connect(*arguments, **settings)
        except AdmissionError as error:
            if error.code != "rank_taken" or time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def places(total: int) -> tuple[int, ...]:
    return tuple(p for p in range(32) if total >> p & 1)


# ---------------------------------------------------------------------- fail


def test_a_lost_rank_is_named_at_once_to_those_who_wait(host: EmbeddedController) -> None:
    all_have_it = threading.Barrier(3)

    def call(session: Session) -> None:
        session.barrier()
        if session.rank == 1:
            all_have_it.wait(60)
            return vanish(session)
        works = [session.allreduce_async(np.ones(100, I32)) for _ in range(3)]
        all_have_it.wait(60)
        with pytest.raises(WorkerLostError, match=r"rank 1 was lost: .*allreduce\(int32") as caught:
            works[1].wait()
        assert caught.value.ranks == (1,)
        for work in works:
            with pytest.raises(WorkerLostError, match="rank 1"):
                work.wait()
        with pytest.raises(SessionBrokenError, match="rank 1 was lost"):
            session.barrier()
        return None

    together(host.url, 3, call)
    assert host.controller.queries.slots(OPEN)["ranges"] == []


def test_who_was_not_waiting_is_told_by_the_next_call(host: EmbeddedController) -> None:
    all_have_it = threading.Barrier(2)

    def call(session: Session) -> None:
        session.barrier()
        all_have_it.wait(60)
        if session.rank == 1:
            return vanish(session)
        monitor = session._state.monitor
        assert monitor is not None
        eventually(lambda: monitor.over is not None)
        with pytest.raises(WorkerLostError, match="rank 1 was lost") as caught:
            session.barrier()
        assert caught.value.ranks == (1,)
        with pytest.raises(SessionBrokenError, match="rank 1 was lost"):
            session.barrier()
        return None

    together(host.url, 2, call)


def test_a_rank_that_left_in_order_is_named_to_who_needs_it(host: EmbeddedController) -> None:
    both = threading.Barrier(2)  # no other leaves before both have heard

    def call(session: Session) -> None:
        assert sum_of(session) == 7
        if session.rank == 1:
            return
        for _ in range(2):
            with pytest.raises(WorkerLostError, match="rank 1 left the job in order, and barrier") as caught:
                session.barrier()
            assert caught.value.ranks == (1,)
        both.wait(60)

    together(host.url, 3, call)


def test_others_go_on_without_a_rank_that_left_in_order_and_that_they_need(host: EmbeddedController) -> None:
    def call(session: Session) -> tuple[str, int]:
        assert sum_of(session) == 0b111
        if session.rank == 1:
            return "", 0
        with pytest.raises(WorkerLostError) as caught:
            sum_of(session)
        assert caught.value.ranks == (1,)
        assert session.world_size == 2
        return str(caught.value), sum_of(session)

    first, left, last = try_together(host.url, 3, call, on_loss="shrink")
    assert left.get() == ("", 0)
    for outcome in (first, last):
        said, total = outcome.get()
        assert said.startswith("rank 1 left the job in order; allreduce(")
        assert "goes on with 2 ranks" in said
        assert total == 0b101


def test_the_last_rank_goes_on_alone_after_all_others_have_left(host: EmbeddedController) -> None:
    """Several of its calls have begun then, and nobody waits for one of them."""

    def call(session: Session) -> int:
        assert sum_of(session) == 0b11
        if session.rank == 1:
            return 0
        works = [session.allreduce_async(np.ones(100, I32)) for _ in range(3)]
        for work in works[1:]:
            with pytest.raises(WorkerLostError, match="rank 1 left the job in order"):
                work.wait()
        assert (session.rank, session.world_size) == (0, 1)
        return sum_of(session)

    assert together(host.url, 2, call, on_loss="shrink") == [1, 0]


def test_others_go_on_without_a_rank_that_an_exception_ended(host: EmbeddedController) -> None:
    def call(session: Session) -> tuple[str, int]:
        assert sum_of(session) == 7
        if session.rank == 1:
            raise ValueError("bad batch")
        with pytest.raises(WorkerLostError) as caught:
            sum_of(session)
        assert caught.value.ranks == (1,)
        return str(caught.value), sum_of(session)

    first, failed, last = try_together(host.url, 3, call, on_loss="shrink")
    assert isinstance(failed.error, ValueError)
    for outcome in (first, last):
        said, total = outcome.get()
        assert said.startswith("rank 1 was lost: it ended with ValueError: bad batch; allreduce(")
        assert total == 0b101


def test_results_that_are_under_way_still_come_when_a_rank_leaves() -> None:
    """The last one out has lost packets to fetch, and the others are gone in order."""
    seed = seed_of_this_run()
    with EmbeddedController(faults=Faults(loss=0.1, seed=seed)) as host:

        def call(session: Session) -> list[int]:
            return [sum_of(session, 20_000) for _ in range(5)]

        assert together(host.url, 3, call) == [[7] * 5] * 3


def test_results_that_take_long_still_come_when_a_rank_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the switch is silent: it has all that was complete on a rank that has left."""
    monkeypatch.setattr("worker_lib.work._SILENCE_NS", 1)
    seed = seed_of_this_run()
    with EmbeddedController(faults=Faults(loss=0.2, delay=0.1, seed=seed)) as host:
        for _ in range(6):
            assert together(host.url, 4, sum_of, 20_000, transport="udp") == [15] * 4


def reduces_for_ever(session: Session) -> None:
    while True:
        session.allreduce(np.ones(100, I32))
        time.sleep(0.01)


def test_an_evicted_job(host: EmbeddedController) -> None:
    name = job_name()

    def call(session: Session) -> None:
        session.barrier()
        if session.rank == 0:
            time.sleep(0.1)
            host.controller.evict(OPEN, name)
            with pytest.raises(SwitchError, match="evicted"):
                reduces_for_ever(session)
        else:
            with pytest.raises(SwitchError, match="evicted"):
                reduces_for_ever(session)
        with pytest.raises(SessionBrokenError, match="evicted"):
            session.barrier()

    together(host.url, 2, call, job=name)
    assert host.controller.queries.slots(OPEN)["ranges"] == []


# ---------------------------------------------------------------------- shrink


def test_the_others_go_on_after_a_loss(host: EmbeddedController) -> None:
    all_have_it = threading.Barrier(4)

    def call(session: Session) -> Any:
        assert session.places == (0, 1, 2, 3)
        assert sum_of(session) == 15
        kept, out = np.full(100, 3, I32), np.zeros(100, I32)
        session.allreduce(kept, out=out)  # as later, when it is a call of fewer ranks
        all_have_it.wait(60)
        if session.rank in (1, 2):
            if session.rank == 2:
                time.sleep(0.05)
            return vanish(session)
        seen: list[Any] = []
        told: list[str] = []
        assert out[0] == 12
        while len(seen) < 20:
            try:
                session.allreduce(kept, out=out)
                seen.append((session.places, int(out[0])))
            except WorkerLostError as error:
                seen.append(error.ranks)
                told.append(str(error))
        assert set(kept.tolist()) == {3}
        assert all("goes on with" in text for text in told)
        assert session.world_size == len(session.places)
        assert session.places[session.rank] == (0 if session.rank == 0 else 3)
        assert "open" in repr(session)
        return seen

    first, _, _, last = together(host.url, 4, call, on_loss="shrink", deadline=5.0)
    assert first == last
    assert ((0, 3), 6) in first
    lost = [entry for entry in first if isinstance(entry[0], int)]
    # Both at once, or one after the other: rank 2 when it had become rank 1, or before rank 1.
    assert lost in ([(1, 2)], [(1,), (1,)], [(2,), (1,)])


def test_asynchronous_collectives_fail_together_and_later_ones_match(host: EmbeddedController) -> None:
    """Rank 0 has called more than rank 2 when rank 1 is lost. Both see the same, and go on alike."""

    def call(session: Session) -> Any:
        def step(value: int) -> list[Any]:
            works = []
            try:
                for i in range(6):
                    works.append(session.allreduce_async(np.full(1000, value + i, I32)))
                    if session.rank and not session._state.generation:
                        time.sleep(0.05)
                return [int(work.wait()[0]) for work in works]
            except WorkerLostError as error:
                return [type(error)]

        assert step(1) == [3 * (1 + i) for i in range(6)]
        if session.rank == 1:
            works = [session.allreduce_async(np.full(1000, 1, I32)) for _ in range(2)]
            for work in works:
                work.wait()
            return vanish(session)
        return [step(1), step(10), step(100)]

    first, _, last = together(host.url, 3, call, on_loss="shrink", deadline=5.0)
    assert (
        first == last == [[WorkerLostError], [20 + 2 * i for i in range(6)], [200 + 2 * i for i in range(6)]]
    )


def test_one_that_is_left_goes_on_alone_and_is_joined_again(host: EmbeddedController) -> None:
    name = job_name()
    alone, all_have_it = threading.Event(), threading.Barrier(2)
    settings: dict[str, Any] = {"on_loss": "shrink", "deadline": 5.0, "timeout": 20.0}

    def survivor() -> list[int]:
        with worker_lib.connect(host.url, name, 0, 2, **settings) as session:
            assert sum_of(session) == 3
            all_have_it.wait(60)
            with pytest.raises(WorkerLostError, match="goes on with 1 rank:"):
                session.barrier()
            assert (session.rank, session.world_size, session.places) == (0, 1, (0,))
            assert sum_of(session) == 1
            assert session.allgather(np.ones(3, I32)).shape == (1, 3)
            session.barrier()
            alone.set()
            deadline = time.monotonic() + 60
            while session.world_size == 1 and time.monotonic() < deadline:
                session.barrier()
                time.sleep(0.005)
            assert session.places == (0, 1)
            total = sum_of(session)
            gathered = session.allgather(np.full(3, session.rank, I32))
            return [total, *gathered[:, 0].tolist()]

    def lost_and_back() -> list[int]:
        session = worker_lib.connect(host.url, name, 1, 2, **settings)
        assert sum_of(session) == 3
        all_have_it.wait(60)
        vanish(session)
        assert alone.wait(60)
        with back(host.url, name, 1, 2, **settings) as session:
            assert (session.rank, session.places) == (1, (0, 1))
            session.barrier()  # the one that rank 0 was in when it changed
            total = sum_of(session)
            gathered = session.allgather(np.full(3, session.rank, I32))
            return [total, *gathered[:, 0].tolist()]

    for outcome in in_threads([survivor, lost_and_back], limit=200):
        assert outcome.get() == [3, 0, 1]


def test_a_rank_that_comes_back_takes_part_from_a_later_collective_on(host: EmbeddedController) -> None:
    name = job_name()
    settings: dict[str, Any] = {"on_loss": "shrink", "deadline": 5.0, "timeout": 20.0}
    all_have_it = threading.Barrier(3)

    def member(rank: int) -> list[tuple[int, ...]]:
        session = worker_lib.connect(host.url, name, rank, 3, **settings)
        assert sum_of(session) == 7
        all_have_it.wait(60)
        if rank == 1:
            vanish(session)
            session = back(host.url, name, rank, 3, **settings)
        seen: list[tuple[int, ...]] = []
        lost: list[tuple[int, ...]] = []
        with session:
            while seen.count((0, 1, 2)) < 10:
                try:
                    seen.append(places(sum_of(session)))
                except WorkerLostError as error:
                    lost.append(error.ranks)
        assert lost == ([] if rank == 1 else [(1,)])
        return seen

    first, second, last = [o.get() for o in in_threads([lambda r=r: member(r) for r in range(3)], limit=200)]
    assert first == last
    assert second == first[-10:] == [(0, 1, 2)] * 10
    assert set(first[:-10]) <= {(0, 2)}


def _highest(session: Session) -> tuple[int, ...]:
    x = np.zeros(3000, I32)
    x[session.places[session.rank] :: 32] = 1
    return tuple(int(p) for p in np.flatnonzero(session.allreduce(x, op="max")[:32]))


def _rows(session: Session) -> tuple[int, ...]:
    place = session.places[session.rank]
    return tuple(int(rows[0]) for rows in session.allgatherv(np.full(place + 1, place, np.uint8)))


def _objects(session: Session) -> tuple[int, ...]:
    return tuple(session.allgather_object(session.places[session.rank]))


def _object(session: Session) -> tuple[int, ...]:
    session.broadcast_object(object if session.rank == 1 else None, 1)
    return session.places


def _compressed(session: Session) -> tuple[int, ...]:
    x = np.full(1000, 1 << session.places[session.rank], np.float32)
    session.allreduce(x, op="avg", compressor=StochasticRounding(2.0**-8))
    return places(round(float(x[0]) * session.world_size))


def _compressed_with_a_scale(session: Session) -> tuple[int, ...]:
    x = np.full(1000, 1 << session.places[session.rank], np.float32)
    session.allreduce(x, op="avg", compressor=SharedExponent())
    return places(round(float(x[0]) * session.world_size))


@pytest.mark.parametrize("transport", ["shm", "udp"])
@pytest.mark.parametrize("call", [_highest, _rows, _objects, _object, _compressed, _compressed_with_a_scale])
def test_calls_of_several_collectives_begin_again_when_a_rank_comes_back(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch, call: Any, transport: str
) -> None:
    monkeypatch.setattr(extrema, "GATHERED_RANKS", 1)
    monkeypatch.setattr(extrema, "GATHERED_BYTES", 0)
    name = job_name()
    settings: dict[str, Any] = {
        "on_loss": "shrink", "deadline": 5.0, "timeout": 20.0, "transport": transport,
    }  # fmt: skip
    all_have_it = threading.Barrier(3)

    def member(rank: int) -> list[tuple[int, ...]]:
        session = worker_lib.connect(host.url, name, rank, 3, **settings)
        assert call(session) == (0, 1, 2)
        all_have_it.wait(60)
        if rank == 1:
            vanish(session)
            time.sleep(0.1)  # the others go on without it
            session = back(host.url, name, rank, 3, **settings)
        seen: list[tuple[int, ...]] = []
        lost: list[tuple[int, ...]] = []
        with session:
            while seen.count((0, 1, 2)) < 10:
                try:
                    seen.append(call(session))
                except WorkerLostError as error:
                    lost.append(error.ranks)
        assert lost == ([] if rank == 1 else [(1,)])
        return seen

    first, second, last = [o.get() for o in in_threads([lambda r=r: member(r) for r in range(3)], limit=200)]
    assert first == last
    assert second == first[-10:] == [(0, 1, 2)] * 10
    assert set(first[:-10]) <= {(0, 2)}


def test_a_collective_called_for_another_number_of_ranks(host: EmbeddedController) -> None:
    """Rank 0 calls an allgather that waits for the change; the others call it after it."""
    name = job_name()
    settings: dict[str, Any] = {"on_loss": "shrink", "deadline": 5.0, "timeout": 20.0}
    gone, called = threading.Event(), threading.Event()

    def gathers(session: Session) -> list[int]:
        rows = session.allgather(np.full(2, session.places[session.rank], I32))
        return [int(row[0]) for row in rows]

    def first() -> Any:
        with worker_lib.connect(host.url, name, 0, 3, **settings) as session:
            with pytest.raises(WorkerLostError):
                session.barrier()
            gone.set()
            wait_for_pause(session)
            monitor: Any = session._state.monitor
            change = monitor._change
            monitor._change = lambda: (called.wait(60), change())
            session.barrier()  # all ranks pause after this one
            background = session.allgather_async(np.ones(2, I32))
            called.set()
            with pytest.raises(MismatchError, match=r"before and after another rank came back"):
                background.wait()
            return gathers(session)

    def second() -> Any:
        with worker_lib.connect(host.url, name, 1, 3, **settings) as session:
            with pytest.raises(WorkerLostError):
                session.barrier()
            session.barrier()
            assert called.wait(60)
            with pytest.raises(MismatchError, match="call it again"):
                session.allgather_async(np.ones(2, I32)).wait()
            return gathers(session)

    def third() -> Any:
        vanish(worker_lib.connect(host.url, name, 2, 3, **settings))
        assert gone.wait(60)
        with back(host.url, name, 2, 3, **settings) as session:
            with pytest.raises(MismatchError):
                session.allgather_async(np.ones(2, I32)).wait()
            return gathers(session)

    for outcome in in_threads([first, second, third], limit=200):
        assert outcome.get() == [0, 1, 2]


def wait_for_pause(session: Session) -> None:
    """Until the controller has asked rank 0 for a pause."""
    assert session._state.engine is not None
    engine = session._state.engine
    eventually(lambda: engine.pause_requested)


def test_groups_after_a_change(host: EmbeddedController) -> None:
    all_have_it = threading.Barrier(3)

    def call(session: Session) -> Any:
        with_all = session.group([0, 2])
        if with_all is not None:
            assert sum_of(with_all) == 3
            with_all.close()
        session.barrier()
        all_have_it.wait(60)
        if session.rank == 1:
            return vanish(session)
        with pytest.raises(WorkerLostError):
            session.barrier()
        group = session.group([1, 0])
        assert group is not None
        with group:
            total = sum_of(group)
        return session.rank, group.rank, total

    assert together(host.url, 3, call, on_loss="shrink", deadline=5.0) == [(0, 1, 3), None, (1, 0, 3)]


# ---------------------------------------------------------------------- silence


def holds_the_lock(session: Session, seconds: float) -> int:
    """Rank 1 does not let go of the interpreter for longer than the job's deadline."""
    session.barrier()
    if session.rank == 1:
        before = time.monotonic()
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        assert time.monotonic() - before >= seconds
    return sum_of(session)


def test_holding_the_interpreter_s_lock_is_no_silence(host: EmbeddedController) -> None:
    with processes(host.url, 2, holds_the_lock, 3.2, deadline=2.0) as ranks:
        for rank in ranks:
            assert rank.finish().get() == 3


def works_until_told(session: Session) -> tuple[tuple[int, ...], str, int]:
    """All-reduces until a rank is lost, then once more; returns the lost ranks, the reason and the sum."""
    session.allreduce(np.ones(1000, I32))
    say("working")
    while True:
        try:
            session.allreduce(np.ones(100_000, I32))
        except WorkerLostError as error:
            return error.ranks, str(error), sum_of(session)


def stopped_and_continued(session: Session) -> str:
    session.allreduce(np.ones(1000, I32))
    say("working")
    try:
        while True:
            session.allreduce(np.ones(100_000, I32))
    except SwitchError as error:
        return str(error)


def rank_of(session: Session, stopped: int) -> Any:
    return stopped_and_continued(session) if session.rank == stopped else works_until_told(session)


def test_a_stopped_rank_is_lost_after_its_deadline_and_changes_nothing_when_it_wakes(
    host: EmbeddedController,
) -> None:
    with processes(host.url, 3, rank_of, 1, deadline=2.0, on_loss="shrink") as ranks:
        for rank in ranks:
            rank.hear()
        time.sleep(0.3)  # so that heartbeats have come
        ranks[1].signal(signal.SIGSTOP)
        told = [ranks[i].finish().get() for i in (0, 2)]
        ranks[1].signal(signal.SIGCONT)
        for lost, message, total in told:
            assert lost == (1,)
            assert "silent" in message
            assert total == 5
        assert "lost" in ranks[1].finish().get()


def dies_or_works(session: Session, victim: int) -> Any:
    if session.rank != victim:
        return works_until_told(session)
    session.allreduce(np.ones(1000, I32))
    say("working")
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def test_a_killed_rank_is_named_at_once(host: EmbeddedController) -> None:
    with processes(host.url, 3, dies_or_works, 0, deadline=60.0, on_loss="shrink") as ranks:
        ranks[0].hear()
        with pytest.raises(ProcessEnded):
            ranks[0].finish().get()
        for i in (1, 2):
            lost, message, total = ranks[i].finish(50).get()  # long before the deadline
            assert lost == (0,)
            assert "process ended" in message
            assert total == 6


# ---------------------------------------------------------------------- anything at any time


@pytest.fixture(params=["auto", "udp"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_random_losses_and_returns(way: str) -> None:
    """Ranks vanish and come back at random moments, with collectives in flight; what completes is exact, and
    alike at all ranks that were in it."""
    seed = seed_of_this_run()
    n, seconds = 4, 4.0
    name = job_name()
    settings: dict[str, Any] = {"on_loss": "shrink", "deadline": 5.0, "timeout": 15.0, "transport": way}
    with EmbeddedController(faults=Faults(loss=0.005, reorder=0.01, seed=seed)) as host:
        begun = time.monotonic()
        lives = [0] * n
        # (job id of the generation, index) -> the sum that each place saw
        seen: dict[tuple[int, int], dict[int, int]] = {}
        book = threading.Lock()

        def enough() -> bool:
            """True, from some moment on, when ranks have come back and summed often enough."""
            with book:
                often = sum(lives) > n + 2 and len(seen) > 50
                return often and time.monotonic() > begun + seconds

        def member(place: int) -> None:
            draw = random.Random(seed * 7 + place)
            while not enough():
                try:
                    session = back(host.url, name, place, n, join_timeout=8.0, **settings)
                except AdmissionError:
                    if enough():  # the others have ended meanwhile
                        return
                    raise
                with book:
                    lives[place] += 1
                live(session, place, draw, draw.uniform(0.3, 3.0) if place else math.inf)
                if enough():
                    session.close()
                    return
                vanish(session)
                time.sleep(draw.uniform(0.0, 0.2))

        def live(session: Session, place: int, draw: random.Random, seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until and not enough():
                try:
                    works = [
                        session.allreduce_async(np.full(3000, 1 << place, I32))
                        for _ in range(draw.randrange(1, 5))
                    ]
                    for work in works:
                        x = work.wait()
                        assert len(set(x.tolist())) == 1
                        if work._native is None:
                            assert x[0] == 1 << place  # alone
                            continue
                        assert session._state.monitor is not None
                        generation = session._state.monitor.generations[work._native.generation]
                        with book:
                            seen.setdefault((generation.job, work._native.call_number), {})[place] = int(x[0])
                            assert places(int(x[0])) == generation.places
                except WorkerLostError:
                    continue

        outcomes: list[Outcome] = in_threads([lambda p=p: member(p) for p in range(n)], limit=200)
        for outcome in outcomes:
            outcome.get()
        print(f"lives {lives}, {len({job for job, _ in seen})} generations, {len(seen)} collectives")
        for sums in seen.values():
            assert len(set(sums.values())) == 1
        eventually(lambda: host.controller.queries.slots(OPEN)["ranges"] == [])
