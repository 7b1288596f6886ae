from __future__ import annotations

import pytest

from switchagg.p4model.runtime.tna_externs import ChecksumUnit, ParserCounter, checksum_update, residual
from switchagg.p4model.runtime.values import ParserReject


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
