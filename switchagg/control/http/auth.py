"""Who asks: a bearer token to a tenant, and what browsers may be made to ask on somebody's behalf.

Where no tenants are set up, and only then, everybody is `OPEN`, the administrator. That is for one computer:
so a page of a stranger's, open in a browser there, must not reach us. Requests that change something are
refused when they come from another site, and a name that resolves to loopback only today (DNS rebinding) is
not taken for ours.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from switchagg.control.http.errors import HttpError
from switchagg.control.jobs.records import OPEN, Tenant

if TYPE_CHECKING:
    from switchagg.control.tenants import Tenants

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOW: Final = "set SWITCHAGG_TOKEN, or send `Authorization: Bearer TOKEN`; `switchagg tenant token` makes one"


class Authenticator:
    """Tells tenants by their tokens.

    Args:
        tenants: who they are, and what their tokens are.
        required: refuse whoever brings no token even while there are no tenants.
        loopback: it is served on loopback alone.
    """

    def __init__(self, tenants: Tenants, *, required: bool, loopback: bool) -> None:
        self._tenants = tenants
        self._required = required
        self._loopback = loopback

    @property
    def required(self) -> bool:
        """Whether a request needs a token."""
        return self._required or self._tenants.configured

    def tenant(self, authorization: str | None) -> Tenant:
        """Returns who asks. Raises `HttpError` (``unauthorized``) where that is nobody."""
        if not self.required:
            return OPEN
        if authorization is None:
            raise HttpError("unauthorized", f"no token came with this request; {_HOW}")
        scheme, _, token = authorization.strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise HttpError("unauthorized", f"the Authorization header is not of the kind Bearer; {_HOW}")
        tenant = self._tenants.authenticate(token.strip())
        if tenant is None:
            raise HttpError("unauthorized", "that token is not, or no longer, a tenant's")
        return tenant

    def check_browser(self, method: str, headers: Mapping[str, str]) -> None:
        """Raises `HttpError` (``forbidden``) for what a page of another site makes a browser send."""
        host = headers.get("host", "")
        if not self.required and self._loopback and not _names_this_computer(host):
            raise HttpError(
                "forbidden",
                f"this controller is for this computer; Host is {host[:100]!r}, accepted: its address",
            )
        if method in SAFE_METHODS:
            return
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise HttpError("forbidden", f"a page of {origin[:100]!r} may not change anything here")


def _names_this_computer(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in ("localhost", ""):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
