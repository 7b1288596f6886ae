"""The native modules under sanitizers, in Python's processes: a short form of `make sanitize`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.building import ROOT
from tests.native.sanitized.build import build, environment, has_sanitizers, run

_SHORT = (
    "tests/worker_lib/test_plan.py",
    "tests/worker_lib/test_stream.py",
    "tests/worker_lib/test_link_ends.py",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not has_sanitizers(tmp_path_factory.mktemp("empty")):
        pytest.skip("the compiler has no address and undefined-behaviour sanitizers")
    made = ROOT / "build" / "sanitize"
    build(made)
    return made


@pytest.mark.long  # compiling takes two minutes of a core
def test_nothing_is_found(folder: Path) -> None:
    found = run(folder, _SHORT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "passed" in found.stdout


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("char* volatile p = new char[8]; return p[8 + n];", "heap-buffer-overflow"),
        ("int volatile most = 2147483647; return most + 1 + n;", "signed integer overflow"),
    ],
)
def test_a_mistake_is_seen(tmp_path: Path, mistake: str, said: str) -> None:
    """Tests that find nothing because no sanitizer works in the interpreter would pass the one above."""
    if not has_sanitizers(tmp_path):
        pytest.skip("the compiler has no address and undefined-behaviour sanitizers")
    source, library = tmp_path / "mistake.cpp", tmp_path / "mistake.so"
    source.write_text(f'extern "C" int mistake(int n) {{ {mistake} }}')
    flags = ["-shared", "-fPIC", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["c++", *flags, source, "-o", library], check=True)
    code = f"import ctypes; ctypes.CDLL({str(library)!r}).mistake(0)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert found.returncode != 0
    assert said in found.stderr
