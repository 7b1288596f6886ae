"""A parser as one Python function: a loop over numbered states.

States are numbered so that most transitions go to a larger number. Then the target is found further down in
the same round of the loop; only transitions to a smaller number begin another round.

    s = 0
    while True:
        if s == 0:
            ... extract ...
            s = 2                      transition to a later state
        if s == 1: ...
        if s == 2:
            ...
            break                      accept
"""

from __future__ import annotations

from functools import partial

from switchagg.p4entities.matches import ValueSet
from switchagg.p4model import ir
from switchagg.p4model.runtime.blocks import passed
from switchagg.p4model.runtime.emit import Block, Body, Module
from switchagg.p4model.runtime.expressions import expression
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.packet import NO_ERROR, NO_MATCH, PARSER_TIMEOUT
from switchagg.p4model.runtime.statements import statements
from switchagg.p4model.runtime.values import MAX_PARSER_ROUNDS
from switchagg.p4model.types import Direction


def write_parser(module: Module, instance: ir.ParserInstance, name: str) -> None:
    """Adds a parser's function to the module. Raises P4Error for what is not supported."""
    body = Body(Block(module, owner=instance), parser=True)
    arguments: list[str] = []
    for variable in instance.params:
        place = body.local(variable)
        if passed(variable):
            arguments.append(place)
        else:
            body.emit(f"{place} = {module.layouts.default(variable.type)}")
        if variable.direction in (Direction.OUT, Direction.INOUT) and not is_aggregate(variable.type):
            body.outs.append(variable)
    for extern in instance.instances:
        if isinstance(extern, ir.ExternInstance):
            module.extern(extern)
    for value_set in instance.value_sets:
        module.value_set(value_set)
    statements(body, instance.prologue)
    order = _order(instance)
    numbers = {state: number for number, state in enumerate(order)}
    loops = any(
        numbers.get(target, -1) <= numbers[state]
        for state in order
        for target in _targets(instance.states[state])
        if target in numbers
    )
    body.emit("s = 0")
    if loops:
        body.emit("rounds = 0")
    body.emit("while True:")
    body.depth += 1
    for state in order:
        body.emit(f"if s == {numbers[state]}:")
        body.depth += 1
        if module.traced:
            body.emit(f"TR.state({instance.name + '.' + state!r})")
        statements(body, instance.states[state].body)
        _transition(body, instance.states[state], numbers)
        body.depth -= 1
    body.depth -= 1
    if body.outs:
        body.emit(f"return {body.returned(None)}")
    body.finish(name, arguments)


def _targets(state: ir.State) -> list[str]:
    if isinstance(state.transition, ir.Goto):
        return [state.transition.state]
    return [case.state for case in state.transition.cases]


def _order(instance: ir.ParserInstance) -> list[str]:
    """The states that can be reached, in reverse postorder from the start state."""
    done: set[str] = set()
    order: list[str] = []
    path: list[tuple[str, list[str]]] = [("start", _targets(instance.states["start"]))]
    done.add("start")
    while path:
        state, left = path[-1]
        if not left:
            order.append(state)
            path.pop()
            continue
        target = left.pop()
        if target in instance.states and target not in done:
            done.add(target)
            path.append((target, _targets(instance.states[target])))
    return order[::-1]


def _transition(body: Body, state: ir.State, numbers: dict[str, int]) -> None:
    mine = numbers[state.name]
    if isinstance(state.transition, ir.Goto):
        _go(body, state.transition.state, mine, numbers)
        return
    select = state.transition
    keys = [
        body.hold(code) for code in body.ordered([partial(expression, body, each) for each in select.exprs])
    ]
    word = "if"
    for case in select.cases:
        tests = [test for test in _tests(body, case, keys) if test != "True"]
        if not tests:
            body.emit("if True:" if word == "if" else "else:")
            body.depth += 1
            _go(body, case.state, mine, numbers)
            body.depth -= 1
            return
        body.emit(f"{word} {' and '.join(tests)}:")
        body.depth += 1
        _go(body, case.state, mine, numbers)
        body.depth -= 1
        word = "elif"
    body.emit("else:" if word == "elif" else "if True:")
    body.emit(f"    raise ParserReject({NO_MATCH})")


def _tests(body: Body, case: ir.SelectCase, keys: list[str]) -> list[str]:
    if len(case.keys) == 1 and isinstance(case.keys[0], ir.ValueSetRef):
        return [_member(body, case.keys[0].value_set, keys)]
    return [keyset_test(body, keyset, key) for keyset, key in zip(case.keys, keys, strict=False)]


def _member(body: Body, value_set: ir.ValueSet, keys: list[str]) -> str:
    made: ValueSet = body.module.value_set(value_set)
    return f"{body.module.bind(made, value_set.name)}.has(({', '.join(keys)},))"


def keyset_test(body: Body, keyset: ir.Keyset, key: str) -> str:
    """Code of whether a key is in a set."""
    match keyset:
        case ir.AnySet():
            return "True"
        case ir.ExactSet(value=value):
            return f"{key} == {expression(body, value)}"
        case ir.MaskSet(value=value, mask=mask):
            bits = expression(body, mask)
            return f"{key} & {bits} == {expression(body, value)} & {bits}"
        case ir.RangeSet(low=low, high=high):
            return f"{expression(body, low)} <= {key} <= {expression(body, high)}"
        case ir.ValueSetRef(value_set=value_set):
            return _member(body, value_set, [key])


def _go(body: Body, target: str, mine: int, numbers: dict[str, int]) -> None:
    if target == "accept":
        body.emit("break")
    elif target == "reject":
        body.emit(f"raise ParserReject({NO_ERROR})")
    else:
        body.emit(f"s = {numbers[target]}")
        if numbers[target] <= mine:
            body.emit("rounds += 1")
            body.emit(f"if rounds > {MAX_PARSER_ROUNDS}:")
            body.emit(f"    raise ParserReject({PARSER_TIMEOUT})")
            body.emit("continue")
