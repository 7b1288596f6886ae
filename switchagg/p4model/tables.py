"""Checking tables: keys, the list of actions, the default action, entries, and the other properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from switchagg.p4model import ast, ir, restrictions
from switchagg.p4model.annotations import find
from switchagg.p4model.calls import match_arguments
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.names import control_name, key_name
from switchagg.p4model.symbolic import to_value
from switchagg.p4model.symbols import Env, Frame
from switchagg.p4model.types import (
    ApplyResultType,
    BitType,
    BoolType,
    Direction,
    EnumType,
    ErrorType,
    IntType,
    Parameter,
    Type,
    VarbitType,
    underlying,
    width_of,
)

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


_Node = TypeVar("_Node", bound=ast.Node)


class Tables:
    """Checks tables in the environment of their control."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def check(self, decl: ast.TableDecl, env: Env) -> ir.Table:
        """The typed table. Raises `P4Error`."""
        properties = _by_name(decl)
        outer = env.frame
        keys = self._keys(properties.get("key"), env)
        # In a frame that is no control's, nothing can be applied.
        env = env.child(Frame("table", outer.path, instances=outer.instances))
        actions = self._actions(decl, properties.get("actions"), env)
        name = control_name(decl.name, decl.annotations, env.frame.path)
        default_node = properties.get("default_action")
        entries_node = properties.get("entries")
        priorities = _Priorities(self.checker, properties, env)
        return ir.Table(
            decl.name,
            name,
            keys,
            actions,
            self._default(default_node, actions, env),
            default_node is not None and default_node.const,
            priorities.assign(self._entries(entries_node, keys, actions, env), keys),
            entries_node is not None and entries_node.const,
            self._size(properties.get("size"), env),
            priorities.largest_wins,
            priorities.delta,
            self._others(properties, env, name),
            decl.annotations,
            decl.location,
            ApplyResultType(decl.name),
        )

    # ---- keys

    def _keys(self, node: ast.PropertyNode | None, env: Env) -> tuple[ir.Key, ...]:
        if node is None:
            return ()
        keys = []
        for each in _nodes(node.value, ast.KeyNode):
            expr = self.checker.exprs.value(each.expr, env)
            _check_key_type(expr.type, each.expr.location)
            if each.match_kind.text not in self.checker.match_kinds:
                raise P4Error(
                    f"`{each.match_kind.text}` is not a match kind; known are "
                    f"{', '.join(self.checker.match_kinds)}",
                    each.match_kind.location,
                )
            name = key_name(
                each.expr, each.annotations, lambda node: self.checker.exprs.check(node, env).type
            )
            keys.append(ir.Key(expr, each.match_kind.text, name, each.annotations, each.location))
        return tuple(keys)

    # ---- actions

    def _actions(
        self, decl: ast.TableDecl, node: ast.PropertyNode | None, env: Env
    ) -> tuple[ir.ActionRef, ...]:
        if node is None:
            raise P4Error(f"table `{decl.name}` has no actions", decl.location)
        refs: list[ir.ActionRef] = []
        for each in _nodes(node.value, ast.ActionRefNode):
            action = self._action(each.path, env)
            if any(ref.action is action for ref in refs):
                raise P4Error(f"action `{each.path.name}` is listed twice", each.location)
            restrictions.control_plane_data(action, each.location)
            refs.append(ir.ActionRef(action, self._bound(action, each, env), each.annotations, each.location))
        return tuple(refs)

    def _action(self, path: ast.PathExpr, env: Env) -> ir.Action:
        symbol = env.lookup(path.name, top=path.absolute)
        if symbol is None:
            raise P4Error(f"action `{path.name}` is not declared", path.location)
        if not isinstance(symbol, ir.Action):
            raise P4Error(
                f"`{path.name}` is not an action",
                path.location,
                notes=(("it is declared here", symbol.location),),
            )
        return symbol

    def _bound(self, action: ir.Action, node: ast.ActionRefNode, env: Env) -> tuple[ir.Argument, ...]:
        directed = self._parameters(action, directed=True)
        args = node.args or ()
        if len(args) > len(directed):
            raise P4Error(
                f"action `{action.name}` has {len(directed)} parameter(s) with a direction; the others come "
                "from the table's entries",
                node.location,
            )
        return self._linked(
            action, self.checker.calls.arguments(directed, args, env, node.location, action.name)
        )

    def _parameters(self, action: ir.Action, *, directed: bool) -> tuple[Parameter, ...]:
        params = self.checker.action_params[action]
        return tuple(each for each in params if (each.direction is not Direction.NONE) is directed)

    def _linked(self, action: ir.Action, args: Sequence[ir.Argument]) -> tuple[ir.Argument, ...]:
        by_name = {each.name: each for each in action.params}
        return tuple(ir.Argument(by_name[each.param.name], each.value) for each in args)

    def _call(
        self, ref: ir.ActionRef, args: tuple[ast.Arg, ...] | None, env: Env, location: Location
    ) -> ir.ActionCall:
        """An action with arguments for all parameters; bound ones may be left out, as the list has them."""
        action = ref.action
        data = self._parameters(action, directed=False)
        given = args or ()
        if len(given) == len(action.params) and ref.bound:
            full = (*self._parameters(action, directed=True), *data)
            checked = self.checker.calls.arguments(full, given, env, location, action.name)
            bound, rest = checked[: len(ref.bound)], checked[len(ref.bound) :]
            for left, right in zip(bound, ref.bound, strict=True):
                if _shape(left.value) != _shape(right.value):
                    raise P4Error(
                        f"`{right.param.name}` of `{action.name}` has another argument in the actions",
                        location,
                        notes=(("it is listed here", ref.location),),
                    )
        else:
            match_arguments(data, given, location, action.name)
            rest = self.checker.calls.arguments(data, given, env, location, action.name)
        for each in rest:
            if each.value is not None:
                to_value(each.value)
        return ir.ActionCall(action, (*ref.bound, *self._linked(action, rest)), location)

    def _listed(self, path: ast.PathExpr, actions: Sequence[ir.ActionRef], env: Env) -> ir.ActionRef:
        action = self._action(path, env)
        for ref in actions:
            if ref.action is action:
                return ref
        raise P4Error(f"action `{path.name}` is not in the table's list of actions", path.location)

    # ---- the default action and entries

    def _default(
        self, node: ast.PropertyNode | None, actions: Sequence[ir.ActionRef], env: Env
    ) -> ir.ActionCall | None:
        if node is None:
            return None
        match node.value:
            case ast.PathExpr() as path:
                args: tuple[ast.Arg, ...] | None = None
            case ast.CallExpr(callee=ast.PathExpr() as path, args=args):
                pass
            case _:
                raise P4Error("default_action must be an action", node.location)
        ref = self._listed(path, actions, env)
        if find(ref.annotations, "tableonly") is not None:
            raise P4Error(f"action `{path.name}` is @tableonly and cannot be the default", path.location)
        return self._call(ref, args, env, path.location)

    def _entries(
        self,
        node: ast.PropertyNode | None,
        keys: Sequence[ir.Key],
        actions: Sequence[ir.ActionRef],
        env: Env,
    ) -> tuple[ir.Entry, ...]:
        if node is None:
            return ()
        if not keys:
            raise P4Error("a table without a key has no entries", node.location)
        types = [each.expr.type for each in keys]
        entries = []
        for each in _nodes(node.value, ast.EntryNode):
            keysets = self.checker.keysets.entry(each.keys, types, env, each.location)
            for key, keyset in zip(keys, keysets, strict=True):
                _check_entry_kind(key, keyset)
            ref = self._listed(each.action.path, actions, env)
            if find(ref.annotations, "defaultonly") is not None:
                raise P4Error(f"action `{ref.action.name}` is @defaultonly", each.action.location)
            call = self._call(ref, each.action.args, env, each.action.location)
            priority = None
            if each.priority is not None:
                priority = self.checker.exprs.constant_int(each.priority, env)
            const = each.const or node.const
            entries.append(ir.Entry(keysets, call, priority, const, each.action.annotations, each.location))
        return tuple(entries)

    # ---- other properties

    def _size(self, node: ast.PropertyNode | None, env: Env) -> int | None:
        if node is None:
            return None
        assert isinstance(node.value, ast.Expr)
        return self.checker.exprs.constant_int(node.value, env)

    def _others(self, properties: dict[str, ast.PropertyNode], env: Env, table: str) -> dict[str, ir.Value]:
        known = {
            "key", "actions", "default_action", "entries", "size", "largest_priority_wins", "priority_delta",
        }  # fmt: skip
        others: dict[str, ir.Value] = {}
        for name, node in properties.items():
            if name in known:
                continue
            assert isinstance(node.value, ast.Expr)
            if isinstance(node.value, ast.ConstructExpr):
                own = find(node.annotations, "name")
                where = str(own.values[0]) if own is not None and own.values else f"{table}.{name}"
                expr = self.checker.instances.anonymous(node.value, env, None, where, node.annotations)
            else:
                expr = self.checker.exprs.check(node.value, env)
            others[name] = to_value(expr)
        return others


