"""The rules of `scripts/check_sources.py` that name modules."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("check_sources", ROOT / "scripts" / "check_sources.py")
assert _SPEC is not None
assert _SPEC.loader is not None
check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("import time\n", "time"),
        ("from time import monotonic\n", "time.monotonic"),
        ("import threading\nthreading.Thread(target=print)\n", "threading.Thread"),
        ("from threading import Condition, Lock\n", "threading.Condition"),
        ("import os\nos.urandom(4)\n", "os.urandom"),
        ("import numpy as np\nnp.random.default_rng()\n", "default_rng without a seed"),
    ],
)
def test_what_reaches_outside_is_named(source: str, named: str) -> None:
    assert [name for _, name in check.reaches_outside(ast.parse(source))] == [named]


def test_locks_and_seeded_draws_are_no_reach_outside() -> None:
    source = "import os, threading\nthreading.Lock()\nos.getpid()\nnp.random.default_rng(1)\n"
    assert not list(check.reaches_outside(ast.parse(source)))


def test_only_modules_that_are_no_shells_are_pure() -> None:
    assert check.is_pure(Path("worker_lib/monitor.py"))
    assert check.is_pure(Path("switchagg/control/jobs/book.py"))
    assert not check.is_pure(Path("worker_lib/torch/work.py"))
    assert not check.is_pure(Path("switchagg/emulator/switch.py"))
    for shell in check.SHELLS:
        assert (ROOT / shell).exists(), shell
