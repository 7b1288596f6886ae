"""Parsers and controls: their declarations, and the bodies of their instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir, restrictions
from switchagg.p4model.errors import NOWHERE, Location, P4Error
from switchagg.p4model.functions import declare_parameters
from switchagg.p4model.instances import argument_values
from switchagg.p4model.names import control_name
from switchagg.p4model.symbolic import Symbolic
from switchagg.p4model.symbols import Block, Constant, Env, Frame
from switchagg.p4model.types import (
    BitType,
    BlockType,
    BoolType,
    Direction,
    EnumType,
    ErrorType,
    ExternType,
    InfIntType,
    IntType,
    Method,
    PackageType,
    Parameter,
    SetType,
    underlying,
)

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


class Blocks:
    """Checks parsers and controls, once for each instance; those without instances once all the same."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self._open: list[Block] = []

    def declare(self, decl: ast.ParserDecl | ast.ControlDecl, env: Env) -> Block:
        """A parser or control with a body. The body is checked when an instance is made."""
        kind = "parser" if isinstance(decl, ast.ParserDecl) else "control"
        if decl.type_params:
            raise P4Error(f"a {kind} with a body cannot have type parameters", decl.type_params[0].location)
        params = self.checker.types.parameters(decl.params, env)
        constructor = self.checker.types.parameters(decl.constructor_params, env, constructor=True)
        for each in constructor:
            if each.direction is not Direction.NONE:
                raise P4Error(f"constructor parameter `{each.name}` cannot have a direction", each.location)
        type_ = BlockType(kind, decl.name, params, (), constructor, True, decl.annotations, decl.location)
        block = Block(type_, decl, env.snapshot())
        env.declare(decl.name, block)
        return block

    def check_unused(self, block: Block) -> None:
        """Checks the body of a block that has no instance, with constructor arguments that nobody knows."""
        constants = {each.name: self._stand_in(each) for each in block.type.constructor_params}
        self.elaborate(block, constants, block.decl.name, block.decl.name, (), block.location)

    def _stand_in(self, param: Parameter) -> ir.Expr:
        match param.type:
            case ExternType() as extern:
                instance: ir.Instance | ir.PackageInstance = ir.ExternInstance(
                    param.name,
                    param.name,
                    extern,
                    {},
                    _any_constructor(extern, param),
                    {},
                    (),
                    param.location,
                )
            case BlockType() as block if block.kind == "parser":
                instance = ir.ParserInstance(
                    param.name, param.name, block, (), {}, (), (), (), {}, (), param.location
                )
            case BlockType() as block:
                empty = ir.Block(param.location, ())
                instance = ir.ControlInstance(
                    param.name, param.name, block, (), {}, (), (), (), (), empty, (), param.location
                )
            case PackageType() as package:
                instance = ir.PackageInstance(param.name, package, {}, (), param.location)
            case _:
                return Symbolic(param.type, param.location)
        return ir.InstanceRef(param.type, param.location, instance)

    # ---- instances

    def elaborate(
        self,
        block: Block,
        constants: Mapping[str, ir.Expr | None],
        name: str,
        full_name: str,
        annotations: ast.Annotations,
        location: Location,
    ) -> ir.ParserInstance | ir.ControlInstance:
        """The instance for these constructor arguments."""
        if block in self._open:
            raise P4Error(f"`{block.type}` contains an instance of itself", location)
        block.instantiated = True
        self._open.append(block)
        try:
            kind = "parser" if isinstance(block.decl, ast.ParserDecl) else "control"
            frame = Frame("parser" if kind == "parser" else "control", full_name)
            env = block.env.child(frame)
            for param in block.type.constructor_params:
                value = constants.get(param.name)
                if value is None:
                    raise P4Error(f"constructor parameter `{param.name}` has no value", location)
                symbol = (
                    value.instance if isinstance(value, ir.InstanceRef) else Constant(value, param.location)
                )
                env.declare(param.name, symbol)
            params = declare_parameters(block.type.params, env, ir.Scope.PARAM)
            inner = env.child()
            if isinstance(block.decl, ast.ParserDecl):
                return self._parser(block, block.decl, inner, params, constants, name, full_name, annotations)
            return self._control(block, block.decl, inner, params, constants, name, full_name, annotations)
        finally:
            self._open.pop()

    def _control(
        self,
        block: Block,
        decl: ast.ControlDecl,
        env: Env,
        params: tuple[ir.Variable, ...],
        constants: Mapping[str, ir.Expr | None],
        name: str,
        full_name: str,
        annotations: ast.Annotations,
    ) -> ir.ControlInstance:
        prologue: list[ir.Stmt] = []
        actions: list[ir.Action] = []
        tables: list[ir.Table] = []
        for each in decl.locals:
            match each:
                case ast.ActionDecl():
                    action = self.checker.functions.action(each, env)
                    env.declare(each.name, action)
                    actions.append(action)
                case ast.TableDecl():
                    table = self.checker.tables.check(each, env)
                    env.declare(each.name, table)
                    tables.append(table)
                case ast.InstanceDecl():
                    self.checker.instances.declare(each, env)
                case _:
                    statement = self.checker.statements.declaration(each, env)
                    if statement is not None:
                        prologue.append(statement)
        body = ir.Block(
            decl.body.location,
            self.checker.statements.body(decl.body.body, env.child()),
            decl.body.annotations,
        )
        return ir.ControlInstance(
            name,
            full_name,
            block.type,
            params,
            argument_values(constants),
            tuple(prologue),
            tuple(env.frame.instances),
            tuple(actions),
            tuple(tables),
            body,
            (*annotations, *decl.annotations),
            decl.location,
        )

    # ---- parsers

    def _parser(
        self,
        block: Block,
        decl: ast.ParserDecl,
        env: Env,
        params: tuple[ir.Variable, ...],
        constants: Mapping[str, ir.Expr | None],
        name: str,
        full_name: str,
        annotations: ast.Annotations,
    ) -> ir.ParserInstance:
        prologue: list[ir.Stmt] = []
        value_sets: list[ir.ValueSet] = []
        for each in decl.locals:
            match each:
                case ast.ValueSetDecl():
                    value_set = self._value_set(each, env)
                    env.declare(each.name, value_set)
                    value_sets.append(value_set)
                case ast.InstanceDecl():
                    self.checker.instances.declare(each, env)
                case _:
                    statement = self.checker.statements.declaration(each, env)
                    if statement is not None:
                        prologue.append(statement)
        names = _state_names(decl)
        env.frame.states = frozenset(names)
        states = {each.name: self._state(each, env) for each in decl.states}
        restrictions.reaches_an_end(decl.name, states, decl.location)
        return ir.ParserInstance(
            name,
            full_name,
            block.type,
            params,
            argument_values(constants),
            tuple(prologue),
            tuple(env.frame.instances),
            tuple(value_sets),
            states,
            (*annotations, *decl.annotations),
            decl.location,
        )

    def _value_set(self, decl: ast.ValueSetDecl, env: Env) -> ir.ValueSet:
        element = self.checker.types.value_type(decl.type, env)
        size = self.checker.exprs.constant_int(decl.size, env)
        name = control_name(decl.name, decl.annotations, env.frame.path)
        return ir.ValueSet(decl.name, name, element, size, decl.annotations, decl.location)

    def _state(self, decl: ast.StateDecl, env: Env) -> ir.State:
        inner = env.child()
        body = self.checker.statements.body(decl.body, inner)
        node = decl.transition
        if node is None:
            transition: ir.Transition = ir.Goto("reject", decl.location)
        elif node.cases is None:
            _check_target(node.target, node.location, env)
            transition = ir.Goto(node.target, node.location)
        else:
            transition = self._select(node, node.cases, inner)
        return ir.State(decl.name, body, transition, decl.annotations, decl.location)

    def _select(self, node: ast.TransitionNode, nodes: tuple[ast.SelectCaseNode, ...], env: Env) -> ir.Select:
        exprs = []
        for each in node.exprs:
            expr = self.checker.exprs.value(each, env)
            kind = underlying(expr.type)
            if isinstance(kind, InfIntType):
                raise P4Error("a number without width in `select`", each.location)
            if not isinstance(kind, BitType | IntType | BoolType | EnumType | ErrorType | SetType):
                raise P4Error(f"`select` cannot decide on `{expr.type}`", each.location)
            exprs.append(expr)
        types = [each.type for each in exprs]
        cases = []
        for case in nodes:
            keys = self.checker.keysets.select(case.keys, types, env, case.location)
            _check_target(case.state.text, case.state.location, env)
            cases.append(ir.SelectCase(keys, case.state.text, case.location))
        return ir.Select(tuple(exprs), tuple(cases), node.location)


def _any_constructor(extern: ExternType, param: Parameter) -> Method:
    if extern.constructors:
        return extern.constructors[0]
    return Method(extern.name, extern.name, (), (), None, False, (), param.location)


def _state_names(decl: ast.ParserDecl) -> set[str]:
    seen: dict[str, Location] = {"accept": NOWHERE, "reject": NOWHERE}
    for each in decl.states:
        if each.name in seen:
            if seen[each.name] is NOWHERE:
                raise P4Error(f"state `{each.name}` cannot be declared; every parser has it", each.location)
            raise P4Error(
                f"state `{each.name}` is declared twice",
                each.location,
                notes=(("the first declaration is here", seen[each.name]),),
            )
        seen[each.name] = each.location
    if "start" not in seen:
        raise P4Error(f"parser `{decl.name}` has no state `start`", decl.location)
    return set(seen)


def _check_target(name: str, location: Location, env: Env) -> None:
    if name not in env.frame.states:
        raise P4Error(f"the parser has no state `{name}`", location)
