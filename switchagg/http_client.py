"""HTTP client of a controller, for workers and the command line: address, TLS, token, errors.

    SWITCHAGG_TOKEN   the tenant's bearer token, where the controller wants one
    SWITCHAGG_CA      PEM file of the authority that signed the controller's certificate, if it is private

The first call imports `http.client` and `ssl`, which take longer to import than the rest of this package's
worker side.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from switchagg.addresses import parse_address
from switchagg.errors import AdmissionError, SwitchError, UsageError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

TOKEN_VARIABLE: Final = "SWITCHAGG_TOKEN"
CA_VARIABLE: Final = "SWITCHAGG_CA"
_TOKEN: Final = re.compile(r"[!-~]{1,512}", re.ASCII)
_START_ONE: Final = "start one with `switchagg run`, `host` or `controller`"
CONNECT_PAUSE: Final = (0.02, 0.5)  # seconds between attempts to connect, first and longest


class NotHttp(Exception):
    """The answer is not HTTP with a JSON object in it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a controller, and the credential for it.

    Attributes:
        url: ``http://host:port`` or ``https://host:port``.
        host, port, secure: the same in parts.
        credential: bearer token; None for none.
        ca: PEM file of the authority to trust; None for the system's.
    """

    url: str
    host: str
    port: int
    secure: bool
    credential: str | None = field(default=None, repr=False)
    ca: str | None = None


def endpoint(url: str, credential: str | None = None, ca: str | None = None) -> Endpoint:
    """Returns the endpoint of a URL; token and authority from the environment where none are given.

    Raises `UsageError` for a URL, a token or a file that cannot be one.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        fits = parts.scheme in ("http", "https") and not parts.path.strip("/")
        fits = fits and not (parts.query or parts.fragment or parts.username or parts.password)
    except ValueError:  # such as a port that is no number
        host, port, fits = None, None, False
    if not host or not port or not fits:
        raise UsageError(
            f"controller is {url!r}; accepted: http://host:port, https://host:port; "
            "of an IPv6 address http://[fd00::1]:port"
        )
    if ":" in host:
        parse_address("the controller's address", host)
    if credential is None:
        credential = os.environ.get(TOKEN_VARIABLE) or None
    if credential is not None and not _TOKEN.fullmatch(credential):
        raise UsageError(f"the token ({TOKEN_VARIABLE}) has spaces or characters that no token has")
    ca = (ca or os.environ.get(CA_VARIABLE) or None) if parts.scheme == "https" else None
    if ca is not None and not os.access(ca, os.R_OK):
        raise UsageError(
            f"{CA_VARIABLE} is {ca!r}, which cannot be read; accepted: a PEM file of certificates"
        )
    return Endpoint(f"{parts.scheme}://{parts.netloc}", host, port, parts.scheme == "https", credential, ca)


def connect(
    there: Endpoint, timeout: float, retry_until: float | None = None, *, advice: str | None = None
) -> HTTPConnection:
    """Connects.

    Args:
        timeout: seconds for this, and for each read and write afterwards.
        retry_until: `time.monotonic()` up to which to try again while nobody listens; None for one attempt.
        advice: for the message where nobody listens; None for one about starting a controller.

    Raises `SwitchError` where nobody answers, or the certificate is not one to trust.
    """
    from http.client import HTTPConnection, HTTPSConnection

    connection: HTTPConnection
    if there.secure:
        connection = HTTPSConnection(there.host, there.port, timeout=timeout, context=_context(there))
    else:
        connection = HTTPConnection(there.host, there.port, timeout=timeout)
    pause, longest = CONNECT_PAUSE
    while True:
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            now = time.monotonic()
            if retry_until is not None and now < retry_until and isinstance(error, ConnectionRefusedError):
                time.sleep(min(pause, retry_until - now))
                pause = min(2 * pause, longest)
                continue
            waited = "" if retry_until is None else f" within {timeout:g} seconds"
            raise SwitchError(_not_there(there, error, waited, advice or _START_ONE)) from error
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.auto_open = (
            0  # the controller watches this connection; a second one would mean nothing to it
        )
        return connection


def send(
    connection: HTTPConnection, there: Endpoint, method: str, path: str, body: dict[str, Any] | None = None
) -> HTTPResponse:
    """Sends a request; returns the response, whose body is still to be read, if it is a success.

    Raises `AdmissionError` for a refusal, OSError for a lost connection, `NotHttp` for nonsense.
    """
    headers = {"Accept": "application/json"}
    if there.credential is not None:
        headers["Authorization"] = f"Bearer {there.credential}"
    if body is not None:
        headers["Content-Type"] = "application/json"
    with _http_errors():
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status in (200, 201):
            return response
        value = json.loads(response.read())
    refusal = value.get("error") if isinstance(value, dict) else None
    if not isinstance(refusal, dict):
        raise NotHttp(f"status {response.status}, {value!r}"[:200])
    raise AdmissionError(str(refusal.get("message")), str(refusal.get("code")))


def call(
    connection: HTTPConnection, there: Endpoint, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One request and its answer, a JSON object. Raises as `send` does."""
    response = send(connection, there, method, path, body)
    with _http_errors():
        value = json.loads(response.read())
    if not isinstance(value, dict):
        raise NotHttp(f"status {response.status}, {value!r}"[:200])
    return value


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    """Turns the errors of an answer that is no HTTP or no JSON into `NotHttp`."""
    from http.client import HTTPException

    try:
        yield
    except OSError:  # RemoteDisconnected is also an HTTPException
        raise
    except (HTTPException, ValueError) as error:
        raise NotHttp(repr(error)) from error


def call_once(
    there: Endpoint, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float
) -> dict[str, Any]:
    """One request on a connection of its own.

    Raises:
        AdmissionError: the controller refused.
        SwitchError: it is not there, or did not answer.
    """
    connection = connect(there, timeout)
    try:
        return call(connection, there, method, path, body)
    except TimeoutError as error:
        raise SwitchError(
            f"the controller at {there.url} did not answer within {timeout:g} seconds"
        ) from error
    except OSError as error:
        scheme = "" if there.secure else "; does it serve https://?"
        raise SwitchError(
            f"the controller at {there.url} did not answer: {str(error) or type(error).__name__}{scheme}"
        ) from error
    except NotHttp as error:
        raise SwitchError(f"what answers at {there.url} is no switchagg controller: {error}") from error
    finally:
        connection.close()


def member_path(job: str, rank: int | None = None, verb: str | None = None) -> str:
    """Returns the path of a job's members, of one of them, or of a request of one."""
    parts = ["/v1/jobs", quote(job, safe=""), "members"]
    if rank is not None:
        parts.append(str(rank))
    if verb is not None:
        parts.append(verb)
    return "/".join(parts)


def _context(there: Endpoint) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=there.ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{CA_VARIABLE} is {there.ca!r}: {error}; accepted: a PEM file of certificates"
        ) from None


def _not_there(there: Endpoint, error: OSError, waited: str, advice: str) -> str:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the controller at {there.url} is not to be trusted: {error.verify_message}; "
            f"{CA_VARIABLE} names the PEM file of a private authority"
        )
    if isinstance(error, ssl.SSLError):
        return f"no TLS with the controller at {there.url}: {error.reason or error}; does it serve http://?"
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return f"no controller at {there.url}{waited}: {reason}; {advice}"
