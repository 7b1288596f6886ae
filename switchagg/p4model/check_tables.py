"""Checks tables: keys, the list of actions, the default action, entries, and the other properties.

The keysets of entries are checked here, and so are those of a parser's `select`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from switchagg.p4model import ast, ir
from switchagg.p4model import types as ty
from switchagg.p4model.ast import control_name, find_annotation, own_name
from switchagg.p4model.check_calls import linked, match_arguments
from switchagg.p4model.constants import is_constant, to_value
from switchagg.p4model.errors import Location, P4Error, misused
from switchagg.p4model.operators import coerce
from switchagg.p4model.symbols import Env, Frame
from switchagg.p4model.types import Type, underlying, width_of

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


_Node = TypeVar("_Node", bound=ast.Node)
_KNOWN_PROPERTIES = (
    "key", "actions", "default_action", "entries", "size", "largest_priority_wins", "priority_delta",
)  # fmt: skip


class Tables:
    """Checks tables in the environment of their control."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def check(self, decl: ast.TableDecl, env: Env) -> ir.Table:
        """The typed table. Raises `P4Error`."""
        properties = _by_name(decl)
        outer = env.frame
        keys = self._keys(properties.get("key"), env)
        # Nothing can be applied in this frame, which is not a control's.
        env = env.child(Frame("table", outer.path, instances=outer.instances))
        actions = self._actions(decl, properties.get("actions"), env)
        name = control_name(decl.name, decl.annotations, env.frame.path)
        default_node = properties.get("default_action")
        entries_node = properties.get("entries")
        priorities = _Priorities(self.checker, properties, env)
        size = properties["size"].value if "size" in properties else None
        return ir.Table(
            decl.name,
            name,
            decl.annotations,
            decl.location,
            keys,
            actions,
            self._default(default_node, actions, env),
            default_node is not None and default_node.const,
            priorities.assign(self._entries(entries_node, keys, actions, env), keys),
            entries_node is not None and entries_node.const,
            self.checker.exprs.constant_int(size, env) if isinstance(size, ast.Expr) else None,
            priorities.largest_wins,
            priorities.delta,
            self._others(properties, env, name),
            ty.ApplyResultType(decl.name),
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
            check_control_plane_data(action, each.location)
            refs.append(ir.ActionRef(action, self._bound(action, each, env), each.annotations, each.location))
        return tuple(refs)

    def _action(self, path: ast.PathExpr, env: Env) -> ir.Action:
        symbol = env.lookup(path.name, top=path.absolute)
        if symbol is None:
            raise P4Error(f"action `{path.name}` is not declared", path.location)
        if not isinstance(symbol, ir.Action):
            raise misused(f"`{path.name}` is not an action", path.location, symbol.location)
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
        checked = self.checker.calls.arguments(directed, args, env, node.location, action.name)
        return linked(action.params, checked)

    def _parameters(self, action: ir.Action, *, directed: bool) -> tuple[ty.Parameter, ...]:
        params = self.checker.action_params[action]
        return tuple(each for each in params if (each.direction is not ty.Direction.NONE) is directed)

    def _call(
        self, ref: ir.ActionRef, args: tuple[ast.Arg, ...] | None, env: Env, location: Location
    ) -> ir.ActionCall:
        """A call with arguments for all parameters; those bound in the list of actions may be left out."""
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
                        ("it is listed here", ref.location),
                    )
        else:
            match_arguments(data, given, location, action.name)
            rest = self.checker.calls.arguments(data, given, env, location, action.name)
        for each in rest:
            if each.value is not None:
                to_value(each.value)
        return ir.ActionCall(action, (*ref.bound, *linked(action.params, rest)), location)

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
        if find_annotation(ref.annotations, "tableonly") is not None:
            raise P4Error(f"action `{path.name}` is @tableonly and cannot be the default", path.location)
        return self._call(ref, args, env, path.location)

    def _entries(
        self, node: ast.PropertyNode | None, keys: Sequence[ir.Key], actions: Sequence[ir.ActionRef], env: Env
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
            if find_annotation(ref.annotations, "defaultonly") is not None:
                raise P4Error(f"action `{ref.action.name}` is @defaultonly", each.action.location)
            call = self._call(ref, each.action.args, env, each.action.location)
            priority = None
            if each.priority is not None:
                priority = self.checker.exprs.constant_int(each.priority, env)
            const = each.const or node.const
            entries.append(ir.Entry(keysets, call, priority, const, each.action.annotations, each.location))
        return tuple(entries)

    # ---- other properties

    def _others(self, properties: dict[str, ast.PropertyNode], env: Env, table: str) -> dict[str, ir.Value]:
        others: dict[str, ir.Value] = {}
        for name, node in properties.items():
            if name in _KNOWN_PROPERTIES:
                continue
            assert isinstance(node.value, ast.Expr)
            if isinstance(node.value, ast.ConstructExpr):
                where = own_name(f"{table}.{name}", node.annotations)
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
                ("the first is here", properties[each.name].location),
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
    if not isinstance(
        underlying(type_), ty.BitType | ty.IntType | ty.BoolType | ty.EnumType | ty.ErrorType | ty.VarbitType
    ):
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
    """A key for comparing two arguments: equal keys for equal expressions."""
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


def key_name(expr: ast.Expr, annotations: ast.Annotations, type_of: Callable[[ast.Expr], Type]) -> str:
    """The name of a table's key: its @name, or the expression as p4c writes it.

    Args:
        type_of: the type of an expression in the key; a field's @name replaces its name.

    Raises:
        P4Error: the expression is not one that p4c has a name for.
    """
    note = find_annotation(annotations, "name")
    if note is not None and note.values and isinstance(note.values[0], str):
        return note.values[0].removeprefix(".")

    def part(node: ast.Expr) -> str:
        match node:
            case ast.PathExpr():
                return node.name
            case ast.MemberExpr():
                return _member_name(part(node.base), node, type_of(node.base))
            case ast.CallExpr(callee=ast.MemberExpr(member="isValid") as callee):
                return f"{part(callee.base)}.$valid$"
            case ast.IndexExpr():
                return f"{part(node.base)}[{part(node.index)}]"
            case ast.SliceExpr(by_width=False):
                return f"{part(node.base)}[{part(node.first)}:{part(node.second)}]"
            case ast.IntExpr():
                return _number(node)
            case ast.BinaryExpr(op="&"):
                return f"{part(node.left)} & {part(node.right)}"
            case _:
                raise P4Error(
                    'a key that is not just a field needs a name: write @name("...")', node.location
                )

    return part(expr)


def _member_name(base: str, node: ast.MemberExpr, type_: Type) -> str:
    field = type_.find(node.member) if isinstance(type_, ty.FieldsType) else None
    note = find_annotation(field.annotations, "name") if field is not None else None
    name = str(note.values[0]) if note is not None and note.values else node.member
    return name[1:] if name.startswith(".") else f"{base}.{name}"


def _number(node: ast.IntExpr) -> str:
    """The number in the base in which it is written."""
    digits = node.text.rpartition("w")[2].rpartition("s")[2][:2].lower()
    base = {"0x": "0x{:x}", "0b": "0b{:b}", "0o": "0o{:o}"}.get(digits, "{}")
    return base.format(node.value)


class Keysets:
    """Checks keysets against the types of what they are compared with."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def check(
        self, nodes: Sequence[ast.Expr], types: Sequence[Type], env: Env, location: Location
    ) -> tuple[ir.Keyset, ...]:
        """One keyset for each type, or a value set alone; all are known at compile time. Raises `P4Error`."""
        if len(nodes) == 1 and len(types) != 1:
            node = nodes[0]
            if isinstance(node, ast.DefaultExpr | ast.DontCareExpr):
                return tuple(ir.AnySet(node.location) for _ in types)
            value_set = self._value_set(node, types, env)
            if value_set is not None:
                return (value_set,)
        if len(nodes) == 1 and isinstance(nodes[0], ast.ListExpr):
            whole = len(types) == 1 and isinstance(types[0], ty.TupleType | ty.StructType)
            nodes = nodes if whole else nodes[0].elements
        if len(nodes) != len(types):
            raise P4Error(f"{len(nodes)} value(s) for a key of {len(types)}", location)
        keysets = tuple(self._one(node, type_, env) for node, type_ in zip(nodes, types, strict=True))
        for each in keysets:
            for part in (getattr(each, name, None) for name in ("value", "mask", "low", "high")):
                if part is not None and not is_constant(part):
                    raise P4Error("a key to compare with must be known at compile time", part.location)
        return keysets

    def _one(self, node: ast.Expr, type_: Type, env: Env) -> ir.Keyset:
        match node:
            case ast.DefaultExpr() | ast.DontCareExpr():
                return ir.AnySet(node.location)
            case ast.MaskExpr():
                value = self._number(node.value, type_, env, "a mask")
                return ir.MaskSet(value, self._number(node.mask, type_, env, "a mask"), node.location)
            case ast.RangeExpr():
                low = self._number(node.low, type_, env, "a range")
                return ir.RangeSet(low, self._number(node.high, type_, env, "a range"), node.location)
            case _:
                value_set = self._value_set(node, (type_,), env)
                if value_set is not None:
                    return value_set
                value = self.checker.exprs.value(node, env)
                return ir.ExactSet(self._converted(value, type_, "this key"), node.location)

    def _number(self, node: ast.Expr, type_: Type, env: Env, what: str) -> ir.Expr:
        inner = underlying(type_)
        if not isinstance(inner, ty.BitType | ty.IntType):
            raise P4Error(f"{what} of `{type_}`", node.location)
        value = self.checker.exprs.value(node, env)
        if value.type != type_ and isinstance(type_, ty.SerEnumType):
            return self._converted(value, inner, what)
        return self._converted(value, type_, what)

    def _converted(self, value: ir.Expr, type_: Type, what: str) -> ir.Expr:
        if isinstance(value.type, ty.SerEnumType) and value.type != type_:
            value = coerce(value, value.type.underlying)
        if value.type != type_ and underlying(type_) == value.type:
            if isinstance(value, ir.Literal):
                return ir.Literal(type_, value.location, value.value)
            return ir.Cast(type_, value.location, value)
        return coerce(value, type_, what)

    def entry(
        self, nodes: Sequence[ast.Expr], types: Sequence[Type], env: Env, location: Location
    ) -> tuple[ir.Keyset, ...]:
        """The keysets of a table's entry, which cannot be value sets."""
        keysets = self.check(nodes, types, env, location)
        for each in keysets:
            if isinstance(each, ir.ValueSetRef):
                raise P4Error("a value set in a table's entry", each.location)
        return keysets

    def _value_set(self, node: ast.Expr, types: Sequence[Type], env: Env) -> ir.ValueSetRef | None:
        symbol = env.lookup(node.name, top=node.absolute) if isinstance(node, ast.PathExpr) else None
        if not isinstance(symbol, ir.ValueSet):
            return None
        element = symbol.element
        given: tuple[Type, ...] = (element,)
        if isinstance(element, ty.TupleType):
            given = element.elements
        elif isinstance(element, ty.StructType):
            given = tuple(each.type for each in element.fields)
        if [*map(underlying, given)] != [*map(underlying, types)]:
            wanted = ", ".join(map(str, types))
            raise P4Error(
                f"value set `{symbol.name}` is of `{element}`, the key of `{wanted}`", node.location
            )
        return ir.ValueSetRef(symbol, node.location)


def check_control_plane_data(action: ir.Action, location: Location) -> None:
    """Raises `P4Error` for a parameter whose value no table entry can hold."""
    for param in action.params:
        scalar = ty.BitType | ty.IntType | ty.BoolType | ty.ErrorType | ty.EnumType
        if param.direction is ty.Direction.NONE and not isinstance(underlying(param.type), scalar):
            raise P4Error(
                f"parameter `{param.name}` of action `{action.name}` is of type `{param.type}`, "
                "which no entry can give",
                location,
                ("the parameter is declared here", param.location),
            )
