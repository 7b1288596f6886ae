"""Programs compiled with AGG_LOSS lose what their seeds say, and nothing else."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import count

import pytest

from switchagg.errors import UsageError
from switchagg.p4program.entries import loss_entries, station_entry
from switchagg.p4program.frames import frame
from switchagg.p4program.program import Station, TableEntry

from .conftest import DEVICES, close_device, make_device
from .device_under_test import DeviceUnderTest
from .engine import install_switch, mac_of

ME, YOU = "10.0.7.1", "10.0.7.2"


@pytest.fixture(scope="module", params=DEVICES)
def dut(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DeviceUnderTest]:
    """A device with the tables for loss, and stations ME behind port 4 and YOU behind port 9."""
    if request.param == "native":
        pytest.skip("the native switch has --loss, and no tables for it")
    dut = make_device(request.param, 16, tmp_path_factory.mktemp("loss"), "AGG_LOSS=1")
    install_switch(dut)
    dut.insert(station_entry(Station(4, mac_of(ME))))
    dut.insert(station_entry(Station(9, mac_of(YOU))))
    yield dut
    close_device(dut)


def _lost(seed: int, share: float) -> Iterator[bool]:
    for number in count():
        drawn = zlib.crc32(struct.pack(">II", seed, number)) & 0xFFFF
        yield drawn < round(share * 2**16)


def _insert(dut: DeviceUnderTest, entries: tuple[TableEntry, ...]) -> None:
    for entry in entries:
        dut.insert(entry)


def test_each_side_of_a_port_loses_what_its_seed_says(dut: DeviceUnderTest) -> None:
    there = frame(b"x", (mac_of(ME), ME, 5), (mac_of(YOU), YOU, 6))
    back = frame(b"x", (mac_of(YOU), YOU, 6), (mac_of(ME), ME, 5))
    for _ in range(5):
        assert dut.send(4, there) == [(9, there)]
    coming = loss_entries(4, seed=1, share=0.3, leaving=False)
    leaving = loss_entries(4, seed=0xFFFFFFFF, share=0.5, leaving=True)
    _insert(dut, coming)
    lost = _lost(1, 0.3)
    expected = [next(lost) for _ in range(60)]
    assert [dut.send(4, there) == [] for _ in range(60)] == expected
    assert 5 < sum(expected) < 40
    assert [dut.send(9, back) for _ in range(5)] == [[(4, back)]] * 5
    _insert(dut, leaving)
    lost = _lost(0xFFFFFFFF, 0.5)
    expected = [next(lost) for _ in range(40)]
    assert [dut.send(9, back) == [] for _ in range(40)] == expected
    assert 5 < sum(expected) < 35
    assert dut.entry_packets(leaving[1]) == sum(expected)


def test_the_controllers_port_loses_what_goes_out_as_it_is_too(dut: DeviceUnderTest) -> None:
    port = dut.target.controller_port
    sent = frame(b"x", (mac_of(ME), ME, 5), (mac_of(YOU), YOU, 6))
    out = (9).to_bytes(2, "big") + sent
    assert dut.send(port, out) == [(9, sent)]
    _insert(dut, loss_entries(port, seed=7, share=1, leaving=False))
    assert [dut.send(port, out) for _ in range(5)] == [[]] * 5


def test_what_is_refused() -> None:
    assert len(loss_entries(1, seed=1, share=0, leaving=True)) == 1
    with pytest.raises(UsageError, match=r"share is 1\.5"):
        loss_entries(1, seed=1, share=1.5, leaving=True)
