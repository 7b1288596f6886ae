"""The rank processes of one system: `Group` is the parent's side of them, `serve` a process's own.

parent   Group: starts the ranks, commands all at once, stops them
rank     python -m switchagg.bench.group CONFIG: joins its peers, then carries out the parent's commands
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from switchagg.bench.peers.peer import Endpoint, Peer, RankConfig
from switchagg.launch.control import CommandedRank, RankControl
from switchagg.launch.cores import bind, shares
from switchagg.launch.processes import Output, Processes
from switchagg.processor_time import process_seconds

START_SECONDS: Final = 60.0


class CommandRunner(Protocol):
    """Carries out the parent's commands in a rank's process; made of rank and endpoint."""

    def __init__(self, rank: int, endpoint: Endpoint) -> None: ...

    def carry_out(self, command: object) -> object:
        """Carries out one command and returns the reply."""


class Group:
    """The ranks of one peer, waiting for commands. A context manager; leaving it ends every process.

    Args:
        runner: a class of a module's top level, of which every rank makes an instance.
        timeout: seconds that a call may take.

    Raises:
        ProcessError: the ranks did not all get ready within START_SECONDS.
    """

    def __init__(self, peer: Peer, workers: int, timeout: float, runner: type[CommandRunner]) -> None:
        self.peer = peer
        self.processes = Processes()
        # The path of a Unix socket may have 107 bytes: a short name under the system's temporary folder.
        self._directory = tempfile.TemporaryDirectory(prefix="swbench-")
        self._control = RankControl(self.processes, workers, Path(self._directory.name))
        self.command = self._control.command
        try:
            self._start(workers, timeout, runner)
        except BaseException:
            self.close()
            raise

    def _start(self, workers: int, timeout: float, runner: type[CommandRunner]) -> None:
        config = {
            "socket": self._control.address,
            "runner": [runner.__module__, runner.__qualname__],
            "peer": self.peer.name,
            "workers": workers,
            "directory": self._directory.name,
            "timeout": timeout,
            "options": self.peer.start(),
            "cores": list(map(list, shares(os.sched_getaffinity(0), workers))) if self.peer.binds else [],
        }
        text = json.dumps(config | {"rank": 0}).replace('"rank": 0', '"rank": {rank}')
        command = [sys.executable, "-P", "-m", "switchagg.bench.group", text]
        # TMPDIR: temporary files of a peer go with our folder.
        environment = {**self.peer.environment(), "TMPDIR": self._directory.name}
        for index, line in enumerate(self.peer.commands(workers, command)):
            self.processes.start(f"rank {index}", line, environment=environment, output=Output.KEPT)
        self._control.accept(START_SECONDS)

    def cpu_seconds(self) -> float:
        """Processor time so far of the processes that the peer runs besides the ranks, such as the switch."""
        return sum(process_seconds(pid) for pid in self.peer.processes())

    def close(self, *, gently: bool = False) -> None:
        """Ends every process. `gently` lets ranks that can still hear it leave first. Safe to call twice."""
        self._control.close(gently=gently)
        self.peer.stop()
        self._directory.cleanup()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(gently=kind is None)


def serve(config_text: str) -> None:
    """Runs one rank until the parent closes the connection."""
    config = json.loads(config_text)
    # A launcher's processes have the same arguments, and a variable that tells them apart.
    rank = config["rank"] if isinstance(config["rank"], int) else int(os.environ[config["rank"]])
    mine = RankConfig(
        rank, config["workers"], Path(config["directory"]), config["timeout"], config["options"]
    )
    if os.sched_getaffinity(0) == set().union(*config["cores"]):  # else the peer's launcher has bound it
        bind(config["cores"][rank])
    module, name = config["runner"]
    with CommandedRank(config["socket"], rank) as parent:
        make: Callable[[int, Endpoint], CommandRunner] = getattr(importlib.import_module(module), name)
        endpoint = importlib.import_module(f"switchagg.bench.peers.{config['peer']}").open_endpoint(mine)
        runner = make(rank, endpoint)
        gc.disable()
        gc.freeze()
        parent.serve(runner.carry_out)
        endpoint.close()


if __name__ == "__main__":
    serve(sys.argv[1])
