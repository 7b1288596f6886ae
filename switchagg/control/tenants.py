"""Tenants: who may ask the controller for what, and the bearer tokens that say who asks.

A token is shown once, when it is made; the store holds its SHA-256. Its 256 random bits make a slow hash
pointless, and finding a token by its hash takes the same time whatever the guess was. The command line
changes tenants in the same database while the controller runs, so every request looks there.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from switchagg.control.jobs.records import Quota, Tenant, check_name
from switchagg.control.store import Store
from switchagg.errors import UsageError

PREFIX: Final = "swagg_"  # so that a token is known for one where it was left lying about
_MAX_TOKEN: Final = 256  # characters that are worth hashing


class Tenants:
    """The tenants in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def configured(self) -> bool:
        """Whether there are any; with none, nobody has to say who they are."""
        return bool(self._store.tenants())

    def list(self) -> list[Tenant]:
        """Returns the tenants, by name."""
        return self._store.tenants()

    def get(self, name: str) -> Tenant:
        """Returns a tenant. Raises `UsageError` where there is none of that name."""
        for tenant in self._store.tenants():
            if tenant.name == name:
                return tenant
        raise UsageError(f"there is no tenant {name!r}")

    def add(self, name: str, *, admin: bool = False, quota: Quota | None = None) -> str:
        """Adds a tenant and returns its first token. Raises `UsageError` for a name that is taken."""
        check_name("tenant", name)
        if any(tenant.name == name for tenant in self._store.tenants()):
            raise UsageError(f"there is a tenant {name!r} already")
        self._store.put_tenant(Tenant(name, admin, quota or Quota()))
        return self.issue(name)

    def change(self, name: str, *, admin: bool | None = None, quota: Quota | None = None) -> Tenant:
        """Changes what is given, and returns the tenant. Raises `UsageError` where there is none."""
        old = self.get(name)
        new = Tenant(name, old.admin if admin is None else admin, old.quota if quota is None else quota)
        self._store.put_tenant(new)
        return new

    def remove(self, name: str) -> None:
        """Forgets a tenant and its tokens; its jobs go on. Raises `UsageError` where there is none."""
        if not self._store.drop_tenant(name):
            raise UsageError(f"there is no tenant {name!r}")

    def issue(self, name: str, *, revoke: bool = False) -> str:
        """Makes one more token and returns it; `revoke` makes all earlier ones worthless."""
        self.get(name)
        if revoke:
            self._store.drop_tokens(name)
        token = PREFIX + secrets.token_urlsafe(32)
        self.adopt(name, token)
        return token

    def adopt(self, name: str, token: str) -> None:
        """Makes a token that somebody else has drawn good for a tenant that there is."""
        self._store.put_token(name, _hashed(token))

    def authenticate(self, token: str) -> Tenant | None:
        """Returns whose token this is; None where it is nobody's."""
        return self._store.tenant_of(_hashed(token)) if len(token) <= _MAX_TOKEN else None


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
