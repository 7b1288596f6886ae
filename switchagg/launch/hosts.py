"""Ranks of one command on several hosts, as mpirun starts them: over ssh, one connection a host.

    parse_hosts("node1:2,node2:2")      hosts and their slots
    run_hosts(...)                      remote.py on each; ranks start once all hosts have answered
        +--> ssh node1 python -m switchagg.launch.remote --> ranks 0, 1
        +--> ssh node2 python -m switchagg.launch.remote --> ranks 2, 3

A host that is this one needs no ssh. What the ranks need goes through the connection, not on command lines.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import switchagg
from switchagg.addresses import local_address_towards, resolve
from switchagg.errors import SwitchError, UsageError
from switchagg.launch.processes import Child, Ended, Line, Output, Processes, Readable, ending
from switchagg.launch.ranks import DRAIN, KILL_AFTER, exit_status
from switchagg.launch.signals import STOP_SIGNALS
from worker_lib.secret import Secret

START_TIMEOUT: Final = 60.0  # seconds for a host to answer
SSH: Final = "ssh -o BatchMode=yes"  # no host asks for a password while others wait
_SSH_PORT: Final = 22
_OWN: Final = frozenset({
    "_", "DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL",
    "SWITCHAGG_ADDRESS", "TERM", "TMPDIR", "USER", "XAUTHORITY",
})  # fmt: skip
_OWN_PREFIXES: Final = ("SSH_", "XDG_", "DBUS_", "SUDO_", "LC_")


@dataclass(frozen=True, slots=True)
class Host:
    """A host, as ssh knows it, and how many ranks it takes."""

    name: str
    slots: int

    @property
    def address(self) -> str:
        """Its name without a user's."""
        return self.name.rpartition("@")[2]

    @property
    def is_here(self) -> bool:
        """True for this computer, by a name that says so."""
        return self.name in ("localhost", socket.gethostname()) or self.name.startswith("127.")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a host that is ready.

    Attributes:
        host: it.
        port: a TCP port that is free there.
        client, server: IPv4 addresses of this computer and of the host, as the host sees the connection;
            empty where it does not say, or has others.
    """

    host: Host
    port: int
    client: str
    server: str


def parse_hosts(text: str) -> list[Host]:
    """Returns hosts and slots from "node1:2,node2"; a name that comes again adds to its slots.

    Raises:
        UsageError: a name is empty, or slots are no number from 1 on.
    """
    return _merged([_host(each, ":", f"hosts {text!r}") for each in text.split(",")])


def read_hostfile(path: Path) -> list[Host]:
    """Returns hosts and slots from a file: "node1", "node1:2" or "node1 slots=2" a line; "#" is a comment.

    Raises:
        UsageError: it cannot be read, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"hostfile {path}: {getattr(error, 'strerror', None) or error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        where = f"hostfile {path}, line {number}"
        match words:
            case []:
                continue
            case [name]:
                found.append(_host(name, ":", where))
            case [name, slots] if slots.startswith("slots="):
                found.append(_host(f"{name}={slots.removeprefix('slots=')}", "=", where))
            case _:
                raise UsageError(f"{where}: {line.strip()!r}; accepted: NAME, NAME:SLOTS, NAME slots=SLOTS")
    if not found:
        raise UsageError(f"hostfile {path} names no host")
    return _merged(found)


def _host(text: str, separator: str, where: str) -> Host:
    name, given, slots = text.strip().partition(separator)
    if (
        not name
        or name.startswith("-")
        or (given and not (slots.isascii() and slots.isdigit() and int(slots)))
    ):
        raise UsageError(
            f"{where}: {text.strip()!r}; accepted: a name, and after '{separator}' 1 slot or more"
        )
    return Host(name, int(slots) if given else 1)


def _merged(hosts: Sequence[Host]) -> list[Host]:
    slots: dict[str, int] = {}
    for each in hosts:
        slots[each.name] = slots.get(each.name, 0) + each.slots
    return [Host(name, count) for name, count in slots.items()]


