"""`switchagg host`: a software switch and its controller in one process, usually another program's child.

Prints one line of JSON when it serves, ``{"controller": url, "switch": {...}, "pid": ..., "warnings": []}``.
Ends on SIGTERM or SIGINT. It also ends when its standard input (a pipe or a terminal) closes, or when the
process named by --parent does, so that no host outlives its parent. In these cases ranks that are still in a
job, perhaps retransmitting for the last result, have 5 seconds to leave it. Where SWITCHAGG_HOST_TOKEN is
set, the controller refuses requests without that token (SWITCHAGG_TOKEN).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from switchagg.cli.options import (
    add_job_size_options,
    add_network_options,
    add_transport_options,
    faults_from,
    rate_from,
    transport_from,
)
from switchagg.errors import UsageError
from switchagg.launch.signals import stop_signals

LINGER: Final = 5.0  # seconds
TOKEN_VARIABLE: Final = "SWITCHAGG_HOST_TOKEN"  # where it is set, every request must have it


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "host",
        description="Runs a software switch and its controller, for workers that set SWITCHAGG_CONTROLLER. "
        "Prints one line of JSON when it serves. Ends on SIGTERM, Ctrl-C, or the end of standard input.",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to serve at, such as 10.0.0.1 or fd00::1, or :: for all (%(default)s)",
    )
    parser.add_argument("--port", type=int, default=0, help="UDP port of the switch (any)")
    parser.add_argument("--controller-host", help="address of the controller (that of the switch)")
    parser.add_argument("--controller-port", type=int, default=0, help="TCP port of the controller (any)")
    parser.add_argument("--capacity", type=int, default=65536, help="slots of the switch (%(default)s)")
    add_transport_options(parser)
    add_job_size_options(parser)
    parser.add_argument("--ignore-stdin", action="store_true", help="continue when standard input closes")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process does")
    add_network_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serves until told to stop. Raises `UsageError` and `SwitchError` where it cannot start."""
    for name in ("port", "controller_port"):
        if not 0 <= getattr(args, name) <= 0xFFFF:
            raise UsageError(f"{name} is {getattr(args, name)}; accepted: 1..65535, or 0 for any free one")
    with stop_signals() as stop, _parent_end(args.parent) as parent:
        from switchagg.control.embedded import EmbeddedController

        with EmbeddedController(
            args.host,
            args.port,
            controller_host=args.controller_host,
            controller_port=args.controller_port,
            capacity=args.capacity,
            rate=rate_from(args),
            faults=faults_from(args),
            pcap=args.pcap,
            words=args.words,
            slots=args.slots,
            **transport_from(args),
            # Not an option: everybody who lists processes can read those.
            credential=os.environ.pop(TOKEN_VARIABLE, None) or None,
        ) as host:
            address, port = host.switch.address
            announcement = {
                "controller": host.url,
                "switch": {"address": address, "port": port},
                "pid": os.getpid(),
                "warnings": host.warnings,
            }
            print(json.dumps(announcement), flush=True)
            if not _wait(stop, parent, read_stdin=not args.ignore_stdin):
                _linger(stop, lambda: host.controller.busy)
    return 0


def _wait(stop: int, parent: int | None, *, read_stdin: bool) -> bool:
    """Blocks until a signal, the parent's end or the end of input. Returns whether it was a signal."""
    with selectors.DefaultSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        if parent is not None:
            selector.register(parent, selectors.EVENT_READ)
        if read_stdin and sys.stdin is not None:
            # epoll takes no regular file and no /dev/null: nobody holds the other end of these.
            with contextlib.suppress(PermissionError):
                selector.register(0, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if stop in ready:
                return True
            if parent in ready or (0 in ready and not _read(0)):
                return False


def _linger(stop: int, busy: Callable[[], bool]) -> None:
    """Blocks while there are jobs, until a signal, for at most LINGER seconds."""
    end = time.monotonic() + LINGER
    with selectors.DefaultSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        while busy() and time.monotonic() < end and not selector.select(0.01):
            pass


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # such as a terminal that has gone
        return b""


@contextlib.contextmanager
def _parent_end(pid: int | None) -> Iterator[int | None]:
    """Yields a file descriptor that becomes readable when `pid` ends; None if the kernel gives none."""
    if pid is None:
        yield None
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        raise UsageError(f"parent is {pid}: no such process") from None
    except (OSError, OverflowError) as error:
        print(f"switchagg host: cannot watch process {pid}: {error}", file=sys.stderr)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
