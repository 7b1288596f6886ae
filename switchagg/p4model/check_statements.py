"""Checks statements and bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from switchagg.p4model import ast, ir, walk
from switchagg.p4model import types as ty
from switchagg.p4model.constants import Symbolic, is_constant
from switchagg.p4model.errors import P4Error
from switchagg.p4model.ir import BinaryOp
from switchagg.p4model.operators import coerce, combine
from switchagg.p4model.symbols import Constant, Env
from switchagg.p4model.types import Type, underlying

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


T = TypeVar("T")


class Statements:
    """Checks statements in an environment; declarations add to it."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def block(self, node: ast.BlockStmt, env: Env) -> ir.Block:
        """A block, with an environment of its own."""
        return ir.Block(node.location, self.body(node.body, env.child()), node.annotations)

    def body(self, nodes: Sequence[ast.Stmt], env: Env) -> tuple[ir.Stmt, ...]:
        """Statements in the given environment. Constants and empty statements are left out."""
        checked = (self.check(node, env) for node in nodes)
        return tuple(each for each in checked if each is not None)

    def _required(self, node: ast.Stmt, env: Env) -> ir.Stmt:
        return self.check(node, env.child()) or ir.Empty(node.location)

    def check(self, node: ast.Stmt, env: Env) -> ir.Stmt | None:
        """The typed statement. Raises `P4Error`."""
        exprs = self.checker.exprs
        match node:
            case ast.AssignStmt():
                return self._assign(node, env)
            case ast.CallStmt():
                call = exprs.check(node.call, env)
                return None if isinstance(call, ir.Literal) else ir.CallStmt(node.location, call)
            case ast.IfStmt():
                condition = exprs.value(node.condition, env, ty.BOOL, "the condition of `if`")
                then = self._required(node.then, env)
                orelse = None if node.orelse is None else self._required(node.orelse, env)
                return ir.If(node.location, condition, then, orelse)
            case ast.BlockStmt():
                return self.block(node, env)
            case ast.DeclStmt():
                return self.declaration(node.decl, env)
            case ast.EmptyStmt():
                return None
            case ast.ReturnStmt():
                return self._return(node, env)
            case ast.ExitStmt():
                if env.frame.kind not in ("control", "action"):
                    raise P4Error(f"`exit` in a {env.frame.kind}", node.location)
                return ir.Exit(node.location)
            case ast.SwitchStmt():
                return self._switch(node, env)
            case ast.ForStmt():
                return self._for(node, env)
            case ast.ForInStmt():
                return self._for_in(node, env)
            case ast.BreakStmt() | ast.ContinueStmt():
                word = "break" if isinstance(node, ast.BreakStmt) else "continue"
                if not env.frame.loops:
                    raise P4Error(f"`{word}` outside a loop", node.location)
                return ir.Break(node.location) if word == "break" else ir.Continue(node.location)
            case _:
                raise P4Error("this statement cannot stand here", node.location)

    # ---- declarations

    def declaration(self, decl: ast.Decl, env: Env) -> ir.Stmt | None:
        """A variable or constant among statements, or at the head of a parser or control."""
        if isinstance(decl, ast.ConstDecl):
            self._no_shadow(decl, env)
            self.constant(decl, env)
            return None
        if isinstance(decl, ast.InstanceDecl):
            raise P4Error("an instance cannot be declared among statements", decl.location)
        assert isinstance(decl, ast.VarDecl)
        self._no_shadow(decl, env)
        type_ = self.variable_type(decl.type, env)
        init = None
        if decl.value is not None:
            init = self.checker.exprs.value(decl.value, env, type_, f"variable `{decl.name}`")
        variable = self.variable(decl, type_, env)
        return ir.Declare(decl.location, variable, init)

    def _no_shadow(self, decl: ast.Decl, env: Env) -> None:
        there = env.lookup(decl.name)
        if isinstance(there, ir.Variable) and there.scope is not ir.Scope.LOCAL:
            raise P4Error(
                f"`{decl.name}` hides a parameter of that name",
                decl.location,
                ("the parameter is declared here", there.location),
            )

    def variable_type(self, node: ast.TypeNode, env: Env) -> Type:
        """A type that a variable can have."""
        type_ = self.checker.types.value_type(node, env)
        if isinstance(type_, ty.ExternType | ty.InfIntType | ty.StringType | ty.ListType | ty.VoidType):
            raise P4Error(f"a variable cannot have type `{type_}`", node.location)
        return type_

    def variable(self, decl: ast.VarDecl, type_: Type, env: Env) -> ir.Variable:
        """Declares a local variable."""
        variable = ir.Variable(decl.name, type_, ir.Scope.LOCAL, decl.location, annotations=decl.annotations)
        env.declare(decl.name, variable)
        return variable

    def constant(self, decl: ast.ConstDecl, env: Env) -> None:
        """Declares a constant."""
        type_ = self.checker.types.value_type(decl.type, env)
        if isinstance(type_, ty.ExternType):
            raise P4Error(f"a constant cannot have type `{type_}`", decl.location)
        value = self.checker.exprs.constant(decl.value, env, type_, f"constant `{decl.name}`")
        env.declare(decl.name, Constant(value, decl.location))

    # ---- simple statements

    def _assign(self, node: ast.AssignStmt, env: Env) -> ir.Stmt:
        exprs = self.checker.exprs
        target = exprs.lvalue(node.target, env)
        if isinstance(target.type, ty.ExternType):
            raise P4Error(f"an object of extern `{target.type}` cannot be assigned", node.location)
        if node.op == "=":
            value = exprs.value(node.value, env, target.type, "this assignment")
            return ir.Assign(node.location, target, value)
        op = BinaryOp(node.op[:-1])
        before: list[ir.Stmt] = []
        target = _evaluated_once(target, before)
        right = exprs.value(node.value, env)
        value = coerce(combine(op, target, right, node.location), target.type)
        assign = ir.Assign(node.location, target, value)
        return ir.Block(node.location, (*before, assign)) if before else assign

    def _return(self, node: ast.ReturnStmt, env: Env) -> ir.Stmt:
        frame = env.frame
        if frame.kind in ("parser", "top"):
            raise P4Error("`return` in a parser", node.location)
        returns = frame.returns
        if returns is None or isinstance(returns, ty.VoidType):
            if node.value is not None:
                raise P4Error("nothing can be returned here", node.location)
            return ir.Return(node.location, None)
        if node.value is None:
            raise P4Error(f"a value of type `{returns}` must be returned", node.location)
        return ir.Return(node.location, self.checker.exprs.value(node.value, env, returns, "the result"))

    # ---- switch

    def _switch(self, node: ast.SwitchStmt, env: Env) -> ir.Stmt:
        if env.frame.kind == "parser":
            raise P4Error("`switch` in a parser", node.location)
        subject = node.subject
        if isinstance(subject, ast.MemberExpr) and subject.member == "action_run":
            apply = self.checker.exprs.check(subject.base, env)
            if isinstance(apply.type, ty.ApplyResultType):
                if not isinstance(apply, ir.TableApply):
                    raise P4Error("`action_run` must follow `.apply()`", subject.location)
                return self._action_switch(node, apply, env)
        return self._value_switch(node, env)

    def _action_switch(self, node: ast.SwitchStmt, apply: ir.TableApply, env: Env) -> ir.Stmt:
        def label(label: ast.Expr) -> tuple[str, ir.Action]:
            if not isinstance(label, ast.PathExpr):
                raise P4Error("a label of this switch is the name of an action", label.location)
            for ref in apply.table.actions:
                if ref.action.name == label.name:
                    return f"`{label.name}`", ref.action
            raise P4Error(
                f"`{label.name}` is not an action of table `{apply.table.name}`",
                label.location,
                ("the table is declared here", apply.table.location),
            )

        cases = (ir.ActionCase(*case) for case in self._cases(node, label, env))
        return ir.ActionSwitch(node.location, apply, tuple(cases))

    def _value_switch(self, node: ast.SwitchStmt, env: Env) -> ir.Stmt:
        exprs = self.checker.exprs
        subject = exprs.value(node.subject, env)
        switchable = ty.BitType | ty.IntType | ty.InfIntType | ty.EnumType | ty.SerEnumType | ty.ErrorType
        if not isinstance(underlying(subject.type), switchable) and subject.type != ty.BOOL:
            raise P4Error(f"`switch` cannot decide on `{subject.type}`", node.subject.location)

        def label(label: ast.Expr) -> tuple[str, ir.Expr]:
            value = exprs.constant(label, env, subject.type, "a label of `switch`")
            return _label_key(value), value

        cases = (ir.ValueCase(*case) for case in self._cases(node, label, env))
        return ir.ValueSwitch(node.location, subject, tuple(cases))

    def _cases(
        self, node: ast.SwitchStmt, label: Callable[[ast.Expr], tuple[str, T]], env: Env
    ) -> Iterator[tuple[tuple[T, ...], bool, ir.Block | None]]:
        """Labels, presence of `default`, and body of each case; labels that fall through share a case.

        Args:
            label: the key of a label, by which equal labels are found, and its meaning.
        """
        seen: set[str] = set()
        labels: list[T] = []
        default = False
        for case in node.cases:
            if isinstance(case.label, ast.DefaultExpr):
                if "default" in seen:
                    raise P4Error("`default` occurs twice", case.label.location)
                seen.add("default")
                default = True
            else:
                if "default" in seen:
                    raise P4Error("a label behind `default`", case.label.location)
                key, meaning = label(case.label)
                if key in seen:
                    raise P4Error(f"label {key} occurs twice", case.label.location)
                seen.add(key)
                labels.append(meaning)
            if case.body is not None:
                yield tuple(labels), default, self.block(case.body, env)
                labels, default = [], False
        if labels or default:
            yield tuple(labels), default, None

    # ---- loops

    def _for(self, node: ast.ForStmt, env: Env) -> ir.Stmt:
        inner = env.child()
        init = self.body(node.init, inner)
        condition = self.checker.exprs.value(node.condition, inner, ty.BOOL, "the condition of `for`")
        update = self.body(node.update, inner)
        return ir.For(node.location, init, condition, update, self._loop_body(node.body, inner))

    def _for_in(self, node: ast.ForInStmt, env: Env) -> ir.Stmt:
        inner = env.child()
        type_ = self.variable_type(node.variable.type, env)
        exprs = self.checker.exprs
        if isinstance(node.collection, ast.RangeExpr):
            if not isinstance(underlying(type_), ty.BitType | ty.IntType):
                raise P4Error(f"a range of `{type_}`", node.collection.location)
            low = exprs.value(node.collection.low, env, type_)
            high = exprs.value(node.collection.high, env, type_)
            variable = self.variable(node.variable, type_, inner)
            return ir.ForRange(node.location, variable, low, high, self._loop_body(node.body, inner))
        collection = exprs.value(node.collection, env)
        elements = _elements(collection.type)
        if elements is None or any(each != type_ for each in elements):
            raise P4Error(
                f"`for` cannot go over `{collection.type}` with `{type_}`", node.collection.location
            )
        variable = self.variable(node.variable, type_, inner)
        return ir.ForEach(node.location, variable, collection, self._loop_body(node.body, inner))

    def _loop_body(self, node: ast.Stmt, env: Env) -> ir.Stmt:
        if env.frame.kind == "parser":
            raise P4Error("a loop in a parser", node.location)
        env.frame.loops += 1
        try:
            return self._required(node, env)
        finally:
            env.frame.loops -= 1


