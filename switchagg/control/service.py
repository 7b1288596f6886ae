"""The controller over HTTP/1.1 and JSON, on the standard library alone.

    POST /v1/jobs/{name}/members                 join; answered when all ranks are there
    POST /v1/jobs/{name}/members/{rank}/leave    {"token": ...}
    GET  /v1/jobs   /v1/jobs/{name}[?id=17]      states, members, lost ranks
    GET  /v1/slots  /v1/slots?job={name}         ranges; which slots of a job wait for whom
    GET  /v1/stats  /healthz                     counters; what runs here

Errors are ``{"error": {"code": ..., "message": ...}}``. A thread serves a connection. The connection that a
rank joined on is its life line: while it waits, and for as long as it is in the job, that connection's end
means that the rank is lost. TCP keep-alive probes notice a machine that is gone without a word.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import socketserver
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import switchagg
from switchagg.control.controller import Controller
from switchagg.control.records import OPEN, JoinRequest
from switchagg.errors import AdmissionError, SwitchAggError, SwitchError

MAX_BODY: Final = 64 * 1024  # bytes
REQUEST_TIMEOUT: Final = (
    30.0  # seconds for a request to arrive, and that a connection without a member may be idle
)
CLOSE_TIMEOUT: Final = 2.0  # seconds for the last answers when the service stops
KEEPALIVE: Final = (5, 2, 3)  # seconds of silence before probes, seconds between them, probes

_FOREVER: Final = 86_400.0  # seconds between looks at whether to stop; close() does not wait for them

_STATUS: Final = {
    "bad_request": HTTPStatus.BAD_REQUEST,
    "rank_out_of_range": HTTPStatus.BAD_REQUEST,
    "world_size": HTTPStatus.BAD_REQUEST,
    "wrong_token": HTTPStatus.FORBIDDEN,
    "not_found": HTTPStatus.NOT_FOUND,
    "rank_taken": HTTPStatus.CONFLICT,
    "address_taken": HTTPStatus.CONFLICT,
    "world_size_mismatch": HTTPStatus.CONFLICT,
    "settings_mismatch": HTTPStatus.CONFLICT,
    "quota": HTTPStatus.TOO_MANY_REQUESTS,
    "forbidden": HTTPStatus.FORBIDDEN,
    "name_taken": HTTPStatus.CONFLICT,
    "draining": HTTPStatus.CONFLICT,
    "evicted": HTTPStatus.CONFLICT,
    "failed": HTTPStatus.CONFLICT,
    "lost": HTTPStatus.CONFLICT,
    "no_slots": HTTPStatus.SERVICE_UNAVAILABLE,
    "no_memory": HTTPStatus.SERVICE_UNAVAILABLE,
    "switch": HTTPStatus.SERVICE_UNAVAILABLE,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
    "join_timeout": HTTPStatus.GATEWAY_TIMEOUT,
}

_log = logging.getLogger(__name__)


class _HttpError(Exception):
    """An answer other than 200. `close`: where this request ends, and another begins, is not known."""

    def __init__(self, status: HTTPStatus, code: str, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.close = close


class _Answer:
    """A `Line` that takes the first event, as the answer of the request, and none after it."""

    def __init__(self, settled: int) -> None:
        self.answer: dict[str, Any] | None = None
        self.error: AdmissionError | None = None
        self._settled = settled

    def send(self, event: Mapping[str, Any]) -> None:
        if self.answer is None:
            self.answer = dict(event)
            os.eventfd_write(self._settled, 1)

    def refuse(self, error: AdmissionError) -> None:
        self.error = error
        os.eventfd_write(self._settled, 1)

    def close(self) -> None:
        pass


class _ClientGone(Exception):
    """The connection ended while a join waited."""


class ControlServer:
    """Serves a `Controller` from `start()` to `close()`.

    Args:
        controller: closed together with the server.
        host, port: where to listen; 0 takes a free port. Raises `SwitchError` where that is not possible.
    """

    def __init__(self, controller: Controller, host: str = "127.0.0.1", port: int = 0) -> None:
        self.controller = controller
        try:
            self._server = _Server((host, port), controller)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SwitchError(f"the controller cannot listen at {host}:{port}: {reason}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_FOREVER,), name="switchagg-http", daemon=True
        )

    @property
    def url(self) -> str:
        """``http://host:port``."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        """Begins to serve, in threads of its own."""
        self.controller.start()
        self._thread.start()

    def close(self) -> None:
        """Ends every connection and thread. Safe to call twice."""
        if self._thread.is_alive():
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self.controller.close()
        self._server.end_connections()


