"""`switchagg demo` as a user runs it: real processes, a real switch, faults, deaths and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from switchagg.cli.main import main
from switchagg.demo import run as demo_run
from tests.switchagg.launch.test_processes import gone
from tests.waiting import eventually

DEMO = [sys.executable, "-m", "switchagg.cli.main", "demo"]
SMALL = ["--embedding", "4096x64", "--batch", "32", "--corpus-bytes", "600000"]


def descendants(pid: int) -> dict[int, str]:
    """Command lines of a process's children and theirs, by process id."""
    found: dict[int, str] = {}
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread or a process that ends meanwhile
            for child in map(int, tasks.read_text().split()):
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                found |= descendants(child)
    return found


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[int, str]]]:
    """A demo in the middle of training, and its processes."""
    with subprocess.Popen(
        [*DEMO, *SMALL, "--steps", "100000", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("step 1/"):
                    break
            yield process, descendants(process.pid)
        finally:
            process.kill()


def check_end(process: subprocess.Popen[str], children: dict[int, str], folder: Path, status: int) -> str:
    """Checks a failed demo's end and returns what it wrote to stderr."""
    _, errors = process.communicate(timeout=240)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    assert errors.startswith("switchagg demo: ")
    assert list(folder.iterdir()) == []
    check_gone(children)
    return errors


def check_gone(children: dict[int, str]) -> None:
    eventually(lambda: all(map(gone, children)))


def test_demo_trains_through_a_lossy_switch_and_reports(tmp_path: Path) -> None:
    options = ["--workers", "2", "--steps", "5", "--seed", "3", "--compare-bits"]
    options += ["--loss", "0.01", "--duplicate", "0.05", "--reorder", "0.05", "--report", "out"]
    result = subprocess.run(
        [*DEMO, *SMALL, *options], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical to the bit on all 2 workers" in result.stdout
    assert re.search(r"^step 5/5  loss \d", result.stdout, re.MULTILINE)
    assert "out/index.html" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "identical" in (tmp_path / "out" / "index.html").read_text()

    figures = json.loads((tmp_path / "out" / "results.json").read_text())
    assert figures["weights_identical"]
    assert [run["bits"] for run in figures["runs"]] == [32, 16, 8]
    for run in figures["runs"]:
        assert [len(ranks) for ranks in run["digests"].values()] == [2, 2, 2, 2]
        assert all(len(set(ranks.values())) == 1 for ranks in run["digests"].values())
        assert all(0 < step["union"] < 1 for step in run["steps"])
        assert all(step["touched"] <= step["union"] + 0.01 for step in run["steps"])
        assert run["final_loss"] == pytest.approx(figures["runs"][0]["final_loss"], abs=0.5)
    run = figures["runs"][0]
    assert run["dense_equals_sparse"]
    assert run["largest_difference"] < 20 * max(figures["rounding_difference"], 1e-6)
    ring, dense, sparse = run["traffic"]
    assert ring["sent"] == pytest.approx(figures["gradient_bytes"])
    assert sparse["sent"] < dense["sent"]
    assert dense["sent"] > figures["gradient_bytes"]
    sent = [run["traffic"][-1]["sent"] for run in figures["runs"]]
    assert sent[0] > sent[2]  # a quarter of the words; what was sent again, beside load, counts too


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--workers", "2") as (process, children):
        victim = next(pid for pid, line in children.items() if '"rank": 1' in line)
        os.kill(victim, signal.SIGKILL)
        errors = check_end(process, children, tmp_path, 1)
    assert re.search(rf"worker 1 \(process {victim}\) was killed by SIGKILL.*\(after step \d+", errors)


def test_a_switch_that_dies_is_named(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--workers", "2") as (process, children):
        victim = next(pid for pid, line in children.items() if "switchagg.cli.main host" in line)
        os.kill(victim, signal.SIGKILL)
        errors = check_end(process, children, tmp_path, 1)
    assert f"the switch is gone: the switch (process {victim}) was killed by SIGKILL" in errors


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        (signal.SIGKILL, -9),
    ],
)
def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with running_demo(tmp_path, "--workers", "2") as (process, children):
        assert len(children) >= 3
        process.send_signal(number)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == status
        assert "Traceback" not in errors
        check_gone(children)
    assert list(tmp_path.iterdir()) == []
    assert ("interrupted" in errors) == (number == signal.SIGINT)


def test_a_switch_that_cannot_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; sys.exit('port 48879 is in use')"
    monkeypatch.setattr(demo_run, "host_command", lambda _: [sys.executable, "-c", script])
    assert main(["demo", *SMALL, "--report", str(tmp_path / "report")]) == 1
    errors = capsys.readouterr().err
    assert "the switch did not start" in errors
    assert "port 48879 is in use" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "33"], "--workers 33: a whole number from 1 to 32"),
        (["--bits", "4"], "--bits 4: lanes are 32, 16 or 8"),
        (["--loss", "1.5"], "--loss 1.5: a share"),
        (["--embedding", "lots"], "--embedding lots: expected ROWSxCOLUMNS"),
        (["--report", __file__], "this is a file; give a folder"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *options]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("switchagg demo: ")
    assert message in errors
