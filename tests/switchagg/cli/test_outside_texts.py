"""Texts from outside that Python's own parsers refuse with errors of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.bench.grid import parse_size
from switchagg.cli.static_jobs import load_jobs
from switchagg.control.switch_specs import read_configuration
from switchagg.demo.settings import parse_embedding
from switchagg.errors import UsageError
from worker_lib import launchers

_LONG = "9" * 5000  # more digits than int() takes


def test_numbers_of_any_length() -> None:
    with pytest.raises(UsageError, match="accepted: whole bytes"):
        parse_size("9" * 400)
    with pytest.raises(UsageError, match="expected ROWSxCOLUMNS"):
        parse_embedding(f"{_LONG}x64")
    with pytest.raises(UsageError, match="RANK is '999"):
        launchers.read({"RANK": _LONG, "WORLD_SIZE": "2"})
    with pytest.raises(UsageError, match="has started more"):
        launchers.read({"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": _LONG})
    step = {"SLURM_STEP_ID": _LONG, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    assert launchers.read(step) is not None


def test_nesting(tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_text("[" * 50_000)
    with pytest.raises(UsageError, match="is nested too deeply; accepted: a job"):
        load_jobs(path)
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(UsageError, match="is nested too deeply; accepted: "):
        read_configuration(path)
