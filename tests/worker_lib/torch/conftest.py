from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchagg.control.embedded import EmbeddedController

pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")


@pytest.fixture(scope="session", autouse=True)
def controller() -> Iterator[None]:
    """One for the worlds of all tests that do not want to start their own."""
    from tests.worker_lib.torch import worlds

    with EmbeddedController() as host:
        worlds.shared_controller = host.url
        yield
