"""Statements of P4 as Python statements."""

from __future__ import annotations

from collections.abc import Sequence

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.calls import call
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.expressions import expression, is_fresh
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.lvalues import lvalue, settled
from switchagg.p4model.types import StackType, underlying


def statements(body: Body, each: Sequence[ir.Stmt]) -> None:
    """Emits them in order. Raises P4Error for what is not supported."""
    for one in each:
        statement(body, one)


def nested(body: Body, one: ir.Stmt | None) -> None:
    """Emits a statement one level deeper."""
    body.depth += 1
    mark = len(body.lines)
    if one is not None:
        statement(body, one)
    if len(body.lines) == mark:
        body.emit("pass")
    body.depth -= 1


def statement(body: Body, one: ir.Stmt) -> None:
    """Emits one statement. Raises P4Error for what is not supported."""
    match one:
        case ir.Declare():
            declare(body, one)
        case ir.Assign():
            _assign(body, one)
        case ir.CallStmt():
            code = call(body, one.call)
            if code not in ("", "None"):
                body.emit(code)
        case ir.Block():
            statements(body, one.body)
        case ir.If():
            body.emit(f"if {expression(body, one.condition)}:")
            nested(body, one.then)
            if one.orelse is not None:
                body.emit("else:")
                nested(body, one.orelse)
        case ir.Return():
            body.emit(f"return {body.returned(_owned(body, one.value) if one.value is not None else None)}")
        case ir.Exit():
            outs = "".join(f"{body.place(variable, one.location)}, " for variable in body.outs)
            body.emit(f"raise Exit(({outs}))")
        case ir.ActionSwitch():
            _action_switch(body, one)
        case ir.ValueSwitch():
            _value_switch(body, one)
        case ir.For() | ir.ForRange() | ir.ForEach():
            _loop(body, one)
        case ir.Break():
            body.emit("break")
        case ir.Continue():
            statements(body, body.updates[-1])
            body.emit("continue")
        case ir.Empty():
            pass
        case _:
            raise unsupported(f"this statement ({type(one).__name__})", one.location)


def _owned(body: Body, expr: ir.Expr) -> str:
    code = expression(body, expr)
    return f"{code}.copy()" if is_aggregate(expr.type) and not is_fresh(expr) else code


def declare(body: Body, one: ir.Declare) -> None:
    """Emits the declaration of a variable, of this function or of the frame."""
    variable = one.variable
    code = None if one.init is None else _owned(body, one.init)
    if variable in body.block.frame and variable not in body.names:
        if code is not None or not is_aggregate(variable.type):
            place = body.place(variable, one.location)
            value = body.module.layouts.default(variable.type) if code is None else code
            body.emit(f"{place}.assign({value})" if is_aggregate(variable.type) else f"{place} = {value}")
        return
    value = body.module.layouts.default(variable.type) if code is None else code
    body.emit(f"{body.local(variable)} = {value}")


def _assign(body: Body, one: ir.Assign) -> None:
    mark = len(body.lines)
    place = lvalue(body, one.target)
    if len(body.lines) == mark and is_aggregate(one.target.type) and isinstance(one.value, ir.InvalidHeader):
        base = one.target
        body.emit(f"{settled(body, base)}.reset()")
        return
    place.store(expression(body, one.value))


def _action_switch(body: Body, one: ir.ActionSwitch) -> None:
    table = one.apply.table
    found = body.hold(f"{call(body, one.apply)}.index")
    indices = {id(each.action): position for position, each in enumerate(table.actions)}
    default: ir.ActionCase | None = None
    word = "if"
    for case in one.cases:
        numbers = [indices[id(action)] for action in case.actions if id(action) in indices]
        if case.default:
            default = case
        elif numbers:
            test = f"{found} == {numbers[0]}" if len(numbers) == 1 else f"{found} in {tuple(numbers)!r}"
            body.emit(f"{word} {test}:")
            nested(body, case.body)
            word = "elif"
    if default is not None:
        body.emit("else:" if word == "elif" else "if True:")
        nested(body, default.body)


def _value_switch(body: Body, one: ir.ValueSwitch) -> None:
    subject = body.hold(expression(body, one.subject))
    default: ir.ValueCase | None = None
    word = "if"
    for case in one.cases:
        tests = [f"{subject} == {expression(body, value)}" for value in case.values]
        if case.default:
            default = case
        elif tests:
            body.emit(f"{word} {' or '.join(tests)}:")
            nested(body, case.body)
            word = "elif"
    if default is not None:
        body.emit("else:" if word == "elif" else "if True:")
        nested(body, default.body)


def _loop(body: Body, one: ir.For | ir.ForRange | ir.ForEach) -> None:
    if isinstance(one, ir.For):
        statements(body, one.init)
        body.emit("while True:")
        body.depth += 1
        if one.condition is not None:
            body.emit(f"if not {expression(body, one.condition)}:")
            body.emit("    break")
        body.updates.append(one.update)
        statement(body, one.body)
        body.updates.pop()
        statements(body, one.update)
        if one.condition is None and not one.update:
            body.emit("pass")
        body.depth -= 1
        return
    body.updates.append(())
    if isinstance(one, ir.ForRange):
        low, high = body.ordered([lambda: expression(body, one.low), lambda: expression(body, one.high)])
        body.emit(f"for {body.local(one.variable)} in range({low}, {high} + 1):")
    else:
        collection = expression(body, one.collection)
        if isinstance(underlying(one.collection.type), StackType):
            collection = f"{collection}.copy().items"
        body.emit(f"for {body.local(one.variable)} in {collection}:")
    nested(body, one.body)
    body.updates.pop()
