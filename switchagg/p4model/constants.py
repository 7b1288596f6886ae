"""Values known at compile time: which expressions have one, and P4's arithmetic on them.

Values are Python integers in the range of their type; `wrap` brings any integer there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final

from switchagg.p4model import ir
from switchagg.p4model.errors import P4Error
from switchagg.p4model.ir import BinaryOp, UnaryOp
from switchagg.p4model.types import BitType, FieldsType, IntType, StringType, Type, underlying

MAX_BITS: Final = 14_000  # of a number without width; as many digits as Python prints


class Symbolic(ir.Expr):
    """A constructor's parameter in a parser or control without instances: constant, but of unknown value.

    No program that `load` returns contains one.
    """


def is_constant(expr: ir.Expr) -> bool:
    """True if the value is known at compile time."""
    match expr:
        case ir.Literal() | ir.EnumLiteral() | ir.ErrorLiteral() | Symbolic() | ir.InstanceRef():
            return True
        case ir.TupleLiteral() | ir.StructLiteral() | ir.StackLiteral():
            return all(map(is_constant, expr.elements))
        case ir.InvalidHeader():
            return True
        case ir.Cast():
            return is_constant(expr.operand)
        case _:
            return False


def to_value(expr: ir.Expr) -> ir.Value:
    """The value of a constant expression. Raises `P4Error` where it is not constant."""
    match expr:
        case ir.Literal():
            return expr.value
        case ir.EnumLiteral() | ir.ErrorLiteral():
            return expr
        case ir.InstanceRef():
            return expr.instance
        case ir.TupleLiteral() | ir.StackLiteral():
            return tuple(map(to_value, expr.elements))
        case ir.StructLiteral():
            assert isinstance(expr.type, FieldsType)
            pairs = zip(expr.type.fields, expr.elements, strict=True)
            return ir.StructValue(expr.type, {field.name: to_value(each) for field, each in pairs})
        case ir.Cast() if is_constant(expr.operand):
            return to_value(expr.operand)
        case Symbolic():
            return _stand_in(expr.type)
        case _:
            raise P4Error("this must be known at compile time", expr.location)


def _stand_in(type_: Type) -> ir.Value:
    return "" if isinstance(underlying(type_), StringType) else 1


def wrap(value: int, type_: Type) -> int:
    """The value modulo 2^N in the range of bit<N> or int<N>; any other type leaves it alone."""
    match type_:
        case BitType(width):
            return value & ((1 << width) - 1)
        case IntType(0):
            return 0
        case IntType(width):
            value &= (1 << width) - 1
            return value - (1 << width) if value >> (width - 1) else value
        case _:
            return value


def saturate(value: int, type_: Type) -> int:
    """The value, or the nearest one in the range of bit<N> or int<N>."""
    match type_:
        case BitType(width):
            return min(max(value, 0), (1 << width) - 1)
        case IntType(width):
            half = 1 << (width - 1) if width else 0
            return min(max(value, -half), half - 1 if width else 0)
        case _:
            return value


def fold_unary(op: UnaryOp, value: int, type_: Type) -> int:
    """`-` and `~`."""
    return wrap(-value if op is UnaryOp.NEGATE else ~value, type_)


_EXACT: Final[dict[BinaryOp, Callable[[int, int], int]]] = {
    BinaryOp.ADD: operator.add,
    BinaryOp.SUB: operator.sub,
    BinaryOp.MUL: operator.mul,
    BinaryOp.DIV: operator.floordiv,
    BinaryOp.MOD: operator.mod,
    BinaryOp.SAT_ADD: operator.add,
    BinaryOp.SAT_SUB: operator.sub,
    BinaryOp.BIT_AND: operator.and_,
    BinaryOp.BIT_OR: operator.or_,
    BinaryOp.BIT_XOR: operator.xor,
    BinaryOp.SHIFT_RIGHT: operator.rshift,
}
_ORDER: Final[dict[BinaryOp, Callable[[int, int], bool]]] = {
    BinaryOp.LT: operator.lt,
    BinaryOp.LE: operator.le,
    BinaryOp.GT: operator.gt,
    BinaryOp.GE: operator.ge,
}


def fold_arithmetic(op: BinaryOp, left: int, right: int, type_: Type) -> int:
    """Operators whose operands and result have one type, and shifts.

    Raises:
        ZeroDivisionError: `/` or `%` by 0.
        ValueError: P4 does not define the operator for an operand, or the number becomes too large; the
            message says why.
    """
    if op in (BinaryOp.SHIFT_LEFT, BinaryOp.SHIFT_RIGHT) and right < 0:
        raise ValueError("a shift by a negative number")
    if op in (BinaryOp.DIV, BinaryOp.MOD) and (left < 0 or right < 0):
        raise ValueError(f"`{op}` is not defined for negative numbers")
    value = _shift_left(left, right, type_) if op is BinaryOp.SHIFT_LEFT else _EXACT[op](left, right)
    value = saturate(value, type_) if op in (BinaryOp.SAT_ADD, BinaryOp.SAT_SUB) else wrap(value, type_)
    if value.bit_length() > MAX_BITS:
        raise ValueError(f"a number of {value.bit_length()} bits; accepted: up to {MAX_BITS}")
    return value


def _shift_left(left: int, right: int, type_: Type) -> int:
    match type_:
        case BitType(width) | IntType(width):
            return left << right if right < width else 0
        case _:
            if right > 1 << 16:
                raise ValueError(f"a shift by {right} bits is too large")
            return left << right


def fold_comparison(op: BinaryOp, left: int, right: int) -> bool:
    """`< <= > >=`"""
    return _ORDER[op](left, right)


def concatenate(left: int, right: int, right_width: int, type_: Type) -> int:
    """`left ++ right` in the type of the result."""
    return wrap((left << right_width) | (right & ((1 << right_width) - 1)), type_)


def take_bits(value: int, high: int, low: int) -> int:
    """`value[high:low]`"""
    return (value >> low) & ((1 << (high - low + 1)) - 1)