class _Priorities:
    """`largest_priority_wins` and `priority_delta`, with their defaults."""

    def __init__(self, checker: Checker, properties: dict[str, ast.PropertyNode], env: Env) -> None:
        self.largest_wins = True
        self.delta = 1
        entries = properties.get("entries")
        self.const = entries is not None and entries.const
        wins = properties.get("largest_priority_wins")
        if wins is not None:
            assert isinstance(wins.value, ast.Expr)
            value = to_value(checker.exprs.constant(wins.value, env))
            if not isinstance(value, bool):
                raise P4Error("largest_priority_wins is true or false", wins.location)
            self.largest_wins = value
        delta = properties.get("priority_delta")
        if delta is not None:
            assert isinstance(delta.value, ast.Expr)
            self.delta = checker.exprs.constant_int(delta.value, env)
            if self.delta <= 0:
                raise P4Error(f"priority_delta is a positive number, not {self.delta}", delta.location)

    def assign(self, entries: Sequence[ir.Entry], keys: Sequence[ir.Key]) -> tuple[ir.Entry, ...]:
        """Gives every entry that is not const a priority (P4_16 specification, section on entries)."""
        written = next((each for each in entries if each.priority is not None), None)
        if self.const:
            if written is not None:
                raise P4Error("entries of a table with const entries have no priorities", written.location)
            return tuple(entries)
        if written is None:
            count = len(entries)
            numbers = [1 + self.delta * index for index in range(count)]
            return _with_priorities(entries, numbers[::-1] if self.largest_wins else numbers)
        if all(each.match_kind in ("exact", "lpm") for each in keys):
            raise P4Error("entries of a table with exact and lpm keys have no priorities", written.location)
        numbers = []
        for each in entries:
            if each.priority is None and not numbers:
                raise P4Error("the first entry needs a priority if others have one", each.location)
            step = -self.delta if self.largest_wins else self.delta
            number = numbers[-1] + step if each.priority is None else each.priority
            if not 0 <= number < 1 << 31:
                raise P4Error(f"priority {number} is not within 0 and 2^31 - 1", each.location)
            numbers.append(number)
        return _with_priorities(entries, numbers)


