"""Operators, casts and implicit conversions of typed expressions. Constants are folded."""

from __future__ import annotations

from collections.abc import Iterable

from switchagg.p4model import constants, ir
from switchagg.p4model import types as ty
from switchagg.p4model.constants import Symbolic, is_constant, wrap
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.ir import BinaryOp
from switchagg.p4model.types import Type, has_variables, underlying


def coerce(expr: ir.Expr, type_: Type, what: str = "") -> ir.Expr:
    """The expression converted implicitly to this type.

    Args:
        what: use of the value, for the message.

    Raises:
        P4Error: P4 has no such implicit conversion.
    """
    if expr.type == type_ or isinstance(type_, ty.DontCareType):
        return expr
    if isinstance(type_, ty.BlockType | ty.PackageType):
        return fit(expr, type_)
    if isinstance(type_, ty.ExternType) and _same_extern(expr.type, type_):
        return expr
    converted = _implicit(expr, type_)
    if converted is None:
        purpose = f" for {what}" if what else ""
        raise P4Error(f"`{expr.type}` where `{type_}` is needed{purpose}", expr.location)
    return converted


def fit(expr: ir.Expr, wanted: Type) -> ir.Expr:
    """A parser, control or package where one with certain parameters is wanted. Raises `P4Error`."""
    given = expr.type
    if isinstance(wanted, ty.PackageType) and isinstance(given, ty.PackageType) and wanted.name == given.name:
        return expr
    if not isinstance(wanted, ty.BlockType):
        if wanted != given and not has_variables(wanted):
            raise P4Error(f"`{given}` where `{wanted}` is needed", expr.location)
        return expr
    if not isinstance(given, ty.BlockType) or given.kind != wanted.kind:
        raise P4Error(f"`{given}` where {wanted.kind} `{wanted}` is needed", expr.location)
    reason = _mismatch(wanted, given)
    if reason:
        raise P4Error(
            f"`{given}` does not fit `{wanted}`: {reason}",
            expr.location,
            ("what is needed is declared here", wanted.location),
        )
    return expr


def _mismatch(wanted: ty.BlockType, given: ty.BlockType) -> str:
    """The reason why a block does not fit; empty if it does. Optional parameters come last."""
    required = sum(not each.optional for each in wanted.params)
    if not required <= len(given.params) <= len(wanted.params):
        return f"it has {len(given.params)} parameters, not {len(wanted.params)}"
    for mine, theirs in zip(given.params, wanted.params, strict=False):
        if mine.direction != theirs.direction:
            return f"parameter `{mine.name}` should be `{theirs.direction}`"
        if mine.type != theirs.type and not has_variables(theirs.type):
            return f"parameter `{mine.name}` is of `{mine.type}`, not `{theirs.type}`"
    return ""


def _same_extern(given: Type, wanted: ty.ExternType) -> bool:
    """True if the types are equal except for open type arguments, as in `Register<_, _>`."""
    return (
        isinstance(given, ty.ExternType)
        and given.name == wanted.name
        and len(given.type_args) == len(wanted.type_args)
        and all(
            left == right or isinstance(right, ty.DontCareType) or isinstance(left, ty.DontCareType)
            for left, right in zip(given.type_args, wanted.type_args, strict=True)
        )
    )


def _implicit(expr: ir.Expr, type_: Type) -> ir.Expr | None:
    source = expr.type
    if isinstance(source, ty.InfIntType) and isinstance(type_, ty.BitType | ty.IntType):
        return number_as(expr, type_)
    if isinstance(source, ty.SerEnumType) and source.underlying == type_:
        return explicit(expr, type_, expr.location)
    if isinstance(type_, ty.SetType):
        return _implicit(expr, type_.element) if expr.type != type_.element else expr
    if isinstance(expr, ir.TupleLiteral):
        return _from_tuple(expr, type_)
    if isinstance(source, ty.StructType) and not source.name and isinstance(type_, ty.FieldsType):
        return _from_unnamed(expr, type_)
    generic = source.generic if isinstance(source, ty.FieldsType) else ""
    if generic and isinstance(expr, ir.StructLiteral) and isinstance(type_, ty.FieldsType):
        return _fields_literal(expr.elements, type_, expr.location) if generic == type_.generic else None
    if isinstance(expr, ir.Ternary):
        yes, no = (each if each.type == type_ else _implicit(each, type_) for each in (expr.yes, expr.no))
        if yes is not None and no is not None:
            return ir.Ternary(type_, expr.location, expr.condition, yes, no)
    if isinstance(expr, ir.InvalidHeader) and isinstance(type_, ty.HeaderType | ty.UnionType):
        return ir.InvalidHeader(type_, expr.location)
    return None


