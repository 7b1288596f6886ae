"""What stands before every call: who asks, how much they send, what is counted and written down.

    uvicorn -> Guard -> FastAPI

A body is refused by its announced length, before a byte of it is read. What the peer still sends is read and
thrown away for a moment, so that it comes to read the answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from switchagg.control.http.auth import Authenticator
from switchagg.control.http.errors import HttpError, error_body
from switchagg.control.http.metrics import Metrics
from switchagg.control.http.protocol import abort

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY: Final = 64 * 1024  # bytes
LINGER: Final = 2.0  # seconds in which what follows a refused head is thrown away
TENANT: Final = "switchagg.tenant"
REQUEST_ID: Final = "switchagg.request"
WAITS: Final = "switchagg.waits"  # set where the answer waits for others, or does not end

_OPEN_PATHS: Final = ("/healthz", "/docs", "/openapi.json", "/")
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger("switchagg.http")


class Guard:
    """The application behind its doorkeeper."""

    def __init__(self, application: App, authenticator: Authenticator, metrics: Metrics) -> None:
        self._application = application
        self._authenticator = authenticator
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
        scope[REQUEST_ID] = request_id
        # Routes see the path as it was sent: a name may have a slash in it.
        scope["path"] = scope["raw_path"].decode("ascii")
        status, answered = 0, False

        async def answer(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            else:
                answered = not message.get("more_body", False)
            await send(message)

        try:
            try:
                self._check(scope, headers)
            except HttpError as error:
                await _refuse(error, headers, receive, answer)
            else:
                await self._application(scope, receive, answer)
        except Exception:
            _log.exception("%s %s", scope["method"], scope["path"], extra={"request": request_id})
            # What goes wrong inside is answered inside.
            if not status:
                said = f"an error in the controller; its log says more at {request_id}"
                await _refuse(HttpError("internal", said), headers, receive, answer)
            elif not answered:
                abort(scope)
        finally:
            seconds = time.monotonic() - started
            # A template and not the path: what a stranger asks for must not become a label.
            route = getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.request(method, route, status, None if scope.get(WAITS) else seconds)
            tenant = scope.get(TENANT)
            client = scope.get("client")
            _log.info(
                "%s %s %s",
                scope["method"],
                scope["path"],
                status or "gone",
                extra={
                    "request": request_id,
                    "method": method,
                    "route": route,
                    "status": status,
                    "seconds": round(seconds, 4),
                    "tenant": None if tenant is None else tenant.name,
                    "client": None if client is None else f"{client[0]}:{client[1]}",
                },
            )

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        self._authenticator.check_browser(scope["method"], headers)
        path = scope["path"]
        if (
            (path not in _OPEN_PATHS and not path.startswith("/page/"))
            or "authorization" in headers
            or not self._authenticator.required
        ):
            scope[TENANT] = self._authenticator.tenant(headers.get("authorization"))
        if "transfer-encoding" in headers:
            raise HttpError("length_required", "send the body with a Content-Length, not in chunks")
        length = headers.get("content-length", "0")
        # h11 has seen to it that these are digits.
        if len(length) > 12 or int(length) > MAX_BODY:
            raise HttpError("too_large", f"a body of {length[:20]} bytes; accepted: up to {MAX_BODY}")


async def _refuse(error: HttpError, headers: dict[str, str], receive: Receive, send: Send) -> None:
    body = error_body(error.code, str(error))
    sent = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    if has_body:
        sent.append((b"connection", b"close"))
    if error.status is HTTPStatus.UNAUTHORIZED:
        sent.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": int(error.status), "headers": sent})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if has_body and "expect" not in headers:
        try:
            async with asyncio.timeout(LINGER):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        except TimeoutError:
            pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
