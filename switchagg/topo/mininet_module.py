"""Loads Mininet's Python package from the system's Python, for a virtual environment that lacks it.

Debian and Ubuntu install it for the system's Python only. It is pure Python, so that one package is loaded
from there. The folder is not put on `sys.path`: that would bring the system's numpy and grpc with it, built
for another Python.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from switchagg.errors import UsageError

PACKAGE: Final = "mininet"
_INSTALL: Final = (
    "Mininet is not installed: `sudo apt install mininet` on Debian and Ubuntu (on Debian "
    "`--no-install-recommends` leaves out Open vSwitch, which is not needed); docs/mininet.md says more"
)
_ASK: Final = "import mininet, os; print(os.path.dirname(os.path.dirname(os.path.abspath(mininet.__file__))))"


def load() -> None:
    """Makes `import mininet` work. Raises `UsageError` where it is not installed."""
    if PACKAGE in sys.modules or importlib.util.find_spec(PACKAGE) is not None:
        return _check()
    for folder in _folders():
        spec = importlib.machinery.PathFinder.find_spec(PACKAGE, [folder])
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            sys.modules[PACKAGE] = module
            spec.loader.exec_module(module)
            return _check()
    raise UsageError(_INSTALL)


def _check() -> None:
    """Raises `UsageError` where Mininet does not load or lacks one of its programs."""
    try:
        importlib.import_module(f"{PACKAGE}.node")
    except ModuleNotFoundError as error:
        # Python 3.12 has no distutils any more, which Mininet 2.3.0 asks for; setuptools brings one.
        hint = "`pip install setuptools` brings it" if error.name == "distutils" else _INSTALL
        raise UsageError(f"Mininet does not load: {error}; {hint}") from None
    check_programs(mnexec="mininet", ifconfig="net-tools", ip="iproute2")


def check_programs(**packages: str) -> None:
    """Raises `UsageError` for a program that is not on PATH; each is given with its package."""
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise UsageError(f"{program} is not on PATH: `sudo apt install {package}`")


def _folders() -> Iterator[str]:
    """Yields the folders in which other Pythons have it: that of `mn`, then the system's."""
    seen: set[str] = set()
    for python in (_python_of_mn(), "/usr/bin/python3", "/usr/local/bin/python3", shutil.which("python3")):
        if python is None or python in seen or not os.access(python, os.X_OK):
            continue
        seen.add(python)
        # -I: neither this environment's variables nor its folder.
        said = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, check=False)
        if said.returncode == 0:
            yield said.stdout.strip()


def _python_of_mn() -> str | None:
    mn = shutil.which("mn")
    if mn is None:
        return None
    with Path(mn).open("rb") as script:
        first = script.readline(256).decode(errors="replace")
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        return None
    return shutil.which(words[1]) if words[0].endswith("/env") and len(words) > 1 else words[0]