def number_as(expr: ir.Expr, type_: ty.BitType | ty.IntType) -> ir.Expr:
    """A number of type `int` as one with a width."""
    if isinstance(expr, ir.Literal):
        assert isinstance(expr.value, int)
        return ir.Literal(type_, expr.location, wrap(expr.value, type_))
    if isinstance(expr, Symbolic):
        return Symbolic(type_, expr.location)
    if isinstance(expr, ir.Ternary):
        return ir.Ternary(
            type_, expr.location, expr.condition, number_as(expr.yes, type_), number_as(expr.no, type_)
        )
    raise P4Error("a value of type `int` must be known at compile time", expr.location)


def _from_tuple(expr: ir.TupleLiteral, type_: Type) -> ir.Expr | None:
    elements = expr.elements
    match type_:
        case ty.HeaderType() | ty.StructType():
            if len(elements) != len(type_.fields):
                raise P4Error(
                    f"`{type_}` has {len(type_.fields)} fields, and here are {len(elements)} values",
                    expr.location,
                )
            return _fields_literal(elements, type_, expr.location)
        case ty.StackType(element, size):
            if len(elements) > size:
                raise P4Error(f"`{type_}` has {size} elements, and here are {len(elements)}", expr.location)
            given = tuple(coerce(each, element) for each in elements)
            rest = tuple(ir.InvalidHeader(element, expr.location) for _ in range(size - len(given)))
            return ir.StackLiteral(type_, expr.location, given + rest)
        case ty.TupleType(types):
            if len(types) != len(elements):
                raise P4Error(
                    f"`{type_}` has {len(types)} elements, and here are {len(elements)}", expr.location
                )
            pairs = zip(elements, types, strict=True)
            return ir.TupleLiteral(type_, expr.location, tuple(coerce(each, one) for each, one in pairs))
        case ty.ListType(element):
            return ir.TupleLiteral(type_, expr.location, tuple(coerce(each, element) for each in elements))
        case _:
            return None


def _fields_literal(values: Iterable[ir.Expr], type_: ty.FieldsType, location: Location) -> ir.Expr:
    pairs = zip(values, type_.fields, strict=True)
    parts = tuple(coerce(each, field.type, f"field `{field.name}`") for each, field in pairs)
    return ir.StructLiteral(type_, location, parts)


def _from_unnamed(expr: ir.Expr, type_: ty.FieldsType) -> ir.Expr | None:
    """`{a = 1, b = 2}` converted to a struct or header with these fields."""
    source = expr.type
    assert isinstance(source, ty.StructType)
    if isinstance(type_, ty.UnionType):
        return None
    if {each.name for each in source.fields} != {each.name for each in type_.fields}:
        return None
    if isinstance(expr, ir.StructLiteral):
        given = {field.name: each for field, each in zip(source.fields, expr.elements, strict=True)}
    elif is_constant(expr) or isinstance(expr, ir.VarRef | ir.FieldAccess):
        given = {
            each.name: ir.FieldAccess(each.type, expr.location, expr, each.name) for each in source.fields
        }
    else:
        return None
    return _fields_literal((given[field.name] for field in type_.fields), type_, expr.location)


def explicit(expr: ir.Expr, type_: Type, location: Location) -> ir.Expr:
    """`(type) expr`. Raises `P4Error` for a cast that P4 does not have."""
    source = expr.type
    if source == type_:
        return expr
    if isinstance(type_, ty.VoidType | ty.TypeVar | ty.DontCareType) and not isinstance(type_, ty.TypeVar):
        raise P4Error(f"nothing can be cast to `{type_}`", location)
    allowed = _castable(source, type_)
    if not allowed:
        converted = _implicit(expr, type_)
        if converted is not None:
            return converted
        if has_variables(source) or has_variables(type_):
            return ir.Cast(type_, location, expr)
        raise P4Error(f"`{source}` cannot be cast to `{type_}`", location)
    if isinstance(expr, Symbolic):
        return Symbolic(type_, location)
    return _fold(expr, type_, location)


