"""Living in somebody's process: Ctrl-C, fork, exit, idleness, import; and what happens to the others when
one dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import worker_lib
from switchagg.control.embedded import EmbeddedController
from switchagg.control.jobs.records import OPEN
from tests.waiting import eventually
from worker_lib import Session, SessionBrokenError, WorkerLostError
from worker_lib.join import MemberStream

from .harness import ROOT, Process, ProcessEnded, in_threads, job_name, processes, say, together

pytestmark = pytest.mark.usefixtures("either_transport")

F32 = np.float32

# ---------------------------------------------------------------------- Ctrl-C


def interrupted(session: Session, how: str) -> tuple[str, str]:
    """Rank 0 is interrupted in a collective that the others do not call."""
    x = np.ones(1_000_000, F32)
    session.allreduce(x)
    if session.rank:
        say("ready")
        time.sleep(120)
        return "", ""
    if how in ("sync", "async"):
        x = np.ones(1_000_000, F32)  # others are called again with what the session knows
    engine = session._state.engine
    assert engine is not None
    before, calls = engine.calls, 3 if how == "async" else 1

    def interrupt() -> None:
        eventually(lambda: engine.calls == before + calls)
        if how != "known, at once":
            time.sleep(0.3)  # until the last one is waited for
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        if how != "async":
            session.allreduce(x)
        else:
            works = [session.allreduce_async(x) for _ in range(3)]
            works[-1].wait()
    except KeyboardInterrupt:
        pass
    else:
        return "not interrupted", ""
    try:
        session.barrier()
    except SessionBrokenError as error:
        return "broken", str(error)
    return "not broken", ""


@pytest.mark.parametrize("how", ["sync", "async", "known", "known, at once"])
def test_ctrl_c_ends_a_collective(host: EmbeddedController, how: str) -> None:
    with processes(host.url, 2, interrupted, how, timeout=100.0) as (first, _):
        state, message = first.finish().get()  # long before the collective's timeout
    assert state == "broken"
    assert "KeyboardInterrupt" in message


def not_expecting_it(session: Session) -> None:
    session.barrier()
    if session.rank == 0:
        say("waiting")
        session.allreduce(np.ones(10, F32))
    time.sleep(120)


def test_ctrl_c_from_outside_ends_the_program(host: EmbeddedController) -> None:
    with processes(host.url, 2, not_expecting_it, timeout=100.0) as (first, _):
        first.hear()
        time.sleep(0.1)
        first.signal(signal.SIGINT)
        outcome = first.finish()  # long before the collective's timeout
        assert isinstance(outcome.error, KeyboardInterrupt)


# ---------------------------------------------------------------------- fork


def use_in_child(session: Session, known: object) -> int:
    """Uses the session in a forked child; returns 0 if all is well."""
    for use in (
        lambda: session.allreduce(known),
        lambda: session.allreduce(np.ones(3, F32)),
        lambda: session.allreduce_async(np.ones(3, F32)),
        session.barrier,
        session.stats,
    ):
        try:
            use()
        except SessionBrokenError as error:
            if "forked child" not in str(error):
                return 2
        else:
            return 3
    repr(session)
    session.close()
    return 0


def wait_for(pid: int, limit: float = 60.0) -> int:
    """A child's exit status; it is killed at the limit."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError("the forked child hangs")


def forks(session: Session, when: str) -> list[int]:
    """Forks children that do different things, in the middle of work; their exit statuses."""
    statuses = []
    x, known = np.ones(200_000, F32), np.ones(3, F32)
    session.allreduce(known)
    if when != "sync":
        session.allreduce_async(np.ones(100, F32)).wait()  # from here on there is a thread
        time.sleep(0.05)
    for ending in ("os._exit", "exit", "use", "drop"):
        work = session.allreduce_async(x) if when == "pending" else None
        pid = os.fork()
        if pid == 0:
            if ending == "os._exit":
                os._exit(0)
            code = 9
            try:
                if ending == "use":
                    code = use_in_child(session, known)
                elif ending == "drop":
                    # As far as a child can: the engine itself goes.
                    session._state.engine = session._state.caller = session._state.quick = None
                    del work
                    code = 0
                else:
                    code = 0
            finally:
                if ending == "exit":
                    worker_lib.session.close_all()
                os._exit(code)
        statuses.append(wait_for(pid))
        if work is not None:
            work.wait()
        y = np.full(50_000, 2, F32)
        session.allreduce(y)
        assert np.array_equal(y, np.full(50_000, 4, F32))
    session.barrier()
    return statuses


@pytest.mark.parametrize("when", ["sync", "async", "pending"])
def test_a_forked_child_disturbs_nothing(host: EmbeddedController, when: str) -> None:
    with processes(host.url, 2, forks, when) as ranks:
        for rank in ranks:
            assert rank.finish().get() == [0, 0, 0, 0]


