from __future__ import annotations

import random

import pytest

from switchagg.p4model.runtime.values import PACKET_TOO_SHORT, PacketIn, PacketOut, ParserReject


def test_bits_in_and_out_are_the_same() -> None:
    for seed in range(100):
        generator = random.Random(seed)
        widths = [generator.randrange(1, 70) for _ in range(generator.randrange(1, 12))]
        values = [generator.getrandbits(width) for width in widths]
        out = PacketOut()
        for value, width in zip(values, widths, strict=True):
            out.put(value, width)
        total = sum(widths)
        data = out.finish(b"rest")
        assert len(data) == (total + 7) // 8 + 4, seed
        packet = PacketIn(data)
        assert [packet.take(width) for width in widths] == values, seed
        assert packet.rest() == b"rest", seed


def test_bytes_after_bits() -> None:
    out = PacketOut()
    out.put(0b101, 3)
    assert not out.aligned
    out.put_bytes(b"\xff\x00")
    out.put(0b11111, 5)
    assert out.aligned
    out.put_bytes(b"\xab")
    assert out.finish() == bytes([0b10111111, 0b11100000, 0b00011111, 0xAB])


def test_a_packet_that_is_too_short_keeps_its_place() -> None:
    packet = PacketIn(b"\x12\x34")
    packet.advance(12)
    for short in (packet.take, packet.peek, packet.advance):
        with pytest.raises(ParserReject) as caught:
            short(5)
        assert caught.value.code == PACKET_TOO_SHORT
    assert packet.peek(4) == 4
    assert packet.position == 12
    assert packet.length() == 2
