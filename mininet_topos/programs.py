"""Finds `switchagg`, its Python and other programs, for a Python that may not have switchagg; ends processes.

`mn` runs in the system's Python, under sudo, whose PATH is short. So the search includes the virtual
environment that the checkout's Makefile makes, and the one that this package is installed in.
"""

from __future__ import annotations

import contextlib
import functools
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
    # A checkout's environment, or the one whose site-packages this file is in.
    own = [folder / "bin" / "switchagg" for folder in (REPOSITORY / ".venv", *REPOSITORY.parents[2:3])]
    for each in own:
        if os.access(each, os.X_OK):
            return [str(each)]
    found = shutil.which("switchagg")
    if found is None:
        raise Missing(
            f"switchagg is not found: not in {own[0].parent}, not on PATH. Run `make install` in "
            f"{REPOSITORY}, or name it: {VARIABLE}=/path/to/venv/bin/switchagg"
        )
    return [found]


def p4_folder() -> Path:
    """Returns the folder of our P4 programs: a checkout's, or that of an installed package."""
    installed = REPOSITORY / "switchagg" / "p4program" / "p4"
    return installed if installed.is_dir() else REPOSITORY / "p4"


@functools.cache
def has_p4runtime() -> bool:
    """Returns True if switchagg's Python has what the extra p4runtime installs. Raises `Missing`."""
    ask = "import sys; from importlib.util import find_spec as f; sys.exit(not (f('grpc') and f('finsy')))"
    return subprocess.run([python(), "-c", ask], check=False).returncode == 0


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