def _castable(source: Type, target: Type) -> bool:
    match source, target:
        case (ty.BitType(), ty.BitType()) | (ty.IntType(), ty.IntType()):
            return True
        case (ty.BitType(left), ty.IntType(right)) | (ty.IntType(left), ty.BitType(right)):
            return left == right
        case (ty.BitType(1) | ty.InfIntType(), ty.BoolType()) | (ty.BoolType(), ty.BitType(1)):
            return True
        case (ty.InfIntType(), ty.BitType() | ty.IntType()) | (ty.BitType() | ty.IntType(), ty.InfIntType()):
            return True
        case (ty.SerEnumType(), ty.SerEnumType()):
            return False
        case (ty.SerEnumType(), _):
            return source.underlying == target or _castable(source.underlying, target)
        case (_, ty.SerEnumType()):
            return source == target.underlying or isinstance(source, ty.InfIntType)
        case (ty.NewType(), ty.NewType()):
            return source.underlying == target or source == target.underlying
        case (ty.NewType(), _):
            return source.underlying == target
        case (_, ty.NewType()):
            return source == target.underlying or (
                isinstance(source, ty.InfIntType) and isinstance(underlying(target), ty.BitType | ty.IntType)
            )
        case (ty.VarbitType(left), ty.VarbitType(right)):
            return left == right
        case (ty.StructType(), ty.StructType()):
            return not source.name and len(source.fields) == len(target.fields)
        case _:
            return False


def _fold(expr: ir.Expr, type_: Type, location: Location) -> ir.Expr:
    target = underlying(type_)
    if isinstance(expr.type, ty.InfIntType) and not isinstance(expr, ir.Literal):
        if isinstance(target, ty.BitType | ty.IntType):
            inner = number_as(expr, target)
            return inner if inner.type == type_ else ir.Cast(type_, location, inner)
        raise P4Error("a value of type `int` must be known at compile time", expr.location)
    if isinstance(type_, ty.InfIntType) and not isinstance(expr, ir.Literal | ir.EnumLiteral):
        raise P4Error("only a value that is known at compile time can be cast to `int`", location)
    if not isinstance(expr, ir.Literal | ir.EnumLiteral):
        return ir.Cast(type_, location, expr)
    value = expr.value
    if isinstance(target, ty.BoolType):
        if value not in (0, 1):
            raise P4Error(f"only 0 and 1 can be cast to bool, not {value}", location)
        return ir.Literal(type_, location, bool(value))
    if isinstance(value, str):
        return ir.Cast(type_, location, expr)
    number = wrap(int(value), target)
    if isinstance(type_, ty.SerEnumType):
        for name, member in type_.members.items():
            if member == number:
                return ir.EnumLiteral(type_, location, name, number)
        return ir.Cast(type_, location, ir.Literal(target, location, number))
    return ir.Literal(type_, location, number)


_SHIFTS = {BinaryOp.SHIFT_LEFT, BinaryOp.SHIFT_RIGHT}
_ORDER = {BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE}
_EQUALITY = {BinaryOp.EQ, BinaryOp.NE}


