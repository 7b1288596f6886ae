"""Tenants and their tokens, in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchagg.control.jobs.records import Quota, Tenant
from switchagg.control.store import Store
from switchagg.control.tenants import Tenants
from switchagg.errors import AdmissionError, UsageError


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store() if request.param == "memory" else Store(tmp_path)


def test_tokens_say_who_asks(store: Store) -> None:
    tenants = Tenants(store)
    assert not tenants.configured
    assert tenants.authenticate("anything") is None
    token = tenants.add("a", quota=Quota(jobs=3, memory=1 << 40))
    other = tenants.add("b", admin=True)
    assert tenants.configured
    assert token != other
    assert tenants.authenticate(token) == Tenant("a", quota=Quota(jobs=3, memory=1 << 40))
    assert tenants.authenticate(other) == Tenant("b", admin=True)
    for wrong in ("", token[:-1], token + "x", token.upper(), "x" * 10_000, "\ud800"):
        assert tenants.authenticate(wrong) is None
    second = tenants.issue("a")
    assert tenants.authenticate(token) == tenants.authenticate(second)
    third = tenants.issue("a", revoke=True)
    assert [tenants.authenticate(each) is None for each in (token, second, third)] == [True, True, False]
    tenants.change("a", quota=Quota(slots=8))
    assert tenants.authenticate(third) == Tenant("a", quota=Quota(slots=8))
    assert [tenant.name for tenant in tenants.list()] == ["a", "b"]
    tenants.remove("a")
    assert tenants.authenticate(third) is None
    store.close()


def test_what_cannot_be(store: Store) -> None:
    tenants = Tenants(store)
    tenants.add("a")
    with pytest.raises(UsageError, match="there is a tenant 'a' already"):
        tenants.add("a")
    for call in (tenants.issue, tenants.remove, tenants.get):
        with pytest.raises(UsageError, match="there is no tenant 'x'"):
            call("x")
    with pytest.raises(AdmissionError, match="tenant is ''"):
        tenants.add("")
    with pytest.raises(AdmissionError, match=r"slots is -1; accepted: 0\.\."):
        Quota(slots=-1)


def test_the_file_holds_no_token(tmp_path: Path) -> None:
    store = Store(tmp_path)
    token = Tenants(store).add("a")
    looking = Store(tmp_path, serving=False)  # the command line, meanwhile
    assert Tenants(looking).authenticate(token) == Tenant("a")
    more = Tenants(looking).issue("a")
    assert Tenants(store).authenticate(more) == Tenant("a")
    looking.close()
    store.close()
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        assert token.encode() not in data
        assert token.removeprefix("swagg_").encode() not in data
        assert path.stat().st_mode & 0o077 == 0
