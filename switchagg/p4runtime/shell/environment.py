"""The Python environment that p4runtime-shell runs in: a venv in the user's cache folder, made at first use.

p4runtime-shell holds protobuf below 3.21, so it must not be installed beside anything else of the user's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from switchagg.errors import NetworkError, SwitchAggError

VERSION: Final = "0.0.6"
REQUIREMENTS: Final = (f"p4runtime-shell=={VERSION}", "p4runtime==1.4.1", "protobuf<3.21")


def folder() -> Path:
    """Returns where the environment is, or will be: below $XDG_CACHE_HOME, or ~/.cache without it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "switchagg" / f"p4runtime-shell-{VERSION}-py{sys.version_info[0]}.{sys.version_info[1]}"


def interpreter() -> Path:
    """Returns the environment's Python, and makes the environment first where there is none.

    Raises `NetworkError` where pip cannot install p4runtime-shell, and `SwitchAggError` where this Python
    cannot make environments or the cache folder cannot be written.
    """
    home = folder()
    python = home / "bin" / "python"
    if python.exists():
        return python
    print(f"switchagg shell: installing p4runtime-shell {VERSION} in {home}, once", file=sys.stderr)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    except OSError as error:
        raise SwitchAggError(
            f"{error.filename}: {error.strerror}; p4runtime-shell is kept below XDG_CACHE_HOME, which has to "
            "be a folder that can be written"
        ) from None
    try:
        if problem := _failure(sys.executable, "-m", "venv", str(made)):
            raise SwitchAggError(
                f"no environment for p4runtime-shell can be made: {problem}; python -m venv and pip have to "
                "work here (on Debian and Ubuntu: apt install python3-venv)"
            )
        pip = (str(made / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if problem := _failure(*pip, *REQUIREMENTS):
            raise NetworkError(
                f"pip cannot install p4runtime-shell {VERSION}: {problem}; it needs the network once, or a "
                "package index within reach (PIP_INDEX_URL)"
            )
        try:
            made.rename(home)
        except OSError:  # another command was faster
            if not python.exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return python


def _failure(*command: str) -> str:
    """Returns the last line that a command printed if it failed, and nothing if it did not."""
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if line.strip() and not line.startswith("[notice]")]
    errors = [line for line in lines if line.startswith(("ERROR", "Error"))] or lines
    return "" if run.returncode == 0 else (errors or [f"exit status {run.returncode}"])[-1]
