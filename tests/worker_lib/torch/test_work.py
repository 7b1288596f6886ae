"""The threads that complete a process group's works."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest

from switchagg.errors import SessionBrokenError
from tests.waiting import eventually
from worker_lib.torch import work
from worker_lib.torch.work import TaskThread


def test_callbacks_of_different_tasks_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_PATIENCE", 600.0)
    monkeypatch.setattr(work, "_STOP_SECONDS", 60.0)
    tasks, running, order = TaskThread("test"), threading.Lock(), []

    def task(number: int) -> None:
        with tasks.callbacks():
            assert running.acquire(blocking=False)
            time.sleep(0.002)
            order.append(number)
            running.release()

    for number in range(20):
        tasks.put(lambda number=number: task(number))  # type: ignore[misc]
    tasks.stop()
    assert order == list(range(20))


def test_a_stop_hurries_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_PATIENCE", 600.0)
    monkeypatch.setattr(work, "_STOP_SECONDS", 60.0)
    tasks, here, goes_on, order = TaskThread("test"), threading.Event(), threading.Event(), []

    def first() -> None:
        with tasks.callbacks():
            here.set()
            assert goes_on.wait(100)
            order.append(1)

    tasks.put(first)
    assert here.wait(100)
    tasks.put(lambda: order.append(2))
    eventually(lambda: tasks._watched)
    stopping = threading.Thread(target=tasks.stop)
    stopping.start()
    eventually(lambda: tasks.stopped)
    time.sleep(0.1)
    assert order == []
    goes_on.set()
    stopping.join()
    assert order == [1, 2]


def test_a_callback_waits_for_tasks_that_it_puts_and_for_later_ones() -> None:
    tasks, later, ended = TaskThread("test"), threading.Event(), []

    def below(depth: int) -> None:
        done = threading.Event()

        def task() -> None:
            with tasks.callbacks():
                if depth:
                    below(depth - 1)
            done.set()

        tasks.put(task)
        assert done.wait(100)

    def first() -> None:
        with tasks.callbacks():
            below(5)
            assert later.wait(100)
            ended.append("first")

    last = threading.Event()
    tasks.put(first)
    tasks.put(later.set)
    tasks.put(last.set)
    assert later.wait(100)
    assert last.wait(100)
    eventually(lambda: ended == ["first"])
    tasks.stop()


def test_stopping_ends_every_thread_after_the_tasks_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_STOP_SECONDS", 60.0)
    tasks, later, ended = TaskThread("test"), threading.Event(), []

    def first() -> None:
        with tasks.callbacks():
            assert later.wait(100)

    tasks.put(first)
    tasks.put(later.set)  # takes a second thread
    assert later.wait(100)
    threads = set(tasks._threads)
    assert len(threads) == 2
    for number in range(3):
        tasks.put(lambda number=number: (time.sleep(0.05), ended.append(number)))  # type: ignore[misc]
    tasks.stop()
    assert ended == [0, 1, 2]
    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(SessionBrokenError, match="destroyed"):
        tasks.put(later.set)


def test_what_is_for_later_is_queued_unless_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_LATER", 0.01)
    tasks, ran, ready = TaskThread("test"), [], threading.Event()
    tasks.put_later(lambda: ran.append("done"), lambda: True)
    tasks.put_later(ready.set, ready.is_set)
    assert ready.wait(100)
    assert ran == []
    monkeypatch.setattr(work, "_LATER", 600.0)
    tasks.put_later(lambda: ran.append("at the end"), lambda: False)
    tasks.stop()
    assert ran == ["at the end"]
    with pytest.raises(SessionBrokenError):
        tasks.put_later(ready.set, ready.is_set)


def test_what_is_for_later_is_found_by_a_thread_that_looks_and_wakes_one_that_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "_LATER", 0.01)
    for looks in (10**9, 0):
        monkeypatch.setattr(work, "_LOOKS", looks)
        tasks, ready = TaskThread("test"), threading.Event()
        tasks.put_later(ready.set, lambda: True)
        if looks:
            eventually(lambda tasks=tasks: not tasks._later._tasks)
        else:
            eventually(lambda tasks=tasks: tasks._later._idle)
        tasks.put_later(ready.set, ready.is_set)
        assert ready.wait(20)
        tasks.stop()


def test_a_stop_loses_nothing_that_comes_for_later_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_LATER", 600.0)
    tasks, tried, taken, ran = TaskThread("test"), [], [], []

    class Lock(threading.Condition):
        def __enter__(self) -> bool:
            if not tried:
                tried.append(True)
                with suppress(SessionBrokenError):
                    tasks.put_later(lambda: ran.append(True), lambda: False)
                    taken.append(True)
            return super().__enter__()

    tasks._changed = Lock()
    tasks.stop()
    assert tried
    assert ran == taken


def test_a_group_is_not_busy_for_its_own_tasks() -> None:
    tasks, seen = TaskThread("test"), []
    assert not tasks.busy()
    hold = threading.Event()
    tasks.put(lambda: (seen.append(tasks.busy()), hold.wait(100)))  # type: ignore[arg-type, return-value]
    assert tasks.busy()
    hold.set()
    tasks.stop()
    assert seen == [False]