def combine(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    """`left op right`. Raises `P4Error` where their types do not go together."""
    if op in (BinaryOp.AND, BinaryOp.OR):
        return _logical(op, coerce(left, ty.BOOL), coerce(right, ty.BOOL), location)
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
            holds = constants.fold_comparison(op, int(left.value), int(right.value))
            return ir.Literal(ty.BOOL, location, holds)
        return known_or2(left, right, ir.Binary(ty.BOOL, location, op, left, right))
    if isinstance(type_, ty.InfIntType) and op in (BinaryOp.SAT_ADD, BinaryOp.SAT_SUB):
        raise P4Error(f"`{op}` does not take `int`; give its operands a width", location)
    if op in (BinaryOp.DIV, BinaryOp.MOD):
        return _divide(op, left, right, location)
    return _fold_or_binary(op, left, right, location)


def _divide(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    """Division of constants; of other values by a power of two, which becomes a shift or a mask."""
    if isinstance(left.type, ty.IntType):
        raise P4Error(f"`{op}` is not defined for `{left.type}`", location)
    if not is_constant(right) and isinstance(left, ir.Literal) and left.value == 0:
        # The result is 0, but the right side may have an effect.
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
    shift = ir.Literal(ty.INT, right.location, value.bit_length() - 1)
    return ir.Binary(left.type, location, BinaryOp.SHIFT_RIGHT, left, shift)


def _fold_or_binary(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
        try:
            value = constants.fold_arithmetic(op, int(left.value), int(right.value), left.type)
        except (ValueError, ZeroDivisionError) as error:
            raise P4Error(str(error), location) from None
        return ir.Literal(left.type, location, value)
    return known_or2(left, right, ir.Binary(left.type, location, op, left, right))


def _logical(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if isinstance(left, ir.Literal):
        decided = bool(left.value) is (op is BinaryOp.OR)
        return ir.Literal(ty.BOOL, location, left.value) if decided else right
    return known_or2(left, right, ir.Binary(ty.BOOL, location, op, left, right))


def _shift(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if not isinstance(left.type, ty.BitType | ty.IntType | ty.InfIntType):
        raise P4Error(f"`{op}` does not take `{left.type}`", location)
    if not isinstance(right.type, ty.BitType | ty.InfIntType):
        raise P4Error(f"a shift takes an unsigned number of bits, not `{right.type}`", right.location)
    if isinstance(right, ir.Literal) and int(right.value) < 0:
        raise P4Error("a shift by a negative number", right.location)
    if isinstance(left.type, ty.InfIntType) and not is_constant(right):
        raise P4Error("a number without width can be shifted only by a constant", location)
    return _fold_or_binary(op, left, right, location)


def _concat(left: ir.Expr, right: ir.Expr, location: Location) -> ir.Expr:
    if isinstance(left.type, ty.StringType) and isinstance(right.type, ty.StringType):
        if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
            return ir.Literal(ty.STRING, location, f"{left.value}{right.value}")
        return known_or2(left, right, ir.Binary(ty.STRING, location, BinaryOp.CONCAT, left, right))
    if not isinstance(left.type, ty.BitType | ty.IntType) or not isinstance(
        right.type, ty.BitType | ty.IntType
    ):
        raise P4Error(f"`++` does not take `{left.type}` and `{right.type}`; both need a width", location)
    type_ = type(left.type)(left.type.width + right.type.width)
    if isinstance(left, ir.Literal) and isinstance(right, ir.Literal):
        value = constants.concatenate(int(left.value), int(right.value), right.type.width, type_)
        return ir.Literal(type_, location, value)
    return known_or2(left, right, ir.Binary(type_, location, BinaryOp.CONCAT, left, right))


def _same_number(op: BinaryOp, left: ir.Expr, right: ir.Expr, location: Location) -> tuple[ir.Expr, ir.Expr]:
    left, right = unwrap_enum(left), unwrap_enum(right)
    if op in (BinaryOp.DIV, BinaryOp.MOD):
        for each in (left, right):
            if isinstance(each, ir.Literal) and int(each.value) < 0:
                raise P4Error(f"`{op}` is not defined for negative numbers", each.location)
    numbers = ty.BitType | ty.IntType | ty.InfIntType
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
    if isinstance(left.type, ty.ExternType | ty.BlockType | ty.PackageType | ty.VoidType | ty.MatchKindType):
        raise P4Error(f"two of `{left.type}` cannot be compared", location)
    equal = _equal_constants(left, right)
    if equal is not None:
        return ir.Literal(ty.BOOL, location, equal is (op is BinaryOp.EQ))
    return known_or2(left, right, ir.Binary(ty.BOOL, location, op, left, right))


def known_or(operand: ir.Expr, expr: ir.Expr) -> ir.Expr:
    """The expression, or a `Symbolic` if its operand is one."""
    return Symbolic(expr.type, expr.location) if isinstance(operand, Symbolic) else expr


def known_or2(left: ir.Expr, right: ir.Expr, expr: ir.Expr) -> ir.Expr:
    """The expression, or a `Symbolic` if both operands are constant and one is a `Symbolic`."""
    known = is_constant(left) and is_constant(right)
    if known and (isinstance(left, Symbolic) or isinstance(right, Symbolic)):
        return Symbolic(expr.type, expr.location)
    return expr


def unwrap_enum(expr: ir.Expr) -> ir.Expr:
    """A value of a serializable enum as a number of the underlying type."""
    if isinstance(expr.type, ty.SerEnumType):
        return explicit(expr, expr.type.underlying, expr.location)
    return expr


def _match_widths(left: ir.Expr, right: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    if isinstance(left.type, ty.InfIntType) and isinstance(right.type, ty.BitType | ty.IntType):
        return number_as(left, right.type), right
    if isinstance(right.type, ty.InfIntType) and isinstance(left.type, ty.BitType | ty.IntType):
        return left, number_as(right, left.type)
    return left, right


def match_types(left: ir.Expr, right: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Converts one of two operands to the type of the other where P4 does so implicitly."""
    for convert_left in (False, True):
        try:
            if convert_left:
                return coerce(left, right.type), right
            return left, coerce(right, left.type)
        except P4Error:
            continue
    if isinstance(left.type, ty.SerEnumType) or isinstance(right.type, ty.SerEnumType):
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
