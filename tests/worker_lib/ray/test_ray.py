"""Ray on two nodes, each in a namespace of its own: collective groups and Ray Train through a switch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import ROOT

RAY = Path(sys.executable).parent / "ray"
if not RAY.exists():  # a module `ray` is this folder too, where pytest has its parent in the path
    pytest.skip("ray is not installed (pip install 'switchagg[ray]')", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HEAD, OTHER = "10.77.22.1", "10.77.22.2"
NODE = ("--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats")


def _run(*command: str, limit: float = 240.0) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_TRAIN_V2_ENABLED": "1",
        "GLOO_SOCKET_IFNAME": "eth0",  # this computer's name is no address of the namespaces
        "RAY_DISABLE_MEMORY_MONITOR": "1",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    with tempfile.TemporaryFile() as said:  # no pipe: what Ray leaves running would hold it open
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            check=False, timeout=limit,
        )  # fmt: skip
        said.seek(0)
        text = said.read().decode(errors="replace")
    assert done.returncode == 0, f"{' '.join(command)}\n{text[-20000:]}"
    return text


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, ...]]:
    """Two nodes; the words before a command that runs beside the first."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    tag = uuid.uuid4().hex[:6]
    spaces = [f"sw-ray-{tag}-{i}" for i in range(2)]
    ray = str(RAY)
    inside = [("ip", "netns", "exec", space) for space in spaces]
    try:
        for space in spaces:
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        ends = [f"sr{tag}{i}" for i in range(2)]
        _run(
            "ip", "link", "add", ends[0], "netns", spaces[0], "type", "veth",
            "peer", "name", ends[1], "netns", spaces[1],
        )  # fmt: skip
        for space, end, address in zip(spaces, ends, (HEAD, OTHER), strict=True):
            _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", end)
            _run("ip", "-n", space, "link", "set", end, "name", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
        _run(
            *inside[0], ray, "start", "--head", f"--node-ip-address={HEAD}", "--port=6399",
            "--include-dashboard=false", *NODE,
        )  # fmt: skip
        _run(*inside[1], ray, "start", f"--address={HEAD}:6399", f"--node-ip-address={OTHER}", *NODE)
        yield inside[0]
    finally:
        for space in spaces:  # all processes of a namespace are the cluster's
            pids = subprocess.run(
                ["ip", "netns", "pids", space], check=False, capture_output=True, text=True
            ).stdout
            if pids.split():
                subprocess.run(["kill", "-9", *pids.split()], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)


def _answer(cluster: tuple[str, ...], what: str) -> Any:
    said = _run(
        *cluster, sys.executable, "-m", "tests.worker_lib.ray.program",
        f"{HEAD}:6399", str(seed_of_this_run()), what,
    )  # fmt: skip
    lines = [line for line in said.splitlines() if line.startswith("ANSWER ")]
    assert lines, said[-3000:]
    return json.loads(lines[-1].removeprefix("ANSWER "))


def test_collective_groups(cluster: tuple[str, ...]) -> None:
    answer = _answer(cluster, "groups")
    assert answer["nodes"] == 2
    results = answer["results"]
    assert len({each["sum"] for each in results}) == 1
    assert all(each["refused"] == "op is PRODUCT; accepted: SUM, MIN and MAX" for each in results)


def test_train(cluster: tuple[str, ...]) -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")
    ranks = _answer(cluster, "train")
    assert [each["backend"] for each in ranks] == ["switchagg"] * 4
    assert {each["nodes"] for each in ranks} == {0, 1}
    assert len({each["sum"] for each in ranks}) == 1
    assert all(each["alike"] and each["same"] for each in ranks)
