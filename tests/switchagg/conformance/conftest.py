from __future__ import annotations

import pytest

from .engines import ENGINES, Engine


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """An empty engine of 64 slots, once for each implementation."""
    return ENGINES[request.param](64)
