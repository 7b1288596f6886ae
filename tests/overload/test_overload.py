"""More ranks, jobs and packets than cores and buffers hold: sums stay right, and no job or rank starves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import seed_of_this_run
from tests.switchagg.cli.processes import outcome

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "options",
    [
        ("--jobs", "32", "--workers", "2"),
        ("--jobs", "32", "--workers", "2", "--transport", "shm"),
        ("--jobs", "1", "--workers", "32"),
        ("--jobs", "4", "--workers", "4", "--buffer", "2304"),
    ],
    ids=["32 jobs", "32 jobs in shared memory", "32 ranks", "tiny receive buffers"],
)
def test_each_of_many_gets_its_share_and_all_sums_are_right(options: tuple[str, ...]) -> None:
    line = [sys.executable, str(ROOT / "scripts" / "job_fairness.py"), "--seconds", "3", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=500, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_32_processes_of_which_some_stand_still_for_a_while() -> None:
    seed = str(seed_of_this_run())
    options = ["--site", "inside", "--jobs", "1", "--workers", "32", "--fault", "worker-stop"]
    status, out, err = outcome("chaos", *options, "--seconds", "10", "--seed", seed, "--errors", seconds=200)
    assert status == 0, out + err
    assert "worker stopped" in out
