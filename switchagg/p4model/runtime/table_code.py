"""A table as a Python function, and its runtime object filled with what the source says of it.

def tb_route(f):
    e = find((f.hdr.f_ipv4.f_dst, ...)) or table.miss
    e.run(f, *e.args)
    return e                       whose `hit` and `index` (of the action) the caller may look at
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from switchagg.p4entities.matches import (
    Exact,
    KeyField,
    Lpm,
    Match,
    MatchKind,
    Parameter,
    Range,
    TableError,
    Ternary,
    Wildcard,
)
from switchagg.p4entities.tables import Action, ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import Location, P4Error, unsupported
from switchagg.p4model.runtime.blocks import action, passed
from switchagg.p4model.runtime.calls import _invoke
from switchagg.p4model.runtime.emit import Block, Body, Module
from switchagg.p4model.runtime.expressions import expression
from switchagg.p4model.runtime.header_classes import to_pattern
from switchagg.p4model.types import BoolType, Direction, IntType, Type, VarbitType, underlying, width_of

# The width that enums and errors have in keys and action parameters, where no architecture gives one.
_SYMBOL_WIDTH = 32


def key_field(name: str, type_: Type, kind: MatchKind, location: Location) -> KeyField:
    """A key field of this type. Raises P4Error for types that cannot be in a key."""
    base = underlying(type_)
    width = width_of(base)
    if isinstance(base, VarbitType):
        raise unsupported("a varbit in a key", location)
    return KeyField(name, _SYMBOL_WIDTH if width is None else width, kind, isinstance(base, IntType))


def parameter(variable: ir.Variable) -> Parameter:
    """What the control plane gives for a directionless parameter of an action."""
    base = underlying(variable.type)
    width = width_of(base)
    return Parameter(
        variable.name,
        _SYMBOL_WIDTH if width is None else width,
        isinstance(base, IntType),
        isinstance(base, BoolType),
    )


def build_table(
    table: ir.Table,
    kinds: Mapping[str, MatchKind],
    profile: ActionProfile | None,
    errors: Mapping[str, int],
    *,
    default_size: int,
) -> Table:
    """The runtime object, with the source's entries. `kinds`: the match kinds that the target has."""
    keys = []
    for each in table.keys:
        if each.match_kind == "selector":
            continue
        if each.match_kind not in kinds:
            raise unsupported(f"the match kind {each.match_kind}", each.location)
        keys.append(key_field(each.control_name, each.expr.type, kinds[each.match_kind], each.location))
    actions: list[Action] = []
    for position, each_action in enumerate(table.actions):
        marks = {mark.name for mark in (*each_action.annotations, *each_action.action.annotations)}
        actions.append(
            Action(
                each_action.action.control_name,
                tuple(parameter(p) for p in each_action.action.params if p.direction is Direction.NONE),
                position,
                in_entries="defaultonly" not in marks,
                in_default="tableonly" not in marks,
            )
        )
    if table.default is not None and not any(a.action is table.default.action for a in table.actions):
        actions.append(
            Action(
                table.default.action.control_name,
                tuple(parameter(p) for p in table.default.action.params if p.direction is Direction.NONE),
                -1,
                in_entries=False,
            )
        )
    default = "NoAction" if table.default is None else table.default.action.control_name
    if table.default is None and not any(each.name == default for each in actions):
        actions.append(Action(default, index=-1, in_entries=False))
    made = Table(
        table.control_name,
        keys,
        actions,
        (default, _arguments(errors, table.default) if table.default is not None else ()),
        size=max(default_size if table.size is None else table.size, len(table.entries)),
        const_default=table.const_default,
        profile=profile,
    )
    if profile is not None:
        profile.actions.update({each.name: each for each in actions if each.in_entries})
    _fill(errors, table, made)
    made.const_entries = table.const_entries
    return made


def _constant(errors: Mapping[str, int], expr: ir.Expr | None) -> int:
    match expr:
        case ir.Literal(value=int() as value) | ir.EnumLiteral(value=value):
            return value
        case ir.ErrorLiteral(name=name):
            return errors[name]
        case ir.Cast(operand=operand):
            return _constant(errors, operand)
        case None:
            raise AssertionError("an entry without a value")
        case _:
            raise unsupported("an entry whose value is not a constant", expr.location)


def _arguments(errors: Mapping[str, int], call: ir.ActionCall) -> tuple[int, ...]:
    return tuple(
        _constant(errors, each.value)
        for each, variable in zip(call.args, call.action.params, strict=True)
        if variable.direction is Direction.NONE
    )


