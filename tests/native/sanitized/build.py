"""Builds the native modules with sanitizers and runs tests with them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.native.building import ROOT

HERE: Final = Path(__file__).parent
FLAGS: Final = (
    "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined "
    "-fno-sanitize=vptr -fno-sanitize-recover=all"
)
_WORKER: Final = (
    *("window", "plan", "stream", "limbs", "kernels", "link", "link_ends", "codec", "density", "quantize"),
    *("heartbeat", "collectives", "exact", "extrema", "segments", "sparse", "engine_change", "policy"),
)
TESTS: Final = (
    *(f"tests/worker_lib/test_{name}.py" for name in _WORKER),
    "tests/switchagg/emulator",
    "tests/switchagg/conformance",
)
"""The tests whose subject is native code."""
_MEASURES: Final = "tests/switchagg/emulator/test_switch.py::test_memory_does_not_grow_with_traffic"
"""Of memory, which the address sanitizer keeps back when it is freed."""


def has_sanitizers(folder: Path) -> bool:
    """Returns True if the compiler has both sanitizers with their shared libraries."""
    source = folder / "empty.cpp"
    source.write_text("")
    words = [
        *_compiler(),
        "-shared",
        "-fPIC",
        "-fsanitize=address,undefined",
        source,
        "-o",
        folder / "empty.so",
    ]
    made = subprocess.run(words, capture_output=True, check=False)
    return made.returncode == 0 and all(Path(each).is_absolute() for each in _preloaded())


def build(folder: Path, *, targets: Sequence[str] = ("switchagg_native", "worker_native")) -> None:
    """Compiles what has changed.

    Args:
        folder: for objects and, below out/, the modules.
        targets: of CMakeLists.txt.

    Raises:
        subprocess.CalledProcessError: the compiler has found a mistake, or has no sanitizers.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    words = ["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Sanitize", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
    words += [f"-DPython_EXECUTABLE={sys.executable}"]
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    jobs = str(os.cpu_count())
    subprocess.run(
        ["cmake", "--build", folder, "--parallel", jobs, "--target", *targets], check=True, env=environment
    )


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment in which Python takes the modules of a folder."""
    return {
        **os.environ,
        "SWITCHAGG_SANITIZED": str(folder / "out"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        "LD_PRELOAD": " ".join(_preloaded()),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own are many
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run(folder: Path, tests: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Runs pytest, one test after another, with the modules of a folder."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "--timeout",
        "600",
        "-p",
        "no:cacheprovider",
        *tests,
        "--deselect",
        _MEASURES,
    ]
    return subprocess.run(words, cwd=ROOT, env=environment(folder), check=False, **options)


def _preloaded() -> list[str]:
    """The libraries that must come before the interpreter's own."""
    found = []
    for name in ("libasan.so", "libstdc++.so"):
        words = [*_compiler(), f"-print-file-name={name}"]
        found.append(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    return found


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "c++"))