def _elements(type_: Type) -> tuple[Type, ...] | None:
    match type_:
        case ty.StackType(element, _) | ty.ListType(element):
            return (element,)
        case ty.TupleType(elements):
            return elements
        case _:
            return None


def _label_key(value: ir.Expr) -> str:
    match value:
        case ir.Literal():
            return str(value.value)
        case ir.EnumLiteral() | ir.ErrorLiteral():
            return value.name
        case Symbolic():
            return f"at {value.location}"
        case _:
            return str(id(value))


def _evaluated_once(place: ir.Expr, before: list[ir.Stmt]) -> ir.Expr:
    """Returns a place whose indices call nothing: variables hold these, declared in `before`."""
    if not isinstance(place, ir.FieldAccess | ir.Slice | ir.StackNext | ir.StackLast | ir.Index):
        return place
    held = replace(place, base=_evaluated_once(place.base, before))
    if isinstance(held, ir.Index) and _has_calls(held.index):
        index = held.index
        variable = ir.Variable("index", index.type, ir.Scope.LOCAL, index.location)
        before.append(ir.Declare(index.location, variable, index))
        held = replace(held, index=ir.VarRef(index.type, index.location, variable))
    return held


def _has_calls(expr: ir.Expr) -> bool:
    parts = (
        ir.FieldAccess | ir.Slice | ir.StackNext | ir.StackLast | ir.Index | ir.Binary | ir.Cast | ir.Unary
    )
    if isinstance(expr, parts):
        return any(_has_calls(each) for each in walk.parts(expr) if isinstance(each, ir.Expr))
    return not (isinstance(expr, ir.VarRef) or is_constant(expr))
