"""Checking keysets: the values, masks and ranges of `select` and of table entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir
from switchagg.p4model.casts import coerce
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.symbolic import is_constant
from switchagg.p4model.symbols import Env
from switchagg.p4model.types import BitType, IntType, SerEnumType, StructType, TupleType, Type, underlying

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


class Keysets:
    """Checks keysets against the types of what they are compared with."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def check(
        self, nodes: Sequence[ast.Expr], types: Sequence[Type], env: Env, location: Location
    ) -> tuple[ir.Keyset, ...]:
        """One keyset for each type, or a value set alone. Raises `P4Error`."""
        if len(nodes) == 1 and len(types) != 1:
            node = nodes[0]
            if isinstance(node, ast.DefaultExpr | ast.DontCareExpr):
                return tuple(ir.AnySet(node.location) for _ in types)
            value_set = self._value_set(node, env)
            if value_set is not None:
                self._check_value_set(value_set, types, node.location)
                return (ir.ValueSetRef(value_set, node.location),)
        if len(nodes) == 1 and isinstance(nodes[0], ast.ListExpr):
            whole = len(types) == 1 and isinstance(types[0], TupleType | StructType)
            nodes = nodes if whole else nodes[0].elements
        if len(nodes) != len(types):
            raise P4Error(f"{len(nodes)} value(s) for a key of {len(types)}", location)
        return tuple(self._one(node, type_, env) for node, type_ in zip(nodes, types, strict=True))

    def select(
        self, nodes: Sequence[ast.Expr], types: Sequence[Type], env: Env, location: Location
    ) -> tuple[ir.Keyset, ...]:
        """A case of a select."""
        keysets = self.check(nodes, types, env, location)
        _require_constants(keysets)
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
                value_set = self._value_set(node, env)
                if value_set is not None:
                    self._check_value_set(value_set, (type_,), node.location)
                    return ir.ValueSetRef(value_set, node.location)
                value = self.checker.exprs.value(node, env)
                return ir.ExactSet(self._converted(value, type_, "this key"), node.location)

    def _number(self, node: ast.Expr, type_: Type, env: Env, what: str) -> ir.Expr:
        inner = underlying(type_)
        if not isinstance(inner, BitType | IntType):
            raise P4Error(f"{what} of `{type_}`", node.location)
        value = self.checker.exprs.value(node, env)
        if value.type != type_ and isinstance(type_, SerEnumType):
            return self._converted(value, inner, what)
        return self._converted(value, type_, what)

    def _converted(self, value: ir.Expr, type_: Type, what: str) -> ir.Expr:
        if isinstance(value.type, SerEnumType) and value.type != type_:
            value = coerce(value, value.type.underlying)
        if value.type != type_ and underlying(type_) == value.type:
            return (
                ir.Cast(type_, value.location, value)
                if not isinstance(value, ir.Literal)
                else _retype(value, type_)
            )
        return coerce(value, type_, what)

    def entry(
        self, nodes: Sequence[ast.Expr], types: Sequence[Type], env: Env, location: Location
    ) -> tuple[ir.Keyset, ...]:
        """The same for a table's entry, where all must be known at compile time."""
        keysets = self.check(nodes, types, env, location)
        for each in keysets:
            if isinstance(each, ir.ValueSetRef):
                raise P4Error("a value set in a table's entry", each.location)
        _require_constants(keysets)
        return keysets

    def _value_set(self, node: ast.Expr, env: Env) -> ir.ValueSet | None:
        if not isinstance(node, ast.PathExpr):
            return None
        symbol = env.lookup(node.name, top=node.absolute)
        return symbol if isinstance(symbol, ir.ValueSet) else None

    def _check_value_set(self, value_set: ir.ValueSet, types: Sequence[Type], location: Location) -> None:
        element = value_set.element
        given: tuple[Type, ...] = (element,)
        if isinstance(element, TupleType):
            given = element.elements
        elif isinstance(element, StructType):
            given = tuple(each.type for each in element.fields)
        if len(given) != len(types) or any(
            underlying(left) != underlying(right) for left, right in zip(given, types, strict=True)
        ):
            wanted = ", ".join(map(str, types))
            raise P4Error(f"value set `{value_set.name}` is of `{element}`, the key of `{wanted}`", location)


def _require_constants(keysets: Sequence[ir.Keyset]) -> None:
    for each in keysets:
        match each:
            case ir.ExactSet(value=value):
                parts: tuple[ir.Expr, ...] = (value,)
            case ir.MaskSet():
                parts = (each.value, each.mask)
            case ir.RangeSet():
                parts = (each.low, each.high)
            case _:
                parts = ()
        for part in parts:
            if not is_constant(part):
                raise P4Error("a key to compare with must be known at compile time", part.location)


def _retype(value: ir.Literal, type_: Type) -> ir.Expr:
    return ir.Literal(type_, value.location, value.value)
