"""Expressions of P4 as Python expressions; what needs statements of its own is emitted before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.header_classes import from_pattern, is_aggregate, mask, to_pattern
from switchagg.p4model.runtime.lvalues import reference
from switchagg.p4model.types import (
    BitType,
    BoolType,
    FieldsType,
    IntType,
    StackType,
    TupleType,
    Type,
    UnionType,
    underlying,
    width_of,
)

_COMPARISONS = {
    ir.BinaryOp.EQ: "==",
    ir.BinaryOp.NE: "!=",
    ir.BinaryOp.LT: "<",
    ir.BinaryOp.LE: "<=",
    ir.BinaryOp.GT: ">",
    ir.BinaryOp.GE: ">=",
}
_BITWISE = {ir.BinaryOp.BIT_AND: "&", ir.BinaryOp.BIT_OR: "|", ir.BinaryOp.BIT_XOR: "^"}
_WRAPPING = {ir.BinaryOp.ADD: "+", ir.BinaryOp.SUB: "-", ir.BinaryOp.MUL: "*"}


def expression(body: Body, expr: ir.Expr) -> str:
    """Code of the value. Raises P4Error for what is not supported."""
    match expr:
        case ir.Literal():
            return repr(expr.value)
        case ir.EnumLiteral():
            return repr(expr.value)
        case ir.ErrorLiteral():
            return repr(body.module.errors[expr.name])
        case ir.FieldAccess(base=ir.TableApply(), name=name):
            from switchagg.p4model.runtime.calls import call

            found = call(body, expr.base)
            return f"{found}.hit" if name == "hit" else f"(not {found}.hit)"
        case ir.VarRef() | ir.FieldAccess() | ir.StackNext() | ir.StackLast():
            return reference(body, expr)
        case ir.Index():
            if isinstance(underlying(expr.base.type), StackType):
                return reference(body, expr)
            return f"{expression(body, expr.base)}[{expression(body, expr.index)}]"
        case ir.StackLastIndex(base=base):
            return f"({reference(body, base)}.next - 1 & 0xffffffff)"
        case ir.InstanceRef():
            if not isinstance(expr.instance, ir.ExternInstance):
                raise unsupported("a block as an argument", expr.location)
            return body.module.extern(expr.instance)
        case ir.Slice():
            code = expression(body, expr.base)
            shifted = f"{code} >> {expr.low}" if expr.low else code
            whole = underlying(expr.base.type)
            if isinstance(whole, BitType) and expr.high == whole.width - 1:
                return f"({shifted})"
            return f"({shifted} & {mask(expr.high - expr.low + 1)})"
        case ir.Unary():
            return _unary(body, expr)
        case ir.Binary():
            return _binary(body, expr)
        case ir.Ternary():
            return _ternary(body, expr)
        case ir.Cast():
            return _cast(body, expr)
        case ir.TupleLiteral():
            return f"({''.join(code + ', ' for code in owned(body, expr.elements))})"
        case ir.StructLiteral():
            type_ = underlying(expr.type)
            assert isinstance(type_, FieldsType)
            if isinstance(type_, UnionType):
                raise unsupported("a list as a header union", expr.location)
            return f"{body.module.layouts.name(type_)}.make({', '.join(owned(body, expr.elements))})"
        case ir.StackLiteral():
            elements = body.ordered([partial(expression, body, each) for each in expr.elements])
            return f"{body.module.layouts.default(expr.type)}.fill({', '.join(elements)})"
        case ir.InvalidHeader():
            return body.module.layouts.default(expr.type)
        case _:
            from switchagg.p4model.runtime.calls import call

            return call(body, expr)


def is_fresh(expr: ir.Expr) -> bool:
    """Whether an aggregate is a new object that nothing else names."""
    return not isinstance(
        expr,
        ir.VarRef | ir.FieldAccess | ir.Index | ir.StackNext | ir.StackLast | ir.Ternary | ir.Cast,
    )


def owned(body: Body, exprs: tuple[ir.Expr, ...]) -> list[str]:
    """Codes of values that may be kept: aggregates that something else names are copied."""

    def write(each: ir.Expr) -> str:
        code = expression(body, each)
        return f"{code}.copy()" if is_aggregate(each.type) and not is_fresh(each) else code

    return body.ordered([partial(write, each) for each in exprs])


def wrapped(type_: Type, code: str) -> str:
    """Code that brings a number back into the range of bit<N> or int<N>."""
    base = underlying(type_)
    if isinstance(base, BitType):
        return f"({code} & {mask(base.width)})"
    if isinstance(base, IntType):
        half = 1 << (base.width - 1) if base.width else 0
        return f"((({code}) & {mask(base.width)} ^ {half:#x}) - {half:#x})"
    return f"({code})"


def _unary(body: Body, expr: ir.Unary) -> str:
    code = expression(body, expr.operand)
    if expr.op is ir.UnaryOp.NOT:
        return f"(not {code})"
    base = underlying(expr.type)
    if expr.op is ir.UnaryOp.INVERT:
        return f"({code} ^ {mask(base.width)})" if isinstance(base, BitType) else f"(~{code})"
    return wrapped(base, f"-{code}")


def _binary(body: Body, expr: ir.Binary) -> str:
    op = expr.op
    if op in (ir.BinaryOp.AND, ir.BinaryOp.OR):
        return _logical(body, expr)
    if op is ir.BinaryOp.CONCAT:
        return _concat(body, expr)
    left, right = body.ordered([lambda: expression(body, expr.left), lambda: expression(body, expr.right)])
    base = underlying(expr.type)
    if op in _COMPARISONS:
        return f"({left} {_COMPARISONS[op]} {right})"
    if op in _BITWISE:
        return f"({left} {_BITWISE[op]} {right})"
    if op in _WRAPPING:
        return wrapped(base, f"{left} {_WRAPPING[op]} {right}")
    if op in (ir.BinaryOp.SHIFT_LEFT, ir.BinaryOp.SHIFT_RIGHT):
        return _shift(expr, base, left, right)
    if op in (ir.BinaryOp.SAT_ADD, ir.BinaryOp.SAT_SUB):
        sign = "+" if op is ir.BinaryOp.SAT_ADD else "-"
        width = base.width  # type: ignore[attr-defined]
        low, high = 0, (1 << width) - 1
        if isinstance(base, IntType):
            low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
        return f"max(min({left} {sign} {right}, {high:#x}), {low})"
    if op is ir.BinaryOp.DIV:
        return f"({left} // {right})"
    if op is ir.BinaryOp.MOD:
        return f"({left} % {right})"
    raise unsupported(f"the operator {op}", expr.location)


def _shift(expr: ir.Binary, base: Type, left: str, right: str) -> str:
    known = expr.right.value if isinstance(expr.right, ir.Literal) else None
    if expr.op is ir.BinaryOp.SHIFT_RIGHT:
        return f"({left} >> {known})" if known is not None else f"shift_right({left}, {right})"
    if not isinstance(base, BitType | IntType):
        return f"({left} << {right})"
    if known is not None and int(known) < base.width:
        return wrapped(base, f"{left} << {known}")
    name = "shift_left" if isinstance(base, BitType) else "shift_left_signed"
    return f"{name}({left}, {right}, {base.width})"


def _concat(body: Body, expr: ir.Binary) -> str:
    parts: list[ir.Expr] = []

    def gather(node: ir.Expr) -> None:
        if isinstance(node, ir.Binary) and node.op is ir.BinaryOp.CONCAT:
            gather(node.left)
            gather(node.right)
        else:
            parts.append(node)

    gather(expr)
    codes = body.ordered([partial(expression, body, each) for each in parts])
    base = underlying(expr.type)
    assert isinstance(base, BitType | IntType)
    left, terms = base.width, []
    for code, part in zip(codes, parts, strict=True):
        left -= width_of(part.type) or 0
        pattern = to_pattern(part.type, code)
        terms.append(f"{pattern} << {left}" if left else pattern)
    return f"({from_pattern(base, ' | '.join(terms))})"


def _logical(body: Body, expr: ir.Binary) -> str:
    left = expression(body, expr.left)
    right, lines = body.capture(lambda: expression(body, expr.right))
    if not lines:
        return f"({left} {'and' if expr.op is ir.BinaryOp.AND else 'or'} {right})"
    result = body.temp()
    body.emit(f"{result} = {left}")
    body.emit(f"if {result}:" if expr.op is ir.BinaryOp.AND else f"if not {result}:")
    body.lines += lines
    body.emit(f"    {result} = {right}")
    return result


def _ternary(body: Body, expr: ir.Ternary) -> str:
    condition = expression(body, expr.condition)
    yes, lines = body.capture(lambda: expression(body, expr.yes))
    no, other = body.capture(lambda: expression(body, expr.no))
    if not lines and not other:
        return f"({yes} if {condition} else {no})"
    result = body.temp()
    body.emit(f"if {condition}:")
    body.lines += lines
    body.emit(f"    {result} = {yes}")
    body.emit("else:")
    body.lines += other
    body.emit(f"    {result} = {no}")
    return result


def _cast(body: Body, expr: ir.Cast) -> str:
    to, of = underlying(expr.type), underlying(expr.operand.type)
    if isinstance(to, FieldsType | TupleType):
        return _reshape(body, expr, to, of)
    code = expression(body, expr.operand)
    if isinstance(to, BoolType):
        return code if isinstance(of, BoolType) else f"({code} == 1)"
    if isinstance(of, BoolType):
        return f"({code} and 1 or 0)"
    if isinstance(to, BitType):
        fits = isinstance(of, BitType) and of.width <= to.width
        return code if fits else f"({code} & {mask(to.width)})"
    if isinstance(to, IntType):
        if isinstance(of, IntType) and of.width <= to.width:
            return code
        if isinstance(of, BitType) and of.width < to.width:
            return code
        return wrapped(to, code)
    return code


def _reshape(body: Body, expr: ir.Cast, to: FieldsType | TupleType, of: Type) -> str:
    if to is of or (isinstance(to, TupleType) and to == of):
        return expression(body, expr.operand)
    source = body.hold(expression(body, expr.operand))
    if isinstance(of, TupleType):
        parts = [(f"{source}[{place}]", each) for place, each in enumerate(of.elements)]
    elif isinstance(of, FieldsType):
        parts = [(f"{source}.f_{each.name}", each.type) for each in of.fields]
    else:
        raise unsupported(f"a cast from {of} to {to}", expr.location)
    codes = [f"{code}.copy()" if is_aggregate(type_) else code for code, type_ in parts]
    if isinstance(to, TupleType):
        return f"({''.join(code + ', ' for code in codes)})"
    return f"{body.module.layouts.name(to)}.make({', '.join(codes)})"


def from_bits(body: Body, type_: Type, code: str) -> str:
    """Code that reads the number `code` as a value of any type of fixed size."""
    base = underlying(type_)
    if isinstance(base, FieldsType | TupleType | StackType):
        whole = body.hold(code)
        left = width_of(base) or 0
        values = []
        parts: Sequence[Type]
        if isinstance(base, TupleType):
            parts = base.elements
        elif isinstance(base, StackType):
            parts = [base.element] * base.size
        else:
            parts = [each.type for each in base.fields]
        for each in parts:
            size = width_of(each) or 0
            left -= size
            values.append(from_bits(body, each, f"{whole} >> {left} & {mask(size)}"))
        if isinstance(base, TupleType):
            return f"({''.join(value + ', ' for value in values)})"
        if isinstance(base, StackType):
            return f"{body.module.layouts.default(base)}.fill({', '.join(values)})"
        return f"{body.module.layouts.name(base)}.make({', '.join(values)})"
    return from_pattern(base, code)
