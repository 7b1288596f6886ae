"""Expressions, assignable places and calls as Python code; their statements are emitted before it.

Python functions take what P4 passes in and return what it passes out. Scalars travel as values: an `in` or
`inout` one as an argument, an `out` or `inout` one in the result, after the function's own value. Headers,
structs and stacks travel as objects: if the callee could reach the same storage in another way, it gets a
copy, which is assigned back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.header_classes import (
    concatenated,
    from_pattern,
    is_aggregate,
    mask,
    to_pattern,
)
from switchagg.p4model.types import (
    BitType,
    BoolType,
    Direction,
    FieldsType,
    IntType,
    StackType,
    TupleType,
    Type,
    UnionType,
    VoidType,
    underlying,
    width_of,
)
from switchagg.p4model.walk import overlap, storage

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
    """Returns code of the value. Raises P4Error for an unsupported expression."""
    match expr:
        case ir.Literal() | ir.EnumLiteral():
            return repr(expr.value)
        case ir.ErrorLiteral():
            return repr(body.module.errors[expr.name])
        case ir.FieldAccess(base=ir.TableApply(), name=name):
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
            return f"({''.join(code + ', ' for code in _elements(body, expr.elements))})"
        case ir.StructLiteral():
            type_ = underlying(expr.type)
            assert isinstance(type_, FieldsType)
            if isinstance(type_, UnionType):
                raise unsupported("a list as a header union", expr.location)
            return f"{body.module.classes.name(type_)}.make({', '.join(_elements(body, expr.elements))})"
        case ir.StackLiteral():
            elements = body.ordered([partial(expression, body, each) for each in expr.elements])
            return f"{body.module.classes.default(expr.type)}.fill({', '.join(elements)})"
        case ir.InvalidHeader():
            return body.module.classes.default(expr.type)
        case _:
            return call(body, expr)


def is_fresh(expr: ir.Expr) -> bool:
    """Returns True if an aggregate is a new object that nothing else names."""
    return not isinstance(
        expr, ir.VarRef | ir.FieldAccess | ir.Index | ir.StackNext | ir.StackLast | ir.Ternary | ir.Cast
    )


def owned(body: Body, expr: ir.Expr) -> str:
    """Returns code of a value that may be kept: an aggregate that something else names is copied."""
    code = expression(body, expr)
    return f"{code}.copy()" if is_aggregate(expr.type) and not is_fresh(expr) else code


def _elements(body: Body, exprs: tuple[ir.Expr, ...]) -> list[str]:
    return body.ordered([partial(owned, body, each) for each in exprs])


def wrapped(type_: Type, code: str) -> str:
    """Returns code that wraps a number to the range of bit<N> or int<N>."""
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
    patterns = [
        (to_pattern(part.type, code), width_of(part.type) or 0)
        for code, part in zip(codes, parts, strict=True)
    ]
    return f"({from_pattern(base, concatenated(patterns))})"


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
        # An unsigned number needs a bit more.
        needed = of.width if isinstance(of, IntType) else of.width + 1 if isinstance(of, BitType) else None
        return code if needed is not None and needed <= to.width else wrapped(to, code)
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
    return f"{body.module.classes.name(to)}.make({', '.join(codes)})"


def from_bits(body: Body, type_: Type, code: str) -> str:
    """Returns code that reads the number `code` as a value of any type of fixed size."""
    base = underlying(type_)
    parts: Sequence[Type]
    match base:
        case TupleType():
            parts, form = base.elements, "({}, )" if base.elements else "()"
        case StackType():
            parts, form = [base.element] * base.size, f"{body.module.classes.default(base)}.fill({{}})"
        case FieldsType():
            parts, form = [each.type for each in base.fields], f"{body.module.classes.name(base)}.make({{}})"
        case _:
            return from_pattern(base, code)
    whole = body.hold(code)
    left = width_of(base) or 0
    values = []
    for each in parts:
        size = width_of(each) or 0
        left -= size
        values.append(from_bits(body, each, f"{whole} >> {left} & {mask(size)}"))
    return form.format(", ".join(values))


@dataclass(slots=True)
class LValue:
    """A place. `read` is code of its value or, of an aggregate, object; `store` emits an assignment."""

    read: str
    store: Callable[[str], None]
    fixed: bool = True


def reference(body: Body, expr: ir.Expr) -> str:
    """Returns code of a variable, field or element, to read it or to change the object that it is."""
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
            stack, number = body.ordered([lambda: reference(body, base), lambda: expression(body, index)])
            return f"{stack}.at({number})"
        case ir.StackNext(base=base):
            return f"{reference(body, base)}.vacant()"
        case ir.StackLast(base=base):
            return f"{reference(body, base)}.last()"
        case _:
            return expression(body, expr)


def settled(body: Body, expr: ir.Expr) -> str:
    """Returns code as `reference` does, with every computed index evaluated now."""
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
    """Returns the place that `expr` names, its indices evaluated now. Raises P4Error if it is no place."""
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


_OUTS = (Direction.OUT, Direction.INOUT)


def call(body: Body, expr: ir.Expr) -> str:
    """Returns code of the value of a call; emits its statements. Raises P4Error."""
    block = body.block
    match expr:
        case ir.FunctionCall(function=callee) | ir.BlockApply(instance=callee):
            return invoke(body, block.name_of(callee), [], expr.args, callee, isolated=True)
        case ir.DirectActionCall(action=callee):
            return invoke(body, block.name_of(callee), ["f"], expr.args, callee, isolated=False)
        case ir.TableApply(table=table):
            return f"{block.tables[id(table)]}(f)"
        case ir.BuiltinCall():
            return _builtin(body, expr)
        case ir.ExternCall() | ir.MethodCall():
            return body.module.target.lower(body, expr)
        case _:
            raise unsupported(f"this expression ({type(expr).__name__})", expr.location)


def _builtin(body: Body, expr: ir.BuiltinCall) -> str:
    base = expr.base
    if expr.builtin is ir.Builtin.IS_VALID:
        return f"{expression(body, base)}.valid"
    code = reference(body, base)
    if expr.builtin in (ir.Builtin.PUSH_FRONT, ir.Builtin.POP_FRONT):
        return f"{code}.{expr.builtin}({expr.count})"
    if expr.builtin is ir.Builtin.SET_INVALID:
        return f"{code}.set_invalid()"
    if isinstance(base, ir.FieldAccess) and isinstance(underlying(base.base.type), UnionType):
        return f"{reference(body, base.base)}.only_{base.name}().set_valid()"
    return f"{code}.set_valid()"


def invoke(
    body: Body,
    name: str,
    lead: list[str],
    args: tuple[ir.Argument, ...],
    callee: ir.Function | ir.Action | ir.ControlInstance | ir.ParserInstance,
    *,
    isolated: bool,
) -> str:
    # `isolated`: the callee has no way to the caller's storage but its arguments.
    written = [
        storage(each.value) for each in args if each.value is not None and each.param.direction in _OUTS
    ]
    writers: list[Callable[[], str]] = []
    results: list[LValue | None] = []
    after: list[Callable[[], None]] = []

    def shared(expr: ir.Expr) -> bool:
        mine = storage(expr)
        return not isolated or not mine or sum(overlap(mine, other) for other in written) > 1

    def incoming(expr: ir.Expr) -> str:
        code = expression(body, expr)
        if not is_aggregate(expr.type) or is_fresh(expr):
            return code
        mine = storage(expr)
        alone = isolated and mine and not any(overlap(mine, other) for other in written)
        return code if alone else f"{code}.copy()"

    def outgoing(each: ir.Argument) -> str:
        direction, expr = each.param.direction, each.value
        if expr is None:
            return body.module.classes.default(each.param.type)
        in_union = isinstance(expr, ir.FieldAccess) and isinstance(underlying(expr.base.type), UnionType)
        if not shared(expr) and not in_union:
            code = settled(body, expr)
            if direction is Direction.OUT:
                body.emit(f"{code}.reset()")
            return code
        place = lvalue(body, expr)
        copy = body.hold(
            f"{place.read}.copy()" if direction is Direction.INOUT else body.module.classes.default(expr.type)
        )
        after.append(lambda: place.store(copy))
        return copy

    def through(expr: ir.Expr) -> str:
        place = lvalue(body, expr)
        results.append(place)
        return place.read

    def unpassed(expr: ir.Expr) -> str:
        through(expr)
        return ""

    for each in args:
        direction, expr = each.param.direction, each.value
        if direction in _OUTS:
            type_ = each.param.type if expr is None else expr.type
            if is_aggregate(type_):
                writers.append(partial(outgoing, each))
            elif expr is None:
                results.append(None)
                if direction is Direction.INOUT:
                    raise unsupported("an inout parameter without an argument", callee.location)
            elif direction is Direction.INOUT:
                writers.append(partial(through, expr))
            else:
                # Evaluated for its indices now; passed nowhere.
                writers.append(partial(unpassed, expr))
        elif expr is None:
            raise unsupported(f"the missing argument {each.param.name}", callee.location)
        else:
            writers.append(partial(incoming, expr))
    codes = [code for code in body.ordered(writers) if code]
    invocation = f"{name}({', '.join(lead + codes)})"
    has_value = isinstance(callee, ir.Function) and not isinstance(callee.returns, VoidType)
    if not results and not after:
        return invocation
    exits = body.module.exits.may_exit(callee)
    return _collect(body, invocation, results, after, has_value=has_value, exits=exits)


def _collect(
    body: Body,
    invocation: str,
    results: list[LValue | None],
    after: list[Callable[[], None]],
    *,
    has_value: bool,
    exits: bool,
) -> str:
    """Emits the call and assigns its results, also after `exit`.

    Returns code of the value, if there is one.
    """
    value = body.temp() if has_value else ""
    temps = [body.temp() for _ in results]
    targets = ([value] if value else []) + temps

    def copy_back() -> None:
        for place, code in zip(results, temps, strict=True):
            if place is not None:
                place.store(code)
        for store in after:
            store()

    def invoke() -> None:
        body.emit(f"{', '.join(targets)} = {invocation}" if targets else invocation)

    if not exits:
        invoke()
        copy_back()
        return value or "None"
    with body.nested("try:"):
        invoke()
    with body.nested("except Exit as left:"):
        if temps:
            body.emit(f"{', '.join(temps)}, = left.values")
        copy_back()
        outs = "".join(f"{body.place(v, v.location)}, " for v in body.outs)
        body.emit(f"raise Exit(({outs})) from None")
    copy_back()
    return value or "None"
