"""Tenants, their rights and quotas, and the bearer tokens that identify them.

A token is shown once, when it is made; the store holds its SHA-256. Its 256 random bits make a slow hash
pointless, and a lookup by hash takes the same time for every guess. The command line changes tenants in the
same database while the controller runs, so every request reads them there.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from switchagg.control.jobs.records import Quota, Tenant, check_name
from switchagg.control.store import Store
from switchagg.errors import UsageError
from switchagg.runtime import SYSTEM, Runtime

PREFIX: Final = "swagg_"  # lets scanners recognize a leaked token
_MAX_TOKEN: Final = 256  # characters


class Tenants:
    """The tenants in a store. `runtime` draws their tokens."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        self._store = store
        self._runtime = runtime

    @property
    def configured(self) -> bool:
        """True if there are tenants; without any, requests need no token."""
        return bool(self._store.tenants())

    def list(self) -> list[Tenant]:
        """Returns the tenants, by name."""
        return self._store.tenants()

    def get(self, name: str) -> Tenant:
        """Returns a tenant. Raises `UsageError` if there is none of that name."""
        for tenant in self._store.tenants():
            if tenant.name == name:
                return tenant
        raise UsageError(f"there is no tenant {name!r}")

    def add(self, name: str, *, admin: bool = False, quota: Quota | None = None) -> str:
        """Adds a tenant and returns its first token. Raises `UsageError` if the name is taken."""
        check_name("tenant", name)
        if any(tenant.name == name for tenant in self._store.tenants()):
            raise UsageError(f"there is a tenant {name!r} already")
        self._store.put_tenant(Tenant(name, admin, quota or Quota()))
        return self.issue(name)

    def change(self, name: str, *, admin: bool | None = None, quota: Quota | None = None) -> Tenant:
        """Changes a tenant's rights or quota and returns it. Raises `UsageError` if there is none."""
        old = self.get(name)
        new = Tenant(name, old.admin if admin is None else admin, old.quota if quota is None else quota)
        self._store.put_tenant(new)
        return new

    def remove(self, name: str) -> None:
        """Deletes a tenant and its tokens; its jobs go on. Raises `UsageError` if there is none."""
        if not self._store.drop_tenant(name):
            raise UsageError(f"there is no tenant {name!r}")

    def issue(self, name: str, *, revoke: bool = False) -> str:
        """Makes a token and returns it; `revoke` deletes all earlier ones."""
        self.get(name)
        if revoke:
            self._store.drop_tokens(name)
        drawn = base64.urlsafe_b64encode(self._runtime.random_bytes(32))
        token = PREFIX + drawn.rstrip(b"=").decode()
        self.adopt(name, token)
        return token

    def adopt(self, name: str, token: str) -> None:
        """Adds a token that the caller has drawn to an existing tenant."""
        self._store.put_token(name, _hashed(token))

    def authenticate(self, token: str) -> Tenant | None:
        """Returns the tenant with this token; None if there is none."""
        return self._store.tenant_of(_hashed(token)) if len(token) <= _MAX_TOKEN else None


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
