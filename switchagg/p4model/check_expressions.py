"""Checks expressions: names, members, operators, literals. Each gets its type; constants are folded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir
from switchagg.p4model import types as ty
from switchagg.p4model.constants import Symbolic, fold_unary, is_constant, take_bits, wrap
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.ir import BinaryOp, UnaryOp
from switchagg.p4model.operators import (
    coerce,
    combine,
    explicit,
    known_or,
    match_types,
    number_as,
    unwrap_enum,
)
from switchagg.p4model.symbols import Block, Constant, Env, Generic, NamedType, Overloads
from switchagg.p4model.types import Type

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


class Expressions:
    """Checks expressions in an environment."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def check(self, node: ast.Expr, env: Env, expected: Type | None = None, what: str = "") -> ir.Expr:
        """The typed expression; with `expected`, converted to that type. Raises `P4Error`."""
        expr = self._check(node, env, expected)
        if expected is not None and expr.type != expected:
            return coerce(expr, expected, what)
        return expr

    def constant(self, node: ast.Expr, env: Env, expected: Type | None = None, what: str = "") -> ir.Expr:
        """The same, of an expression that must be known at compile time."""
        expr = self.check(node, env, expected, what)
        if not is_constant(expr):
            purpose = f": {what}" if what else ""
            raise P4Error(f"this must be known at compile time{purpose}", node.location)
        return expr

    def constant_int(self, node: ast.Expr, env: Env, type_: Type | None = None) -> int:
        """A number that is known at compile time."""
        expr = self.constant(node, env, type_)
        if isinstance(expr, Symbolic):
            return 1
        if isinstance(expr, ir.EnumLiteral) and isinstance(expr.type, ty.SerEnumType):
            return expr.value
        if not isinstance(expr, ir.Literal) or isinstance(expr.value, bool | str):
            raise P4Error(f"a number is needed here, not `{expr.type}`", node.location)
        return expr.value

    def value(self, node: ast.Expr, env: Env, expected: Type | None = None, what: str = "") -> ir.Expr:
        """An expression that has a value: no void call, no bare table result, no extern object."""
        expr = self.check(node, env, expected, what)
        if isinstance(expr.type, ty.VoidType | ty.ApplyResultType):
            raise P4Error(f"`{expr.type}` is no value", node.location)
        return expr

    def lvalue(self, node: ast.Expr, env: Env) -> ir.Expr:
        """An expression that can be assigned to."""
        expr = self.check(node, env)
        self.require_lvalue(expr)
        return expr

    def require_lvalue(self, expr: ir.Expr) -> None:
        """Raises `P4Error` unless the expression can be assigned to."""
        reason = _not_assignable(expr)
        if reason:
            raise P4Error(f"this cannot be assigned to: {reason}", expr.location)

    # ---- dispatch

    def _check(self, node: ast.Expr, env: Env, expected: Type | None) -> ir.Expr:
        match node:
            case ast.PathExpr():
                return self._path(node, env)
            case ast.MemberExpr():
                return self._member(node, env)
            case ast.IntExpr():
                return self._integer(node)
            case ast.BinaryExpr():
                return self._binary(node, env)
            case ast.CallExpr():
                return self.checker.calls.call(node, env, expected)
            case ast.UnaryExpr():
                return self._unary(node, env)
            case ast.CastExpr():
                return self._cast(node, env)
            case ast.SliceExpr():
                return self._slice(node, env)
            case ast.IndexExpr():
                return self._index(node, env)
            case ast.TernaryExpr():
                return self._ternary(node, env, expected)
            case ast.ListExpr():
                return self._list(node, env, expected)
            case ast.StructExpr():
                return self._struct(node, env, expected)
            case ast.BoolExpr():
                return ir.Literal(ty.BOOL, node.location, node.value)
            case ast.StringExpr():
                return ir.Literal(ty.STRING, node.location, node.value)
            case ast.InvalidExpr():
                if expected is not None and not isinstance(
                    expected, ty.HeaderType | ty.UnionType | ty.TypeVar
                ):
                    raise P4Error(f"`{{#}}` where `{expected}` is needed", node.location)
                return ir.InvalidHeader(expected or ty.DONT_CARE, node.location)
            case ast.DotsExpr():
                if expected is None:
                    raise P4Error("`...` where the type is not known", node.location)
                return self.default_value(expected, node.location)
            case ast.ConstructExpr():
                return self.checker.instances.anonymous(node, env, expected)
            case ast.ThisExpr():
                if env.frame.owner is None:
                    raise P4Error("`this` outside a method", node.location)
                return ir.This(env.frame.owner, node.location)
            case ast.TypeExpr():
                raise P4Error("a type is no value", node.location)
            case _:
                raise P4Error("this is no value", node.location)

    # ---- names

    def _path(self, node: ast.PathExpr, env: Env) -> ir.Expr:
        symbol = env.lookup(node.name, top=node.absolute)
        match symbol:
            case None:
                raise P4Error(f"`{node.name}` is not declared{self._similar(node.name, env)}", node.location)
            case ir.Variable():
                return ir.VarRef(symbol.type, node.location, symbol)
            case Constant():
                return _relocated(symbol.value, node.location)
            case ir.ExternInstance() | ir.ParserInstance() | ir.ControlInstance() | ir.PackageInstance():
                return ir.InstanceRef(symbol.type, node.location, symbol)
            case ir.Action() | ir.Table() | ir.ValueSet() | Overloads():
                kind = {ir.Action: "action", ir.Table: "table", ir.ValueSet: "value set"}.get(
                    type(symbol), "function"
                )
                raise P4Error(f"{kind} `{node.name}` is no value", node.location)
            case NamedType() | Generic() | Block():
                raise P4Error(f"type `{node.name}` is no value", node.location)

    def _similar(self, name: str, env: Env) -> str:
        import difflib

        close = difflib.get_close_matches(name, set(env.names()), 1, 0.8)
        return f"; did you mean `{close[0]}`?" if close else ""

    # ---- members

    def _member(self, node: ast.MemberExpr, env: Env) -> ir.Expr:
        if isinstance(node.base, ast.TypeExpr):
            return self._type_member(self.checker.types.resolve(node.base.type, env), node)
        base = self.check(node.base, env)
        type_ = base.type
        match type_:
            case ty.FieldsType():
                return self._field(base, type_, node)
            case ty.StackType():
                return self._stack_member(base, type_, node, env)
            case ty.ApplyResultType():
                if node.member in ("hit", "miss"):
                    return ir.FieldAccess(ty.BOOL, node.location, base, node.member)
                if node.member == "action_run":
                    raise P4Error("action_run is for `switch` alone", node.location)
            case _:
                pass
        raise P4Error(f"`{type_}` has no member `{node.member}`", node.location)

    def _type_member(self, type_: Type, node: ast.MemberExpr) -> ir.Expr:
        match type_:
            case ty.EnumType():
                if node.member in type_.members:
                    return ir.EnumLiteral(type_, node.location, node.member, type_.members.index(node.member))
            case ty.SerEnumType():
                if node.member in type_.members:
                    return ir.EnumLiteral(type_, node.location, node.member, type_.members[node.member])
            case ty.ErrorType():
                if node.member in self.checker.errors:
                    return ir.ErrorLiteral(ty.ERROR, node.location, node.member)
            case _:
                raise P4Error(f"type `{type_}` has no members", node.location)
        raise P4Error(f"`{type_}` has no member `{node.member}`", node.location)

    def _field(self, base: ir.Expr, type_: ty.FieldsType, node: ast.MemberExpr) -> ir.Expr:
        field = type_.find(node.member)
        if field is None:
            kind = {ty.HeaderType: "header", ty.StructType: "struct"}.get(type(type_), "header union")
            named = f"{kind} `{type_}`" if type_.name else "this struct"
            raise P4Error(f"{named} has no field `{node.member}`", node.location)
        return field_of(base, field, node.location)

    def _stack_member(self, base: ir.Expr, type_: ty.StackType, node: ast.MemberExpr, env: Env) -> ir.Expr:
        match node.member:
            case "size":
                return ir.Literal(ty.BitType(32), node.location, type_.size)
            case "next" | "last" | "lastIndex":
                if env.frame.kind != "parser":
                    raise P4Error(f"`{node.member}` of a stack is for parsers alone", node.location)
                if node.member == "lastIndex":
                    return ir.StackLastIndex(ty.BitType(32), node.location, base)
                make = ir.StackNext if node.member == "next" else ir.StackLast
                return make(type_.element, node.location, base)
            case _:
                raise P4Error(f"a stack has no member `{node.member}`", node.location)

    # ---- literals

    def _integer(self, node: ast.IntExpr) -> ir.Expr:
        if not node.width and not node.text.startswith(("0w", "0s")):
            return ir.Literal(ty.INT, node.location, node.value)
        if node.signed and node.width < 2:
            raise P4Error(f"`{node.text}`: a signed number needs a width of at least 2 bits", node.location)
        type_ = ty.IntType(node.width) if node.signed else ty.BitType(node.width)
        return ir.Literal(type_, node.location, wrap(node.value, type_))

    def _list(self, node: ast.ListExpr, env: Env, expected: Type | None) -> ir.Expr:
        nodes = node.elements
        dots = bool(nodes) and isinstance(nodes[-1], ast.DotsExpr)
        types = _element_types(expected, len(nodes))
        if dots:
            if types is None:
                raise P4Error("`...` where the type is not known", nodes[-1].location)
            nodes = nodes[:-1]
        elements = [
            self.value(each, env, types[index] if types is not None and index < len(types) else None)
            for index, each in enumerate(nodes)
        ]
        if dots and types is not None:
            elements += [self.default_value(each, node.location) for each in types[len(nodes) :]]
        return ir.TupleLiteral(
            ty.TupleType(tuple(each.type for each in elements)), node.location, tuple(elements)
        )

    def _struct(self, node: ast.StructExpr, env: Env, expected: Type | None) -> ir.Expr:
        given: dict[str, ast.Expr] = {}
        for name, value in node.fields:
            if name.text in given:
                raise P4Error(f"field `{name.text}` is given twice", name.location)
            given[name.text] = value
        if not isinstance(expected, ty.StructType | ty.HeaderType):
            if expected is not None and not isinstance(expected, ty.TypeVar | ty.DontCareType):
                raise P4Error(f"a list of fields where `{expected}` is needed", node.location)
            elements = tuple(self.value(value, env) for _, value in node.fields)
            pairs = zip(node.fields, elements, strict=True)
            fields = tuple(ty.Field(name.text, each.type, (), name.location) for (name, _), each in pairs)
            return ir.StructLiteral(ty.StructType("", fields, (), node.location), node.location, elements)
        for name, _ in node.fields:
            if expected.find(name.text) is None:
                raise P4Error(f"`{expected}` has no field `{name.text}`", name.location)
        parts = []
        for field in expected.fields:
            if field.name in given:
                formal = None if isinstance(field.type, ty.TypeVar) else field.type
                parts.append(self.value(given[field.name], env, formal, f"field `{field.name}`"))
            elif node.dots:
                parts.append(self.default_value(field.type, node.location))
            else:
                raise P4Error(f"field `{field.name}` of `{expected}` has no value", node.location)
        return ir.StructLiteral(expected, node.location, tuple(parts))

    def default_value(self, type_: Type, location: Location) -> ir.Expr:
        """The value of `...`: zero, false, the first member, or an invalid header."""
        match type_:
            case ty.BitType() | ty.IntType() | ty.InfIntType():
                return ir.Literal(type_, location, 0)
            case ty.BoolType():
                return ir.Literal(type_, location, False)
            case ty.StringType():
                return ir.Literal(type_, location, "")
            case ty.ErrorType():
                return ir.ErrorLiteral(ty.ERROR, location, "NoError")
            case ty.EnumType():
                return ir.EnumLiteral(type_, location, type_.members[0], 0)
            case ty.SerEnumType() | ty.NewType():
                return explicit(self.default_value(type_.underlying, location), type_, location)
            case ty.HeaderType() | ty.UnionType():
                return ir.InvalidHeader(type_, location)
            case ty.StructType():
                parts = tuple(self.default_value(each.type, location) for each in type_.fields)
                return ir.StructLiteral(type_, location, parts)
            case ty.StackType(element, size):
                parts = tuple(self.default_value(element, location) for _ in range(size))
                return ir.StackLiteral(type_, location, parts)
            case ty.TupleType(elements):
                parts = tuple(self.default_value(each, location) for each in elements)
                return ir.TupleLiteral(type_, location, parts)
            case _:
                raise P4Error(f"`{type_}` has no default value", location)

    # ---- operators

    def _unary(self, node: ast.UnaryExpr, env: Env) -> ir.Expr:
        operand = self.value(node.operand, env)
        if node.op == "!":
            operand = coerce(operand, ty.BOOL, "`!`")
            if isinstance(operand, ir.Literal):
                return ir.Literal(ty.BOOL, node.location, not operand.value)
            return known_or(operand, ir.Unary(ty.BOOL, node.location, UnaryOp.NOT, operand))
        operand = unwrap_enum(operand)
        type_ = operand.type
        allowed = ty.BitType | ty.IntType if node.op == "~" else ty.BitType | ty.IntType | ty.InfIntType
        if not isinstance(type_, allowed):
            raise P4Error(f"`{node.op}` does not take `{type_}`", node.location)
        if node.op == "+":
            return operand
        op = UnaryOp(node.op)
        if isinstance(operand, ir.Literal):
            return ir.Literal(type_, node.location, fold_unary(op, int(operand.value), type_))
        return known_or(operand, ir.Unary(type_, node.location, op, operand))

    def _binary(self, node: ast.BinaryExpr, env: Env) -> ir.Expr:
        op = BinaryOp(node.op)
        expected: Type | None = ty.BOOL if op in (BinaryOp.AND, BinaryOp.OR) else None
        left = self.value(node.left, env, expected)
        literal = isinstance(node.right, ast.ListExpr | ast.StructExpr | ast.InvalidExpr)
        if literal and isinstance(left.type, ty.FieldsType | ty.TupleType | ty.StackType):
            expected = left.type
        right = self.value(node.right, env, expected)
        return combine(op, left, right, node.location)

    def _ternary(self, node: ast.TernaryExpr, env: Env, expected: Type | None) -> ir.Expr:
        condition = self.value(node.condition, env, ty.BOOL, "the condition")
        yes = self.value(node.yes, env, expected)
        no = self.value(node.no, env, expected)
        if yes.type != no.type:
            yes, no = match_types(yes, no)
        if yes.type != no.type:
            raise P4Error(f"the two sides of `?:` have types `{yes.type}` and `{no.type}`", node.location)
        if isinstance(condition, ir.Literal):
            return yes if condition.value else no
        if isinstance(yes.type, ty.InfIntType) and not is_constant(condition):
            raise P4Error("one side of `?:` needs a width", node.location)
        return ir.Ternary(yes.type, node.location, condition, yes, no)

    # ---- casts, parts

    def _cast(self, node: ast.CastExpr, env: Env) -> ir.Expr:
        type_ = self.checker.types.resolve(node.type, env)
        aggregate = isinstance(type_, ty.FieldsType | ty.TupleType | ty.ListType | ty.StackType)
        if aggregate and isinstance(node.operand, ast.ListExpr | ast.StructExpr | ast.InvalidExpr):
            return self.check(node.operand, env, type_)
        operand = self.value(node.operand, env)
        return explicit(operand, type_, node.location)

    def _slice(self, node: ast.SliceExpr, env: Env) -> ir.Expr:
        base = unwrap_enum(self.value(node.base, env))
        if not isinstance(base.type, ty.BitType | ty.IntType | ty.InfIntType):
            raise P4Error(f"`{base.type}` has no bits to slice", node.location)
        first = self.constant_int(node.first, env)
        second = self.constant_int(node.second, env)
        high, low = (first + second - 1, first) if node.by_width else (first, second)
        if low < 0 or high < low:
            raise P4Error(
                f"[{high}:{low}] is no range of bits: the higher one comes first", node.first.location
            )
        if not isinstance(base.type, ty.InfIntType) and high >= base.type.width:
            raise P4Error(
                f"[{high}:{low}] is not within the {base.type.width} bits of this", node.first.location
            )
        type_ = ty.BitType(high - low + 1)
        if isinstance(base, ir.Literal):
            return ir.Literal(type_, node.location, take_bits(int(base.value), high, low))
        return known_or(base, ir.Slice(type_, node.location, base, high, low))

    def _index(self, node: ast.IndexExpr, env: Env) -> ir.Expr:
        base = self.value(node.base, env)
        index = unwrap_enum(self.value(node.index, env))
        if not isinstance(index.type, ty.BitType | ty.IntType | ty.InfIntType):
            raise P4Error(f"an index is a number, not `{index.type}`", node.index.location)
        if isinstance(base.type, ty.TupleType):
            position = self.constant_int(node.index, env)
            if not 0 <= position < len(base.type.elements):
                raise P4Error(f"`{base.type}` has no element {position}", node.index.location)
            if isinstance(base, ir.TupleLiteral) and is_constant(base):
                return _relocated(base.elements[position], node.location)
            literal = ir.Literal(ty.INT, node.index.location, position)
            return ir.Index(base.type.elements[position], node.location, base, literal)
        if not isinstance(base.type, ty.StackType):
            raise P4Error(f"`{base.type}` has no elements", node.location)
        if isinstance(index, ir.Literal) and not 0 <= int(index.value) < base.type.size:
            raise P4Error(f"`{base.type}` has no element {index.value}", node.index.location)
        if isinstance(index.type, ty.InfIntType):
            index = number_as(index, ty.BitType(32))
        return ir.Index(base.type.element, node.location, base, index)


