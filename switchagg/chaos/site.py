"""A site: one controller and its switch, in processes that are struck and come back at the same addresses."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from switchagg.chaos.kernel import FullDisk, SocketFilter
from switchagg.launch.processes import Child, Processes

_PORTS: Final = (
    10_000,
    32_000,
)  # the kernel gives higher ones to clients, even while the server is down
_COMMAND: Final = (sys.executable, "-P", "-m", "switchagg.cli.main")
_OWN: Final = ("SWITCHAGG_", "RANK", "WORLD_SIZE", "MASTER_", "STATE_DIRECTORY")


@dataclass(eq=False)
class Member:
    """A process that faults strike.

    Attributes:
        name: for people.
        child: None while it is not running.
        due: the time at which it is started again; None while nothing is to be started.
        stopped: true after a SIGSTOP.
        filters: on its sockets.
        full: the full disk of a controller's state.
        struck: number of faults that have not ended.
    """

    name: str
    child: Child | None = None
    due: float | None = None
    stopped: bool = False
    filters: list[SocketFilter] = field(default_factory=list)
    full: FullDisk | None = None
    struck: int = 0


class Site:
    """A switch and its controller.

    Args:
        separate: the switch is a process of its own, which the controller reaches by P4Runtime; otherwise
            it is inside the controller's process.
        folder: for the controller's state.
        network: options of `switchagg switch` for the separate switch.

    Attributes:
        controller, switch: its processes; the switch's is None where it is inside.
    """

    def __init__(
        self, name: str, *, separate: bool, folder: Path, rng: Random, network: Sequence[str]
    ) -> None:
        self.name, self.separate, self.folder = name, separate, folder
        self._network = list(network)
        ports = [_free_port(rng) for _ in range(3)]
        self._http, self._p4runtime, self._udp = ports
        self.url = f"http://127.0.0.1:{self._http}"
        self.controller = Member(f"{name}: controller")
        self.switch = Member(f"{name}: switch") if separate else None
        self.ready: set[Member] = set()

    @property
    def members(self) -> list[Member]:
        """Its processes, in the order of their first start."""
        return [self.controller] if self.switch is None else [self.switch, self.controller]

    def start(self, member: Member, processes: Processes, extra: Mapping[str, str]) -> Child:
        """Starts one of its processes, for the first time or again; `extra` is more of its environment."""
        if member is self.switch:
            line = [
                "switch",
                "--json",
                "--port",
                str(self._udp),
                "--p4runtime",
                f"127.0.0.1:{self._p4runtime}",
            ]
            line += self._network
        else:
            there = f"p4runtime://127.0.0.1:{self._p4runtime}" if self.separate else "native"
            line = [
                "controller",
                "--json",
                "--listen",
                f"127.0.0.1:{self._http}",
                "--switch",
                f"switch={there}",
            ]
            line += ["--state", str(self.folder / "state"), "--log-level", "warning"]
        self.ready.discard(member)
        member.due, member.stopped = None, False
        member.child = processes.start(
            member.name, [*_COMMAND, *line, "--json"], environment=environment() | dict(extra)
        )
        return member.child

    def heard(self, member: Member, line: str) -> None:
        """Takes a line of a process's standard output; its first one says that it serves."""
        if member not in self.ready and isinstance(json.loads(line), dict):
            self.ready.add(member)


def environment() -> dict[str, str]:
    """Returns this process's environment without what speaks of other jobs and controllers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}


def _free_port(rng: Random) -> int:
    """Returns a port of loopback that is free for TCP and for UDP."""
    while True:
        port = rng.randrange(*_PORTS)
        try:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as tried:
                    tried.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port
