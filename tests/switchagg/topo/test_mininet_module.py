"""Mininet's module, from another Python's folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.errors import UsageError
from switchagg.topo import mininet_module

_LOAD = """
import sys
from switchagg.topo import mininet_module
before = list(sys.path)
mininet_module.load()
import mininet.net
folder = mininet.__path__[0].rpartition("/")[0]
assert folder not in set(sys.path) - set(before)
import numpy
print(mininet.net.__file__, numpy.__file__, sys.prefix, sep="\\n")
"""


def _fresh(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment or None
    )


def test_it_is_found_and_nothing_else_of_its_folder() -> None:
    try:
        mininet_module.load()
    except UsageError as error:
        pytest.skip(str(error))
    done = _fresh(_LOAD)
    assert done.returncode == 0, done.stderr
    found, numpy, prefix = map(Path, done.stdout.split())
    assert found.name == "net.py"
    assert numpy.is_relative_to(prefix)


def test_where_it_is_not_installed_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mininet_module, "PACKAGE", "mininet_that_is_nowhere")
    monkeypatch.setattr(mininet_module, "_ASK", "import mininet_that_is_nowhere")
    with pytest.raises(UsageError, match="sudo apt install mininet"):
        mininet_module.load()
    monkeypatch.undo()
    try:
        mininet_module.load()
    except UsageError:
        return
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="mnexec is not on PATH: `sudo apt install mininet`"):
        mininet_module.load()


def test_the_python_of_mn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mn = tmp_path / "mn"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mininet_module._python_of_mn() is None
    mn.touch(mode=0o755)
    assert mininet_module._python_of_mn() is None
    mn.write_text("#!/opt/strange/python3 -u\n")
    assert mininet_module._python_of_mn() == "/opt/strange/python3"
    mn.write_text("#!/usr/bin/env mine\n")
    (tmp_path / "mine").touch(mode=0o755)
    assert mininet_module._python_of_mn() == str(tmp_path / "mine")