def filled(hosts: Sequence[Host], workers: int | None) -> list[Host]:
    """Returns the hosts with as many ranks as they get, in their order: all slots, or the first `workers`.

    Raises:
        UsageError: there are fewer slots.
    """
    total = sum(each.slots for each in hosts)
    if workers is None:
        return list(hosts)
    if workers > total:
        raise UsageError(f"-n is {workers}; accepted: up to {total}, the slots of all hosts")
    found: list[Host] = []
    for each in hosts:
        count = min(each.slots, workers - sum(other.slots for other in found))
        if count > 0:
            found.append(Host(each.name, count))
    return found


def own_address(answers: Sequence[Answer]) -> str:
    """Returns the IPv4 address of this computer that the hosts reach.

    Raises:
        UsageError: they reach it at different ones.
    """
    found: dict[str, str] = {}
    for each in answers:
        if not each.host.is_here:
            found.setdefault(
                each.client or local_address_towards(each.host.address, _SSH_PORT), each.host.name
            )
    if len(found) > 1:
        raise UsageError(
            "hosts reach this computer at different addresses ("
            + ", ".join(f"{address} from {host}" for address, host in found.items())
            + "): give one that all of them reach with --address"
        )
    return next(iter(found), "127.0.0.1")


def meeting_point(answers: Sequence[Answer], own: str | None = None) -> tuple[str, int]:
    """Returns MASTER_ADDR and MASTER_PORT: of the host of rank 0, as others reach it.

    Args:
        own: address of this computer; None for `own_address`, if it is that host.

    Raises:
        UsageError: as `own_address`, or the host's name has no address.
    """
    first = answers[0]
    if first.host.is_here:
        return own or own_address(answers), first.port
    try:
        return first.server or resolve(first.host.address), first.port
    except OSError as error:
        raise UsageError(f"host {first.host.name} has no address that is known here: {error}") from None


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that ranks on other hosts get: not those that describe this host or login."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _OWN and not name.startswith(_OWN_PREFIXES)
    }


class _Stopped(Exception):
    """A signal came before the ranks had started."""


