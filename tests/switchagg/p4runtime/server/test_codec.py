"""Numbers as byte strings, with the examples of P4Runtime's specification."""

from __future__ import annotations

import pytest

from switchagg.p4runtime.server.codec import decode, encode
from switchagg.p4runtime.server.errors import Code, StatusError


@pytest.mark.parametrize(
    ("width", "signed", "value", "data", "canonical"),
    [
        (8, False, 99, b"\x63", True),
        (16, False, 99, b"\x00\x63", False),
        (16, False, 12388, b"\x30\x64", True),
        (16, False, 12388, b"\x00\x30\x64", False),
        (12, False, 99, b"\x00\x00\x63", False),
        (8, True, -99, b"\x9d", True),
        (8, True, -99, b"\xff\x9d", False),
        (12, True, -739, b"\xfd\x1d", True),
        (16, True, 0, b"\x00\x00", False),
        (16, True, 0, b"\x00", True),
        (16, True, 128, b"\x00\x80", True),
        (16, True, -128, b"\x80", True),
    ],
)
def test_the_examples(width: int, signed: bool, value: int, data: bytes, canonical: bool) -> None:
    bits = value & ((1 << width) - 1)
    assert decode(data, width, "x", signed=signed) == bits
    assert (encode(bits, width, signed=signed) == data) is canonical
    assert decode(encode(bits, width, signed=signed), width, "x", signed=signed) == bits


@pytest.mark.parametrize(
    ("width", "signed", "data", "problem"),
    [
        (8, False, b"\x01\x63", "0x163 does not fit 8 bits"),
        (9, False, b"\x02\x00", "0x200 does not fit 9 bits"),
        (8, False, b"", "empty"),
        (8, True, b"\x00\x80", "128 does not fit"),
        (12, True, b"\x08\x00", "2048 does not fit"),
    ],
)
def test_what_does_not_fit(width: int, signed: bool, data: bytes, problem: str) -> None:
    with pytest.raises(StatusError, match=problem) as caught:
        decode(data, width, "field f", signed=signed)
    assert caught.value.code is Code.OUT_OF_RANGE
    assert "field f" in str(caught.value)
