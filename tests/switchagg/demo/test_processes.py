"""Children are heard, and ended, whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from switchagg.demo.processes import ChildError, Ended, Line, Processes

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)"
)
WITH_PARENT = """
import os, subprocess, sys, time
child = "import sys, time; from switchagg.demo.processes import end_with_parent; "
child += "end_with_parent(int(sys.argv[1])); print('up', flush=True); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has reaped yet counts."""
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
        events = processes.events(20)
        assert [next(events), next(events)] == [Line(child, "1"), Line(child, "2")]
        assert next(events) == Ended(child)
        assert (
            child.ending()
            == f"worker 7 (process {child.process.pid}) ended with exit status 1: no more paper"
        )


def test_a_killed_child_is_named_as_the_first_cause() -> None:
    with Processes() as processes:
        processes.start("bystander", [sys.executable, "-c", "import time; time.sleep(60)"])
        child = processes.start("victim", [sys.executable, "-c", "import time; time.sleep(60)"])
        os.kill(child.process.pid, signal.SIGKILL)
        assert processes.first_cause(20) is child
        assert "victim" in child.ending()
        assert "SIGKILL" in child.ending()


def test_leaving_ends_children_that_ignore_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchagg.demo.processes._STOP_SECONDS", 0.2)
    with Processes() as processes:
        child = processes.start("mule", [sys.executable, "-c", STUBBORN])
        assert next(processes.events(20)) == Line(child, "up")
    assert child.process.returncode == -signal.SIGKILL


def test_silence_and_missing_programs_are_errors() -> None:
    with Processes() as processes:
        with pytest.raises(ChildError, match="could not start nothing"):
            processes.start("nothing", ["/no/such/program"])
        processes.start("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
        with pytest.raises(ChildError, match=r"no word for 0\.1 s from sleeper"):
            next(processes.events(0.1))


def test_children_end_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", WITH_PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert gone(child)
