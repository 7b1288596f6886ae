from __future__ import annotations

import random
import zlib

import pytest

from switchagg.p4model.runtime import hashes
from switchagg.p4model.runtime.hashes import Crc

CHECK = b"123456789"


# The check values of the catalogue of parametrised CRC algorithms.
@pytest.mark.parametrize(
    ("crc", "value"),
    [
        (hashes.CRC8, 0xF4),
        (hashes.CRC16, 0xBB3D),
        (hashes.CRC32, 0xCBF43926),
        (hashes.CRC64, 0x6C40DF5F0B497347),
        (Crc(16, 0x1021, 0xFFFF), 0x29B1),
        (Crc(16, 0x1021, reflect_in=True, reflect_out=True), 0x2189),
        (Crc(16, 0x8005, 0xFFFF, 0, True, True), 0x4B37),
        (Crc(32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xE3069283),
        (Crc(5, 0x05, 0x1F, 0x1F, True, True), 0x19),
        (Crc(7, 0x09), 0x75),
        (Crc(3, 0x3, 0, 0x7), 0x4),
        (Crc(12, 0x80F, 0, 0, False, True), 0xDAF),
    ],
)
def test_catalogued_checks(crc: Crc, value: int) -> None:
    assert crc(CHECK) == value


def test_the_table_agrees_with_the_definition() -> None:
    generator = random.Random(7)
    for _ in range(100):
        width = generator.randrange(1, 65)
        crc = Crc(
            width,
            generator.getrandbits(width) | 1,
            generator.getrandbits(width),
            generator.getrandbits(width),
            generator.random() < 0.5,
            generator.random() < 0.5,
        )
        data = generator.randbytes(generator.randrange(20))
        register, top = crc.initial, 1 << (width - 1)
        for byte in data:
            bits = hashes.reflect(byte, 8) if crc.reflect_in else byte
            for place in range(7, -1, -1):
                carry = bool(register & top) != bool(bits >> place & 1)
                register = (register << 1) & ((1 << width) - 1)
                register ^= crc.polynomial if carry else 0
        expected = hashes.reflect(register, width) if crc.reflect_out else register
        assert crc(data) == expected ^ crc.final, crc


def test_crc32_is_zlibs() -> None:
    data = random.Random(1).randbytes(100)
    assert hashes.CRC32(data) == zlib.crc32(data)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        # The IPv4 header of RFC 1071's descendants: known by heart in every textbook.
        ("45000073000040004011 0000 c0a80001c0a800c7", 0xB861),
        ("", 0xFFFF),
        ("0001f203f4f5f6f7", 0x220D),
        ("0001f203f4f5f6f7 01", 0x210D),
        ("ffff", 0x0000),
    ],
)
def test_the_internet_checksum(data: str, checksum: int) -> None:
    assert hashes.internet_checksum(bytes.fromhex(data)) == checksum


def test_words_and_identity() -> None:
    assert hashes.xor_words(bytes.fromhex("1234 00ff 01"), 16) == 0x1234 ^ 0x00FF ^ 0x0100
    assert hashes.identity(bytes(range(1, 11))) == 0x0102030405060708
    assert hashes.identity(b"\x01\x02") == 0x0102
    assert hashes.to_bytes(0b101, 3) == b"\xa0"
    assert hashes.to_bytes(0x1FF, 9) == b"\xff\x80"
