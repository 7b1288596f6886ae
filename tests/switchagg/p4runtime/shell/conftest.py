"""The shell's environment, and a server of each engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

from switchagg.emulator.switch import Switch
from switchagg.errors import SwitchAggError
from switchagg.p4runtime.server.native.device import NativeDevice
from switchagg.p4runtime.server.server import P4RuntimeServer
from switchagg.p4runtime.shell import ENVIRONMENT
from tests.switchagg.p4runtime.server import harness


@pytest.fixture(scope="session")
def shell_python() -> Path:
    """The Python that has p4runtime-shell; its tests are skipped where it cannot be installed."""
    try:
        return ENVIRONMENT.make("switchagg shell")
    except SwitchAggError as error:
        pytest.skip(f"p4runtime-shell cannot be installed: {error}")


@contextlib.contextmanager
def served_engine(engine: str) -> Iterator[P4RuntimeServer[Any]]:
    """Serves a switch of ``native`` or ``p4``, which runs our v1model program."""
    if engine == "p4":
        with harness.served(harness.V1MODEL) as server:
            yield server
    else:
        with Switch(port=0) as switch, P4RuntimeServer(NativeDevice(switch, 65536), "127.0.0.1:0") as made:
            yield made
