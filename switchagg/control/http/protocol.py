"""One HTTP connection: uvicorn's, and what a connection that is somebody's life line needs besides.

* TCP keep-alive probes notice a machine that is gone without a word.
* A request that is begun and not finished ends with its connection after `REQUEST_TIMEOUT`.
* A request that follows before the answer to the one before it ends the connection: its bytes would lie
  between us and the news that the peer is gone.
* Of more than `MAX_WAITING` connections that have no request under way, the one that has been silent for
  longest ends: idle ones cost a descriptor each, and take none from those who ask.
* What is no HTTP is answered in the shape of all other errors.

The application finds its transport under ``scope["switchagg.transport"]``.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from switchagg.control.http.errors import error_body

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, Scope

REQUEST_TIMEOUT = 30.0  # seconds for a request to arrive
KEEPALIVE: Final = (5, 2, 3)  # seconds of silence before probes, seconds between them, probes
MAX_WAITING: Final = 256
MAX_HEAD: Final = 16 * 1024  # bytes of request line and headers

_WAITS_FOR_PEER: Final = (h11.IDLE, h11.SEND_BODY)


class Protocol(H11Protocol):
    """A connection of `ControlServer`."""

    _deadline: asyncio.TimerHandle | None = None
    _silent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._silent_since = self.loop.time()
        self._make_room()
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in zip(
            (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT), KEEPALIVE, strict=True
        ):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self.access_log = False  # it would write down what a query holds; `guard` has its own
        application = self.app

        async def with_transport(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
            scope["switchagg.transport"] = transport  # type: ignore[typeddict-unknown-key]
            await application(scope, receive, send)

        self.app = with_transport
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn's timer would keep a connection that was reset

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # nonsense behind a request whose answer has begun
            self.transport.abort()
            return
        if self.conn.their_state in _WAITS_FOR_PEER:
            self._arm()
        else:
            self._disarm()
            # Without a cycle: it was no request, and has been refused.
            if self.conn.trailing_data[0] and self.cycle is not None and not self.cycle.response_complete:
                self.transport.abort()

    def on_response_complete(self) -> None:
        self._silent_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        del msg
        if self.cycle is not None:  # of a request whose body is no HTTP: its own answer would be a second one
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = error_body(
            "bad_request", "that is no HTTP/1.1 request, or one with more than 16 KB of headers"
        )
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _make_room(self) -> None:
        waiting = [each for each in self.connections if isinstance(each, Protocol) and each._waits()]
        if len(waiting) > MAX_WAITING:
            min(waiting, key=lambda each: each._silent_since).transport.abort()

    def _waits(self) -> bool:
        """True if it is open and has no request under way."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_TIMEOUT, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.transport.abort()


def abort(scope: Any) -> None:
    """Ends the connection of a request at once, whatever has not been sent."""
    scope["switchagg.transport"].abort()
