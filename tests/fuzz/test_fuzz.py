"""A short form of `make fuzz-python`: each target in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import seed_of_this_run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("target", "executions"), [("p4", 40), ("store", 100), ("http", 60), ("texts", 2000)]
)
def test_nothing_is_found(target: str, executions: int) -> None:
    words = ["--target", target, "--executions", str(executions), "--seed", str(seed_of_this_run())]
    found = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{target}: {executions} executions, 0 distinct failures" in found.stdout


def test_a_failure_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Targets that fail on nothing because nothing is executed would pass the test above."""
    from switchagg.wire import heartbeat
    from tests.fuzz.__main__ import run

    monkeypatch.setattr(heartbeat, "HeartbeatError", KeyError)
    assert run("texts", 1, range(200)) >= 1
    assert "once more: --target texts --seed 1 --first " in capsys.readouterr().out
