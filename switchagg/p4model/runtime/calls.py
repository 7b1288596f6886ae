"""Calls: of functions, actions, tables, parsers and controls, of methods of headers, of externs.

Python functions take what P4 passes in and return what it passes out. Scalars travel as values: an `in` or
`inout` one as an argument, an `out` or `inout` one in the result, after the function's own value. Headers,
structs and stacks travel as objects: where the callee could see the same storage by another way, it gets a
copy, which is assigned back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.analysis import overlap, path
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.expressions import expression, is_fresh
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.lvalues import LValue, lvalue, reference, settled
from switchagg.p4model.runtime.target import Call
from switchagg.p4model.types import Direction, UnionType, VoidType, underlying

_OUTS = (Direction.OUT, Direction.INOUT)


def call(body: Body, expr: ir.Expr) -> str:
    """Code of the value of a call. Statements that it needs are emitted. Raises P4Error."""
    from switchagg.p4model.runtime import blocks

    module = body.module
    match expr:
        case ir.FunctionCall(function=function):
            name = blocks.function(body.block, function)
            return _invoke(body, name, [], expr.args, function, isolated=True)
        case ir.DirectActionCall(action=action):
            name = blocks.action(body.block, action)
            return _invoke(body, name, ["f"], expr.args, action, isolated=False)
        case ir.BlockApply(instance=instance):
            name = blocks.block(module, instance)
            return _invoke(body, name, [], expr.args, instance, isolated=True)
        case ir.TableApply(table=table):
            return f"{body.block.tables[id(table)]}(f)"
        case ir.BuiltinCall():
            return _builtin(body, expr)
        case ir.ExternCall(method=method):
            lowering = module.target.functions.get(method.name)
            if lowering is None:
                raise unsupported(f"{method.name} in {module.target.name}", expr.location)
            return lowering(Call(body, expr))
        case ir.MethodCall(method=method):
            lowering = module.target.methods.get((method.owner, method.name))
            if lowering is None:
                raise unsupported(f"{method.owner}.{method.name} in {module.target.name}", expr.location)
            return lowering(Call(body, expr))
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


def _invoke(
    body: Body,
    name: str,
    lead: list[str],
    args: tuple[ir.Argument, ...],
    callee: ir.Function | ir.Action | ir.ControlInstance | ir.ParserInstance,
    *,
    isolated: bool,
) -> str:
    # `isolated`: the callee has no way to the caller's storage but its arguments.
    written = [path(each.value) for each in args if each.value is not None and each.param.direction in _OUTS]
    writers: list[Callable[[], str]] = []
    results: list[LValue | None] = []
    after: list[Callable[[], None]] = []

    def shared(expr: ir.Expr) -> bool:
        mine = path(expr)
        return not isolated or not mine or sum(overlap(mine, other) for other in written) > 1

    def incoming(expr: ir.Expr) -> str:
        code = expression(body, expr)
        if not is_aggregate(expr.type) or is_fresh(expr):
            return code
        mine = path(expr)
        alone = isolated and mine and not any(overlap(mine, other) for other in written)
        return code if alone else f"{code}.copy()"

    def outgoing(each: ir.Argument) -> str:
        direction, expr = each.param.direction, each.value
        if expr is None:
            return body.module.layouts.default(each.param.type)
        in_union = isinstance(expr, ir.FieldAccess) and isinstance(underlying(expr.base.type), UnionType)
        if not shared(expr) and not in_union:
            code = settled(body, expr)
            if direction is Direction.OUT:
                body.emit(f"{code}.reset()")
            return code
        place = lvalue(body, expr)
        copy = body.hold(
            f"{place.read}.copy()" if direction is Direction.INOUT else body.module.layouts.default(expr.type)
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
    """Calls, assigns what came out, also if the callee ended by `exit`; the value, if there is one."""
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
    body.emit("try:")
    body.depth += 1
    invoke()
    body.depth -= 1
    body.emit("except Exit as left:")
    body.depth += 1
    if temps:
        body.emit(f"{', '.join(temps)}, = left.values")
    copy_back()
    body.emit("raise Exit((" + "".join(f"{body.place(v, v.location)}, " for v in body.outs) + ")) from None")
    body.depth -= 1
    copy_back()
    return value or "None"
