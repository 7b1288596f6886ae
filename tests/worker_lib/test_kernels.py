"""The loops over elements are compiled for each instruction set; all agree with the reference to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_lib import _native

HERE = Path(__file__).parent
SAME_BITS = "test_the_native_form_gives_the_same_bits"
TWINS = [
    "test_codec.py",
    "test_check.py::test_check_words_are_those_of_the_reference",
    "test_check.py::test_results_are_those_of_sums_without_check_words[auto]",
    f"compress/test_rounding.py::{SAME_BITS}",
    f"compress/test_modular.py::{SAME_BITS}",
]


def run(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "SWITCHAGG_KERNELS": level},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("level", ["base", pytest.param("v3", marks=pytest.mark.long), "v4"])
def test_every_instruction_set_agrees_with_the_reference(level: str) -> None:
    chosen = run(level, "-c", "from worker_lib import _native; print(_native.kernels)").stdout.strip()
    if chosen != level:
        pytest.skip(f"the processor, or the build, has no {level} kernels; it took {chosen}")
    if level == _native.kernels:
        pytest.skip(f"all other tests run with the {level} kernels")
    outcome = run(
        level, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"{HERE}/{name}" for name in TWINS)
    )
    print(outcome.stdout)
    assert outcome.returncode == 0
