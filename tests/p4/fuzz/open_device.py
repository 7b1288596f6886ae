"""Opens the device to fuzz: one of the shared devices, or a model of another program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from switchagg.p4program.program import tna, v1model
from tests.p4.conftest import SLOTS, close_device, make_device
from tests.p4.device_under_test import DeviceUnderTest
from tests.p4.model import Model


@contextmanager
def open_device(
    name: str, words: int, folder: Path, *, pipe: int = 0, program: Path | None = None
) -> Iterator[DeviceUnderTest]:
    """Opens a device by its name in `tests.p4.conftest.DEVICES`, for a `with` statement.

    Args:
        folder: for what it writes.
        pipe: of a Tofino, where jobs are.
        program: for a model, instead of the program in the repository.
    """
    dut: DeviceUnderTest
    if name == "model-tna":
        target = tna(words=words, slots=SLOTS, pipe=pipe)
        dut = Model(program or "switchagg_tna.p4", target)
    elif program is not None:
        dut = Model(program, v1model(words=words, slots=SLOTS))
    else:
        dut = make_device(name, words, folder)
    try:
        yield dut
    finally:
        close_device(dut)
