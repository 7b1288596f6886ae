"""`working` on a pseudo-terminal and elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = """
import time
from switchagg.report import progress
from switchagg.report.progress import working
progress.AFTER = {after}
with working("measuring 1") as say:
    print("result", flush=True)
    time.sleep({seconds})
    say("measuring 2")
    time.sleep({seconds})
"""


def _shown(seconds: float, after: float) -> tuple[str, str]:
    """Returns what goes to standard output, a pipe, and to standard error, a terminal.

    Args:
        after: seconds without an end, before anything is shown.
    """
    ours, theirs = pty.openpty()
    try:
        run = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(seconds=seconds, after=after)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        out, _ = run.communicate(timeout=240)
        assert run.returncode == 0
        return out, said.decode()
    finally:
        os.close(ours)


def test_what_takes_long_is_told_on_a_terminal() -> None:
    out, said = _shown(2.5, 0.1)
    assert out == "result\n"
    assert "measuring 1" in said
    assert "measuring 2" in said


def test_what_is_fast_is_not() -> None:
    assert _shown(0.01, 120.0) == ("result\n", "")


def test_nothing_without_a_terminal() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seconds=0.3, after=0.1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (run.stdout, run.stderr) == ("result\n", "")
