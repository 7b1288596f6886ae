"""The server of a controller: HTTP, and heartbeats in UDP on the same port number."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

from switchagg.addresses import is_loopback
from switchagg.control.heartbeats import HeartbeatSocket
from switchagg.control.http.server import HttpServer, TlsFiles
from switchagg.errors import SwitchError

if TYPE_CHECKING:
    from switchagg.control.controller import Controller
    from switchagg.control.http.routes import Service

_ATTEMPTS: Final = 20  # to find a port that is free for TCP and UDP


class ControlServer:
    """Serves a `Controller` from `start()` to `close()`.

    Args:
        controller: the server starts and closes it.
        host, port: the address to listen on; port 0 takes a free one.
        tls: serve https with these files.
        authentication: refuse requests without a token even while no tenants are set up.

    Raises `SwitchError` if it cannot listen there.
    """

    def __init__(
        self,
        controller: Controller,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: TlsFiles | None = None,
        authentication: bool = False,
    ) -> None:
        self.controller = controller
        self._authentication = authentication
        self._http, self._heartbeats = self._listen(host, port, tls)
        self._service: Service | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """``http://host:port``, or https."""
        return self._http.url

    def start(self) -> None:
        """Starts the controller and the server's threads."""
        self.controller.start(self._heartbeats.address)
        self._heartbeats.start(self.controller.heartbeat)
        self._http.start()

    def close(self) -> None:
        """Closes the controller, every connection and every thread. Safe to call twice."""
        self.controller.close()
        self._http.close()
        self._heartbeats.close()
        with self._lock:
            service, self._service = self._service, None
        if service is not None:
            service.close()

    def _listen(self, host: str, port: int, tls: TlsFiles | None) -> tuple[HttpServer, HeartbeatSocket]:
        for attempt in range(_ATTEMPTS):
            http = HttpServer(host, port, self._application, tls=tls)
            try:
                return http, HeartbeatSocket(http.address)
            except SwitchError:
                http.close()
                if port or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError

    def _application(self, stop: asyncio.Event) -> Any:
        from switchagg.control.http.app import guarded
        from switchagg.control.http.guard import Authenticator
        from switchagg.control.http.metrics import Metrics

        authenticator = Authenticator(
            self.controller.tenants,
            required=self._authentication or self.controller.tenants.configured,
            loopback=is_loopback(self._http.address[0]),
        )
        metrics = Metrics(self.controller, lambda: dict(self._heartbeats.outcomes))
        application, service = guarded(self.controller, authenticator, metrics, stop)
        with self._lock:
            self._service = service
        return application