def _with_priorities(entries: Sequence[ir.Entry], numbers: Sequence[int]) -> tuple[ir.Entry, ...]:
    return tuple(replace(each, priority=number) for each, number in zip(entries, numbers, strict=True))


def _by_name(decl: ast.TableDecl) -> dict[str, ast.PropertyNode]:
    properties: dict[str, ast.PropertyNode] = {}
    for each in decl.properties:
        if each.name in properties:
            raise P4Error(
                f"property `{each.name}` is given twice",
                each.location,
                notes=(("the first is here", properties[each.name].location),),
            )
        for later, earlier in (("entries", "key"), ("entries", "actions"), ("default_action", "actions")):
            if each.name == earlier and later in properties:
                raise P4Error(f"`{later}` must come after `{earlier}`", properties[later].location)
        properties[each.name] = each
    return properties


def _nodes(value: object, kind: type[_Node]) -> tuple[_Node, ...]:
    assert isinstance(value, tuple)
    return tuple(each for each in value if isinstance(each, kind))


def _check_key_type(type_: Type, location: Location) -> None:
    if not isinstance(underlying(type_), BitType | IntType | BoolType | EnumType | ErrorType | VarbitType):
        raise P4Error(f"a key cannot be of type `{type_}`", location)


def _check_entry_kind(key: ir.Key, keyset: ir.Keyset) -> None:
    match key.match_kind, keyset:
        case "exact", ir.AnySet() | ir.MaskSet() | ir.RangeSet():
            raise P4Error("an exact key takes one value", keyset.location)
        case "lpm" | "ternary", ir.RangeSet():
            raise P4Error(f"a key that is {key.match_kind} takes no range", keyset.location)
        case "optional", ir.MaskSet() | ir.RangeSet():
            raise P4Error("an optional key takes one value, or `_`", keyset.location)
        case "lpm", ir.MaskSet(mask=ir.Literal(value=int(mask))):
            width = width_of(key.expr.type) or 0
            inverse = ~mask & ((1 << width) - 1)
            if inverse & (inverse + 1):
                raise P4Error(f"mask {mask:#x} of an lpm key is not a prefix", keyset.location)


def _shape(expr: ir.Expr | None) -> object:
    """What an argument refers to, to compare two of them."""
    match expr:
        case ir.VarRef():
            return id(expr.variable)
        case ir.FieldAccess():
            return (expr.name, _shape(expr.base))
        case ir.Index():
            return ("[]", _shape(expr.base), _shape(expr.index))
        case ir.Slice():
            return (expr.high, expr.low, _shape(expr.base))
        case ir.Literal():
            return expr.value
        case ir.Binary():
            return (expr.op, _shape(expr.left), _shape(expr.right))
        case ir.Cast() | ir.Unary():
            return (str(expr.type), _shape(expr.operand))
        case _:
            return type(expr).__name__
