from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.emulator.faults import Faults
from tests.seeds import seed_of_this_run


@pytest.fixture(scope="module")
def host() -> Iterator[EmbeddedController]:
    """A switch and its controller in this process, for all tests of a module."""
    with EmbeddedController() as controller:
        yield controller


@pytest.fixture(scope="module")
def lossy() -> Iterator[EmbeddedController]:
    """The same, with a switch that loses 2 % of the packets each way."""
    with EmbeddedController(faults=Faults(loss=0.02, seed=seed_of_this_run())) as controller:
        yield controller


@pytest.fixture(params=["auto", "udp"])
def both_transports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sessions share slots where they can, then go by UDP. For whole modules: `usefixtures`."""
    monkeypatch.setenv("SWITCHAGG_TRANSPORT", request.param)
    return str(request.param)


@pytest.fixture(params=["auto", pytest.param("udp", marks=pytest.mark.long)])
def either_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `both_transports`, but UDP in `make test-long` only: little depends on the way of packets."""
    monkeypatch.setenv("SWITCHAGG_TRANSPORT", request.param)
