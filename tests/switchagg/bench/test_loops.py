"""`switchagg bench loops`: figures of each loop, and arguments that cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from switchagg.bench.loops import Figure, Settings, table
from switchagg.errors import UsageError
from tests.seeds import seed_of_this_run
from tests.switchagg.cli.processes import outcome
from worker_lib._native import LoopBench


def test_every_loop_is_measured_at_every_instruction_set(tmp_path: Path) -> None:
    file = tmp_path / "loops.json"
    status, out, err = outcome(
        "bench", "loops", "--size", "64K", "--repeat", "2", "--json", str(file), seconds=120
    )
    assert status == 0, out + err
    told = json.loads(file.read_text())
    assert [(each["loop"], each["level"]) for each in told["loops"]] == [
        (name, level) for name, _ in LoopBench.loops for level in LoopBench.levels
    ]
    for each in told["loops"]:
        assert each["loop"] in out
        assert len(each["samples"]) == 2
        assert min(min(pair) for pair in each["samples"]) > 0


def test_loops_give_the_same_bits_at_every_instruction_set() -> None:
    seed = seed_of_this_run()
    bench, *others = (LoopBench(seed + i, 8192) for i in range(6))
    for index, (name, _) in enumerate(LoopBench.loops):
        first, *rest = (bench.digest(index, level) for level in range(len(LoopBench.levels)))
        assert set(rest) <= {first}, name
        if name != "scan_words":  # no block is zero
            # Scans find now and then the same in two inputs.
            assert any(other.digest(index, 0) != first for other in others), f"{name} ignores its input"


def test_the_table_has_medians_of_pairs() -> None:
    samples = ((1e-6, 1e-6), (4e-6, 2e-6), (2e-6, 0.5e-6))
    made = table(Settings(), [Figure("scan32", LoopBench.levels[0], 4, 1000, samples)])
    assert [list(row) for row in made.rows] == [["scan32", 4, 2.0, 0.5]]


def test_one_loop_of_one_set_is_measured_alone() -> None:
    status, out, err = outcome("bench", "loops", "--loop", "scan32,pack3", "--level", "base", "--repeat", "1")
    assert status == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["scan32", "scan32_smallest", "pack32"]
    assert "v3 GB/s" not in out


def test_arguments_that_cannot_work() -> None:
    for wrong in (
        {"size": 1000}, {"size": 0}, {"loops": ("quantise",)}, {"levels": ("v5",)}, {"repeat": 0},
        {"seed": -1},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="accepted"):
            Settings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4096"):
        LoopBench(1, 4097)
