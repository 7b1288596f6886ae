"""The connection that a rank joined on: its life line, and the stream of what the controller tells it.

A line of JSON is an event, whole as soon as it is sent. One thread reads; any other may close, which wakes
it. The end of the connection tells the controller that this process is gone, so a forked child must let go of
its copy (`close_in_child`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from switchagg.http_client import NotHttp

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

MAX_EVENT: Final = 1 << 20  # bytes


class MemberStream:
    """An open stream.

    Args:
        connection: what `response` came on; closed together with it.
        sock: its socket.
        response: a success, of whose body nothing has been read.

    Attributes:
        peer: the controller's address.
    """

    def __init__(self, connection: HTTPConnection, sock: socket.socket, response: HTTPResponse) -> None:
        self._connection = connection
        self._sock = sock
        self._response = response
        self._reading = threading.Lock()
        self._closed = False
        self.peer = str(sock.getpeername()[0])

    def next_event(self, timeout: float | None = None) -> dict[str, Any] | None:
        """Waits for the next event; the controller's pings are passed over.

        Args:
            timeout: seconds to wait for each line; None for ever.

        Returns None once the stream has ended, whoever ended it.

        Raises:
            TimeoutError: nothing came in time. The connection is closed then.
            NotHttp: what came is no event.
        """
        from http.client import HTTPException

        while True:
            with self._reading:
                if self._closed:
                    return None
                try:
                    # 0 would not be no time but no blocking.
                    self._sock.settimeout(None if timeout is None else max(timeout, 0.001))
                    line = self._response.readline(MAX_EVENT)
                except TimeoutError:
                    # http.client reads no further from a socket that timed out once.
                    self._closed = True
                    self._connection.close()
                    self._response.close()
                    raise
                except (OSError, HTTPException, ValueError):  # ValueError: closed meanwhile
                    return None
            if not line.endswith(b"\n"):
                return None
            try:
                event = json.loads(line)
            except ValueError as error:
                raise NotHttp(repr(error)) from error
            if not isinstance(event, dict):
                raise NotHttp(f"{event!r}"[:200])
            if event.get("event") != "ping":
                return event

    def ended(self) -> bool:
        """Returns whether the controller has ended the connection, or this side has. Does not block."""
        if self._closed:
            return True
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLRDHUP)
        except ValueError:  # closed by another thread
            return True
        return bool(poll.poll(0))

    def close(self) -> None:
        """Ends the connection, and with it a `next_event` that waits in another thread."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # the peer was faster
            # Not SSLSocket's own, which would first take the TLS state from under the reader.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
        with self._reading:
            self._connection.close()
            self._response.close()

    def close_in_child(self) -> None:
        """For a forked child: lets go of its copy of the connection. The parent's stays as it is."""
        if self._closed:
            return
        self._closed = True
        # Not close(): a thread of the parent may have held the locks of these objects when it forked.
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nowhere, self._sock.fileno(), inheritable=False)
        os.close(nowhere)
