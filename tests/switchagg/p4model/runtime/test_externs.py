from __future__ import annotations

import pytest

from switchagg.p4entities.counters import (
    GREEN,
    RED,
    YELLOW,
    CounterArray,
    Meter,
    MeterArray,
    Rate,
    Register,
)
from switchagg.p4entities.matches import TableError
from switchagg.p4entities.replication import CloneSession, Replication
from switchagg.p4model.runtime.tna_externs import ChecksumUnit, ParserCounter, checksum_update, residual
from switchagg.p4model.runtime.values import ParserReject


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


def test_the_checksum_unit_by_increments() -> None:
    header = bytes.fromhex("4500003c1c4640004006 b1e6 ac100a63ac100a0c")
    unit = ChecksumUnit()
    unit.add(160, int.from_bytes(header, "big"))
    assert not unit.verify()
    unit.add(16, 1)
    assert unit.verify()
    # Take the old time to live off, put a new one in: the checksum of the whole comes out.
    unit.start()
    unit.subtract(16, 0xB1E6)
    unit.subtract(16, 0x4006)
    rest = residual(unit.total, b"")
    new = header[:8] + b"\x3f\x06\0\0" + header[12:]
    whole = checksum_update(160, int.from_bytes(new, "big"), False)
    assert checksum_update(32, 0x3F06 << 16 | rest, False) == whole
    assert checksum_update(16, 0xFFFF, True) == 0xFFFF
    assert checksum_update(16, 0xFFFF, False) == 0


def test_the_parser_counter() -> None:
    counter = ParserCounter(range_error=7)
    counter.set(0x83)
    assert counter.is_negative()
    # An IPv4 header's length: four bits of words, shifted to bytes, less the first 20.
    counter.set_field(0x46, 255, 6, 5, 0xEC)
    assert counter.value == (0x46 << 2 & 0x3F) + 1 - 20
    counter.add(-counter.value)
    assert counter.is_zero()
    with pytest.raises(ParserReject) as caught:
        counter.set_field(200, 100, 0, 7, 0)
    assert caught.value.code == 7


def test_replication() -> None:
    engine = Replication()
    engine.add_group(1)
    first = engine.add_node(400, [6, 7])
    second = engine.add_node(401, [8], xid=3)
    assert (first, second) == (0, 1)
    engine.associate(1, first)
    engine.associate(1, second)
    assert [(node.rid, port) for node, port in engine.copies(1)] == [(400, 6), (400, 7), (401, 8)]
    engine.update_node(first, [9])
    assert [port for _, port in engine.copies(1)] == [9, 8]
    assert list(engine.copies(2)) == []
    engine.set_group(1, [(1, 2), (3, 4)])
    assert [(node.rid, port) for node, port in engine.copies(1)] == [(1, 2), (3, 4)]
    with pytest.raises(TableError, match="group 1 is there already"):
        engine.add_group(1)
    with pytest.raises(TableError, match="group 0 is not within"):
        engine.add_group(0)
    with pytest.raises(TableError, match="no multicast group 2"):
        engine.associate(2, 0)
    with pytest.raises(TableError, match="no multicast node 99"):
        engine.associate(1, 99)
    with pytest.raises(TableError, match="no clone session 5"):
        engine.remove_session(5)
    engine.set_session(5, CloneSession(port=3))
    assert engine.session(5) == CloneSession(port=3)
