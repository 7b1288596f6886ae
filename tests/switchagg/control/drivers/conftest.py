"""A busy computer may echo an INIT late, and here that must not look like a lost one: INITs are counted."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchagg.control.drivers.p4runtime._PATIENCE", 3.0)
