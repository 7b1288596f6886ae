from __future__ import annotations

import numpy as np
import pytest

from switchagg.emulator import _native
from switchagg.errors import SwitchAggError, UsageError
from switchagg.wire import cpp_header as wire_cpp
from switchagg.wire import header as wire
from switchagg.wire.header import DropReason, Flag, Header, Op, WireError, decode, encode, max_words

HEADER = Header(Op.SUM, 0, job=0x0102, token=0x03040506, seq=0x0708090A, slot=0x0B0C, reply=0x0D0E)


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (HEADER, "1000 0102 03040506 0708090a 0b0c 0d0e"),
        (Header(Op.OR, 0, 7, 0xA0000000, 0xFFFFFFFF, 3), "1100 0007 a0000000 ffffffff 0003 0000"),
        (Header(Op.RESULT, 0, 0xFFFF, 0xFFFFFFFF, 0, 0xFFFF), "1200 ffff ffffffff 00000000 ffff 0000"),
        (Header(Op.INIT, Flag.RETRANSMISSION, 0, 0, 1, 1), "1302 0000 00000000 00000001 0001 0000"),
        (Header(Op.SUM, 0xFE, 0, 0, 0, 0), "10fe 0000 00000000 00000000 0000 0000"),
    ],
)
def test_a_skip_byte_for_byte(header: Header, data: str) -> None:
    assert encode(header) == bytes.fromhex(data)
    assert decode(bytes.fromhex(data)) == (header, None)


def test_a_payload_byte_for_byte() -> None:
    words = np.array([1, 0xFFFFFFFE, 0x01020304, 0x80000000] * 4, np.uint32)
    data = bytes.fromhex("1003 0102 03040506 0708090a 0b0c 0d0e" + "00000001 fffffffe 01020304 80000000" * 4)
    header = Header(Op.SUM, Flag.RETRANSMISSION, 0x0102, 0x03040506, 0x0708090A, 0x0B0C, 0x0D0E)
    assert encode(header, words) == data
    got, got_words = decode(data)
    assert got.flags == Flag.PAYLOAD | Flag.RETRANSMISSION
    assert got_words is not None
    assert got_words.dtype == np.uint32
    assert got_words.tolist() == words.tolist()


def test_encode_sets_the_payload_flag_by_the_payload() -> None:
    flagged = Header(Op.SUM, Flag.PAYLOAD, 0, 0, 0, 0)
    assert encode(flagged)[1] == 0
    assert encode(HEADER, np.zeros(16, np.uint32))[1] == 1


@pytest.mark.parametrize(
    ("data", "reason", "message"),
    [
        ("", DropReason.truncated, "0 bytes; a header has 16"),
        ("10" * 15, DropReason.truncated, "15 bytes"),
        ("20" + "00" * 15, DropReason.version, "version 2; this is version 1"),
        ("14" + "00" * 15, DropReason.op, r"op 4; known are 0\.\.3"),
        ("1001" + "00" * 14, DropReason.length, "a payload of 0 bytes; at least 16 words"),
        ("1001" + "00" * 14 + "00" * 60, DropReason.length, "60 bytes"),
        ("1001" + "00" * 14 + "00" * 66, DropReason.length, "66 bytes"),
        ("1000" + "00" * 14 + "00" * 64, DropReason.length, "64 bytes after the header"),
    ],
)
def test_what_decode_refuses(data: str, reason: DropReason, message: str) -> None:
    with pytest.raises(WireError, match=message) as caught:
        decode(bytes.fromhex(data))
    assert caught.value.reason is reason
    assert isinstance(caught.value, SwitchAggError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": 65536}, r"job is 65536; a 16-bit field holds 0\.\.65535"),
        ({"seq": -1}, "seq is -1"),
        ({"seq": 2**32}, "seq is 4294967296"),
        ({"flags": 256}, "flags is 256"),
        ({"version": 16}, "version is 16"),
    ],
)
def test_pack_names_the_field_that_cannot_hold_its_value(change: dict[str, int], message: str) -> None:
    values = {"op": Op.SUM, "flags": 0, "job": 0, "token": 0, "seq": 0, "slot": 0} | change
    with pytest.raises(UsageError, match=message):
        Header(**values).pack()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words",
    [
        np.zeros(15, np.uint32),
        np.zeros(16373, np.uint32),
        np.zeros((4, 4), np.uint32),
        np.zeros(16, np.int32),
        np.zeros(16, np.uint64),
    ],
)
def test_encode_refuses_what_is_no_payload(words: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"uint32 of shape \(K,\)"):
        encode(HEADER, words)


@pytest.mark.parametrize(
    ("mtu", "words"),
    [(1500, 364), (9000, 2239), (65536, 16372), (65535, 16372), (108, 16), (111, 16), (112, 17)],
)
def test_max_words_fill_the_mtu(mtu: int, words: int) -> None:
    assert max_words(mtu) == words
    largest = len(encode(HEADER, np.zeros(words, np.uint32))) + wire.IP_UDP_BYTES
    assert largest <= mtu
    assert largest + 4 > min(mtu, 65535)


def test_an_mtu_that_is_too_small_is_named() -> None:
    with pytest.raises(UsageError, match="an MTU of 107 bytes has room for 15 words; at least 16 are needed"):
        max_words(107)


def test_the_cpp_header_is_up_to_date() -> None:
    assert wire_cpp.PATH.read_text() == wire_cpp.generate(), "run python -m switchagg.wire.cpp_header"


def test_cpp_and_python_read_and_write_the_same_bytes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        data = rng.bytes(16)
        assert _native.rewrite_header(data) == data
        fields = _native.parse_header(data)
        value = int.from_bytes(data, "big")
        for field in reversed(wire.FIELDS):
            assert fields[field.name] == value & (1 << field.bits) - 1
            value >>= field.bits
        valid = bytes([0x10 | data[0] & 3]) + data[1:]
        header = Header.unpack(valid)
        assert {name: getattr(header, name) for name in fields} == _native.parse_header(valid)
        assert header.pack() == valid


def test_cpp_and_python_count_under_the_same_names() -> None:
    assert tuple(_native.SlotTable(2).counters()) == wire.COUNTERS
