"""Checks parsers and controls once for each instance, and evaluates the constructors of all instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir
from switchagg.p4model.ast import control_name
from switchagg.p4model.check_calls import accepts, declare_parameters, match_arguments
from switchagg.p4model.constants import Symbolic, is_constant, to_value
from switchagg.p4model.errors import NOWHERE, Location, P4Error
from switchagg.p4model.operators import fit
from switchagg.p4model.symbols import Block, Constant, Env, Frame, Generic
from switchagg.p4model.types import (
    DONT_CARE,
    Bindings,
    BitType,
    BlockType,
    BoolType,
    Direction,
    DontCareType,
    EnumType,
    ErrorType,
    ExternType,
    InfIntType,
    IntType,
    Method,
    PackageType,
    Parameter,
    SetType,
    Type,
    TypeVar,
    has_variables,
    substitute,
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
        check_reaches_end(decl.name, states, decl.location)
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


class Instances:
    """Evaluates constructors."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    # ---- the three ways to write one

    def declare(self, decl: ast.InstanceDecl, env: Env) -> None:
        """`T(args) name;`"""
        name = control_name(decl.name, decl.annotations, env.frame.path)
        instance = self._make(
            decl.type, decl.args, env, decl.name, name, decl.annotations, decl.location, decl.body, None
        )
        env.declare(decl.name, instance)

    def anonymous(
        self,
        node: ast.ConstructExpr,
        env: Env,
        expected: Type | None,
        name: str = "",
        annotations: ast.Annotations = (),
    ) -> ir.Expr:
        """`T(args)` as an argument or a table's property."""
        instance = self._make(node.type, node.args, env, "", name, annotations, node.location, None, expected)
        return ir.InstanceRef(instance.type, node.location, instance)

    def direct(self, block: Block, env: Env, location: Location) -> ir.ParserInstance | ir.ControlInstance:
        """`C.apply(...)`: an instance that is named like the control."""
        if block.type.constructor_params:
            raise P4Error(f"`{block.type}` has constructor parameters; declare an instance", location)
        name = control_name(block.decl.name, block.decl.annotations, env.frame.path)
        instance = self.checker.blocks.elaborate(block, {}, block.decl.name, name, (), location)
        env.frame.instances.append(instance)
        return instance

    # ---- making

    def _make(
        self,
        type_node: ast.TypeNode,
        args: Sequence[ast.Arg],
        env: Env,
        name: str,
        full_name: str,
        annotations: ast.Annotations,
        location: Location,
        body: Sequence[ast.Decl] | None,
        expected: Type | None,
    ) -> ir.Instance | ir.PackageInstance:
        block = self.checker.types.block(type_node, env)
        if block is not None:
            if body is not None:
                raise P4Error(f"an instance of {block.type.kind} `{block.type}` has no initializer", location)
            if env.frame.kind == "top" and name:
                raise P4Error(
                    f"a {block.type.kind} cannot be instantiated at the top level by itself", location
                )
            return self._block(block, args, env, name, full_name, annotations, location)
        generic = self.checker.types.generic(type_node, env)
        type_ = self._open(generic, location) if generic else self.checker.types.resolve(type_node, env)
        if generic is None and isinstance(type_node, ast.SpecializedType) and has_variables(type_):
            type_ = self._reopened(type_)
        match type_:
            case ExternType():
                return self._extern(type_, args, env, name, full_name, annotations, location, body, expected)
            case PackageType():
                if body is not None:
                    raise P4Error(f"an instance of package `{type_}` has no initializer", location)
                return self._package(type_, args, env, name, annotations, location)
            case BlockType():
                raise P4Error(
                    f"`{type_}` has no body that an instance could be made of",
                    location,
                    notes=(("it is declared here", type_.location),),
                )
            case _:
                raise P4Error(f"no instance can be made of `{type_}`", location)

    def _open(self, generic: Generic, location: Location) -> Type:
        """The generic type with variables for its arguments, which the constructor's arguments will tell."""
        return self.checker.types.instantiate(generic, _variables(generic.type_params), location)

    def _reopened(self, type_: Type) -> Type:
        """The same where some arguments are `_`."""
        if not isinstance(type_, ExternType | PackageType):
            return type_
        args = tuple(
            TypeVar(f"_{index}") if isinstance(each, DontCareType) else each
            for index, each in enumerate(type_.type_args)
        )
        return self.checker.types.instantiate_name(type_.name, args)

    def _values(self, args: Sequence[ir.Argument]) -> dict[str, ir.Value]:
        values: dict[str, ir.Value] = {}
        for each in args:
            if each.value is None:
                values[each.param.name] = None
                continue
            if not is_constant(each.value):
                raise P4Error(
                    f"constructor argument `{each.param.name}` must be known at compile time",
                    each.value.location,
                )
            values[each.param.name] = to_value(each.value)
        return values

    def _extern(
        self,
        type_: ExternType,
        args: Sequence[ast.Arg],
        env: Env,
        name: str,
        full_name: str,
        annotations: ast.Annotations,
        location: Location,
        body: Sequence[ast.Decl] | None,
        expected: Type | None,
    ) -> ir.ExternInstance:
        if env.frame.kind in ("function", "method"):
            raise P4Error(f"an instance in a {env.frame.kind}", location)
        position = self._constructor_index(type_, args, location)
        constructor = type_.constructors[position]
        open_ = _open_variables(type_)
        bindings: Bindings = {}
        if isinstance(expected, ExternType) and expected.name == type_.name:
            for variable, bound in zip(type_.type_args, expected.type_args, strict=True):
                if isinstance(variable, TypeVar) and not has_variables(bound):
                    bindings[variable] = bound
        checked = self.checker.calls.infer(
            open_, constructor.params, args, env, bindings, location, type_.name
        )
        if open_:
            for variable in open_:
                # A method may still bind it; none of ours needs what nothing tells.
                bindings.setdefault(variable, DONT_CARE)
            closed = substitute(type_, bindings, self.checker.types.instantiate_name)
            assert isinstance(closed, ExternType)
            type_ = closed
            constructor = type_.constructors[position]
        values = self._values(checked)
        methods = self.checker.functions.methods(type_, body, name, env, location)
        instance = ir.ExternInstance(
            name, full_name, type_, values, constructor, methods, annotations, location
        )
        env.frame.instances.append(instance)
        return instance

    def _constructor_index(self, type_: ExternType, args: Sequence[ast.Arg], location: Location) -> int:
        constructors = type_.constructors
        fitting = [index for index, each in enumerate(constructors) if accepts(each.params, args)]
        exact = [index for index in fitting if len(constructors[index].params) == len(args)]
        if len(exact) == 1:
            return exact[0]
        if len(fitting) == 1:
            return fitting[0]
        if not constructors:
            raise P4Error(f"extern `{type_}` has no constructor", location)
        if len(constructors) == 1:
            match_arguments(constructors[0].params, args, location, type_.name)
        wrong = "more than one" if fitting else "no"
        raise P4Error(
            f"{wrong} constructor of `{type_}` takes these arguments",
            location,
            notes=tuple(("a constructor is declared here", each.location) for each in constructors),
        )

    def _block(
        self,
        block: Block,
        args: Sequence[ast.Arg],
        env: Env,
        name: str,
        full_name: str,
        annotations: ast.Annotations,
        location: Location,
    ) -> ir.ParserInstance | ir.ControlInstance:
        kind = block.type.kind
        if env.frame.kind not in ("top", kind):
            raise P4Error(f"a {kind} cannot be instantiated in a {env.frame.kind}", location)
        checked = self.checker.calls.arguments(
            block.type.constructor_params, args, env, location, block.type.name
        )
        self._values(checked)
        constants = {each.param.name: each.value for each in checked}
        # What an architecture calls by its role is known to the control plane by the name of its declaration.
        if not name and env.frame.kind == "top":
            full_name = control_name(block.decl.name, block.decl.annotations, "")
        elif not full_name:
            full_name = control_name(block.decl.name, block.decl.annotations, env.frame.path)
        instance = self.checker.blocks.elaborate(
            block, constants, name or block.decl.name, full_name, annotations, location
        )
        if env.frame.kind != "top":
            env.frame.instances.append(instance)
        return instance

    def _package(
        self,
        type_: PackageType,
        args: Sequence[ast.Arg],
        env: Env,
        name: str,
        annotations: ast.Annotations,
        location: Location,
    ) -> ir.PackageInstance:
        if env.frame.kind != "top":
            raise P4Error(f"a package cannot be instantiated in a {env.frame.kind}", location)
        open_ = _open_variables(type_)
        bindings: Bindings = {}
        checked = self.checker.calls.infer(
            open_, type_.constructor_params, args, env, bindings, location, type_.name
        )
        for variable in open_:
            bindings.setdefault(variable, DONT_CARE)
        closed = substitute(type_, bindings, self.checker.types.instantiate_name) if open_ else type_
        assert isinstance(closed, PackageType)
        by_name = {each.name: each for each in closed.constructor_params}
        for each in checked:
            if each.value is not None:
                fit(each.value, by_name[each.param.name].type)
        return ir.PackageInstance(name, closed, self._values(checked), annotations, location)


def _variables(names: Sequence[str]) -> tuple[TypeVar, ...]:
    return tuple(TypeVar(each) for each in names)


def _open_variables(type_: ExternType | PackageType) -> tuple[TypeVar, ...]:
    return tuple(each for each in type_.type_args if isinstance(each, TypeVar))


def argument_values(args: Mapping[str, ir.Expr | None]) -> dict[str, ir.Value]:
    """Constructor arguments as values."""
    return {name: None if value is None else to_value(value) for name, value in args.items()}


def check_reaches_end(name: str, states: Mapping[str, ir.State], location: Location) -> None:
    """A parser can end."""
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
        targets: Iterable[str]
        if isinstance(transition, ir.Goto):
            targets = (transition.state,)
        else:
            # Where no case matches, the parser ends with an error.
            if not _always_matches(transition):
                return
            targets = (each.state for each in transition.cases)
        pending.extend(targets)
    raise P4Error(f"parser `{name}` never ends: neither accept nor reject can be reached", location)


def _always_matches(select: ir.Select) -> bool:
    return any(all(isinstance(key, ir.AnySet) for key in case.keys) for case in select.cases)
