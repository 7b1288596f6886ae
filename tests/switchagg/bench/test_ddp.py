"""`switchagg bench ddp`: a small run of everything, and refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.bench import ddp
from switchagg.bench.ddp import APART, DdpSettings, Figures
from switchagg.errors import UsageError


def test_a_small_run(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "switchagg.cli.main", "bench", "ddp", "--workers", "2", "--steps", "2",
            "--repeat", "1", "--warmup", "0", "--parameters", "20000", "--json", str(figures),
            "--system", "gloo,gloo-fp16,switchagg,switchagg-16-ef,switchagg-8,barrier,none",
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = json.loads(figures.read_text())["runs"]
    assert len(runs) == 21
    assert all(run["steps_per_second"][0] > 0 for run in runs)
    assert all(run["same"] is (None if run["system"] in APART else True) for run in runs)
    assert all(bool(run["bytes_sent"]) == run["system"].startswith("switchagg") for run in runs)
    assert len(done.stdout.split("\n\n")[0].splitlines()) == 22
    assert "NO" not in done.stdout.split("\n\n")[0]


_LATE = """
import pathlib, sys, time
import torch.distributed as dist
from switchagg.bench.ddp_rank import Barrier, left

store, rank, late = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[1] + ".late")
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
barrier = Barrier()
for _ in range(2):
    if rank == 1:
        time.sleep(0.2)
        late.touch()
    barrier.wait()
    if rank == 0:
        print(late.exists(), flush=True)
        late.unlink()
    barrier.wait()
left()
"""


def test_the_barrier_waits_for_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _LATE, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert said == ["True\nTrue\n", ""]
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_the_table_compares_with_gloo_of_the_same_cell() -> None:
    def figures(
        workers: int, system: str, rate: float, seconds: float, *, same: bool | None = True
    ) -> Figures:
        return Figures(workers, "dense", system, (rate, 9 * rate, rate), (seconds,) * 3, 0.0, same, 0.5)

    lines = ddp.table(
        [
            figures(2, "switchagg", 30, 0.001),
            figures(2, "gloo", 10, 0.004),
            figures(4, "switchagg", 1, 1, same=False),
            figures(8, "gloo", 2, 0.4),
            figures(8, "switchagg", 4, 0.1),
            figures(8, "none", 8, 0.0, same=None),
        ]
    ).splitlines()
    assert lines[1].split() == [
        "2",
        "dense",
        "switchagg",
        "30.0",
        "3.00",
        "1.0",
        "0.25",
        "-",
        "-",
        "-",
        "yes",
        "0.5000",
    ]
    assert lines[3].split()[4:] == ["-", "1000.0", "-", "-", "-", "-", "NO", "0.5000"]
    # 1/2, 1/4 and 1/8 seconds a step: the exchange adds 375 and 125 ms.
    assert lines[5].split()[4:] == ["2.00", "100.0", "0.25", "125.0", "0.33", "-", "yes", "0.5000"]
    assert lines[6].split()[4:] == ["4.00", "0.0", "-", "-", "-", "-", "-", "0.5000"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"workers": (1,)}, "workers is 1"),
        ({"workers": (33,)}, "workers is 33"),
        ({"models": ("huge",)}, "model is 'huge'"),
        ({"systems": ("nccl",)}, "system is 'nccl'"),
        ({"systems": ()}, "nothing to measure"),
        ({"steps": 0}, "steps is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"parameters": 5}, "parameters is 5"),
        ({"timeout": 0.0}, "timeout is 0"),
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        DdpSettings(**wrong)  # type: ignore[arg-type]
