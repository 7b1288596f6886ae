"""Operators: which types go together, what converts to what, and constants, which are folded."""

from __future__ import annotations

from switchagg.p4model import ir
from switchagg.p4model.casts import coerce, explicit, number_as
from switchagg.p4model.constants import (
    concatenate,
    fold_arithmetic,
    fold_comparison,
)
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.ir import BinaryOp
from switchagg.p4model.symbolic import Symbolic, is_constant
from switchagg.p4model.types import (
    BOOL,
    INT,
    STRING,
    BitType,
    BlockType,
    ExternType,
    InfIntType,
    IntType,
    MatchKindType,
    PackageType,
    SerEnumType,
    StringType,
    VoidType,
)

_SHIFTS = {BinaryOp.SHIFT_LEFT, BinaryOp.SHIFT_RIGHT}
_ORDER = {BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE}
_EQUALITY = {BinaryOp.EQ, BinaryOp.NE}


def combine(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    """`left op right`. Raises `P4Error` where their types do not go together."""
    if op in (BinaryOp.AND, BinaryOp.OR):
        return _logical(op, coerce(left, BOOL), coerce(right, BOOL), location)
    if op in _SHIFTS:
        return _shift(op, unwrap_enum(left), unwrap_enum(right), location)
    if op is BinaryOp.CONCAT:
        return _concat(unwrap_enum(left), unwrap_enum(right), location)
    if op in _EQUALITY:
        return _equality(op, left, right, location)
    left, right = _same_number(op, left, right, location)
    type_ = left.type
    if op in _ORDER:
        if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
            return ir.Literal(BOOL, location, fold_comparison(op, int(left.value), int(right.value)))
        return known_or2(left, right, ir.Binary(BOOL, location, op, left, right))
    if isinstance(type_, InfIntType) and op in (BinaryOp.SAT_ADD, BinaryOp.SAT_SUB):
        raise P4Error(f"`{op}` does not take `int`; give its operands a width", location)
    if op in (BinaryOp.DIV, BinaryOp.MOD):
        return _divide(op, left, right, location)
    return _fold_or_binary(op, left, right, location)


def _divide(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    """Division is for constants; by a power of two it is a shift or a mask."""
    if isinstance(left.type, IntType):
        raise P4Error(f"`{op}` is not defined for `{left.type}`", location)
    if not is_constant(right) and isinstance(left, ir.Literal) and left.value == 0:
        # 0 whatever the right side is, which may have an effect all the same.
        return ir.Binary(left.type, location, BinaryOp.MUL, left, right)
    if not is_constant(right):
        raise P4Error(f"the right side of `{op}` must be known at compile time", right.location)
    if isinstance(right, Symbolic) or is_constant(left):
        return _fold_or_binary(op, left, right, location)
    assert isinstance(right, ir.Literal)
    value = int(right.value)
    if value == 0:
        raise P4Error("division by zero", location)
    if value & (value - 1):
        raise P4Error(f"`{op}` of a value that is not constant is only possible by a power of 2", location)
    if op is BinaryOp.MOD:
        mask = ir.Literal(left.type, right.location, value - 1)
        return ir.Binary(left.type, location, BinaryOp.BIT_AND, left, mask)
    shift = ir.Literal(INT, right.location, value.bit_length() - 1)
    return ir.Binary(left.type, location, BinaryOp.SHIFT_RIGHT, left, shift)


def _fold_or_binary(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
        try:
            value = fold_arithmetic(op, int(left.value), int(right.value), left.type)
        except (ValueError, ZeroDivisionError) as error:
            raise P4Error(str(error), location) from None
        return ir.Literal(left.type, location, value)
    return known_or2(left, right, ir.Binary(left.type, location, op, left, right))


def _logical(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if isinstance(left, ir.Literal):
        decided = bool(left.value) is (op is BinaryOp.OR)
        return ir.Literal(BOOL, location, left.value) if decided else right
    return known_or2(left, right, ir.Binary(BOOL, location, op, left, right))


def _shift(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if not isinstance(left.type, BitType | IntType | InfIntType):
        raise P4Error(f"`{op}` does not take `{left.type}`", location)
    if not isinstance(right.type, BitType | InfIntType):
        raise P4Error(f"a shift takes an unsigned number of bits, not `{right.type}`", right.location)
    if isinstance(right, ir.Literal) and int(right.value) < 0:
        raise P4Error("a shift by a negative number", right.location)
    if isinstance(left.type, InfIntType) and not is_constant(right):
        raise P4Error("a number without width can be shifted only by a constant", location)
    return _fold_or_binary(op, left, right, location)


def _concat(left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if isinstance(left.type, StringType) and isinstance(right.type, StringType):
        if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
            return ir.Literal(STRING, location, f"{left.value}{right.value}")
        return known_or2(left, right, ir.Binary(STRING, location, BinaryOp.CONCAT, left, right))
    if not isinstance(left.type, BitType | IntType) or not isinstance(right.type, BitType | IntType):
        raise P4Error(f"`++` does not take `{left.type}` and `{right.type}`; both need a width", location)
    type_ = type(left.type)(left.type.width + right.type.width)
    if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
        value = concatenate(int(left.value), int(right.value), right.type.width, type_)
        return ir.Literal(type_, location, value)
    return known_or2(left, right, ir.Binary(type_, location, BinaryOp.CONCAT, left, right))


def _same_number(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> tuple[ir.Expr, ir.Expr]:
    left, right = unwrap_enum(left), unwrap_enum(right)
    if op in (BinaryOp.DIV, BinaryOp.MOD):
        for each in (left, right):
            if isinstance(each, ir.Literal) and int(each.value) < 0:
                raise P4Error(f"`{op}` is not defined for negative numbers", each.location)
    numbers = BitType | IntType | InfIntType
    if not isinstance(left.type, numbers) or not isinstance(right.type, numbers):
        raise P4Error(f"`{op}` does not take `{left.type}` and `{right.type}`", location)
    left, right = _match_widths(left, right)
    if left.type != right.type:
        raise P4Error(f"`{op}` needs operands of one type, not `{left.type}` and `{right.type}`", location)
    return left, right


def _equality(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if left.type != right.type:
        left, right = match_types(left, right)
    if left.type != right.type:
        raise P4Error(f"`{left.type}` and `{right.type}` cannot be compared", location)
    if isinstance(left.type, ExternType | BlockType | PackageType | VoidType | MatchKindType):
        raise P4Error(f"two of `{left.type}` cannot be compared", location)
    equal = _equal_constants(left, right)
    if equal is not None:
        return ir.Literal(BOOL, location, equal is (op is BinaryOp.EQ))
    return known_or2(left, right, ir.Binary(BOOL, location, op, left, right))


def known_or(operand: ir.Expr, expr: ir.Expr) -> ir.Expr:
    """The expression, or where its operand is a constructor's parameter, that it is known at compile time."""
    return Symbolic(expr.type, expr.location) if isinstance(operand, Symbolic) else expr


def known_or2(left: ir.Expr, right: ir.Expr, expr: ir.Expr) -> ir.Expr:
    """The same with two operands."""
    known = is_constant(left) and is_constant(right)
    if known and (isinstance(left, Symbolic) or isinstance(right, Symbolic)):
        return Symbolic(expr.type, expr.location)
    return expr


def unwrap_enum(expr: ir.Expr) -> ir.Expr:
    """A member of a serializable enum counts as a number of the underlying type."""
    if isinstance(expr.type, SerEnumType):
        return explicit(expr, expr.type.underlying, expr.location)
    return expr


def _match_widths(left: ir.Expr, right: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    if isinstance(left.type, InfIntType) and isinstance(right.type, BitType | IntType):
        return number_as(left, right.type), right
    if isinstance(right.type, InfIntType) and isinstance(left.type, BitType | IntType):
        return left, number_as(right, left.type)
    return left, right


def match_types(left: ir.Expr, right: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Converts one of two operands to the type of the other, if that happens by itself."""
    for convert_left in (False, True):
        try:
            if convert_left:
                return coerce(left, right.type), right
            return left, coerce(right, left.type)
        except P4Error:
            continue
    if isinstance(left.type, SerEnumType) or isinstance(right.type, SerEnumType):
        return _match_widths(unwrap_enum(left), unwrap_enum(right))
    return left, right


def _equal_constants(left: ir.Expr, right: ir.Expr) -> bool | None:
    match left, right:
        case (ir.Literal(), ir.Literal()):
            return left.value == right.value
        case (ir.EnumLiteral(), ir.EnumLiteral()):
            return left.value == right.value
        case (ir.ErrorLiteral(), ir.ErrorLiteral()):
            return left.name == right.name
        case _:
            return None