class _Server(HTTPServer):
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], controller: Controller) -> None:
        self.controller = controller
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own looks its host name up, which can take seconds where DNS does not answer.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="switchagg-http-connection", daemon=True
        )
        with self._lock:
            self._connections[thread] = request
        try:
            thread.start()
        except RuntimeError:  # no more threads to be had
            with self._lock:
                del self._connections[thread]
            raise

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            with self._lock:
                self._connections.pop(threading.current_thread(), None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        _log.debug("connection from %s", client_address, exc_info=True)

    def end_connections(self) -> None:
        """Ends every connection; answers that are being written still go out, unless nobody reads them."""
        self._shut(socket.SHUT_RD)
        deadline = time.monotonic() + CLOSE_TIMEOUT
        with self._lock:
            threads = list(self._connections)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._shut(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()

    def _shut(self, how: int) -> None:
        with self._lock:
            for connection in self._connections.values():
                with contextlib.suppress(OSError):  # its peer was faster
                    connection.shutdown(how)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = f"switchagg/{switchagg.__version__}"
    sys_version = ""
    timeout = REQUEST_TIMEOUT
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        self._lines: list[_Answer] = []
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in zip(
            (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT), KEEPALIVE, strict=True
        ):
            self.connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def finish(self) -> None:
        for line in self._lines:
            self.server.controller.line_closed(line)
        with contextlib.suppress(OSError):  # the answer had nobody to go to
            super().finish()

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            body = self._body()
            self._send(HTTPStatus.OK, self._route(method, body))
        except _ClientGone:
            self.close_connection = True
        except _HttpError as error:
            self.close_connection |= error.close
            self._send_failure(error.status, error.code, str(error))
        except AdmissionError as error:
            self._send_failure(_STATUS.get(error.code, HTTPStatus.BAD_REQUEST), error.code, str(error))
        except SwitchAggError as error:
            self._send_failure(HTTPStatus.SERVICE_UNAVAILABLE, "switch", str(error))
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            _log.exception("%s %s", method, self.path)
            self.close_connection = True
            self._send_failure(
                HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "an error in the controller; its log has more"
            )

    # Reading.

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            raise _HttpError(
                HTTPStatus.LENGTH_REQUIRED,
                "bad_request",
                "send the body with a Content-Length, not in chunks",
                close=True,
            )
        given = self.headers.get("Content-Length", "0").strip()
        # Digits only: int() would take a sign, underscores and other scripts' digits.
        if not (given.isascii() and given.isdigit()):
            raise _HttpError(
                HTTPStatus.BAD_REQUEST, "bad_request", f"Content-Length is {given[:40]!r}", close=True
            )
        length = int(given[:20])
        if length > MAX_BODY:
            raise _HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "bad_request",
                f"a body of {given[:20]} bytes; accepted: up to {MAX_BODY}",
                close=True,
            )
        body = self.rfile.read(length)
        if len(body) < length:
            raise _ClientGone
        return body

    @staticmethod
    def _object(body: bytes, fields: dict[str, tuple[type, ...]]) -> dict[str, Any]:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _HttpError(
                HTTPStatus.BAD_REQUEST, "bad_request", f"the body is not JSON: {error}"
            ) from None
        if not isinstance(value, dict):
            raise _HttpError(
                HTTPStatus.BAD_REQUEST, "bad_request", f"the body is {_kind(value)}; accepted: an object"
            )
        if unknown := sorted(set(value) - set(fields)):
            raise _HttpError(
                HTTPStatus.BAD_REQUEST,
                "bad_request",
                f"unknown field {unknown[0][:40]!r}; accepted: {', '.join(fields)}",
            )
        for name, types in fields.items():
            given = value.get(name)
            if not isinstance(given, types) or (isinstance(given, bool) and bool not in types):
                what = f"is {_kind(given)}" if name in value else "is missing"
                accepted = " or ".join(_KINDS[each] for each in types)
                raise _HttpError(
                    HTTPStatus.BAD_REQUEST, "bad_request", f"{name!r} {what}; accepted: {accepted}"
                )
        return value

    # Routes.

    def _route(self, method: str, body: bytes) -> Any:
        url = urlsplit(self.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        controller = self.server.controller
        match method, parts:
            case "POST", ["v1", "jobs", name, "members"]:
                return self._join(name, body)
            case "POST", ["v1", "jobs", name, "members", rank, "leave"] if rank.isascii() and rank.isdigit():
                token = self._object(body, {"token": (int,)})["token"]
                controller.leave(OPEN, name, int(rank[:9]), token)
                return {}
            case "GET", ["v1", "jobs"]:
                return {"jobs": controller.jobs(OPEN)}
            case "GET", ["v1", "jobs", name]:
                given = query.get("id")
                if given is not None and not (given.isascii() and given.isdigit()):
                    raise _HttpError(HTTPStatus.BAD_REQUEST, "bad_request", f"id is {given[:40]!r}")
                return self._found(
                    name, controller.job(OPEN, name, None if given is None else int(given[:9]))
                )
            case "GET", ["v1", "slots"]:
                if "job" in query:
                    return self._found(query["job"], controller.waiting_slots(OPEN, query["job"]))
                return controller.slots(OPEN)
            case "GET", ["v1", "stats"]:
                return controller.stats(OPEN)
            case "GET", ["healthz"]:
                return {"version": switchagg.__version__, **controller.health()}
        raise _HttpError(
            HTTPStatus.NOT_FOUND,
            "not_found",
            f"there is no {method} {url.path[:200]}; see /v1/jobs, /v1/slots, /v1/stats, /healthz",
        )

    @staticmethod
    def _found(name: str, value: dict[str, Any] | None) -> dict[str, Any]:
        if value is None:
            raise _HttpError(HTTPStatus.NOT_FOUND, "not_found", f"there is no job {name[:128]!r}")
        return value

    def _join(self, name: str, body: bytes) -> dict[str, Any]:
        given = self._object(
            body,
            {
                "rank": (int,),
                "world_size": (int,),
                "address": (str,),
                "port": (int,),
                "words": (int, type(None)),
                "slots": (int, type(None)),
                "timeout": (int, float),
                "touch": (bool, type(None)),
            },
        )
        if given.get("touch") is None:
            given["touch"] = True
        answer = self._wait(name, JoinRequest(**given))
        # From here on the connection may be silent for as long as the job runs.
        self.connection.settimeout(None)
        return answer

    def _wait(self, name: str, request: JoinRequest) -> dict[str, Any]:
        """Blocks until the join is settled, or the client is gone."""
        controller = self.server.controller
        settled = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        line = _Answer(settled)
        try:
            controller.join(OPEN, name, request, line)
            self._lines.append(line)
            poll = select.poll()
            poll.register(settled, select.POLLIN)
            # Not POLLIN: a request that waits behind this one would hide the end of the connection.
            poll.register(self.connection, select.POLLRDHUP)
            try:
                # The event and not the outcome ends the wait: once it is there nobody writes to it again.
                while settled not in (ready := {fd for fd, _ in poll.poll()}):
                    if self.connection.fileno() in ready:
                        raise _ClientGone
            except BaseException:
                controller.line_closed(line)  # before its file descriptor closes: nobody may use it any more
                raise
            if line.error is not None:
                raise line.error
            assert line.answer is not None
            return line.answer
        finally:
            os.close(settled)

    # Writing.

    def _send(self, status: HTTPStatus, value: Any) -> None:
        data = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _send_failure(self, status: HTTPStatus, code: str, message: str) -> None:
        self._send(status, {"error": {"code": code, "message": message}})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request, as JSON instead of its HTML."""
        del explain
        status = HTTPStatus(code)
        self.close_connection = True
        self.request_version = self.protocol_version  # until it is known the base class thinks of HTTP/0.9
        self._send_failure(status, "bad_request", message or status.phrase)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)


_KINDS: Final[dict[type, str]] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    type(None): "null",
    bool: "true or false",
    list: "an array",
    dict: "an object",
}


def _kind(value: object) -> str:
    return _KINDS[type(value)]
