"""Runs the command as people do, and sees what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from tests.waiting import eventually

SWITCHAGG = (sys.executable, "-m", "switchagg.cli.main")
_MARK = "SWITCHAGG_TEST_MARK"  # inherited by every process that a command starts


@dataclass
class Command:
    """A command that runs."""

    process: subprocess.Popen[str]
    mark: str

    def family(self) -> list[psutil.Process]:
        """Every living process that it, or one of its descendants, has started; itself included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def finish(self, seconds: float = 240.0) -> tuple[int, str, str]:
        """Waits for its end; returns status, output and errors."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


@contextmanager
def command(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()
) -> Iterator[Command]:
    """Starts `switchagg arguments`. At the end nothing that it started may be alive."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*SWITCHAGG, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {}), _MARK: mark},
        pass_fds=descriptors,
    )
    started = Command(process, mark)
    try:
        yield started
        eventually(lambda: process.poll() is not None)
        eventually(lambda: not started.family())
    finally:
        if process.poll() is None:
            process.kill()
        left = started.family()
        for other in left:
            other.kill()
        process.communicate()


def outcome(
    *arguments: str, environment: Mapping[str, str] | None = None, seconds: float = 240.0
) -> tuple[int, str, str]:
    """Runs `switchagg arguments` to its end; returns status, output and errors."""
    with command(arguments, environment) as running:
        return running.finish(seconds)
