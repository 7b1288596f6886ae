"""The checks before every call: who asks, with how many bytes; counts and the log.

    uvicorn -> Guard -> FastAPI

A body is refused by its announced length, before a byte of it is read. The guard then reads and discards the
peer's bytes for a moment, so that the peer comes to read the answer.

As long as no tenants are set up, everybody is `OPEN`, the administrator. That is for one computer: a
stranger's page, open in a browser there, must not reach the controller. Requests that change something are
refused if they come from another site, and so is a host name that only resolves to loopback (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from switchagg.addresses import show_address
from switchagg.control.http.errors import error_body, status_of
from switchagg.control.http.metrics import Metrics
from switchagg.control.http.protocol import abort
from switchagg.control.jobs.records import OPEN, Tenant
from switchagg.errors import AdmissionError, SwitchError

if TYPE_CHECKING:
    from switchagg.control.tenants import Tenants

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOW: Final = "set SWITCHAGG_TOKEN, or send `Authorization: Bearer TOKEN`; `switchagg tenant token` makes one"
MAX_BODY: Final = 64 * 1024  # bytes
DISCARD_SECONDS: Final = 2.0  # for reading the body behind a refused head
TENANT: Final = "switchagg.tenant"
REQUEST_ID: Final = "switchagg.request"
WAITS: Final = "switchagg.waits"  # set if the answer waits for others or does not end

_OPEN_PATHS: Final = ("/healthz", "/docs", "/openapi.json", "/")
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_log = logging.getLogger("switchagg.http")


class Authenticator:
    """Identifies tenants by their tokens.

    Args:
        tenants: their names, quotas and tokens.
        required: refuse requests without a token even while there are no tenants.
        loopback: the service listens on loopback alone.
    """

    def __init__(self, tenants: Tenants, *, required: bool, loopback: bool) -> None:
        self._tenants = tenants
        self._required = required
        self._loopback = loopback

    @property
    def required(self) -> bool:
        """True if a request needs a token."""
        return self._required or self._tenants.configured

    def tenant(self, authorization: str | None) -> Tenant:
        """Returns the tenant that asks. Raises `AdmissionError` (``unauthorized``) if there is none."""
        if not self.required:
            return OPEN
        if authorization is None:
            raise AdmissionError(f"no token came with this request; {_HOW}", "unauthorized")
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise AdmissionError(
                f"the Authorization header is not of the kind Bearer; {_HOW}", "unauthorized"
            )
        tenant = self._tenants.authenticate(token.strip())
        if tenant is None:
            raise AdmissionError("that token is not, or no longer, a tenant's", "unauthorized")
        return tenant

    def check_browser(self, method: str, headers: Mapping[str, str]) -> None:
        """Raises `AdmissionError` (``forbidden``) for a request that a page of another site started."""
        host = headers.get("host", "")
        if not self.required and self._loopback and not _names_this_computer(host):
            said = f"this controller is for this computer; Host is {host[:100]!r}, accepted: its address"
            raise AdmissionError(said, "forbidden")
        if method in SAFE_METHODS:
            return
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise AdmissionError(f"a page of {origin[:100]!r} may not change anything here", "forbidden")


class Guard:
    """An ASGI application that checks and counts each request, and hands it to another."""

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
            except SwitchError as error:  # of the store, if it is no refusal
                refusal = error if isinstance(error, AdmissionError) else AdmissionError(str(error), "switch")
                await _refuse(refusal, headers, receive, answer)
            else:
                await self._application(scope, receive, answer)
        except Exception:
            _log.exception("%s %s", scope["method"], scope["path"], extra={"request": request_id})
            if not status:
                said = f"an error in the controller; its log says more at {request_id}"
                await _refuse(AdmissionError(said, "internal"), headers, receive, answer)
            elif not answered:
                abort(scope)
        finally:
            seconds = time.monotonic() - started
            # The template, not the path: a stranger must not choose labels.
            route = getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.request(method, route, status, None if scope.get(WAITS) else seconds)
            tenant, client = scope.get(TENANT), scope.get("client")
            more = {
                "request": request_id,
                "method": method,
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                "tenant": None if tenant is None else tenant.name,
                "client": None if client is None else show_address(client[0], client[1]),
            }
            _log.info("%s %s %s", scope["method"], scope["path"], status or "gone", extra=more)

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        self._authenticator.check_browser(scope["method"], headers)
        is_open = scope["path"] in _OPEN_PATHS or scope["path"].startswith("/page/")
        if not is_open or "authorization" in headers or not self._authenticator.required:
            scope[TENANT] = self._authenticator.tenant(headers.get("authorization"))
        if "transfer-encoding" in headers:
            raise AdmissionError("send the body with a Content-Length, not in chunks", "length_required")
        length = headers.get("content-length", "0")
        # h11 has checked that these are digits.
        if len(length) > 12 or int(length) > MAX_BODY:
            raise AdmissionError(f"a body of {length[:20]} bytes; accepted: up to {MAX_BODY}", "too_large")


async def _refuse(error: AdmissionError, headers: dict[str, str], receive: Receive, send: Send) -> None:
    body = error_body(error.code, str(error))
    sent = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    if has_body:
        sent.append((b"connection", b"close"))
    status = status_of(error)
    if status is HTTPStatus.UNAUTHORIZED:
        sent.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": int(status), "headers": sent})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if has_body and "expect" not in headers:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _names_this_computer(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in ("localhost", "") or ipaddress.ip_address(name) is not None
    except ValueError:
        return False
