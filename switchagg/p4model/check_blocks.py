"""Checks parsers and controls once for each instance, and evaluates the constructors of all instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from switchagg.p4model import ast, ir
from switchagg.p4model import types as ty
from switchagg.p4model.ast import control_name
from switchagg.p4model.check_calls import accepts, declare_parameters, match_arguments
from switchagg.p4model.constants import Symbolic, is_constant, to_value
from switchagg.p4model.errors import NOWHERE, Location, P4Error, declared_twice, misused
from switchagg.p4model.operators import fit
from switchagg.p4model.symbols import Block, Constant, Env, Frame
from switchagg.p4model.types import Type, has_variables, substitute, underlying

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


_Head: TypeAlias = tuple[
    str, str, ast.Annotations, Location, ty.BlockType, tuple[ir.Variable, ...], dict[str, ir.Value]
]
"""The fields that a parser and a control begin with, up to the constructor's arguments."""


class Blocks:
    """Checks parsers and controls once for each instance, and once if there is no instance."""

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
            if each.direction is not ty.Direction.NONE:
                raise P4Error(f"constructor parameter `{each.name}` cannot have a direction", each.location)
        type_ = ty.BlockType(decl.name, kind, params, (), constructor, decl.annotations, decl.location)
        block = Block(type_, decl, env.snapshot())
        env.declare(decl.name, block)
        return block

    def check_unused(self, block: Block) -> None:
        """Checks the body of a block that has no instance, with unknown constructor arguments."""
        constants = {each.name: self._stand_in(each) for each in block.type.constructor_params}
        self.elaborate(block, constants, block.decl.name, block.decl.name, (), block.location)

    def _stand_in(self, param: ty.Parameter) -> ir.Expr:
        head = (param.name, param.name, (), param.location)
        instance: ir.Instance | ir.PackageInstance
        match param.type:
            case ty.ExternType() as extern:
                unknown = ty.Method(extern.name, extern.name, (), (), None, False, (), param.location)
                constructor = extern.constructors[0] if extern.constructors else unknown
                instance = ir.ExternInstance(*head, extern, {}, constructor, {})
            case ty.BlockType() as block if block.kind == "parser":
                instance = ir.ParserInstance(*head, block, (), {}, (), (), (), {})
            case ty.BlockType() as block:
                empty = ir.Block(param.location, ())
                instance = ir.ControlInstance(*head, block, (), {}, (), (), (), (), empty)
            case ty.PackageType() as package:
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
    ) -> ir.BlockInstance:
        """The instance for these constructor arguments."""
        if block in self._open:
            raise P4Error(f"`{block.type}` contains an instance of itself", location)
        block.instantiated = True
        self._open.append(block)
        try:
            is_parser = isinstance(block.decl, ast.ParserDecl)
            env = block.env.child(Frame("parser" if is_parser else "control", full_name))
            for param in block.type.constructor_params:
                value = constants.get(param.name)
                if value is None:
                    raise P4Error(f"constructor parameter `{param.name}` has no value", location)
                constant = Constant(value, param.location)
                env.declare(param.name, value.instance if isinstance(value, ir.InstanceRef) else constant)
            params = declare_parameters(block.type.params, env, ir.Scope.PARAM)
            head = (name, full_name, (*annotations, *block.decl.annotations), block.location)
            values = {key: None if value is None else to_value(value) for key, value in constants.items()}
            return self._body(block, env.child(), (*head, block.type, params, values))
        finally:
            self._open.pop()

    def _body(self, block: Block, env: Env, head: _Head) -> ir.BlockInstance:
        decl = block.decl
        prologue: list[ir.Stmt] = []
        value_sets: list[ir.ValueSet] = []
        actions: list[ir.Action] = []
        tables: list[ir.Table] = []
        for each in decl.locals:
            match each:
                case ast.ValueSetDecl():
                    value_sets.append(self._value_set(each, env))
                    env.declare(each.name, value_sets[-1])
                case ast.ActionDecl():
                    actions.append(self.checker.functions.action(each, env))
                    env.declare(each.name, actions[-1])
                case ast.TableDecl():
                    tables.append(self.checker.tables.check(each, env))
                    env.declare(each.name, tables[-1])
                case ast.InstanceDecl():
                    self.checker.instances.declare(each, env)
                case _:
                    statement = self.checker.statements.declaration(each, env)
                    if statement is not None:
                        prologue.append(statement)
        if isinstance(decl, ast.ParserDecl):
            env.frame.states = frozenset(_state_names(decl))
            states = {each.name: self._state(each, env) for each in decl.states}
            check_reaches_end(decl.name, states, decl.location)
            return ir.ParserInstance(
                *head, tuple(prologue), tuple(env.frame.instances), tuple(value_sets), states
            )
        body = self.checker.statements.block(decl.body, env)
        instances = tuple(env.frame.instances)
        return ir.ControlInstance(*head, tuple(prologue), instances, tuple(actions), tuple(tables), body)

    # ---- parsers

    def _value_set(self, decl: ast.ValueSetDecl, env: Env) -> ir.ValueSet:
        element = self.checker.types.value_type(decl.type, env)
        size = self.checker.exprs.constant_int(decl.size, env)
        name = control_name(decl.name, decl.annotations, env.frame.path)
        return ir.ValueSet(decl.name, name, decl.annotations, decl.location, element, size)

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
            if isinstance(kind, ty.InfIntType):
                raise P4Error("a number without width in `select`", each.location)
            if not isinstance(
                kind, ty.BitType | ty.IntType | ty.BoolType | ty.EnumType | ty.ErrorType | ty.SetType
            ):
                raise P4Error(f"`select` cannot decide on `{expr.type}`", each.location)
            exprs.append(expr)
        types = [each.type for each in exprs]
        cases = []
        for case in nodes:
            keys = self.checker.keysets.check(case.keys, types, env, case.location)
            _check_target(case.state.text, case.state.location, env)
            cases.append(ir.SelectCase(keys, case.state.text, case.location))
        return ir.Select(tuple(exprs), tuple(cases), node.location)


