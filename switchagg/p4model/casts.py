"""Conversions: those that happen by themselves, and those that are written."""

from __future__ import annotations

from switchagg.p4model import ir
from switchagg.p4model.constants import wrap
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.generics import has_variables
from switchagg.p4model.symbolic import Symbolic, is_constant
from switchagg.p4model.types import (
    BitType,
    BlockType,
    BoolType,
    DontCareType,
    EnumType,
    ErrorType,
    ExternType,
    FieldsType,
    HeaderType,
    InfIntType,
    IntType,
    ListType,
    NewType,
    PackageType,
    SerEnumType,
    SetType,
    StackType,
    StructType,
    TupleType,
    Type,
    TypeVar,
    UnionType,
    VarbitType,
    VoidType,
    underlying,
)


def coerce(expr: ir.Expr, type_: Type, what: str = "") -> ir.Expr:
    """The expression as a value of this type, if P4 converts it without being told to.

    Args:
        what: what the value is for, for the message.

    Raises:
        P4Error: it does not.
    """
    if expr.type == type_ or isinstance(type_, DontCareType):
        return expr
    if isinstance(type_, BlockType | PackageType):
        return fit(expr, type_)
    if isinstance(type_, ExternType) and _same_extern(expr.type, type_):
        return expr
    converted = _implicit(expr, type_)
    if converted is None:
        purpose = f" for {what}" if what else ""
        raise P4Error(f"`{expr.type}` where `{type_}` is needed{purpose}", expr.location)
    return converted


def fit(expr: ir.Expr, wanted: Type) -> ir.Expr:
    """A parser, control or package where one with certain parameters is wanted. Raises `P4Error`."""
    given = expr.type
    if isinstance(wanted, PackageType) and isinstance(given, PackageType) and wanted.name == given.name:
        return expr
    if not isinstance(wanted, BlockType):
        if wanted != given and not has_variables(wanted):
            raise P4Error(f"`{given}` where `{wanted}` is needed", expr.location)
        return expr
    if not isinstance(given, BlockType) or given.kind != wanted.kind:
        raise P4Error(f"`{given}` where {wanted.kind} `{wanted}` is needed", expr.location)
    reason = _mismatch(wanted, given)
    if reason:
        raise P4Error(
            f"`{given}` does not fit `{wanted}`: {reason}",
            expr.location,
            notes=(("what is needed is declared here", wanted.location),),
        )
    return expr


def _mismatch(wanted: BlockType, given: BlockType) -> str:
    """Why a block cannot stand for another; empty if it can. Optional parameters come last."""
    required = sum(not each.optional for each in wanted.params)
    if not required <= len(given.params) <= len(wanted.params):
        return f"it has {len(given.params)} parameters, not {len(wanted.params)}"
    for mine, theirs in zip(given.params, wanted.params, strict=False):
        if mine.direction != theirs.direction:
            return f"parameter `{mine.name}` should be `{theirs.direction}`"
        if mine.type != theirs.type and not has_variables(theirs.type):
            return f"parameter `{mine.name}` is of `{mine.type}`, not `{theirs.type}`"
    return ""


def _same_extern(given: Type, wanted: ExternType) -> bool:
    """Whether an extern's object is one of a type that leaves some type arguments open, as `Register<_,
    _>`.
    """
    return (
        isinstance(given, ExternType)
        and given.name == wanted.name
        and len(given.type_args) == len(wanted.type_args)
        and all(
            left == right or isinstance(right, DontCareType) or isinstance(left, DontCareType)
            for left, right in zip(given.type_args, wanted.type_args, strict=True)
        )
    )


def _implicit(expr: ir.Expr, type_: Type) -> ir.Expr | None:
    source = expr.type
    if isinstance(source, InfIntType) and isinstance(type_, BitType | IntType):
        return number_as(expr, type_)
    if isinstance(source, SerEnumType) and source.underlying == type_:
        return explicit(expr, type_, expr.location)
    if isinstance(type_, SetType):
        return _implicit(expr, type_.element) if expr.type != type_.element else expr
    if isinstance(expr, ir.TupleLiteral):
        return _from_tuple(expr, type_)
    if isinstance(source, StructType) and not source.name and isinstance(type_, FieldsType):
        return _from_unnamed(expr, type_)
    if isinstance(expr, ir.StructLiteral) and _same_generic(source, type_) and isinstance(type_, FieldsType):
        pairs = zip(expr.elements, type_.fields, strict=True)
        return _fields_literal(tuple(coerce(each, field.type) for each, field in pairs), type_, expr.location)
    if isinstance(expr, ir.Ternary):
        yes, no = _implicit_or_same(expr.yes, type_), _implicit_or_same(expr.no, type_)
        if yes is not None and no is not None:
            return ir.Ternary(type_, expr.location, expr.condition, yes, no)
    if isinstance(expr, ir.InvalidHeader) and isinstance(type_, HeaderType | UnionType):
        return ir.InvalidHeader(type_, expr.location)
    return None


def _implicit_or_same(expr: ir.Expr, type_: Type) -> ir.Expr | None:
    return expr if expr.type == type_ else _implicit(expr, type_)


