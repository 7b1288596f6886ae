"""Python environments in the user's cache folder, for packages that must not be installed beside others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from switchagg.errors import NetworkError, SwitchAggError


@dataclass(frozen=True, slots=True)
class Environment:
    """A venv with some packages, below $XDG_CACHE_HOME or ~/.cache, for this version of Python.

    Attributes:
        name: of its folder and in messages; it has the packages' version where that is fixed.
        requirements: as pip takes them.
    """

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder where the environment is, or will be."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "switchagg" / f"{self.name}-py{sys.version_info[0]}.{sys.version_info[1]}"

    @property
    def python(self) -> Path:
        """Its interpreter, which exists where the environment does."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The folder from which it imports."""
        return self.folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

    def make(self, command: str) -> Path:
        """Returns the environment's Python, and makes the environment first where there is none.

        Args:
            command: of ours that needs it, for a line on standard error.

        Raises `NetworkError` where pip cannot install the packages, and `SwitchAggError` where this Python
        cannot make environments or the cache folder cannot be written.
        """
        if self.python.exists():
            return self.python
        print(f"{command}: installing {self.name} in {self.folder}, once", file=sys.stderr)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}-", dir=self.folder.parent))
        except OSError as error:
            raise SwitchAggError(
                f"{error.filename}: {error.strerror}; {self.name} is kept below XDG_CACHE_HOME, which has to "
                "be a folder that can be written"
            ) from None
        try:
            self._fill(made)
            try:
                made.rename(self.folder)
            except OSError:  # another command was faster
                if not self.python.exists():
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return self.python

    def _fill(self, folder: Path) -> None:
        if problem := _failure(sys.executable, "-m", "venv", str(folder)):
            raise SwitchAggError(
                f"no environment for {self.name} can be made: {problem}; python -m venv and pip have to "
                "work here (on Debian and Ubuntu: apt install python3-venv)"
            )
        python = str(folder / "bin" / "python")
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if problem := _failure(*pip, *self.requirements):
            raise NetworkError(
                f"pip cannot install {self.name}: {problem}; it needs the network once, or a package index "
                "within reach (PIP_INDEX_URL)"
            )


def _failure(*command: str) -> str:
    """Returns the last line that a command printed if it failed, and nothing if it did not."""
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if line.strip() and not line.startswith("[notice]")]
    errors = [line for line in lines if line.startswith(("ERROR", "Error"))] or lines
    return "" if run.returncode == 0 else (errors or [f"exit status {run.returncode}"])[-1]