def test_a_forked_child_exits_through_the_interpreter(host: EmbeddedController) -> None:
    name = job_name()
    code = (
        "import sys, os, time, numpy as np, worker_lib\n"
        "s = worker_lib.connect(sys.argv[1], sys.argv[2], int(sys.argv[3]), 2)\n"
        "s.allreduce_async(np.ones(100, np.float32)).wait()\n"
        "time.sleep(0.05)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    sys.exit(7)\n"
        "from tests.worker_lib.test_process import wait_for\n"
        "assert wait_for(pid) == 7\n"
        "x = np.ones(100, np.float32)\n"
        "s.allreduce(x)\n"
        "assert x[0] == 2\n"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, host.url, name, str(r)], cwd=ROOT, stderr=subprocess.PIPE
        )
        for r in range(2)
    ]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=60)
            assert (rank.returncode, said) == (0, b"")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _load(index: int) -> int:
    return int(np.arange(index).sum())


def loads_data(session: Session) -> int:
    """As a DataLoader would: forked helpers at work while collectives run."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pending = pool.map_async(_load, range(50))
        for _ in range(20):
            x = np.ones(10_000, F32)
            session.allreduce_async(x).wait()
            assert x[0] == 2
        total = sum(pending.get(100))
        pool.close()
        pool.join()
    session.barrier()
    return total


def test_multiprocessing_helpers(host: EmbeddedController) -> None:
    with processes(host.url, 2, loads_data) as ranks:
        for rank in ranks:
            assert rank.finish().get() == sum(sum(range(i)) for i in range(50))


def forks_and_dies(session: Session) -> None:
    session.barrier()
    if session.rank == 0:
        pid = os.fork()
        if pid == 0:
            time.sleep(100)
            os._exit(0)
        say(pid)
        os.kill(os.getpid(), signal.SIGKILL)
    x = np.ones(1000, F32)
    session.allreduce(x)


def test_a_forked_child_does_not_keep_its_dead_parents_place(host: EmbeddedController) -> None:
    with processes(host.url, 2, forks_and_dies) as (first, second):
        child = first.hear()
        try:
            with pytest.raises(WorkerLostError, match="rank 0"):
                second.finish().get()
        finally:
            os.kill(child, signal.SIGKILL)


# ---------------------------------------------------------------------- idle, import, exit


def idles(session: Session, threads: bool) -> float:
    """CPU seconds of an idle second."""
    x = np.ones(100_000, F32)
    session.allreduce(x)
    if threads:
        session.allreduce_async(x).wait()
    session.barrier()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(1)
    used = time.process_time() - before
    session.barrier()
    return used


def waits(session: Session) -> float:
    """CPU seconds of a second in which another rank is late."""
    session.barrier()
    before = time.process_time()
    if session.rank == 0:
        time.sleep(1)
    session.barrier()
    return time.process_time() - before


@pytest.mark.parametrize("threads", [False, True])
def test_an_idle_session_uses_no_cpu(host: EmbeddedController, threads: bool) -> None:
    with processes(host.url, 2, idles, threads) as ranks:
        for rank in ranks:
            assert rank.finish().get() < 0.1


def test_waiting_for_a_late_rank_uses_little_cpu(host: EmbeddedController) -> None:
    with processes(host.url, 2, waits) as ranks:
        for rank in ranks:
            assert rank.finish().get() < 0.5


def test_closing_leaves_no_thread(host: EmbeddedController, monkeypatch: pytest.MonkeyPatch) -> None:
    next_event = MemberStream.next_event

    def slow(stream: MemberStream, timeout: float | None = None) -> dict[str, object] | None:
        event = next_event(stream, timeout)
        time.sleep(0.2)
        return event

    monkeypatch.setattr(MemberStream, "next_event", slow)

    def call(session: Session) -> set[threading.Thread]:
        session.barrier()
        return set(threading.enumerate())

    during = set.union(*together(host.url, 2, call))
    left = {thread.name for thread in during if thread.is_alive()}
    assert "switchagg-events" in {thread.name for thread in during}
    assert not left & {"switchagg-events", "switchagg-monitor"}


def test_import_is_light() -> None:
    code = (
        "import numpy, sys\n"
        "before = set(sys.modules)\n"
        "import worker_lib\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100, cwd=ROOT
    )
    names = ran.stdout
    heavy = {
        "http",
        "asyncio",
        "torch",
        "rich",
        "multiprocessing",
        "ssl",
        "email",
        "scapy",
        "matplotlib",
        "subprocess",
    }
    assert not heavy & {name.partition(".")[0] for name in names.split()}
    assert not {
        name for name in names.split() if name.startswith(("switchagg.emulator", "switchagg.control"))
    }


LEAVES = """
import sys, threading, time, numpy as np, worker_lib
session = worker_lib.connect(sys.argv[1], sys.argv[2], int(sys.argv[3]), 2, timeout=30)
session.barrier()
how = sys.argv[4]
if session.rank == 0:
    x = np.ones(100_000, np.float32)
    if how == "pending":
        work = session.allreduce_async(x)
    elif how == "dropped":
        sys.stdin.read()  # until rank 1 has left: a session that is dropped is a rank that is lost
        session.allreduce_async(x)
        del session
    elif how == "thread":
        threading.Thread(target=session.allreduce, args=(x,), daemon=True).start()
    elif how == "error":
        session.allreduce_async(x)
        raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["nothing", "pending", "dropped", "thread", "error"])