class _Hosts:
    """The connections of one launch."""

    def __init__(
        self, processes: Processes, hosts: Sequence[Host], ssh: str, python: str, to_stderr: bool
    ) -> None:
        self.processes = processes
        self.hosts: dict[Child, Host] = {}
        here = [sys.executable, "-P", "-m", "switchagg.launch.remote"]
        there = "exec " + shlex.join([python, *here[1:]])
        for host in hosts:
            child = processes.start(
                host.name,
                here if host.is_here else [*shlex.split(ssh), host.name, there],
                output=Output.CONTROLLED,
                to_stderr=to_stderr,
                stdin=subprocess.PIPE,
            )
            self.hosts[child] = host

    def answers(self, signals: int, python: str) -> list[Answer]:
        """Waits until every host is ready.

        Raises:
            SwitchError: one is not, or has another release of switchagg.
            _Stopped: a signal came first.
        """
        found: dict[Child, Answer] = {}
        deadline = time.monotonic() + START_TIMEOUT
        while len(found) < len(self.hosts):
            for event in self.processes.poll(max(0.0, deadline - time.monotonic())):
                match event:
                    case Line(child, text):
                        found[child] = self._answer(self.hosts[child], json.loads(text))
                    case Ended(child):
                        raise SwitchError(
                            f"host {child.name} cannot take ranks: its connection "
                            f"{ending(child.status or 0)}; it was to run {python} -m switchagg.launch.remote "
                            "(--python names another Python)"
                        )
                    case Readable():
                        numbers = [each for each in os.read(signals, 64) if each in STOP_SIGNALS]
                        if numbers:
                            raise _Stopped(numbers[0])
            if time.monotonic() >= deadline:
                late = ", ".join(host.name for child, host in self.hosts.items() if child not in found)
                raise SwitchError(f"no answer within {START_TIMEOUT:g} seconds from {late}")
        return [found[child] for child in self.hosts]

    def _answer(self, host: Host, said: dict[str, Any]) -> Answer:
        if (version := said["version"]) != switchagg.__version__:
            raise SwitchError(
                f"host {host.name} has switchagg {version}, and this computer {switchagg.__version__}: "
                "install the same on both"
            )
        words = said["connection"].split()
        usable = len(words) == 4 and not any(":" in each for each in words)
        return Answer(host, int(said["port"]), *((words[0], words[2]) if usable else ("", "")))

    def send(self, child: Child, what: Mapping[str, Any]) -> None:
        """Sends a line to a host, if it still listens."""
        assert child.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            child.process.stdin.write(json.dumps(what).encode() + b"\n")
            child.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Sends a signal to the ranks of all hosts."""
        for child in self.processes.running():
            self.send(child, {"signal": number})


def run_hosts(
    hosts: Sequence[Host],
    command: Sequence[str],
    prepare: Callable[[Sequence[Answer]], Mapping[str, str]],
    *,
    prefix: bool,
    grace: float,
    say: Callable[[str], None],
    signals: int,
    watched: Mapping[int, Callable[[], None]],
    secret: Secret | None,
    to_stderr: bool,
    ended: Callable[[int, int], None],
    bind: bool,
    ssh: str = SSH,
    python: str = sys.executable,
) -> int:
    """Starts ranks on hosts, as many as each has slots, and waits until all have ended.

    Failures and signals have the consequences that `switchagg.launch.ranks.run_ranks` describes; a host whose
    connection ends is a failure.

    Args:
        prepare: is called when all hosts have answered, and returns the ranks' environment, all but RANK,
            LOCAL_RANK and LOCAL_WORLD_SIZE; `watched` may get more entries then.
        secret: of sealed sums.
        ssh: a command line to which host and remote command are appended.
        python: of the hosts.
        prefix, grace, say, signals, watched, to_stderr, ended, bind: as in `run_ranks`.

    Returns:
        As `run_ranks`.

    Raises:
        SwitchError: a host cannot take ranks; none has started.
        CannotExecute: there is no ssh.
    """
    with Processes() as processes:
        processes.watch(signals)
        connections = _Hosts(processes, hosts, ssh, python, to_stderr)
        try:
            answers = connections.answers(signals, python)
        except _Stopped as stopped:
            return 128 + int(stopped.args[0])
        environment = prepare(answers)
        for descriptor in watched:
            processes.watch(descriptor)
        first = 0
        for child, host in connections.hosts.items():
            connections.send(child, {
                "environment": dict(environment), "folder": os.getcwd(), "command": list(command),
                "first": first, "count": host.slots, "prefix": prefix, "grace": grace, "bind": bind,
                "secret": secret.show().hex() if secret is not None else None,
            })  # fmt: skip
            first += host.slots
        return _wait(connections, grace, say, signals, watched, ended)


def _wait(
    connections: _Hosts,
    grace: float,
    say: Callable[[str], None],
    signals: int,
    watched: Mapping[int, Callable[[], None]],
    ended: Callable[[int, int], None],
) -> int:
    """Waits until all hosts' ranks have ended; returns the exit status."""
    processes = connections.processes
    failed: int | None = None
    stopping: signal.Signals | None = None
    term_at = kill_at = math.inf

    def fail(status: int) -> None:
        nonlocal failed, term_at
        if failed is None and stopping is None:
            failed, term_at = status, time.monotonic() + grace

    while processes.running():
        due = min(term_at, kill_at)
        for event in processes.poll(None if due == math.inf else max(0.0, due - time.monotonic())):
            match event:
                case Line(_, text):
                    rank, status = json.loads(text)["ended"]
                    ended(rank, status)
                    if status:
                        fail(status)
                case Ended(child) if child.status:
                    if failed is None and stopping is None:
                        say(f"the connection to host {child.name} {ending(child.status)}")
                    fail(exit_status(child))
                case Readable(descriptor) if descriptor != signals:
                    processes.unwatch(descriptor)
                    watched[descriptor]()
                case Readable():
                    for number in os.read(signals, 64):
                        if number in STOP_SIGNALS:
                            stopping = stopping or signal.Signals(number)
                            term_at, kill_at = math.inf, min(kill_at, time.monotonic() + grace + KILL_AFTER)
                            connections.signal(number)
        now = time.monotonic()
        if now >= term_at:
            # Each host gives its ranks `grace` again, and then kills them.
            term_at, kill_at = math.inf, now + grace + KILL_AFTER
            connections.signal(signal.SIGTERM)
        if now >= kill_at:
            kill_at = math.inf
            processes.signal(signal.SIGKILL)
    processes.drain(DRAIN)
    return 128 + stopping if stopping is not None else failed or 0
