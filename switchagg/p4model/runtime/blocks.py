"""Functions, actions and controls as Python functions. Tables and parsers have modules of their own.

c_ingress(hdr, meta, sm)      a control: makes its frame `f`, runs the body, returns its scalar out parameters
a_forward(f, port)            an action
fn_max(a, b)                  a function of the program
"""

from __future__ import annotations

from collections.abc import Sequence

from switchagg.p4model import ir
from switchagg.p4model.runtime.emit import Block, Body, Module, identifier
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.statements import statement, statements
from switchagg.p4model.types import Direction, VoidType


def passed(variable: ir.Variable) -> bool:
    """Whether a parameter is an argument of the Python function: all are but scalars that only go out."""
    return variable.direction is not Direction.OUT or is_aggregate(variable.type)


def _parameters(body: Body, variables: Sequence[ir.Variable]) -> list[str]:
    names = []
    for variable in variables:
        name = body.local(variable)
        if passed(variable):
            names.append(name)
        else:
            body.emit(f"{name} = {body.module.layouts.default(variable.type)}")
        if variable.direction in (Direction.OUT, Direction.INOUT) and not is_aggregate(variable.type):
            body.outs.append(variable)
    return names


def function(block: Block, callee: ir.Function) -> str:
    """The Python function of a function of the program; written if it was not yet."""
    module = block.module
    known = module.written.get(id(callee))
    if known is None:
        known = module.written[id(callee)] = module.fresh("fn_" + callee.name)
        _write(Body(Block(module)), known, [], callee)
    return known


def method(block: Block, callee: ir.Function) -> str:
    """The Python function of an extern instance's abstract method. Its first argument is the frame."""
    module = block.module
    known = module.written.get(id(callee))
    if known is None:
        known = module.written[id(callee)] = module.fresh("m_" + callee.name)
        _write(Body(block), known, ["f"], callee)
    return known


def action(block: Block, callee: ir.Action) -> str:
    """The Python function of an action. Its first argument is the frame."""
    module = block.module
    known = module.written.get(id(callee))
    if known is None:
        known = module.written[id(callee)] = module.fresh("a_" + callee.name)
        _write(Body(block), known, ["f"], callee)
    return known


def _write(body: Body, name: str, lead: list[str], callee: ir.Function | ir.Action) -> None:
    names = lead + _parameters(body, callee.params)
    statement(body, callee.body)
    if body.outs or (isinstance(callee, ir.Function) and not isinstance(callee.returns, VoidType)):
        # A function that falls off its end returns something undefined; falling off is refused earlier.
        value = None
        if isinstance(callee, ir.Function) and not isinstance(callee.returns, VoidType):
            value = body.module.layouts.default(callee.returns)
        body.emit(f"return {body.returned(value)}")
    body.finish(name, names)


def block(module: Module, instance: ir.ControlInstance | ir.ParserInstance) -> str:
    """The Python function of a parser or control instance; written if it was not yet."""
    known = module.written.get(id(instance))
    if known is None:
        known = module.written[id(instance)] = module.fresh(
            ("c_" if isinstance(instance, ir.ControlInstance) else "p_") + instance.name
        )
        if isinstance(instance, ir.ControlInstance):
            _control(module, instance, known)
        else:
            from switchagg.p4model.runtime.parsers import write_parser

            write_parser(module, instance, known)
    return known


def _control(module: Module, instance: ir.ControlInstance, name: str) -> None:
    from switchagg.p4model.runtime.table_code import write_table

    made = Block(module, owner=instance)
    body = Body(made)
    arguments: list[str] = []
    head = [f"    f = {name}_frame()"]
    first: list[str] = []
    for variable in instance.params:
        slot = made.frame[variable] = module.fresh(identifier(variable.name))
        if passed(variable):
            arguments.append(slot)
            head.append(f"    f.{slot} = {slot}")
            if is_aggregate(variable.type):
                body.names[variable] = slot
        else:
            first.append(f"        self.{slot} = {module.layouts.default(variable.type)}")
        if variable.direction in (Direction.OUT, Direction.INOUT) and not is_aggregate(variable.type):
            body.outs.append(variable)
    for each in instance.prologue:
        if isinstance(each, ir.Declare):
            slot = made.frame[each.variable] = module.fresh(identifier(each.variable.name))
            first.append(f"        self.{slot} = {module.layouts.default(each.variable.type)}")
    for extern in instance.instances:
        if isinstance(extern, ir.ExternInstance):
            module.extern(extern)
    for table in instance.tables:
        made.tables[id(table)] = module.fresh("tb_" + table.name)
    slots = "".join(f"{slot!r}, " for slot in made.frame.values())
    module.lines += [f"class {name}_frame:", f"    __slots__ = ({slots})"]
    if first:
        module.lines += ["    def __init__(self):", *first]
    statements(body, instance.prologue)
    statement(body, instance.body)
    if body.outs:
        body.emit(f"return {body.returned(None)}")
    body.finish(name, arguments, head)
    for table in instance.tables:
        write_table(made, table)
    # Actions that no table lists and nothing calls are translated too, so that what they use is checked.
    for each_action in instance.actions:
        action(made, each_action)
