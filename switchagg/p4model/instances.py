"""Making instances: extern objects, parsers, controls and packages, with their constructors' arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir
from switchagg.p4model.calls import accepts, match_arguments
from switchagg.p4model.casts import fit
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.generics import Bindings, has_variables, substitute
from switchagg.p4model.names import control_name
from switchagg.p4model.symbolic import is_constant, to_value
from switchagg.p4model.symbols import Block, Env, Generic
from switchagg.p4model.types import (
    DONT_CARE,
    BlockType,
    DontCareType,
    ExternType,
    Method,
    PackageType,
    Type,
    TypeVar,
)

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


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


__all__ = ["Instances", "Method", "argument_values"]
