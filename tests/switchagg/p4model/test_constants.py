"""Arithmetic at compile time, against Python's own on unbounded integers."""

from __future__ import annotations

import random

import pytest

from switchagg.p4model.constants import concatenate, fold_arithmetic, saturate, take_bits, wrap
from switchagg.p4model.ir import BinaryOp
from switchagg.p4model.types import INT, BitType, IntType

SEED = 20_250_101


def test_wrapping_is_congruent_and_in_range() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    for _ in range(2000):
        width = chance.randint(1, 70)
        value = chance.randint(-(1 << 80), 1 << 80)
        unsigned, signed = wrap(value, BitType(width)), wrap(value, IntType(width))
        assert 0 <= unsigned < 1 << width
        assert -(1 << (width - 1)) <= signed < 1 << (width - 1)
        assert (unsigned - value) % (1 << width) == 0
        assert (signed - value) % (1 << width) == 0


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (300, BitType(8), 255),
        (-1, BitType(8), 0),
        (200, IntType(8), 127),
        (-200, IntType(8), -128),
        (5, INT, 5),
    ],
)
def test_saturation(value: int, type_: BitType | IntType, expected: int) -> None:
    assert saturate(value, type_) == expected


def test_operators_where_p4_differs_from_python() -> None:
    assert fold_arithmetic(BinaryOp.ADD, 255, 1, BitType(8)) == 0
    assert fold_arithmetic(BinaryOp.SUB, 0, 1, BitType(8)) == 255
    assert fold_arithmetic(BinaryOp.MUL, 127, 2, IntType(8)) == -2
    assert fold_arithmetic(BinaryOp.SHIFT_LEFT, 1, 8, BitType(8)) == 0
    assert fold_arithmetic(BinaryOp.SHIFT_RIGHT, -2, 1, IntType(8)) == -1
    assert concatenate(1, -1, 8, BitType(16)) == 0x1FF
    assert take_bits(-1, 7, 4) == 0xF


@pytest.mark.parametrize(
    ("op", "left", "right", "error"),
    [
        (BinaryOp.DIV, 1, 0, ZeroDivisionError),
        (BinaryOp.MOD, -1, 2, ValueError),
        (BinaryOp.SHIFT_LEFT, 1, -1, ValueError),
        (BinaryOp.SHIFT_LEFT, 1, 1 << 40, ValueError),
    ],
)
def test_what_has_no_value(op: BinaryOp, left: int, right: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        fold_arithmetic(op, left, right, INT)


def test_a_number_without_width_has_a_size() -> None:
    """Forty squares of a number would not fit any memory."""
    value = 3
    while value.bit_length() <= 7000:
        value = fold_arithmetic(BinaryOp.MUL, value, value, INT)
    value = fold_arithmetic(BinaryOp.MUL, value, 1 << (14_000 - value.bit_length()), INT)
    with pytest.raises(ValueError, match=r"a number of 14001 bits; accepted: up to 14000"):
        fold_arithmetic(BinaryOp.ADD, value, value, INT)
    with pytest.raises(ValueError, match="accepted: up to 14000"):
        fold_arithmetic(BinaryOp.SHIFT_LEFT, 1, 60_000, INT)
    assert len(str(value)) < 4300  # what Python prints
