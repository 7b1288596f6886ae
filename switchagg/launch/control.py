"""Control connections of ranks: the parent commands all ranks at once, and each answers once.

    parent: RankControl                              rank: CommandedRank
        accept(seconds)        <----- rank -----
        collect(seconds)       <----- None -----     serve(carry_out): it is ready
        command(make, kind, s) ---- command --->
                               <---- reply -----     carry_out(command)
        close(gently=True)     ----- Quit ------>    serve returns

Pickled messages over a Unix socket with a path, not inherited sockets: mpirun may be what starts the ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Self, TypeVar, cast

from switchagg.launch.processes import Child, ProcessError, Processes

_POLL_SECONDS: Final = 0.2
_QUIT_SECONDS: Final = 5.0  # for ranks to leave before they are stopped

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Failed:
    """Reply of a rank that raised, and ends."""

    message: str


@dataclass(frozen=True, slots=True)
class Quit:
    """Command to leave and end."""


class RankControl:
    """The parent's connections to `ranks` ranks, which `processes` holds.

    Args:
        folder: for the socket. The path of a Unix socket has at most 107 bytes.
    """

    def __init__(self, processes: Processes, ranks: int, folder: Path) -> None:
        self.address = str(folder / "s")
        self._processes = processes
        self._ranks = ranks
        self._listener = Listener(self.address, "AF_UNIX", backlog=ranks)
        self._connections: list[Connection] = []
        self._usable = False

    def accept(self, seconds: float) -> None:
        """Waits until all ranks have connected and said that they are ready.

        Raises:
            ProcessError: a process ended, a rank failed, or this took longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        # The listener has no timeout of its own; its socket has.
        self._listener._listener._socket.settimeout(_POLL_SECONDS)  # type: ignore[attr-defined]
        ranks: dict[int, Connection] = {}
        while len(ranks) < self._ranks:
            try:
                connection = self._listener.accept()
            except TimeoutError:
                self._check_processes()
                if time.monotonic() > deadline:
                    missing = sorted(set(range(self._ranks)) - set(ranks))
                    raise self._error(f"ranks {missing} did not start", missing[0]) from None
                continue
            self._connections.append(connection)
            ranks[connection.recv()] = connection
        self._connections = [ranks[rank] for rank in range(self._ranks)]
        self._listener.close()
        self._collect(deadline, "did not get ready")
        self._usable = True

    def command(self, make: Callable[[int], object], kind: type[Reply], timeout: float) -> list[Reply]:
        """Sends `make(rank)` to every rank and returns their replies, in rank order.

        Args:
            kind: the type of the replies.
            timeout: seconds to wait for all of them.

        Raises:
            ProcessError: a rank failed, ended or did not answer in time. No further command is possible.
        """
        self._usable = False
        for rank, connection in enumerate(self._connections):
            try:
                connection.send(make(rank))
            except OSError:
                self._check_processes()
                raise self._error(f"rank {rank} hung up", rank) from None
        replies = self._collect(time.monotonic() + timeout, f"did not answer within {timeout:g} s")
        assert all(isinstance(reply, kind) for reply in replies)
        self._usable = True
        return cast(list[Reply], replies)

    def _collect(self, deadline: float, complaint: str) -> list[object]:
        pending = {connection: rank for rank, connection in enumerate(self._connections)}
        replies: list[object] = [None] * self._ranks
        while pending:
            for ready in wait(list(pending), _POLL_SECONDS):
                connection = cast(Connection, ready)
                rank = pending.pop(connection)
                try:
                    replies[rank] = connection.recv()
                except (EOFError, OSError):
                    raise self._error(f"rank {rank} ended", rank) from None
                if isinstance(failed := replies[rank], Failed):
                    raise ProcessError(failed.message)
            if pending and time.monotonic() > deadline:
                late = sorted(pending.values())
                raise self._error(f"ranks {late} {complaint}", late[0])
        return replies

    def _check_processes(self) -> None:
        self._processes.wait(0.001)
        for child in self._processes.children:
            if child.status is not None:
                raise ProcessError(child.ending())

    def _error(self, what: str, rank: int) -> ProcessError:
        """Returns the error with the last line of a rank, or of what started all ranks."""
        children: list[Child] = self._processes.children
        words = children[rank if len(children) == self._ranks else 0].last_lines()
        return ProcessError(f"{what}; its last words: {words}" if words else what)

    def close(self, *, gently: bool = False) -> None:
        """Hangs up and ends every process. Safe to call twice.

        Args:
            gently: let ranks that can still hear it leave first.
        """
        gently = gently and self._usable
        self._usable = False
        for connection in self._connections:
            try:
                if gently:
                    connection.send(Quit())
                else:
                    connection.close()
            except OSError:
                continue
        self._processes.wait(_QUIT_SECONDS if gently else 1.0)
        self._processes.close()
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._listener.close()


class CommandedRank:
    """The rank's end. A context manager: what is raised inside reaches the parent.

    The process ends at once when the parent hangs up or is gone, even from the middle of a call.
    """

    def __init__(self, address: str, rank: int) -> None:
        self._rank = rank
        self._connection: Connection = Client(address, "AF_UNIX")
        self._connection.send(rank)
        self._commands: SimpleQueue[object] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                self._commands.put(self._connection.recv())
        except (EOFError, OSError):
            os._exit(0)

    def serve(self, carry_out: Callable[[object], object]) -> None:
        """Says that the rank is ready; answers each command with what `carry_out` returns, until `Quit`."""
        self._connection.send(None)
        while not isinstance(command := self._commands.get(), Quit):
            self._connection.send(carry_out(command))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if kind is not None:
            self._connection.send(Failed(f"rank {self._rank}: {kind.__name__}: {error}"))
            # Wait for the parent to hang up: mpirun would end the other ranks before they can report.
            threading.Event().wait()
