"""Controls, parsers, actions, functions and tables as Python functions.

    c_ingress(hdr, meta, sm)      a control: makes its frame `f`, runs the body, returns scalar out parameters
    p_parse(packet, hdr, meta)    a parser: a loop over numbered states
    a_forward(f, port)            an action
    fn_max(a, b)                  a function of the program
    tb_route(f)                   a table: look-up, action; returns the action with `hit` and `index`

A parser's states are numbered so that most transitions go to a larger number. Then the target is found
further down in the same round of the loop; only transitions to a smaller number begin another round.

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

from collections.abc import Sequence
from functools import partial

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.emit import Block, Body, Module, identifier
from switchagg.p4model.runtime.expressions import call, expression, invoke, lvalue, owned, settled
from switchagg.p4model.runtime.extern_calls import bit_string
from switchagg.p4model.runtime.header_classes import is_aggregate, to_pattern
from switchagg.p4model.runtime.values import MAX_PARSER_ROUNDS, NO_ERROR, NO_MATCH, PARSER_TIMEOUT
from switchagg.p4model.types import Direction, StackType, VoidType, underlying


def _passed(variable: ir.Variable) -> bool:
    """Returns True if a parameter is an argument of the Python function: all but scalars that only go out."""
    return variable.direction is not Direction.OUT or is_aggregate(variable.type)


def _goes_out(variable: ir.Variable) -> bool:
    return variable.direction in (Direction.OUT, Direction.INOUT) and not is_aggregate(variable.type)


def _parameters(body: Body, variables: Sequence[ir.Variable]) -> list[str]:
    names = []
    for variable in variables:
        name = body.local(variable)
        if _passed(variable):
            names.append(name)
        else:
            body.emit(f"{name} = {body.module.classes.default(variable.type)}")
    body.outs = [variable for variable in variables if _goes_out(variable)]
    return names


def translate(module: Module, instance: ir.ControlInstance | ir.ParserInstance) -> str:
    """Writes a parser or control and all that it calls. Returns the name of its function. Raises P4Error."""
    name = Block(module).name_of(instance)
    while module.requested:
        block, callee, each, framed = module.requested.pop()
        match callee:
            case ir.ControlInstance():
                _control(block, callee, each)
            case ir.ParserInstance():
                _parser(block, callee, each)
            case _:
                _function(Body(block), callee, each, framed=framed)
    return name


def _function(body: Body, callee: ir.Function | ir.Action, name: str, *, framed: bool) -> None:
    names = ["f"] * framed + _parameters(body, callee.params)
    statement(body, callee.body)
    returned = callee.returns if isinstance(callee, ir.Function) else None
    if returned is not None and not isinstance(returned, VoidType):
        # A function that falls off its end returns an undefined value; the checker refuses most of these.
        body.emit(f"return {body.returned(body.module.classes.default(returned))}")
    elif body.outs:
        body.emit(f"return {body.returned(None)}")
    body.finish(name, names)


def _instances(module: Module, instance: ir.ControlInstance | ir.ParserInstance) -> None:
    for each in instance.instances:
        if isinstance(each, ir.ExternInstance):
            module.extern(each)


def _control(block: Block, instance: ir.ControlInstance, name: str) -> None:
    module, body = block.module, Body(block)
    arguments: list[str] = []
    head = [f"    f = {name}_frame()"]
    first: list[str] = []
    for variable in instance.params:
        slot = block.frame[variable] = module.fresh(identifier(variable.name))
        if _passed(variable):
            arguments.append(slot)
            head.append(f"    f.{slot} = {slot}")
            if is_aggregate(variable.type):
                body.names[variable] = slot
        else:
            first.append(f"        self.{slot} = {module.classes.default(variable.type)}")
        if _goes_out(variable):
            body.outs.append(variable)
    for each in instance.prologue:
        if isinstance(each, ir.Declare):
            slot = block.frame[each.variable] = module.fresh(identifier(each.variable.name))
            first.append(f"        self.{slot} = {module.classes.default(each.variable.type)}")
    _instances(module, instance)
    for table in instance.tables:
        block.tables[id(table)] = module.fresh("tb_" + table.name)
    slots = "".join(f"{slot!r}, " for slot in block.frame.values())
    module.lines += [f"class {name}_frame:", f"    __slots__ = ({slots})"]
    if first:
        module.lines += ["    def __init__(self):", *first]
    statements(body, instance.prologue)
    statement(body, instance.body)
    if body.outs:
        body.emit(f"return {body.returned(None)}")
    body.finish(name, arguments, head)
    for table in instance.tables:
        _table(block, table)
    # Actions that no table lists and nothing calls are translated too, so that they are checked.
    for action in instance.actions:
        block.name_of(action)


# ---- statements ----


def statements(body: Body, each: Sequence[ir.Stmt]) -> None:
    """Emits statements in order. Raises P4Error for what is not supported."""
    for one in each:
        statement(body, one)


def _nested(body: Body, one: ir.Stmt | None) -> None:
    """Emits a statement one level deeper."""
    with body.nested():
        mark = len(body.lines)
        if one is not None:
            statement(body, one)
        if len(body.lines) == mark:
            body.emit("pass")


def statement(body: Body, one: ir.Stmt) -> None:
    """Emits one statement. Raises P4Error for what is not supported."""
    match one:
        case ir.Declare():
            _declare(body, one)
        case ir.Assign():
            _assign(body, one)
        case ir.CallStmt():
            code = call(body, one.call)
            if code not in ("", "None"):
                body.emit(code)
        case ir.Block():
            statements(body, one.body)
        case ir.If():
            _if(body, one)
        case ir.Return():
            body.emit(f"return {body.returned(owned(body, one.value) if one.value is not None else None)}")
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


def _if(body: Body, one: ir.If) -> None:
    body.emit(f"if {expression(body, one.condition)}:")
    _nested(body, one.then)
    rest = one.orelse
    # Python nests at most 100 deep; a chain of `else if` may be longer.
    while isinstance(rest, ir.If):
        condition, lines = body.capture(partial(expression, body, rest.condition))
        if lines:
            break
        body.emit(f"elif {condition}:")
        _nested(body, rest.then)
        rest = rest.orelse
    if rest is not None:
        body.emit("else:")
        _nested(body, rest)


def _declare(body: Body, one: ir.Declare) -> None:
    variable = one.variable
    code = None if one.init is None else owned(body, one.init)
    if variable in body.block.frame and variable not in body.names:
        if code is not None or not is_aggregate(variable.type):
            place = body.place(variable, one.location)
            value = body.module.classes.default(variable.type) if code is None else code
            body.emit(f"{place}.assign({value})" if is_aggregate(variable.type) else f"{place} = {value}")
        return
    value = body.module.classes.default(variable.type) if code is None else code
    body.emit(f"{body.local(variable)} = {value}")


def _assign(body: Body, one: ir.Assign) -> None:
    mark = len(body.lines)
    place = lvalue(body, one.target)
    if len(body.lines) == mark and is_aggregate(one.target.type) and isinstance(one.value, ir.InvalidHeader):
        body.emit(f"{settled(body, one.target)}.reset()")
        return
    place.store(expression(body, one.value))


def _action_switch(body: Body, one: ir.ActionSwitch) -> None:
    found = body.hold(f"{call(body, one.apply)}.index")
    indices = {id(each.action): position for position, each in enumerate(one.apply.table.actions)}
    cases = []
    for case in one.cases:
        numbers = tuple(indices[id(action)] for action in case.actions if id(action) in indices)
        test = f"{found} in {numbers!r}" if len(numbers) > 1 else "".join(f"{found} == {n}" for n in numbers)
        cases.append((test, case))
    _branches(body, cases)


def _value_switch(body: Body, one: ir.ValueSwitch) -> None:
    subject = body.hold(expression(body, one.subject))
    cases = []
    for case in one.cases:
        cases.append((" or ".join(f"{subject} == {expression(body, value)}" for value in case.values), case))
    _branches(body, cases)


def _branches(body: Body, cases: Sequence[tuple[str, ir.ActionCase | ir.ValueCase]]) -> None:
    """Emits the cases of a switch with their tests; a case without a test is never taken."""
    word = "if"
    for test, case in cases:
        if test and not case.default:
            body.emit(f"{word} {test}:")
            _nested(body, case.body)
            word = "elif"
    for _, case in cases:
        if case.default:
            body.emit("else:" if word == "elif" else "if True:")
            _nested(body, case.body)


def _loop(body: Body, one: ir.For | ir.ForRange | ir.ForEach) -> None:
    if isinstance(one, ir.For):
        statements(body, one.init)
        with body.nested("while True:"):
            if one.condition is not None:
                body.emit(f"if not {expression(body, one.condition)}:")
                body.emit("    break")
            body.updates.append(one.update)
            statement(body, one.body)
            body.updates.pop()
            statements(body, one.update)
            if one.condition is None and not one.update:
                body.emit("pass")
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
    _nested(body, one.body)
    body.updates.pop()


# ---- parsers ----


def _parser(block: Block, instance: ir.ParserInstance, name: str) -> None:
    module, body = block.module, Body(block)
    arguments = _parameters(body, instance.params)
    _instances(module, instance)
    for value_set in instance.value_sets:
        module.value_set(value_set)
    statements(body, instance.prologue)
    order = _order(instance)
    numbers = {state: number for number, state in enumerate(order)}
    loops = any(
        numbers.get(target, len(order)) <= numbers[state]
        for state in order
        for target in _targets(instance.states[state])
    )
    body.emit("s = 0")
    if loops:
        body.emit("rounds = 0")
    with body.nested("while True:"):
        for state in order:
            with body.nested(f"if s == {numbers[state]}:"):
                if module.traced:
                    body.emit(f"TR.state({instance.name + '.' + state!r})")
                statements(body, instance.states[state].body)
                _transition(body, instance.states[state], numbers)
    if body.outs:
        body.emit(f"return {body.returned(None)}")
    body.finish(name, arguments)


def _targets(state: ir.State) -> list[str]:
    if isinstance(state.transition, ir.Goto):
        return [state.transition.state]
    return [case.state for case in state.transition.cases]


def _order(instance: ir.ParserInstance) -> list[str]:
    """Returns the states that can be reached, in reverse postorder from the start state."""
    done = {"start"}
    order: list[str] = []
    path = [("start", _targets(instance.states["start"]))]
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
            with body.nested("if True:" if word == "if" else "else:"):
                _go(body, case.state, mine, numbers)
            return
        with body.nested(f"{word} {' and '.join(tests)}:"):
            _go(body, case.state, mine, numbers)
        word = "elif"
    body.emit("else:" if word == "elif" else "if True:")
    body.emit(f"    raise ParserReject({NO_MATCH})")


def _tests(body: Body, case: ir.SelectCase, keys: list[str]) -> list[str]:
    if len(case.keys) == 1 and isinstance(case.keys[0], ir.ValueSetRef):
        return [_member(body, case.keys[0].value_set, keys)]
    return [_keyset_test(body, keyset, key) for keyset, key in zip(case.keys, keys, strict=False)]


def _member(body: Body, value_set: ir.ValueSet, keys: list[str]) -> str:
    made = body.module.value_set(value_set)
    return f"{body.module.bind(made, value_set.name)}.has(({', '.join(keys)},))"


def _keyset_test(body: Body, keyset: ir.Keyset, key: str) -> str:
    """Returns code of the test that a key is in a set."""
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


# ---- tables ----


def _table(block: Block, table: ir.Table) -> None:
    """Adds the table's function to the module, and its object to the module's tables."""
    module = block.module
    made = module.table(table)
    hooks = module.target.hook_table(table, made, module)
    module.tables[module.prefix + table.control_name] = made
    for position, each in enumerate(table.actions):
        runtime = next(a for a in made.actions.values() if a.index == position)
        module.runs.append((runtime, _runner(block, each)))
    unlisted = [each for each in made.actions.values() if each.index == -1]
    if table.default is not None and unlisted:
        default = ir.ActionRef(table.default.action, table.default.args, (), table.location)
        module.runs.append((unlisted[0], _runner(block, default)))
    body = Body(block)
    place = module.bind(made, table.name)
    matched = [key for key in table.keys if key.match_kind != "selector"]
    codes = body.ordered([partial(_key, body, each) for each in matched])
    if codes:
        found = module.bind(made.find, table.name + "_find")
        key = f"({', '.join(codes)},)"
        if module.traced:
            key = body.hold(key)
        body.emit(f"e = {found}({key}) or {place}.miss")
    else:
        key = "()"
        body.emit(f"e = {place}.miss")
    chosen = "e"
    if made.profile is not None:
        chosen = "c"
        _choose(body, table, place, hashed=made.profile.select is not None)
    if module.traced:
        body.emit(f"TR.table({place}, {key}, e, {chosen})")
    for line in hooks:
        body.emit(line)
    body.emit(f"{chosen}.run(f, *{chosen}.args)")
    body.emit(f"return {chosen}")
    body.finish(block.tables[id(table)], ["f"])


def _choose(body: Body, table: ir.Table, place: str, *, hashed: bool) -> None:
    selectors = [key.expr for key in table.keys if key.match_kind == "selector"]
    number = "0"
    if hashed and selectors:
        whole = ir.TupleLiteral(selectors[0].type, table.location, tuple(selectors))
        number = f"{place}.profile.select(*{bit_string(body, whole)})"
    body.emit("c = e")
    body.emit("if e.choice is not None:")
    body.emit(f"    c = e.choice.pick({number}) or {place}.miss")


def _key(body: Body, key: ir.Key) -> str:
    code = expression(body, key.expr)
    # Range fields compare numbers; all others compare bits.
    return code if key.match_kind == "range" else to_pattern(key.expr.type, code)


def _runner(block: Block, listed: ir.ActionRef) -> str:
    """Returns the name of the function of an entry: the action, or one that evaluates bound arguments."""
    name = block.name_of(listed.action)
    directed = [p for p in listed.action.params if p.direction is not Direction.NONE]
    if not directed:
        return name
    module, body = block.module, Body(block)
    wrapper = module.fresh("w_" + listed.action.name)
    arguments, names = list(listed.bound[: len(directed)]), []
    for variable in listed.action.params[len(directed) :]:
        assert _passed(variable)
        names.append(body.local(variable))
        arguments.append(ir.Argument(variable, ir.VarRef(variable.type, listed.location, variable)))
    code = invoke(body, name, ["f"], tuple(arguments), listed.action, isolated=False)
    if code != "None":
        body.emit(code)
    body.finish(wrapper, ["f", *names])
    return wrapper
