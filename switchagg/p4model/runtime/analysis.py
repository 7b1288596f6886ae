"""Questions about the typed program that translation asks: what may exit, what overlaps, what is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from switchagg.p4model import ir


def walk(node: object) -> Iterator[object]:
    """All statements, expressions and keysets in `node`, itself included; not into what they refer to."""
    yield node
    for each in _children(node):
        yield from walk(each)


_NODES = (
    ir.Stmt,
    ir.Expr,
    ir.Argument,
    ir.ActionCase,
    ir.ValueCase,
    ir.Select,
    ir.Goto,
    ir.SelectCase,
    ir.ExactSet,
    ir.MaskSet,
    ir.RangeSet,
    ir.AnySet,
    ir.ValueSetRef,
)


def _children(node: object) -> Iterator[object]:
    if not isinstance(node, _NODES):
        return
    for spec in dataclasses.fields(node):
        value = getattr(node, spec.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, _NODES):
                yield each


class ExitAnalysis:
    """Which actions, functions, tables and controls may run `exit`."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def may_exit(
        self, owner: ir.Action | ir.Function | ir.Table | ir.ControlInstance | ir.ParserInstance
    ) -> bool:
        """Whether running this may end in `exit`."""
        known = self._known.get(id(owner))
        if known is None:
            self._known[id(owner)] = False
            known = self._known[id(owner)] = self._look(owner)
        return known

    def _look(self, owner: object) -> bool:
        if isinstance(owner, ir.Table):
            called = [each.action for each in owner.actions] + (
                [owner.default.action] if owner.default else []
            )
            return any(self.may_exit(each) for each in called)
        if isinstance(owner, ir.Action | ir.Function | ir.ControlInstance):
            return any(self._statement(each) for each in walk(owner.body))
        return False

    def _statement(self, node: object) -> bool:
        match node:
            case ir.Exit():
                return True
            case ir.FunctionCall():
                return self.may_exit(node.function)
            case ir.DirectActionCall():
                return self.may_exit(node.action)
            case ir.TableApply():
                return self.may_exit(node.table)
            case ir.BlockApply():
                return self.may_exit(node.instance)
            case ir.ActionSwitch():
                return self.may_exit(node.apply.table)
            case _:
                return False


def path(expr: ir.Expr) -> tuple[object, ...]:
    """The storage that an expression names: its variable, then fields and indices; empty if it names none.

    A computed index is None: it may be any.
    """
    match expr:
        case ir.VarRef():
            return (expr.variable,)
        case ir.FieldAccess():
            base = path(expr.base)
            return (*base, expr.name) if base else ()
        case ir.Index(base=stack, index=index):
            base = path(stack)
            number = index.value if isinstance(index, ir.Literal) else None
            return (*base, number) if base else ()
        case ir.StackNext() | ir.StackLast():
            base = path(expr.base)
            return (*base, None) if base else ()
        case ir.Slice():
            return path(expr.base)
        case _:
            return ()


def overlap(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """Whether two paths may name storage that is partly the same."""
    if not first or not second:
        return False
    for one, other in zip(first, second, strict=False):
        if one is None or other is None:
            continue
        if isinstance(one, ir.Variable) or isinstance(other, ir.Variable):
            if one is not other:
                return False
        elif one != other:
            return False
    return True
