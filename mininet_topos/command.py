"""Which command line starts `switchagg`, from a Python that may not have it.

`mn` runs in the system's Python, under sudo, whose PATH is short. So besides PATH we look into the virtual
environment that the checkout's Makefile makes.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

VARIABLE = "SWITCHAGG_COMMAND"
REPOSITORY = Path(__file__).resolve().parents[1]


class Missing(Exception):
    """A program that is needed is not there; the message says how to get it."""


def switchagg() -> list[str]:
    """The words that a `switchagg` command line begins with. Raises `Missing`."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise Missing(
                f"{VARIABLE} is {named!r}; accepted: an executable, such as /path/to/venv/bin/switchagg"
            )
        return [named]
    if _installed_here():
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
    """The Python that switchagg is installed for. Raises `Missing`."""
    first = switchagg()[0]
    if Path(first).name.startswith("python"):
        return first
    beside = Path(first).parent / "python"
    if not beside.exists():
        raise Missing(f"{first} has no python beside it; accepted: {VARIABLE}=/path/to/venv/bin/switchagg")
    return str(beside)


def program(name: str, why: str) -> str:
    """The path of a program that is needed. Raises `Missing`, with `why`: what it is for and where from."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not on PATH: {why}")
    return found


def _installed_here() -> bool:
    """Whether this Python has switchagg with what it needs; a checkout on the path is not enough."""
    try:
        importlib.metadata.version("switchagg")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