def field_of(base: ir.Expr, field: ty.Field, location: Location) -> ir.Expr:
    """`base.field`, or the value itself where the base is a constant struct."""
    if isinstance(base, ir.StructLiteral) and isinstance(base.type, ty.FieldsType) and is_constant(base):
        for each, value in zip(base.type.fields, base.elements, strict=True):
            if each.name == field.name:
                return _relocated(value, location)
    if isinstance(base, Symbolic):
        return Symbolic(field.type, location)
    return ir.FieldAccess(field.type, location, base, field.name)


def _relocated(expr: ir.Expr, location: Location) -> ir.Expr:
    """A constant where its name is used."""
    named = isinstance(expr, ir.Literal | ir.EnumLiteral | Symbolic)
    return replace(expr, location=location) if named else expr


def _element_types(expected: Type | None, count: int) -> tuple[Type, ...] | None:
    match expected:
        case ty.StructType() | ty.HeaderType():
            return tuple(each.type for each in expected.fields)
        case ty.TupleType(elements):
            return elements
        case ty.StackType(element, size):
            return (element,) * size
        case ty.ListType(element):
            return (element,) * count
        case ty.SetType(element):
            return _element_types(element, count)
        case _:
            return None


def _not_assignable(expr: ir.Expr) -> str:
    """The reason why an expression cannot be assigned to; empty if it can."""
    match expr:
        case ir.VarRef():
            variable = expr.variable
            if variable.direction is ty.Direction.IN:
                return f"`{variable.name}` is an `in` parameter"
            if variable.scope is not ir.Scope.LOCAL and variable.direction is ty.Direction.NONE:
                return f"parameter `{variable.name}` has no direction"
            return ""
        case ir.FieldAccess():
            if isinstance(expr.base.type, ty.ApplyResultType):
                return "it is a table's result"
            return _not_assignable(expr.base)
        case ir.Index() | ir.Slice() | ir.StackNext() | ir.StackLast():
            return _not_assignable(expr.base)
        case _:
            return "it is a value"