def test_leaving_without_close(host: EmbeddedController, how: str) -> None:
    name = job_name()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES, host.url, name, str(r), how],
            cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for r in range(2)
    ]  # fmt: skip
    try:
        for r in (1, 0):
            _, said = ranks[r].communicate(timeout=120)
            assert ranks[r].returncode == (3 if how == "error" and r == 0 else 0), said
            assert how == "thread" or said == b""
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    # They have left: nobody was lost, and the name is free.
    if how == "dropped":
        eventually(lambda: host.controller.queries.job(OPEN, name) is None)
    job = host.controller.queries.job(OPEN, name)
    assert job is None or job["lost"] == []
    together(host.url, 2, lambda session: session.barrier(), job=name)


FAILS = """
import contextlib, sys, numpy as np, worker_lib
how = sys.argv[4]
def work(session):
    session.barrier()
    if session.rank == 0:
        raise ValueError("bad batch")
    try:
        session.barrier()
    except worker_lib.WorkerLostError as error:
        print(error.ranks, error)
if how == "with":
    with worker_lib.connect(sys.argv[1], sys.argv[2], int(sys.argv[3]), 2, timeout=30) as session:
        work(session)
session = worker_lib.connect(sys.argv[1], sys.argv[2], int(sys.argv[3]), 2, timeout=30)
if how == "at exit":
    work(session)
try:
    work(session)
finally:
    session.close()
"""


@pytest.mark.parametrize("how", ["with", "at exit", "finally"])
def test_an_exception_that_ends_a_rank_is_told_to_the_others(host: EmbeddedController, how: str) -> None:
    command = [sys.executable, "-c", FAILS, host.url, job_name()]
    ranks = [
        subprocess.Popen(
            [*command, str(r), how], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    try:
        said = ranks[1].stdout.readline()  # type: ignore[union-attr]
        assert said.startswith("(0,) rank 0 has failed: it ended with ValueError: bad batch, and barrier()")
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_a_session_that_is_closed_where_an_older_exception_is_handled(host: EmbeddedController) -> None:
    def rank(r: int, name: str) -> str:
        try:
            raise KeyError("older")
        except KeyError:
            session = worker_lib.connect(host.url, name, r, 2, timeout=20)
            if r == 1:
                with pytest.raises(WorkerLostError) as caught:
                    session.barrier()
            session.close()
            return str(caught.value) if r else ""

    name = job_name()
    _, said = in_threads([lambda: rank(0, name), lambda: rank(1, name)])
    assert "rank 0 left the job in order" in said.get()


def test_sessions_that_nobody_kept() -> None:
    """Their threads end while the interpreter does."""
    code = "import worker_lib; worker_lib.connect()"
    command = [sys.executable, "-m", "switchagg.cli.main", "run", "-n", "4", "--", sys.executable, "-c", code]
    for _ in range(2):
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr


# ---------------------------------------------------------------------- one of them dies


def works_on(session: Session, timeout: float) -> tuple[tuple[int, ...], str]:
    """All-reduces until a rank is lost."""
    x = np.ones(1_000_000, F32)
    session.allreduce(x)
    say("working")
    while True:
        try:
            session.allreduce(x, op="avg", timeout=timeout)
        except WorkerLostError as error:
            with pytest.raises(SessionBrokenError, match="rank 1"):
                session.barrier()
            return error.ranks, str(error)


def test_a_killed_worker_is_named_and_the_switch_serves_the_next_job(host: EmbeddedController) -> None:
    with processes(host.url, 3, works_on, 50.0) as ranks:
        for rank in ranks:
            rank.hear()
        time.sleep(0.05)
        ranks[1].signal(signal.SIGKILL)
        with pytest.raises(ProcessEnded):
            ranks[1].finish().get()
        for rank in (ranks[0], ranks[2]):
            lost, message = rank.finish().get()
            assert lost == (1,)
            assert "rank 1" in message
            assert "allreduce(float32, shape (1000000,), avg, bounded)" in message
    free = host.controller.queries.slots(OPEN)
    x = together(host.url, 3, lambda session: session.allreduce(np.ones(1000, F32)))
    assert np.array_equal(x[0], np.full(1000, 3, F32))
    assert free["ranges"] == []


def test_a_stopped_worker_is_waited_for(host: EmbeddedController) -> None:
    with processes(host.url, 2, works_for, 40) as ranks:
        for rank in ranks:
            rank.hear()
        ranks[1].signal(signal.SIGSTOP)
        time.sleep(1.5)
        ranks[1].signal(signal.SIGCONT)
        for rank in ranks:
            assert rank.finish().get() == 40


def works_for(session: Session, turns: int) -> int:
    say("working")
    for _ in range(turns):
        x = np.ones(100_000, np.int32)
        session.allreduce(x)
        assert x[0] == x[-1] == 2
    return turns


def lone_process(number: int) -> int:
    return number + 1


def test_the_harness_itself() -> None:
    with Process(lone_process, 4) as process:
        assert process.finish().get() == 5
