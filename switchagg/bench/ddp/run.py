"""Starts the ranks and a switch, and gathers what they find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from switchagg.bench.ddp.settings import DdpSettings, Figures
from switchagg.errors import SwitchAggError, UsageError

_POLL = 0.05  # seconds
_WORDS = 2000  # characters of a rank's last words


def run(settings: DdpSettings, found: Callable[[Figures], None]) -> list[Figures]:
    """Measures; calls `found` with each system's figures as they come.

    Raises:
        UsageError: torch is not installed. SwitchAggError: a rank failed; the message has its last words.
    """
    if find_spec("torch") is None:
        raise UsageError("bench ddp needs torch: pip install 'switchagg[torch]'")
    from worker_lib.embedded import start_embedded

    figures: list[Figures] = []

    def collect(line: str) -> None:
        values = json.loads(line)
        for key in ("steps_per_second", "communication_seconds"):
            values[key] = tuple(values[key])
        figures.append(Figures(**values))
        found(figures[-1])

    with start_embedded(quiet=True) as host:
        for workers in settings.workers:
            _group(settings, workers, host.controller, collect)
    return figures


def _group(settings: DdpSettings, workers: int, controller: str, collect: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="swbench-") as name:
        folder = Path(name)
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "SWITCHAGG_CONTROLLER": controller,
        }  # fmt: skip
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(workers):
                config = {
                    "settings": asdict(settings), "rank": rank, "workers": workers,
                    "store": str(folder / "store"),
                }  # fmt: skip
                with (folder / f"out{rank}").open("wb") as out, (folder / f"err{rank}").open("wb") as err:
                    ranks.append(
                        subprocess.Popen(
                            [sys.executable, "-P", "-m", "switchagg.bench.ddp.rank", json.dumps(config)],
                            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                        )
                    )  # fmt: skip
            _follow(ranks, folder, collect)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def _follow(ranks: list[subprocess.Popen[bytes]], folder: Path, collect: Callable[[str], None]) -> None:
    """Hands on rank 0's lines until all ranks have ended."""
    rest = ""
    with (folder / "out0").open() as said:
        while True:
            ended = [process.poll() for process in ranks]
            *lines, rest = (rest + said.read()).split("\n")
            for line in lines:
                collect(line)
            for rank, status in enumerate(ended):
                if status:
                    words = (folder / f"err{rank}").read_text(errors="replace").strip()[-_WORDS:]
                    raise SwitchAggError(f"rank {rank} of {len(ranks)} ended with status {status}: {words}")
            if all(status == 0 for status in ended):
                return
            time.sleep(_POLL)
