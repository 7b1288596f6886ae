"""Traversals of the typed program: parts of a statement or expression, and what a block uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from switchagg.p4model import ir

_PARTS: tuple[type[Any], ...] = (
    ir.Expr, ir.Stmt, ir.Argument, ir.ActionCase, ir.ValueCase, ir.ExactSet, ir.MaskSet, ir.RangeSet,
    ir.SelectCase, ir.Select,
)  # fmt: skip


_NAMES: dict[type[Any], tuple[str, ...]] = {}


def _names(kind: type[Any]) -> tuple[str, ...]:
    if kind not in _NAMES:
        skipped = ("type", "location", "annotations", "param", "variable")
        _NAMES[kind] = tuple(each.name for each in dataclasses.fields(kind) if each.name not in skipped)
    return _NAMES[kind]


def nodes(*roots: object) -> Iterator[object]:
    """All statements, expressions and their parts in these, themselves included, from left to right.

    Declarations that they refer to (actions, tables, functions, instances) are not entered.
    """
    pending = list(reversed(roots))
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending.extend(reversed(node))
        elif isinstance(node, _PARTS):
            yield node
            pending.extend(reversed([getattr(node, name) for name in _names(type(node))]))


def blocks(root: ir.Value) -> Iterator[ir.BlockInstance]:
    """All parsers and controls below a package, each once, in order of its arguments; outer ones first."""
    seen: set[int] = set()
    pending: list[object] = [root]
    while pending:
        node = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, ir.PackageInstance):
            pending.extend(node.args.values())
        elif isinstance(node, ir.BlockInstance):
            yield node
            pending.extend(each for each in node.instances if not isinstance(each, ir.ExternInstance))
            pending.extend(node.args.values())


def externs(root: ir.Value) -> Iterator[ir.ExternInstance]:
    """All extern objects of the blocks below a package or block."""
    for block in blocks(root):
        yield from (each for each in block.instances if isinstance(each, ir.ExternInstance))


@dataclasses.dataclass(slots=True)
class Used:
    """The tables that a control's body applies, the actions of these, and the actions that it calls.

    `direct` has the actions that tables list and the body itself calls; `actions` has those that actions
    call too.
    """

    tables: list[ir.Table]
    actions: list[ir.Action]
    direct: list[ir.Action]
    functions: list[ir.Function]


def used(control: ir.ControlInstance) -> Used:
    """Tables, actions and functions used in the body of a control, without those of controls it applies."""
    found = Used([], [], [], [])
    pending: list[tuple[object, bool]] = [((control.prologue, control.body), True)]
    for each in control.instances:
        if isinstance(each, ir.ExternInstance):
            pending.extend((method.body, False) for method in each.methods.values())
    while pending:
        root, outermost = pending.pop()
        for node in nodes(root):
            match node:
                case ir.TableApply(table=table) if table not in found.tables:
                    found.tables.append(table)
                    pending.append((tuple(key.expr for key in table.keys), False))
                    pending.append((tuple(ref.bound for ref in table.actions), False))
                    for ref in table.actions:
                        _add(found, ref.action, pending, True)
                case ir.DirectActionCall(action=action):
                    _add(found, action, pending, outermost)
                case ir.FunctionCall(function=function) if function not in found.functions:
                    found.functions.append(function)
                    pending.append((function.body, False))
                case _:
                    pass
    return found


def _add(found: Used, action: ir.Action, pending: list[tuple[object, bool]], direct: bool) -> None:
    if direct and action not in found.direct:
        found.direct.append(action)
    if action not in found.actions:
        found.actions.append(action)
        pending.append((action.body, False))


def parts(node: object) -> Iterator[object]:
    """The direct parts of a statement or expression."""
    for name in _names(type(node)):
        value = getattr(node, name)
        if isinstance(value, tuple):
            yield from (each for each in value if isinstance(each, _PARTS))
        elif isinstance(value, _PARTS):
            yield value


def storage(expr: ir.Expr) -> tuple[object, ...]:
    """Returns the storage that an expression names: variable, fields, indices; empty if it names none.

    A computed index is None, for any.
    """
    match expr:
        case ir.VarRef():
            return (expr.variable,)
        case ir.FieldAccess():
            base = storage(expr.base)
            return (*base, expr.name) if base else ()
        case ir.Index(base=stack, index=index):
            base = storage(stack)
            number = index.value if isinstance(index, ir.Literal) else None
            return (*base, number) if base else ()
        case ir.StackNext() | ir.StackLast():
            base = storage(expr.base)
            return (*base, None) if base else ()
        case ir.Slice():
            return storage(expr.base)
        case _:
            return ()


def overlap(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """Returns True if two paths of `storage` may overlap."""
    if not first or not second:
        return False
    for one, other in zip(first, second, strict=False):
        named = isinstance(one, ir.Variable) or isinstance(other, ir.Variable)
        if one is not None and other is not None and (one is not other if named else one != other):
            return False
    return True
