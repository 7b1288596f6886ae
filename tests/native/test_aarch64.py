"""The loops over elements, compiled for aarch64 and run by qemu, give the bits that they give here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.native import building
from tests.native.building import NATIVE, ROOT, Unit
from tests.native.simulation.build import build as build_simulation
from tests.seeds import seed_of_this_run
from worker_lib._native import LoopBench

_COMPILER: Final = "aarch64-linux-gnu-g++"
_RUN: Final = "qemu-aarch64"
_MISSING: Final = [name for name in (_COMPILER, _RUN) if shutil.which(name) is None]
_FLAGS: Final = ("-std=c++20", "-O3", "-ffp-contract=off", f"-I{ROOT}")
_LOOP_FLAGS: Final = ("-fno-exceptions", "-fno-rtti", "-fno-math-errno", "-fno-trapping-math")
"""Of CMakeLists.txt, where they may change what a loop computes."""
ELEMENTS: Final = 8192

pytestmark = pytest.mark.skipif(
    bool(_MISSING),
    reason=f"{' and '.join(_MISSING)} not installed (Debian: g++-aarch64-linux-gnu, qemu-user)",
)


def test_every_loop_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{_COMPILER} -static")
    units = building.product(
        {"worker": ("lane_kernels", "compress_kernels"), "shared": ("slot_kernels",)}, *_LOOP_FLAGS
    )
    units += [
        *building.product({"worker": ("loop_bench",)}),
        Unit(Path(__file__).parent / "aarch64" / "main.cpp"),
    ]
    program = building.build(tmp_path, "loops", units, _FLAGS, (NATIVE,))
    seed = seed_of_this_run()
    words = [_RUN, program, str(seed), str(ELEMENTS)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    there = [line.partition(" ")[::2] for line in printed.splitlines()]
    assert [name for _, name in there] == [name for name, _ in LoopBench.loops]
    here = LoopBench(seed, ELEMENTS)
    for index, (digest, name) in enumerate(there):
        for level, its_name in enumerate(LoopBench.levels):
            assert int(digest, 16) == here.digest(index, level), f"{name}, {its_name}"


@pytest.mark.long  # compiles engine and switch twice
def test_whole_jobs_send_the_same_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines and switches in virtual time: the hash is of every packet and its time."""
    seed = seed_of_this_run()
    words = [str(seed), "40"]
    program = build_simulation(tmp_path / "here")
    here = subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("CXX", f"{_COMPILER} -static")
    program = build_simulation(tmp_path / "there")
    there = subprocess.run([_RUN, program, *words], capture_output=True, text=True, check=True).stdout
    without_time = [[line for line in out.splitlines() if "seconds " not in line] for out in (here, there)]
    assert without_time[0] == without_time[1]
    assert any(line.startswith("hash ") for line in without_time[0])
