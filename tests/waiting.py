"""Waiting in tests for what another thread or process is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Returns when `condition()` is true; fails when that has not come within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
