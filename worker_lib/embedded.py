"""Starts a switch with its controller as a child process: `switchagg host`.

The child ends on `Embedded.close`, or with the process that started it. It is in a process session of its
own, so that Ctrl-C at a terminal does not stop it before its workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Final, Self

from switchagg.addresses import resolve
from switchagg.errors import SwitchError, UsageError

START_TIMEOUT: Final = 20.0  # seconds
LEAVE_TIMEOUT: Final = 5.0  # seconds that the child waits for the ranks that are still in a job
STOP_TIMEOUT: Final = 5.0  # seconds
HOST_TOKEN_VARIABLE: Final = "SWITCHAGG_HOST_TOKEN"
PORT_VARIABLE: Final = "SWITCHAGG_CONTROLLER_PORT"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A running child. A context manager that ends it.

    Attributes:
        controller: its URL.
        switch: IP address and UDP port of the switch.
        warnings: limits of the switch on this machine, a sentence each.
    """

    controller: str
    switch: tuple[str, int]
    process: subprocess.Popen[bytes]
    warnings: tuple[str, ...] = ()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self.process.pid

    def close(self) -> None:
        """Ends the child and waits for it. Safe to call twice.

        Ranks of other processes that are still in a job have 5 seconds to leave it: the last result may have
        come here and not yet there.
        """
        _end(self.process, LEAVE_TIMEOUT + STOP_TIMEOUT)

    def close_descriptors(self) -> None:
        """For a forked child of this process: closes its copies of the pipes, and ends nothing."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def start_embedded(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    arguments: Sequence[str] = (),
    timeout: float = START_TIMEOUT,
    quiet: bool = False,
    credential: str | None = None,
    several_hosts: bool = False,
) -> Embedded:
    """Starts `switchagg host` and waits until it serves.

    Args:
        host: IP address for switch and controller, or a name that has one; of both kinds, IPv4.
        port: TCP port of the controller; 0 takes a free one. The switch takes a free UDP port.
        arguments: more of the command's options, such as ``["--loss", "0.01"]``.
        timeout: seconds to wait.
        credential: token that ranks must bring; None for an open controller.
        quiet: do not print the warnings on standard error.
        several_hosts: ranks of other hosts will come; a name that is loopback on this one is refused.

    Raises:
        SwitchError: it did not start; the message has its output.
        UsageError: `host` has no IP address, or one that other hosts do not reach.
    """
    try:
        name, host = host, resolve(host)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"host is {host!r}, which has no IP address: {error}") from None
    if several_hosts and host.startswith("127.") and not name.startswith(("127.", "localhost")):
        raise UsageError(
            f"ranks run on several hosts and are to meet at {name}, which is {host} on this one: set "
            "MASTER_ADDR and MASTER_PORT, with an address of this host that the others reach"
        )
    command = [
        # -P: a random.py in the folder where training is started must not replace the standard library's.
        *(sys.executable, "-P", "-m", "switchagg.cli.main", "host", "--host", host),
        *("--controller-port", str(port), "--parent", str(os.getpid())),
        *arguments,
    ]
    environment = {name: value for name, value in os.environ.items() if name != HOST_TOKEN_VARIABLE}
    if credential is not None:
        environment[HOST_TOKEN_VARIABLE] = credential
    # A file, not a pipe: nobody reads it later, and a full pipe would stop the switch.
    with tempfile.TemporaryFile() as said:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=said, start_new_session=True, env=environment
        )
        try:
            assert process.stdout is not None
            line = _read_line(process.stdout, time.monotonic() + timeout)
            try:
                announced = json.loads(line)
                address, udp_port = announced["switch"]["address"], announced["switch"]["port"]
                embedded = Embedded(
                    str(announced["controller"]),
                    (str(address), int(udp_port)),
                    process,
                    tuple(str(each) for each in announced.get("warnings", [])),
                )
            except (ValueError, KeyError, TypeError):
                _end(process, 0)
                said.seek(0)
                reason = said.read().decode(errors="replace").strip()[-2000:]
                if not reason:
                    reason = f"it said nothing within {timeout:g} seconds (exit status {process.returncode})"
                raise SwitchError(f"the embedded switch did not start: {reason}") from None
        except BaseException:
            _end(process, 0)
            raise
    for warning in () if quiet else embedded.warnings:
        print(f"switchagg: {warning}", file=sys.stderr)
    return embedded


def controller_address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Returns host and port of the controller that rank 0 starts on its node, where ranks were given none.

    They are MASTER_ADDR, and SWITCHAGG_CONTROLLER_PORT or else MASTER_PORT + 1. None where MASTER_ADDR, or
    both ports, are not set. Raises `UsageError` for a port that is none.
    """
    host = environment.get("MASTER_ADDR")
    if not host:
        return None
    if given := environment.get(PORT_VARIABLE):
        port = _port(PORT_VARIABLE, given)
    elif given := environment.get("MASTER_PORT"):
        port = _port("MASTER_PORT", given) + 1
        if port > 0xFFFF:
            raise UsageError(
                f"MASTER_PORT is {given}; the controller takes the next port: set {PORT_VARIABLE}"
            )
    else:
        return None
    return host, port


def _port(name: str, given: str) -> int:
    if not (given.isascii() and given.isdigit()) or not 1 <= int(given) <= 0xFFFF:
        raise UsageError(f"{name} is {given!r}; accepted: 1..65535")
    return int(given)


def _read_line(stream: IO[bytes], deadline: float) -> bytes:
    """Reads up to a newline, the stream's end or `deadline`."""
    line = b""
    with DefaultSelector() as selector:
        selector.register(stream, EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(stream.fileno(), 4096)
            if not chunk:
                break
            line += chunk
    return line


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    if process.stdin is not None:
        process.stdin.close()
    for seconds, insist in ((patience, process.terminate), (STOP_TIMEOUT, process.kill)):
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            insist()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
