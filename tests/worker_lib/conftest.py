from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchagg.control.embedded import EmbeddedController


@pytest.fixture(scope="module")
def host() -> Iterator[EmbeddedController]:
    """A switch and its controller in this process, for all tests of a module."""
    with EmbeddedController() as controller:
        yield controller


@pytest.fixture(params=["auto", "udp"])
def both_transports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sessions share slots where they can, then go by UDP. For whole modules: `usefixtures`."""
    monkeypatch.setenv("SWITCHAGG_TRANSPORT", request.param)
    return str(request.param)
