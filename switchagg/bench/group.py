"""One system's rank processes, seen from the parent: start them, command them all at once, stop them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import IO, TypeVar, cast

from switchagg.bench.messages import Failed, Quit
from switchagg.bench.peers.base import Peer
from switchagg.errors import SwitchAggError
from switchagg.processor_time import process_seconds

START_SECONDS = 60.0
_QUIT_SECONDS = 5.0
_POLL_SECONDS = 0.2

Reply = TypeVar("Reply")


class GroupError(SwitchAggError):
    """A rank failed, ended or did not answer in time. The group is of no more use."""


class Group:
    """The ranks of one peer, waiting for commands. A context manager; leaving it ends every process.

    Args:
        timeout: seconds that a call may take.
        program: the module that a rank's process runs.

    Raises:
        GroupError: the ranks did not all get ready within START_SECONDS.
    """

    def __init__(
        self, peer: Peer, workers: int, timeout: float, *, program: str = "switchagg.bench.rank"
    ) -> None:
        self.peer = peer
        self._program = program
        self.workers = workers
        self._usable = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        # The path of a Unix socket may have 107 bytes: a short name under the system's temporary folder.
        self._directory = tempfile.TemporaryDirectory(prefix="swbench-")
        directory = Path(self._directory.name)
        self._log: IO[bytes] = (directory / "log").open("w+b")
        try:
            self._start(directory, timeout)
        except BaseException:
            self.close()
            raise

    def _start(self, directory: Path, timeout: float) -> None:
        deadline = time.monotonic() + START_SECONDS
        with Listener(str(directory / "s"), "AF_UNIX", backlog=self.workers) as listener:
            config = {
                "socket": listener.address,
                "peer": self.peer.name,
                "workers": self.workers,
                "directory": str(directory),
                "timeout": timeout,
                "options": self.peer.start(self.workers),
            }
            text = json.dumps(config | {"rank": 0}).replace('"rank": 0', '"rank": {rank}')
            command = [sys.executable, "-P", "-m", self._program, text]
            # TMPDIR: what a peer leaves behind goes with our folder.
            environment = {**self.peer.environment(), "TMPDIR": str(directory)}
            for line in self.peer.commands(self.workers, command):
                # A session of its own: Ctrl-C reaches the parent alone, which then stops everything in order.
                self._processes.append(
                    subprocess.Popen(
                        line,
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=self._log,
                        env=environment,
                        start_new_session=True,
                    )
                )
            self._connections = self._accept(listener, deadline)
        self._collect(deadline, "did not get ready")
        self._usable = True

    def _accept(self, listener: Listener, deadline: float) -> list[Connection]:
        # multiprocessing's listener has no timeout of its own; its socket has.
        socket = listener._listener._socket  # type: ignore[attr-defined]
        socket.settimeout(_POLL_SECONDS)
        ranks: dict[int, Connection] = {}
        while len(ranks) < self.workers:
            try:
                connection = listener.accept()
            except TimeoutError:
                self._check_processes()
                if time.monotonic() > deadline:
                    missing = sorted(set(range(self.workers)) - set(ranks))
                    raise GroupError(self._explain(f"ranks {missing} did not start")) from None
                continue
            self._connections.append(connection)
            ranks[connection.recv()] = connection
        return [ranks[rank] for rank in range(self.workers)]

    def command(self, make: Callable[[int], object], kind: type[Reply], timeout: float) -> list[Reply]:
        """Send `make(rank)` to every rank and return their replies, in rank order.

        Args:
            kind: the type of the replies.
            timeout: seconds to wait for all of them.

        Raises:
            GroupError: a rank failed, ended or did not answer in time.
        """
        self._usable = False
        try:
            for rank, connection in enumerate(self._connections):
                connection.send(make(rank))
        except OSError:
            self._check_processes()
            raise GroupError(self._explain("a rank hung up")) from None
        replies = self._collect(time.monotonic() + timeout, f"did not answer within {timeout:g} s")
        assert all(isinstance(reply, kind) for reply in replies)
        self._usable = True
        return cast(list[Reply], replies)

    def _collect(self, deadline: float, complaint: str) -> list[object]:
        pending = {connection: rank for rank, connection in enumerate(self._connections)}
        replies: list[object] = [None] * self.workers
        while pending:
            for ready in wait(list(pending), _POLL_SECONDS):
                connection = cast(Connection, ready)
                try:
                    reply = connection.recv()
                except (EOFError, OSError):
                    raise GroupError(self._explain(f"rank {pending[connection]} ended")) from None
                if isinstance(reply, Failed):
                    raise GroupError(reply.message)
                replies[pending.pop(connection)] = reply
            if pending and time.monotonic() > deadline:
                raise GroupError(self._explain(f"ranks {sorted(pending.values())} {complaint}"))
        return replies

    def _check_processes(self) -> None:
        for process in self._processes:
            status = process.poll()
            if status is not None:
                raise GroupError(self._explain(f"a process ended with status {status}"))

    def _explain(self, what: str) -> str:
        """`what`, and the last line that the ranks wrote."""
        self._log.seek(0)
        lines = [
            line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()
        ]
        return f"{what}; its last words: {lines[-1][:200]}" if lines else what

    def cpu_seconds(self) -> float:
        """Processor time so far of what the peer runs besides the ranks, such as the switch."""
        return sum(process_seconds(pid) for pid in self.peer.processes())

    def close(self, *, gently: bool = False) -> None:
        """End every process. `gently` lets ranks that can still hear it leave first. Safe to call twice."""
        gently = gently and self._usable
        for connection in self._connections:
            try:
                if gently:
                    connection.send(Quit())
                else:
                    connection.close()
            except OSError:
                continue
        _wait_or_kill(self._processes, _QUIT_SECONDS if gently else 1.0)
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._processes = []
        self.peer.stop()
        self._log.close()
        self._directory.cleanup()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(gently=kind is None)


def _wait_or_kill(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            # Each leads a process group of its own, which mpirun's ranks may share.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
