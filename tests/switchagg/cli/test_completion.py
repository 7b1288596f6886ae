"""The scripts of `switchagg completion` in their shells: what a person gets who presses TAB."""

from __future__ import annotations

import functools
import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from switchagg.cli.completion import words_of_commands
from switchagg.cli.main import COMMANDS
from tests.switchagg.cli.processes import outcome
from tests.waiting import eventually


@functools.cache
def _text(shell: str) -> str:
    status, text, errors = outcome("completion", shell)
    assert (status, errors) == (0, "")
    return text


def _script(shell: str, folder: Path) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    file = folder / f"switchagg.{shell}"
    file.write_text(_text(shell))
    return file


def _typed(shell: list[str], script: Path, line: str) -> str:
    """Types a line and a TAB into a shell on a terminal; returns the line as the shell then has it."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(script.parent)
        os.execvpe(shell[0], shell, {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(script.parent)})
    seen = ""

    def until(pattern: str) -> None:
        nonlocal seen
        end = time.monotonic() + 200
        while not re.search(pattern, seen):
            assert time.monotonic() < end, seen
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536).decode(errors="replace")

    try:
        os.write(terminal, f"source {script}; echo rea''dy\n".encode())
        until("ready")
        seen = ""
        os.write(terminal, f"{line}\t".encode())
        # zsh and bash throw away what comes while they complete.
        time.sleep(0.5)
        eventually(lambda: _waits(child))
        os.write(terminal, b"\x01echo '<\x05>'\n")
        until(r"<[^<>']*>\r?\n")
        found = re.findall(r"<([^<>']*)>\r?\n", seen)
        return str(found[-1])
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def _waits(process: int) -> bool:
    """Returns True for a process that sleeps and has no children: it waits for its terminal."""
    asleep = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    return asleep and not Path(f"/proc/{process}/task/{process}/children").read_text()


LINES = [
    ("switchagg dra", "switchagg drain"),
    ("switchagg job cre", "switchagg job create"),
    ("switchagg switch --engine nat", "switchagg switch --engine native"),
    ("switchagg jobs --contr", "switchagg jobs --controller"),
    ("switchagg switch --job som", "switchagg switch --job some.json"),
    ("switchagg run -n 2 -- som", "switchagg run -n 2 -- some.json"),
    ("switchagg job --dra", "switchagg job --dra"),
]


@pytest.mark.parametrize(("line", "completed"), LINES)
@pytest.mark.parametrize("shell", [["bash", "--norc", "-i"], ["zsh", "-f", "-i"]], ids=lambda each: each[0])
def test_a_tab(shell: list[str], line: str, completed: str, tmp_path: Path) -> None:
    script = _script(shell[0], tmp_path)
    (tmp_path / "some.json").touch()
    assert _typed(shell, script, line).strip() == completed


@pytest.mark.parametrize(("line", "completed"), LINES)
def test_fish(line: str, completed: str, tmp_path: Path) -> None:
    script = _script("fish", tmp_path)
    (tmp_path / "some.json").touch()
    run = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    offered = [each.split("\t")[0] for each in run.stdout.splitlines()]
    last = completed.rsplit(maxsplit=1)[-1]
    assert offered == ([last] if line != completed else [])


def test_every_command_and_its_verbs_have_words() -> None:
    words = dict(words_of_commands())
    assert set(COMMANDS) <= set(words)
    assert {"job create", "job drain", "tenant add", "p4 check", "bench allreduce"} <= set(words)
    assert all("--help" in each.options for each in words.values())
    assert words["switch"].options["--engine"][0] == "native p4"
