"""The thread that serves the application: a listening socket, TLS, uvicorn's loop, and an end within 2 s.

The socket listens from construction on, and `start()` returns at once: FastAPI takes a third of a second to
import, in which whoever connects already waits in the socket's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from switchagg.addresses import bound_socket, show_address
from switchagg.errors import SwitchError, UsageError

if TYPE_CHECKING:
    from uvicorn import Server
    from uvicorn._types import ASGI3Application

BACKLOG: Final = 512
CLOSE_TIMEOUT: Final = 1.0  # seconds for the last answers when the service stops
IDLE_TIMEOUT: Final = 30  # seconds that a connection may be idle between two requests

_log = logging.getLogger(__name__)
_making: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the certificate with those that lead to its authority, and its key."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Returns a context with them. Raises `UsageError` where they do not serve."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for name, path in (("tls-cert", self.certificate), ("tls-key", self.key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise UsageError(f"{name} is {path}: {error.strerror}") from None
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise UsageError(
                f"tls-cert is {self.certificate}, tls-key {self.key}: "
                f"{error.reason or error}; accepted: PEM files of a certificate and its key, not encrypted"
            ) from None
        return context


class HttpServer:
    """Listens from construction to `close()`; serves from `start()` on.

    Args:
        host, port: where to listen; port 0 takes a free one.
        application: makes the ASGI application, which gets an event that is set when the service ends. Called
            by `start`, once.
        tls: serves https with these.

    Attributes:
        address: the address and port where it listens.

    Raises `SwitchError` where it cannot listen there, `UsageError` for files that are no certificate.
    """

    def __init__(
        self,
        host: str,
        port: int,
        application: Callable[[asyncio.Event], ASGI3Application],
        *,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = None if tls is None else tls.context()
        self._application = application
        self._socket = _listen(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._serve, name="switchagg-http", daemon=True)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._closed = False
        self._made: ASGI3Application

    @property
    def url(self) -> str:
        """``http://host:port``, or https."""
        return f"{'http' if self._tls is None else 'https'}://{show_address(*self.address)}"

    def start(self) -> None:
        """Makes the application, and begins to serve it, in a thread of its own.

        It is made here, where the caller waits for it, and one at a time: two threads of CPython 3.11 that
        parse Python at a time, as FastAPI does for it, can end with a `SystemError`.
        """
        with _making:
            self._made = self._application(self._stop)
        self._thread.start()

    def close(self) -> None:
        """Ends every connection and the thread. Safe to call twice."""
        with self._lock:
            self._closed = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                    self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        try:
            server = self._make()
            server.run(sockets=[self._socket])
        except BaseException:
            _log.exception("the HTTP service has ended")
        finally:
            with self._lock:
                self._loop = None
            self._socket.close()

    def _make(self) -> Server:
        from uvicorn import Config, Server

        from switchagg.control.http.protocol import MAX_HEAD, Protocol

        service = self

        class Service(Server):
            """uvicorn's server, which stops when it is told to and not at its next look."""

            async def main_loop(self) -> None:
                stop = service._stop
                with service._lock:
                    service._loop = asyncio.get_running_loop()
                    if service._closed:
                        return
                while not stop.is_set():
                    await self.on_tick(0)  # the date in answers' headers
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), 1.0)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                for server in self.servers:
                    server.close()
                for each in sockets or []:
                    each.close()
                for connection in list(self.server_state.connections):
                    connection.shutdown()
                if tasks := set(self.server_state.tasks):
                    await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
                if tasks := set(self.server_state.tasks):
                    await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT)

        tls = self._tls
        config = Config(
            self._made,
            http=Protocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=IDLE_TIMEOUT,
            h11_max_incomplete_event_size=MAX_HEAD,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        return Service(config)


def _listen(host: str, port: int) -> socket.socket:
    try:
        sock = bound_socket(socket.SOCK_STREAM, host, port)
    except OSError as error:
        there = show_address(host, port)
        raise SwitchError(f"the controller cannot listen at {there}: {error.strerror}") from error
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def _no_password(*_: Any) -> str:
    # Without this an encrypted key makes OpenSSL ask at the terminal.
    return ""
