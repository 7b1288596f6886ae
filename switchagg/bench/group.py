"""The rank processes of one system, seen from the parent: starts them, commands all at once, stops them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from switchagg.bench.peers.base import Peer
from switchagg.launch.control import RankControl
from switchagg.launch.processes import Output, Processes
from switchagg.processor_time import process_seconds

START_SECONDS = 60.0

Reply = TypeVar("Reply")


class Group:
    """The ranks of one peer, waiting for commands. A context manager; leaving it ends every process.

    Args:
        timeout: seconds that a call may take.
        program: the module that a rank's process runs.

    Raises:
        ProcessError: the ranks did not all get ready within START_SECONDS.
    """

    def __init__(
        self, peer: Peer, workers: int, timeout: float, *, program: str = "switchagg.bench.rank"
    ) -> None:
        self.peer = peer
        self.workers = workers
        self.processes = Processes()
        # The path of a Unix socket may have 107 bytes: a short name under the system's temporary folder.
        self._directory = tempfile.TemporaryDirectory(prefix="swbench-")
        self._control = RankControl(self.processes, workers, Path(self._directory.name))
        try:
            self._start(program, timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, program: str, timeout: float) -> None:
        config = {
            "socket": self._control.address,
            "peer": self.peer.name,
            "workers": self.workers,
            "directory": self._directory.name,
            "timeout": timeout,
            "options": self.peer.start(self.workers),
        }
        text = json.dumps(config | {"rank": 0}).replace('"rank": 0', '"rank": {rank}')
        command = [sys.executable, "-P", "-m", program, text]
        # TMPDIR: what a peer leaves behind goes with our folder.
        environment = {**self.peer.environment(), "TMPDIR": self._directory.name}
        for index, line in enumerate(self.peer.commands(self.workers, command)):
            self.processes.start(f"rank {index}", line, environment=environment, output=Output.KEPT)
        self._control.accept(START_SECONDS)

    def command(self, make: Callable[[int], object], kind: type[Reply], timeout: float) -> list[Reply]:
        """Sends `make(rank)` to every rank and returns their replies, in rank order.

        Args:
            kind: the type of the replies.
            timeout: seconds to wait for all of them.

        Raises:
            ProcessError: a rank failed, ended or did not answer in time.
        """
        return self._control.command(make, kind, timeout)

    def cpu_seconds(self) -> float:
        """Processor time so far of what the peer runs besides the ranks, such as the switch."""
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
