"""Finds `switchagg`, its Python and other programs, for a Python that may not have switchagg; ends processes.

`mn` runs in the system's Python, under sudo, whose PATH is short. So the search includes the virtual
environment that the checkout's Makefile makes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

VARIABLE = "SWITCHAGG_COMMAND"
REPOSITORY = Path(__file__).resolve().parents[1]


class Missing(Exception):
    """A program is missing; the message says how to install it."""


def switchagg() -> list[str]:
    """Returns the first words of a `switchagg` command line. Raises `Missing`."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise Missing(
                f"{VARIABLE} is {named!r}; accepted: an executable, such as /path/to/venv/bin/switchagg"
            )
        return [named]
    # A checkout on the path is not enough: it may lack its dependencies.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("switchagg")
        return [sys.executable, "-m", "switchagg.cli.main"]
    own = REPOSITORY / ".venv" / "bin" / "switchagg"
    if os.access(own, os.X_OK):
        return [str(own)]
    found = shutil.which("switchagg")
    if found is None:
        raise Missing(
            f"switchagg is not found: not in {own.parent}, not on PATH. Run `make install` in {REPOSITORY}, "
            f"or name it: {VARIABLE}=/path/to/venv/bin/switchagg"
        )
    return [found]


def python() -> str:
    """Returns the Python that switchagg is installed for. Raises `Missing`."""
    first = switchagg()[0]
    if Path(first).name.startswith("python"):
        return first
    beside = Path(first).parent / "python"
    if not beside.exists():
        raise Missing(f"{first} has no python beside it; accepted: {VARIABLE}=/path/to/venv/bin/switchagg")
    return str(beside)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM, seconds: float = 5.0) -> None:
    """Ends a process: by a signal, or by SIGKILL if it has not ended some seconds later."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def program(name: str, why: str) -> str:
    """Returns the path of a program. Raises `Missing`, with `why`: its purpose and its package."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not on PATH: {why}")
    return found
