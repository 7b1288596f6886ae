from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchagg.control.embedded import EmbeddedController


@pytest.fixture(scope="module")
def host() -> Iterator[EmbeddedController]:
    """A switch and its controller in this process, for all tests of a module."""
    with EmbeddedController() as controller:
        yield controller
