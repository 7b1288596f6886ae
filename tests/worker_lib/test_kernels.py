"""The codec is compiled once for each instruction set; each agrees with the Python twins to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODEC_TESTS = Path(__file__).with_name("test_codec.py")


def run(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "SWITCHAGG_KERNELS": level},
        cwd=CODEC_TESTS.parents[2],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("level", ["base", "v3", "v4"])
def test_every_instruction_set_agrees_with_the_twins(level: str) -> None:
    chosen = run(level, "-c", "from worker_lib import _native; print(_native.kernels)").stdout.strip()
    if chosen != level:
        pytest.skip(f"the processor, or the build, has no {level} kernels; it took {chosen}")
    outcome = run(level, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CODEC_TESTS))
    print(outcome.stdout)
    assert outcome.returncode == 0