def _same_generic(source: Type, type_: Type) -> bool:
    return (
        isinstance(source, FieldsType)
        and isinstance(type_, FieldsType)
        and bool(source.generic)
        and source.generic == type_.generic
    )


def number_as(expr: ir.Expr, type_: BitType | IntType) -> ir.Expr:
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
        case HeaderType() | StructType():
            if len(elements) != len(type_.fields):
                raise P4Error(
                    f"`{type_}` has {len(type_.fields)} fields, and here are {len(elements)} values",
                    expr.location,
                )
            fields = zip(elements, type_.fields, strict=True)
            return _fields_literal(
                tuple(coerce(each, field.type, f"field `{field.name}`") for each, field in fields),
                type_,
                expr.location,
            )
        case StackType(element, size):
            if len(elements) > size:
                raise P4Error(f"`{type_}` has {size} elements, and here are {len(elements)}", expr.location)
            given = tuple(coerce(each, element) for each in elements)
            rest = tuple(ir.InvalidHeader(element, expr.location) for _ in range(size - len(given)))
            return ir.StackLiteral(type_, expr.location, given + rest)
        case TupleType(types):
            if len(types) != len(elements):
                raise P4Error(
                    f"`{type_}` has {len(types)} elements, and here are {len(elements)}", expr.location
                )
            pairs = zip(elements, types, strict=True)
            return ir.TupleLiteral(type_, expr.location, tuple(coerce(each, one) for each, one in pairs))
        case ListType(element):
            return ir.TupleLiteral(type_, expr.location, tuple(coerce(each, element) for each in elements))
        case _:
            return None


def _fields_literal(elements: tuple[ir.Expr, ...], type_: FieldsType, location: Location) -> ir.Expr:
    return ir.StructLiteral(type_, location, elements)


def _from_unnamed(expr: ir.Expr, type_: FieldsType) -> ir.Expr | None:
    """`{a = 1, b = 2}` where a struct or header was found to be expected only later."""
    source = expr.type
    assert isinstance(source, StructType)
    if isinstance(type_, UnionType):
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
    elements = tuple(coerce(given[field.name], field.type, f"field `{field.name}`") for field in type_.fields)
    return _fields_literal(elements, type_, expr.location)


def explicit(expr: ir.Expr, type_: Type, location: Location) -> ir.Expr:
    """`(type) expr`. Raises `P4Error` for a cast that P4 does not have."""
    source = expr.type
    if source == type_:
        return expr
    if isinstance(type_, VoidType | TypeVar | DontCareType) and not isinstance(type_, TypeVar):
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
        case (BitType(), BitType()) | (IntType(), IntType()):
            return True
        case (BitType(left), IntType(right)) | (IntType(left), BitType(right)):
            return left == right
        case (BitType(1), BoolType()) | (BoolType(), BitType(1)) | (InfIntType(), BoolType()):
            return True
        case (InfIntType(), BitType() | IntType() | InfIntType()) | (BitType() | IntType(), InfIntType()):
            return True
        case (SerEnumType(), SerEnumType()):
            return False
        case (SerEnumType(), _):
            return source.underlying == target or _castable(source.underlying, target)
        case (_, SerEnumType()):
            return source == target.underlying or isinstance(source, InfIntType)
        case (NewType(), NewType()):
            return source.underlying == target or source == target.underlying
        case (NewType(), _):
            return source.underlying == target
        case (_, NewType()):
            return source == target.underlying or (
                isinstance(source, InfIntType) and isinstance(underlying(target), BitType | IntType)
            )
        case (VarbitType(left), VarbitType(right)):
            return left == right
        case (StructType(), StructType()):
            return not source.name and len(source.fields) == len(target.fields)
        case (EnumType() | ErrorType(), _):
            return False
        case _:
            return False


def _fold(expr: ir.Expr, type_: Type, location: Location) -> ir.Expr:
    target = underlying(type_)
    if isinstance(expr.type, InfIntType) and not isinstance(expr, ir.Literal):
        if isinstance(target, BitType | IntType):
            inner = number_as(expr, target)
            return inner if inner.type == type_ else ir.Cast(type_, location, inner)
        raise P4Error("a value of type `int` must be known at compile time", expr.location)
    if isinstance(type_, InfIntType) and not isinstance(expr, ir.Literal | ir.EnumLiteral):
        raise P4Error("only a value that is known at compile time can be cast to `int`", location)
    if not isinstance(expr, ir.Literal | ir.EnumLiteral):
        return ir.Cast(type_, location, expr)
    value = expr.value
    if isinstance(target, BoolType):
        if value not in (0, 1):
            raise P4Error(f"only 0 and 1 can be cast to bool, not {value}", location)
        return ir.Literal(type_, location, bool(value))
    if isinstance(value, str):
        return ir.Cast(type_, location, expr)
    number = wrap(int(value), target)
    if isinstance(type_, SerEnumType):
        for name, member in type_.members.items():
            if member == number:
                return ir.EnumLiteral(type_, location, name, number)
        return ir.Cast(type_, location, ir.Literal(target, location, number))
    return ir.Literal(type_, location, number)
