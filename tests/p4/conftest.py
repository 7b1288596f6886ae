"""Devices for the tests of the P4 programs, made once a session; those that are not here are skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from switchagg.p4program.program import Entries, tna, v1model

from .device_under_test import DeviceUnderTest
from .engine import ADDRESS, PORTS, P4Engine, install_switch
from .model import PROGRAMS, Model
from .native import EtherSwitchDevice
from .simple_switch import SimpleSwitch

DEVICES: Final = ("model-v1model", "model-tna", "simple_switch", "native")
SLOTS: Final = 1024


def compile_v1model(folder: Path, *macros: str) -> Path:
    """Returns the JSON of the v1model program. Skips where there is no p4c."""
    compiler = shutil.which("p4c-bm2-ss")
    if compiler is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    output = folder / "switchagg.json"
    source = PROGRAMS / "switchagg_v1model.p4"
    defines = [f"-D{macro}" for macro in macros]
    run = subprocess.run(
        [compiler, *defines, "-o", output, source], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    return output


def make_device(name: str, words: int, folder: Path, *macros: str) -> DeviceUnderTest:
    """Returns a device by its name in `DEVICES`. Skips where it is not to be had."""
    if name == "model-v1model":
        return Model("switchagg_v1model.p4", v1model(words=words, slots=SLOTS), *macros)
    if name == "model-tna":
        return Model("switchagg_tna.p4", tna(words=words, slots=SLOTS), *macros)
    if name == "native":
        pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')
        return EtherSwitchDevice(v1model(words=words, slots=SLOTS), PORTS)
    assert name == "simple_switch"
    binary = shutil.which("simple_switch")
    if binary is None:
        pytest.skip("simple_switch is not on PATH")
    program = compile_v1model(folder, f"AGG_WORDS={words}", f"AGG_SLOTS={SLOTS}", *macros)
    return SimpleSwitch(binary, program, v1model(words=words, slots=SLOTS), ADDRESS, folder)


def close_device(dut: DeviceUnderTest) -> None:
    """Ends a device's process, where it has one."""
    if isinstance(dut, SimpleSwitch | EtherSwitchDevice):
        dut.close()


@pytest.fixture(scope="session", params=DEVICES)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[DeviceUnderTest, Entries]]:
    """A device with K = 16 that has what a switch needs before its first job."""
    dut = make_device(request.param, 16, tmp_path_factory.mktemp("device"))
    yield dut, install_switch(dut)
    close_device(dut)


@pytest.fixture
def engine(installed: tuple[DeviceUnderTest, Entries]) -> Iterator[P4Engine]:
    """An engine of 64 slots without jobs, on each device."""
    engine = P4Engine(*installed, 64)
    yield engine
    engine.close()
