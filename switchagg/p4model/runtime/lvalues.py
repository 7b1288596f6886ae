"""What can be assigned to: variables, fields, stack elements, slices of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.header_classes import is_aggregate, mask
from switchagg.p4model.types import IntType, StackType, UnionType, underlying


@dataclass(slots=True)
class LValue:
    """`read` is code of the value, or of the object that an aggregate is; `store` emits an assignment."""

    read: str
    store: Callable[[str], None]
    fixed: bool = True


def reference(body: Body, expr: ir.Expr) -> str:
    """Code of a variable, field or element, for reading it or for changing the object that it is."""
    from switchagg.p4model.runtime.expressions import expression

    match expr:
        case ir.VarRef():
            return body.place(expr.variable, expr.location)
        case ir.FieldAccess(base=base):
            if isinstance(base, ir.TableApply):
                return expression(body, expr)
            return f"{reference(body, base)}.f_{expr.name}"
        case ir.Index(base=base, index=index):
            if not isinstance(underlying(base.type), StackType):
                return expression(body, expr)
            if isinstance(index, ir.Literal):
                size = underlying(base.type).size  # type: ignore[attr-defined]
                if 0 <= int(index.value) < size:
                    return f"{reference(body, base)}.items[{index.value}]"
            stack, number = body.ordered(
                [lambda: reference(body, base), lambda: expression(body, index)],
            )
            return f"{stack}.at({number})"
        case ir.StackNext(base=base):
            return f"{reference(body, base)}.vacant()"
        case ir.StackLast(base=base):
            return f"{reference(body, base)}.last()"
        case _:
            return expression(body, expr)


def settled(body: Body, expr: ir.Expr) -> str:
    """As `reference`, with every computed index evaluated now."""
    from switchagg.p4model.runtime.expressions import expression

    match expr:
        case ir.FieldAccess(base=base):
            return f"{settled(body, base)}.f_{expr.name}"
        case ir.Index(base=base, index=index) if not isinstance(index, ir.Literal):
            stack = settled(body, base)
            return f"{stack}.at({body.hold(expression(body, index))})"
        case ir.StackNext() | ir.StackLast():
            return body.hold(reference(body, expr))
        case _:
            return reference(body, expr)


def lvalue(body: Body, expr: ir.Expr) -> LValue:
    """The place that `expr` names; indices in it are evaluated now. Raises P4Error if it is no place."""
    if isinstance(expr, ir.Slice):
        return _slice(body, expr)
    if not isinstance(expr, ir.VarRef | ir.FieldAccess | ir.Index | ir.StackNext | ir.StackLast):
        raise unsupported("assignment to this expression", expr.location)
    if isinstance(expr, ir.FieldAccess) and isinstance(underlying(expr.base.type), UnionType):
        union = settled(body, expr.base)
        return LValue(
            f"{union}.f_{expr.name}", lambda code: body.emit(f"{union}.only_{expr.name}().assign({code})")
        )
    code = settled(body, expr)
    if isinstance(expr, ir.Index) and not isinstance(underlying(expr.base.type), StackType):
        raise unsupported("assignment to an element of a tuple", expr.location)
    if is_aggregate(expr.type):
        return LValue(code, lambda value: body.emit(f"{code}.assign({value})"))
    return LValue(code, lambda value: body.emit(f"{code} = {value}"))


def _slice(body: Body, expr: ir.Slice) -> LValue:
    base: ir.Expr = expr
    low = 0
    while isinstance(base, ir.Slice):
        low += base.low
        base = base.base
    size = expr.high - expr.low + 1
    ones = (1 << size) - 1
    whole = lvalue(body, base)
    type_ = underlying(base.type)
    width = type_.width  # type: ignore[attr-defined]
    keep = hex((1 << width) - 1 ^ ones << low)

    def store(code: str) -> None:
        shifted = f"({code}) << {low}" if low else f"({code})"
        value = f"{whole.read} & {keep} | {shifted}"
        if isinstance(type_, IntType):
            value = f"signed({value}, {width})"
        whole.store(value)

    shifted = f"{whole.read} >> {low}" if low else whole.read
    return LValue(f"({shifted} & {mask(size)})", store)
