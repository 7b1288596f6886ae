"""Commands reach every rank, and what goes wrong at a rank is an error that names it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchagg.launch.control import RankControl
from switchagg.launch.processes import Output, ProcessError, Processes

RANK = """
import os, sys
from switchagg.launch.control import CommandedRank
with CommandedRank(sys.argv[1], int(sys.argv[2])) as parent:
    parent.serve(lambda command: eval(command, {"rank": int(sys.argv[2]), "os": os, "sys": sys}))
"""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[RankControl]:
    """Two ranks that evaluate expressions."""
    with Processes() as processes:
        control = RankControl(processes, 2, tmp_path)
        for rank in range(2):
            command = [sys.executable, "-c", RANK, control.address, str(rank)]
            processes.start(f"rank {rank}", command, output=Output.KEPT)
        control.accept(60.0)
        yield control
        control.close()


def test_each_rank_answers_its_own_command(control: RankControl) -> None:
    assert control.command(lambda rank: f"{rank} * 10 + rank", int, 60.0) == [0, 11]
    processes = list(control._processes.children)
    control.close(gently=True)
    assert [child.status for child in processes] == [0, 0]


def test_an_exception_at_a_rank_reaches_the_parent(control: RankControl) -> None:
    with pytest.raises(ProcessError, match="rank 1: ZeroDivisionError"):
        control.command(lambda rank: f"1 // (1 - {rank})", int, 60.0)


def test_a_rank_that_dies_is_named_with_its_last_words(control: RankControl) -> None:
    dying = "[sys.stderr.write('out of paper'), sys.stderr.flush(), os._exit(3)]"
    with pytest.raises(ProcessError, match="rank 1 ended; its last words: out of paper"):
        control.command(lambda rank: dying if rank else "0", int, 60.0)


def test_silent_ranks_are_named(control: RankControl) -> None:
    with pytest.raises(ProcessError, match=r"ranks \[0\] did not answer within 3 s"):
        control.command(lambda rank: "0" if rank else "__import__('time').sleep(60)", int, 3.0)


def test_a_rank_that_never_connects_is_an_error(tmp_path: Path) -> None:
    with Processes() as processes:
        control = RankControl(processes, 1, tmp_path)
        child = processes.start("rank 0", [sys.executable, "-c", "import sys; sys.exit('no such module')"])
        with pytest.raises(ProcessError, match=r"rank 0 .* ended with status 1: no such module"):
            control.accept(60.0)
        control.close()
        assert child.status == 1
    with Processes() as processes:
        control = RankControl(processes, 1, tmp_path)
        processes.start("rank 0", [sys.executable, "-c", "import time; time.sleep(60)"])
        with pytest.raises(ProcessError, match=r"ranks \[0\] did not start"):
            control.accept(0.1)
        control.close()


def test_closing_ends_ranks_in_the_middle_of_a_command(control: RankControl) -> None:
    children = list(control._processes.children)
    with pytest.raises(ProcessError):
        control.command(lambda _: "__import__('time').sleep(60)", int, 0.1)
    control.close(gently=True)
    assert all(child.status in (0, -signal.SIGTERM) for child in children)
