"""`switchagg bench fsdp`: a small run of everything, the table, and refusals."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from switchagg.bench import fsdp
from switchagg.bench.fsdp import Figures, FsdpSettings
from switchagg.errors import UsageError
from tests.waiting import eventually

pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")


def test_a_small_run(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "switchagg.cli.main", "bench", "fsdp", "--workers", "2", "--steps", "1",
            "--repeat", "2", "--warmup", "1", "--parameters", "200000", "--json", str(figures),
            "--system", "gloo,switchagg,switchagg-hooks,switchagg-16,none",
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = {run["system"]: run for run in json.loads(figures.read_text())["runs"]}
    assert list(runs) == ["gloo", "switchagg", "switchagg-hooks", "switchagg-16", "none"]
    assert all(len(run["steps_per_second"]) == 2 for run in runs.values())
    assert [runs[name]["apart"] for name in ("gloo", "none")] == [0.0, None]
    # Two all-gathers of the other's half of the parameters, and a reduce-scatter.
    parameters = 8 * (8 * 55**2 + 7 * 55) * 4
    for name in ("gloo", "switchagg", "switchagg-hooks"):
        assert runs[name]["bytes_received"] > 1.5 * parameters, runs
        assert runs[name]["bytes_sent"] > 1.5 * parameters, runs
    assert runs["none"]["bytes_sent"] < 0.01 * parameters
    assert "NO" not in done.stdout


@pytest.mark.long  # 15 s
def test_replicas(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "switchagg.cli.main", "bench", "fsdp", "--workers", "4", "--replicas", "2",
            "--steps", "1", "--repeat", "2", "--warmup", "1", "--parameters", "200000",
            "--system", "gloo,switchagg,switchagg-hooks", "--json", str(figures),
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parameters = 8 * (8 * 55**2 + 7 * 55) * 4
    for run in json.loads(figures.read_text())["runs"]:
        assert run["apart"] <= 1e-3
        # As without replicas, and a half of the gradients between them.
        assert run["bytes_sent"] > 2 * parameters, run
        assert run["bytes_received"] > 2 * parameters, run


def test_the_table_compares_with_gloo_and_none_of_as_many_ranks() -> None:
    def figures(workers: int, system: str, rate: float, apart: float | None) -> Figures:
        return Figures(workers, system, (rate, 9 * rate, rate), 2e6, 3e6, 0.5, apart)

    lines = fsdp.table(
        [
            figures(2, "gloo", 2, 0.0),
            figures(4, "gloo", 2, 0.0),
            figures(4, "switchagg", 4, 0.01),
            figures(4, "none", 8, None),
        ]
    ).splitlines()
    # 1/2, 1/4 and 1/8 seconds a step: the exchange adds 375 and 125 ms.
    cells = [line.split() for line in lines[2:]]
    assert [row[:5] for row in cells] == [
        ["2", "gloo", "2", "1", "-"],
        ["4", "gloo", "2", "1", "375"],
        ["4", "switchagg", "4", "2", "125"],
        ["4", "none", "8", "4", "-"],
    ]
    assert [row[-1] for row in cells] == ["yes", "yes", "NO", "yes"]


def test_bytes_of_tcp_connections_are_counted() -> None:
    from switchagg.bench.fsdp_rank import tcp_bytes

    near, far = _connection()
    with near, far:
        before = tcp_bytes()
        near.sendall(bytes(5000))
        assert len(far.recv(5000, socket.MSG_WAITALL)) == 5000
        # Sent bytes count once they are acknowledged, which may be later than they are received.
        eventually(lambda: [now - a for a, now in zip(before, tcp_bytes(), strict=True)] == [5000, 5000])


def _connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"workers": (1,)}, "workers is 1"),
        ({"systems": ("nccl",)}, "system is 'nccl'"),
        ({"systems": ()}, "nothing to measure"),
        ({"steps": 0}, "steps is 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"parameters": 5}, "parameters is 5"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"replicas": 0}, "replicas is 0"),
        ({"workers": (6, 9), "replicas": 2}, "workers is 9"),
        ({"workers": (2,), "replicas": 2}, "workers is 2"),
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        FsdpSettings(**wrong)  # type: ignore[arg-type]