def _state_names(decl: ast.ParserDecl) -> set[str]:
    seen: dict[str, Location] = {"accept": NOWHERE, "reject": NOWHERE}
    for each in decl.states:
        if each.name in seen:
            if seen[each.name] is NOWHERE:
                raise P4Error(f"state `{each.name}` cannot be declared; every parser has it", each.location)
            raise declared_twice(f"state `{each.name}` is declared twice", each.location, seen[each.name])
        seen[each.name] = each.location
    if "start" not in seen:
        raise P4Error(f"parser `{decl.name}` has no state `start`", decl.location)
    return set(seen)


def _check_target(name: str, location: Location, env: Env) -> None:
    if name not in env.frame.states:
        raise P4Error(f"the parser has no state `{name}`", location)


@dataclass(frozen=True, slots=True)
class _Construction:
    """A constructor call: its arguments, its place, and the name that the instance is declared with."""

    args: Sequence[ast.Arg]
    env: Env
    location: Location
    name: str = ""
    full_name: str = ""
    annotations: ast.Annotations = ()
    body: Sequence[ast.Decl] | None = None
    """of the methods that an extern's instance defines"""
    expected: Type | None = None


class Instances:
    """Evaluates constructors."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    # ---- the three ways to write one

    def declare(self, decl: ast.InstanceDecl, env: Env) -> None:
        """`T(args) name;`"""
        name = control_name(decl.name, decl.annotations, env.frame.path)
        made = _Construction(decl.args, env, decl.location, decl.name, name, decl.annotations, decl.body)
        env.declare(decl.name, self._make(decl.type, made))

    def anonymous(
        self,
        node: ast.ConstructExpr,
        env: Env,
        expected: Type | None,
        name: str = "",
        annotations: ast.Annotations = (),
    ) -> ir.Expr:
        """`T(args)` as an argument or a table's property."""
        made = _Construction(node.args, env, node.location, "", name, annotations, None, expected)
        instance = self._make(node.type, made)
        return ir.InstanceRef(instance.type, node.location, instance)

    def direct(self, block: Block, env: Env, location: Location) -> ir.BlockInstance:
        """`C.apply(...)`: an instance that is named like the control."""
        if block.type.constructor_params:
            raise P4Error(f"`{block.type}` has constructor parameters; declare an instance", location)
        name = control_name(block.decl.name, block.decl.annotations, env.frame.path)
        instance = self.checker.blocks.elaborate(block, {}, block.decl.name, name, (), location)
        env.frame.instances.append(instance)
        return instance

    # ---- making

    def _make(self, node: ast.TypeNode, made: _Construction) -> ir.Instance | ir.PackageInstance:
        types, location = self.checker.types, made.location
        block = types.block(node, made.env)
        if block is not None:
            if made.body is not None:
                raise P4Error(f"an instance of {block.type.kind} `{block.type}` has no initializer", location)
            if made.env.frame.kind == "top" and made.name:
                kind = block.type.kind
                raise P4Error(f"a {kind} cannot be instantiated at the top level by itself", location)
            return self._block(block, made)
        generic = types.generic(node, made.env)
        if generic:
            # The type arguments are open: the constructor's arguments determine them.
            variables = tuple(ty.TypeVar(each) for each in generic.type_params)
            type_ = types.instantiate(generic, variables, location)
        else:
            type_ = types.resolve(node, made.env)
            if isinstance(type_, ty.ExternType | ty.PackageType) and has_variables(type_):
                opened = (
                    ty.TypeVar(f"_{index}") if isinstance(each, ty.DontCareType) else each
                    for index, each in enumerate(type_.type_args)
                )
                type_ = types.instantiate_name(type_.name, tuple(opened))
        match type_:
            case ty.ExternType():
                return self._extern(type_, made)
            case ty.PackageType():
                if made.body is not None:
                    raise P4Error(f"an instance of package `{type_}` has no initializer", location)
                return self._package(type_, made)
            case ty.BlockType():
                raise misused(
                    f"`{type_}` has no body that an instance could be made of", location, type_.location
                )
            case _:
                raise P4Error(f"no instance can be made of `{type_}`", location)

    def _values(self, args: Sequence[ir.Argument]) -> dict[str, ir.Value]:
        values: dict[str, ir.Value] = {}
        for each in args:
            if each.value is not None and not is_constant(each.value):
                name = each.param.name
                raise P4Error(
                    f"constructor argument `{name}` must be known at compile time", each.value.location
                )
            values[each.param.name] = None if each.value is None else to_value(each.value)
        return values

    def _infer(
        self,
        type_: ty.ExternType | ty.PackageType,
        params: Sequence[ty.Parameter],
        made: _Construction,
        bindings: ty.Bindings,
    ) -> tuple[Type, tuple[ir.Argument, ...]]:
        """The type with all its type arguments, and the checked arguments of the constructor."""
        open_ = tuple(each for each in type_.type_args if isinstance(each, ty.TypeVar))
        args = self.checker.calls.infer(
            open_, params, made.args, made.env, bindings, made.location, type_.name
        )
        for variable in open_:
            # A method may still bind it; no extern of our architectures needs it.
            bindings.setdefault(variable, ty.DONT_CARE)
        return substitute(type_, bindings, self.checker.types.instantiate_name) if open_ else type_, args

    def _extern(self, type_: ty.ExternType, made: _Construction) -> ir.ExternInstance:
        frame = made.env.frame
        if frame.kind in ("function", "method"):
            raise P4Error(f"an instance in a {frame.kind}", made.location)
        index = self._constructor_index(type_, made.args, made.location)
        bindings: ty.Bindings = {}
        if isinstance(made.expected, ty.ExternType) and made.expected.name == type_.name:
            for variable, bound in zip(type_.type_args, made.expected.type_args, strict=True):
                if isinstance(variable, ty.TypeVar) and not has_variables(bound):
                    bindings[variable] = bound
        closed, args = self._infer(type_, type_.constructors[index].params, made, bindings)
        assert isinstance(closed, ty.ExternType)
        values = self._values(args)
        methods = self.checker.functions.methods(closed, made.body, made.name, made.env, made.location)
        head = (made.name, made.full_name, made.annotations, made.location)
        instance = ir.ExternInstance(*head, closed, values, closed.constructors[index], methods)
        frame.instances.append(instance)
        return instance

    def _constructor_index(self, type_: ty.ExternType, args: Sequence[ast.Arg], location: Location) -> int:
        constructors = type_.constructors
        fitting = [index for index, each in enumerate(constructors) if accepts(each.params, args)]
        exact = [index for index in fitting if len(constructors[index].params) == len(args)]
        for indexes in (exact, fitting):
            if len(indexes) == 1:
                return indexes[0]
        if not constructors:
            raise P4Error(f"extern `{type_}` has no constructor", location)
        if len(constructors) == 1:
            match_arguments(constructors[0].params, args, location, type_.name)
        raise P4Error(
            f"{'more than one' if fitting else 'no'} constructor of `{type_}` takes these arguments",
            location,
            *(("a constructor is declared here", each.location) for each in constructors),
        )

    def _block(self, block: Block, made: _Construction) -> ir.BlockInstance:
        kind, decl, frame = block.type.kind, block.decl, made.env.frame
        if frame.kind not in ("top", kind):
            raise P4Error(f"a {kind} cannot be instantiated in a {frame.kind}", made.location)
        args = self.checker.calls.arguments(
            block.type.constructor_params, made.args, made.env, made.location, block.type.name
        )
        self._values(args)
        constants = {each.param.name: each.value for each in args}
        full_name = made.full_name
        if not made.name and frame.kind == "top":
            # An unnamed argument of a package has the name of its declaration in the control plane.
            full_name = control_name(decl.name, decl.annotations, "")
        elif not full_name:
            full_name = control_name(decl.name, decl.annotations, frame.path)
        instance = self.checker.blocks.elaborate(
            block, constants, made.name or decl.name, full_name, made.annotations, made.location
        )
        if frame.kind != "top":
            frame.instances.append(instance)
        return instance

    def _package(self, type_: ty.PackageType, made: _Construction) -> ir.PackageInstance:
        frame = made.env.frame
        if frame.kind != "top":
            raise P4Error(f"a package cannot be instantiated in a {frame.kind}", made.location)
        closed, args = self._infer(type_, type_.constructor_params, made, {})
        assert isinstance(closed, ty.PackageType)
        by_name = {each.name: each for each in closed.constructor_params}
        for each in args:
            if each.value is not None:
                fit(each.value, by_name[each.param.name].type)
        return ir.PackageInstance(made.name, closed, self._values(args), made.annotations, made.location)


def check_reaches_end(name: str, states: Mapping[str, ir.State], location: Location) -> None:
    """Raises `P4Error` if a parser can reach neither accept nor reject."""
    seen: set[str] = set()
    pending = ["start"]
    while pending:
        at = pending.pop()
        if at in ("accept", "reject"):
            return
        if at in seen or at not in states:
            continue
        seen.add(at)
        transition = states[at].transition
        if isinstance(transition, ir.Goto):
            pending.append(transition.state)
        elif any(all(isinstance(key, ir.AnySet) for key in case.keys) for case in transition.cases):
            pending.extend(each.state for each in transition.cases)
        else:
            # If no case matches, the parser ends with an error.
            return
    raise P4Error(f"parser `{name}` never ends: neither accept nor reject can be reached", location)
