"""`switchagg topo` with native switches where neither grpcio nor finsy is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mininet_topos.available import why_no_networks
from tests.switchagg.control.drivers.rack import ALONE, REPOSITORY

_HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grpc", "finsy", "lark", "pcpp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def _topo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a namespace of its own, in Pythons without these packages."""
    (folder / "sitecustomize.py").write_text(_HIDE)
    path = os.pathsep.join([str(folder), str(REPOSITORY), *sys.path])
    return subprocess.run(
        ["unshare", *ALONE, sys.executable, "-m", "switchagg.cli.main", "topo", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, "PYTHONPATH": path},
    )


def _needs() -> None:
    if why := why_no_networks():
        pytest.skip(why)


def test_a_tree_of_native_switches_needs_no_p4runtime(tmp_path: Path) -> None:
    _needs()
    words = ("--leaves", "2", "--workers", "1", "--elements", "2000", "--rounds", "1", "--json")
    run = _topo(tmp_path, "two_level", *words)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["exact"]
    assert {each["results"] > 0 for each in result["switches"].values()} == {True}


def test_p4_names_the_extra(tmp_path: Path) -> None:
    _needs()
    run = _topo(tmp_path, "rack", "--workers", "2", "--switch", "p4")
    assert run.returncode == 1
    assert 'pip install "switchagg[' in run.stderr
