from __future__ import annotations

import pytest

from switchagg.p4entities.counters import GREEN, RED, YELLOW, CounterArray, Meter, MeterArray, Rate, Register
from switchagg.p4entities.matches import TableError


def test_counters() -> None:
    counter = CounterArray.sized("c", 2)
    counter.count(1, 60)
    counter.count(1, 40)
    counter.count(2, 1000)
    assert (counter.read(0), counter.read(1)) == ((0, 0), (2, 100))
    with pytest.raises(TableError, match="counter c has 2 indices: 2 is none"):
        counter.read(2)


def test_a_meter_by_packets() -> None:
    meter = Meter(by_bytes=False)
    assert meter.execute(100, 0.0) == GREEN
    assert meter.execute(100, 0.0, RED) == RED
    meter.set_rates(Rate(1, 2), Rate(2, 4), 10.0)
    assert [meter.execute(100, 10.0) for _ in range(5)] == [GREEN, GREEN, YELLOW, YELLOW, RED]
    # A second brings two peak tokens and one committed one.
    assert [meter.execute(100, 11.0) for _ in range(3)] == [GREEN, YELLOW, RED]
    assert meter.execute(100, 11.5, YELLOW) == YELLOW
    assert [meter.execute(100, 1000.0) for _ in range(5)] == [GREEN, GREEN, YELLOW, YELLOW, RED]


def test_a_meter_by_bytes() -> None:
    array = MeterArray.sized("m", 1, by_bytes=True)
    array.cell(0).set_rates(Rate(100, 100), Rate(1000, 300), 0.0)
    assert [array.execute(0, 100, 0.0) for _ in range(4)] == [GREEN, YELLOW, YELLOW, RED]
    assert array.execute(1, 100, 0.0) == GREEN
    with pytest.raises(TableError, match="neither"):
        array.cell(0).set_rates(None, Rate(1, 1), 0.0)


def test_registers() -> None:
    register = Register("r", [0, 5], 8, lambda: 0)
    register.write(2, 9)
    assert (register.read(1), register.read(2)) == (5, 0)
    register.set_cell(0, 255)
    with pytest.raises(TableError, match="0x100 does not fit 8 bits"):
        register.set_cell(0, 256)
    with pytest.raises(TableError, match="2 cells: 2 is none"):
        register.cell(2)
    register.reset()
    assert register.cells == [0, 0]
