"""What is known at compile time, and as what value constructors and table properties see it."""

from __future__ import annotations

from dataclasses import dataclass

from switchagg.p4model import ir
from switchagg.p4model.errors import P4Error
from switchagg.p4model.types import FieldsType, StringType, Type, underlying


@dataclass(frozen=True, slots=True, eq=False)
class Symbolic(ir.Expr):
    """A constructor's parameter while a parser or control is checked that no instance was made of.

    It is known at compile time, only not now. No program that `load` returns contains one.
    """


def is_constant(expr: ir.Expr) -> bool:
    """Whether the value is known at compile time."""
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