def _fill(errors: Mapping[str, int], table: ir.Table, made: Table) -> None:
    for entry, priority in zip(table.entries, _priorities(table), strict=True):
        chosen = made.actions[entry.call.action.control_name]
        matched = [
            keyset for keyset, key in zip(entry.keys, table.keys, strict=True) if key.match_kind != "selector"
        ]
        matches = [_match(errors, keyset, spec) for keyset, spec in zip(matched, made.keys, strict=True)]
        try:
            made.insert(matches, chosen, _arguments(errors, entry.call), priority)
        except TableError as error:
            raise P4Error(str(error), entry.location) from None


def _priorities(table: ir.Table) -> list[int]:
    """As P4_16 has it: what has no priority follows the entry before it, in steps of `priority_delta`.

    p4c's bmv2 backend also knows @priority(n): the smaller number wins, and others have their position.
    """
    marks = [
        next((mark.values[0] for mark in entry.annotations if mark.name == "priority" and mark.values), None)
        for entry in table.entries
    ]
    if any(mark is not None for mark in marks):
        return [-(place if mark is None else int(mark)) for place, mark in enumerate(marks, 1)]
    sign = 1 if table.largest_priority_wins else -1
    step = -sign * table.priority_delta
    written = [entry.priority for entry in table.entries]
    if sign > 0 and all(each is None for each in written):
        following = 1 + table.priority_delta * (len(written) - 1)
    else:
        following = 1
    priorities = []
    for each in written:
        present = following if each is None else each
        priorities.append(sign * present)
        following = present + step
    return priorities


def _match(errors: Mapping[str, int], keyset: ir.Keyset, spec: KeyField) -> Match:
    full = spec.full
    match keyset:
        case ir.AnySet():
            return Ternary(0, 0) if spec.kind is MatchKind.TERNARY else Wildcard()
        case ir.ExactSet(value=value):
            return Exact(_constant(errors, value))
        case ir.RangeSet(low=low, high=high):
            return Range(_constant(errors, low), _constant(errors, high))
        case ir.MaskSet(value=value, mask=mask):
            number, bits = _constant(errors, value) & full, _constant(errors, mask) & full
            if spec.kind is MatchKind.LPM:
                prefix = bits.bit_count()
                if bits != full ^ (full >> prefix):
                    raise P4Error(f"{bits:#x} is no prefix mask", keyset.location)
                return Lpm(number, prefix)
            return Ternary(number, bits)
        case ir.ValueSetRef():
            raise unsupported("a value set in a table entry", keyset.location)


def write_table(block: Block, table: ir.Table) -> None:
    """Adds the table's function to the module, and its object to the module's tables."""
    module = block.module
    made = module.target.make_table(table, module)
    hooks = module.target.hook_table(table, made, module)
    module.tables[module.prefix + table.control_name] = made
    for position, each in enumerate(table.actions):
        runtime = next(a for a in made.actions.values() if a.index == position)
        module.runs.append((runtime, _runner(block, each)))
    if table.default is not None:
        for runtime in made.actions.values():
            if runtime.index == -1:
                name = _runner(
                    block, ir.ActionRef(table.default.action, table.default.args, (), table.location)
                )
                module.runs.append((runtime, name))
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
        _choose(body, table, place, hooks.selector is not None)
    if module.traced:
        body.emit(f"TR.table({place}, {key}, e, {chosen})")
    for line in hooks.before:
        body.emit(line)
    if hooks.needs_current:
        body.emit(f"{place}.current = e")
    body.emit(f"{chosen}.run(f, *{chosen}.args)")
    body.emit(f"return {chosen}")
    body.finish(block.tables[id(table)], ["f"])


def _choose(body: Body, table: ir.Table, place: str, selects: bool) -> None:
    from switchagg.p4model.runtime.bit_strings import bit_string

    selectors = [key.expr for key in table.keys if key.match_kind == "selector"]
    number = "0"
    if selects and selectors:
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
    """The function that an entry runs: the action itself, or one that first evaluates its bound arguments."""
    name = action(block, listed.action)
    directed = [p for p in listed.action.params if p.direction is not Direction.NONE]
    if not directed:
        return name
    module: Module = block.module
    body = Body(block)
    wrapper = module.fresh("w_" + listed.action.name)
    arguments, names = list(listed.bound[: len(directed)]), []
    for variable in listed.action.params[len(directed) :]:
        assert passed(variable)
        names.append(body.local(variable))
        arguments.append(ir.Argument(variable, ir.VarRef(variable.type, listed.location, variable)))
    code = _invoke(body, name, ["f"], tuple(arguments), listed.action, isolated=False)
    if code != "None":
        body.emit(code)
    body.finish(wrapper, ["f", *names])
    return wrapper
