"""The UDP socket for workers' heartbeats, on the HTTP service's port number.

It has a thread of its own, so that no heartbeat waits for other calls. Malformed heartbeats and those of
unknown members are counted and dropped. Nothing is ever sent back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from switchagg.addresses import bound_socket, show_address
from switchagg.errors import SwitchError
from switchagg.wire.heartbeat import MAX_BYTES, Heartbeat, HeartbeatError

RECEIVE_BUFFER: Final = 1 << 20  # bytes, for thousands of members

_log = logging.getLogger(__name__)

Beat = Callable[[bytes, int, Mapping[str, int]], bool]
"""Takes a heartbeat: cookie, sequence, fields. Returns False if no member has the cookie."""


class HeartbeatSocket:
    """Bound to `address` from construction on; takes heartbeats from `start()` to `close()`.

    `outcomes` counts datagrams: ``taken``, ``unknown`` (no member has the cookie), ``malformed``, ``failed``
    (an error of the controller, which its log has). Raises `SwitchError` if it cannot listen there.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            self._socket = bound_socket(socket.SOCK_DGRAM, *address)
        except OSError as error:
            there = show_address(*address)
            raise SwitchError(
                f"the controller cannot take heartbeats at {there} (UDP): {error.strerror}"
            ) from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = address
        self.outcomes = dict.fromkeys(("taken", "unknown", "malformed", "failed"), 0)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None

    def start(self, beat: Beat) -> None:
        """Starts the thread, which passes every heartbeat to `beat`."""
        self._thread = threading.Thread(
            target=self._run, args=(beat,), name="switchagg-heartbeats", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. Safe to call twice."""
        if self._socket.fileno() < 0:
            return
        if self._thread is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
        self._socket.close()
        os.close(self._stop)

    def _run(self, beat: Beat) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while self._stop not in {fd for fd, _ in poll.poll()}:
            # OSError: the datagram is gone, or an ICMP error for another one.
            with contextlib.suppress(OSError):
                data = self._socket.recv(MAX_BYTES + 1)
                self.outcomes[self._take(data, beat)] += 1

    @staticmethod
    def _take(data: bytes, beat: Beat) -> str:
        try:
            heartbeat = Heartbeat.unpack(data)
        except HeartbeatError:
            return "malformed"
        try:
            known = beat(heartbeat.cookie, heartbeat.sequence, asdict(heartbeat.report))
        except Exception:
            # An error in one heartbeat: the others must be taken.
            _log.exception("a heartbeat could not be taken")
            return "failed"
        return "taken" if known else "unknown"
