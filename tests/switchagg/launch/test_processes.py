"""Lines and ends of children arrive in order, and no child outlives its parent."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

import switchagg.launch.processes as processes_module
from switchagg.launch.processes import CannotExecute, Child, Ended, Line, Output, ProcessError, Processes
from tests.waiting import eventually

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)"
)
PARENT = """
import sys, time
from switchagg.launch.processes import Processes
processes = Processes()
child = processes.start("child", [sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
# Leads a session with the terminal at standard input, and starts a child that opens it.
ON_A_TERMINAL = """
import fcntl, os, sys, termios
from switchagg.launch.processes import Ended, Line, Processes
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
read = "import os; print(os.getsid(0)); print(os.getpgrp()==os.getpid()); os.open('/dev/tty', 0)"
with Processes() as processes:
    child = processes.start("child", [sys.executable, "-c", read])
    for event in processes.events(20):
        print(event.text if isinstance(event, Line) else event.child.ending(), flush=True)
        if isinstance(event, Ended):
            break
print(os.getpid())
"""


def gone(pid: int) -> bool:
    """Returns whether a process has ended; one that nobody has reaped yet counts."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def test_lines_arrive_in_order_and_the_end_tells_why() -> None:
    with Processes() as processes:
        child = processes.start(
            "worker 7",
            [sys.executable, "-c", "import sys; print(1); print(2); sys.exit('no more paper')"],
        )
        events = processes.events(60)
        assert [next(events), next(events)] == [Line(child, "1"), Line(child, "2")]
        assert next(events) == Ended(child)
        assert child.ending() == f"worker 7 (process {child.pid}) ended with status 1: no more paper"


def test_an_exit_between_any_two_lines_of_a_start_leaves_no_process() -> None:
    started = set(psutil.Process().children())
    lines = itertools.count(1)
    gc.freeze()  # collections need not look at what was there before
    try:
        while _exits_at_line(next(lines)):
            gc.collect()  # a guardian that was half started ends with its pipe
            eventually(lambda: all(gone(child.pid) for child in set(psutil.Process().children()) - started))
    finally:
        gc.unfreeze()
    assert next(lines) > 10


def _exits_at_line(number: int) -> bool:
    """Starts a child and raises SystemExit at that line of the module; returns False after the last one."""
    before, parent = itertools.count(1), os.getpid()

    def tracer(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != processes_module.__file__ or os.getpid() != parent:
            return None
        if event == "line" and next(before) == number:
            sys.settrace(None)
            raise SystemExit
        return tracer

    with contextlib.suppress(SystemExit), Processes() as processes:
        sys.settrace(tracer)
        try:
            processes.start("child", [sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        finally:
            sys.settrace(None)
        return False
    return True


def test_a_killed_child_is_named_as_the_first_cause() -> None:
    with Processes() as processes:
        processes.start("bystander", [sys.executable, "-c", "import time; time.sleep(60)"])
        child = processes.start("victim", [sys.executable, "-c", "import time; time.sleep(60)"])
        os.kill(child.pid, signal.SIGKILL)
        assert processes.first_cause(60) is child
        assert "victim" in child.ending()
        assert "SIGKILL" in child.ending()


def test_closing_ends_children_that_ignore_sigterm() -> None:
    with Processes() as processes:
        child = processes.start("mule", [sys.executable, "-c", STUBBORN])
        assert next(processes.events(60)) == Line(child, "up")
        processes.close(patience=0.2)
        processes.close()
    assert child.status == -signal.SIGKILL


def test_silence_and_missing_programs_are_errors() -> None:
    with Processes() as processes:
        with pytest.raises(CannotExecute, match="cannot execute '/no/such/program': No such file"):
            processes.start("nothing", ["/no/such/program"])
        processes.start("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
        with pytest.raises(ProcessError, match=r"no word for 0\.1 s from sleeper"):
            next(processes.events(0.1))


def python(processes: Processes, program: str, output: Output) -> Child:
    return processes.start("child", [sys.executable, "-c", program], output=output)


def test_kept_output_has_both_streams_and_what_is_added() -> None:
    with Processes() as processes:
        child = python(
            processes,
            "import sys; print('one', flush=True); print('two\\n', file=sys.stderr); sys.exit(3)",
            Output.KEPT,
        )
        assert processes.wait(60)
        assert processes.poll(0) == [Ended(child)]
        child.keep("three")
        assert child.last_lines() == "three"
        assert child.ending(lines=9) == f"child (process {child.pid}) ended with status 3: one\ntwo\nthree"


def test_a_last_line_without_a_line_break_is_a_line() -> None:
    with Processes() as processes:
        child = python(processes, "print('all', end='')", Output.LINES)
        events = processes.events(60)
        assert [next(events), next(events)] == [Line(child, "all"), Ended(child)]


def test_what_a_child_has_started_ends_with_it() -> None:
    program = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    )
    with Processes() as processes:
        child = python(processes, program, Output.LINES)
        events = processes.events(60)
        line, end = next(events), next(events)
        assert isinstance(line, Line)
        assert end == Ended(child)
        eventually(lambda: gone(int(line.text)))


def test_a_child_shares_the_session_and_not_its_terminal() -> None:
    terminal, end = os.openpty()
    try:
        command = [sys.executable, "-c", ON_A_TERMINAL]
        done = subprocess.run(command, stdin=end, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(end)
        os.close(terminal)
    session, leads, ending, parent = done.stdout.splitlines()
    assert session == parent  # one scheduling group, in which ranks can yield their cores to each other
    assert leads == "True"
    assert "[Errno 6]" in ending


def test_children_end_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
        parent.wait()
    eventually(lambda: gone(child))
