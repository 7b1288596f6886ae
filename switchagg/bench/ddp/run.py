"""Starts the ranks and a switch, and gathers what they find."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec

from switchagg.bench.ddp.settings import DdpSettings, Figures
from switchagg.errors import UsageError
from switchagg.launch.processes import Ended, Line, ProcessError, Processes


def run(settings: DdpSettings, found: Callable[[Figures], None]) -> list[Figures]:
    """Measures; calls `found` with each system's figures as they come.

    Raises:
        UsageError: torch is not installed. ProcessError: a rank failed; the message has its last lines.
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
    """Runs the ranks to their end and hands on rank 0's lines."""
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SWITCHAGG_CONTROLLER": controller,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="swbench-") as folder, Processes() as processes:
        config = {"settings": asdict(settings), "workers": workers, "store": f"{folder}/store"}
        command = [sys.executable, "-P", "-m", "switchagg.bench.ddp.rank"]
        for rank in range(workers):
            text = json.dumps(config | {"rank": rank})
            processes.start(f"rank {rank} of {workers}", [*command, text], environment=environment)
        for event in processes.events():
            match event:
                case Line(child, text) if child is processes.children[0]:
                    collect(text)
                case Ended(child) if child.status:
                    raise ProcessError(child.ending(lines=20, characters=2000))
                case Ended() if not processes.running():
                    return
