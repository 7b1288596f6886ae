"""Resolves types as written: names, widths, generic declarations and their instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchagg.p4model import ast
from switchagg.p4model import types as ty
from switchagg.p4model.ast import find_annotation
from switchagg.p4model.errors import Location, P4Error, declared_twice, misused, unsupported
from switchagg.p4model.symbols import Block, Env, Generic, NamedType
from switchagg.p4model.types import MAX_WIDTH, Type, has_variables, underlying

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


_PLAIN = {str(each): each for each in (ty.BOOL, ty.ERROR, ty.MATCH_KIND, ty.STRING, ty.VOID)}


class Types:
    """Resolves and declares types."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.generics: dict[str, Generic] = {}

    # ---- use

    def resolve(self, node: ast.TypeNode, env: Env) -> Type:
        """The type that is written. Raises `P4Error` for an unknown name or wrong type arguments."""
        match node:
            case ast.BaseType():
                return self._base(node, env)
            case ast.NamedType():
                return self._named(node, env)
            case ast.SpecializedType():
                return self._specialized(node, env)
            case ast.ArrayType():
                return self._stack(node, env)
            case ast.TupleTypeNode():
                return ty.TupleType(tuple(self._element(each, env) for each in node.args))
            case ast.ListTypeNode():
                return ty.ListType(self.value_type(node.element, env))
            case _:
                return ty.DONT_CARE

    def value_type(self, node: ast.TypeNode, env: Env) -> Type:
        """A type that a variable, field or tuple element can have."""
        type_ = self.resolve(node, env)
        if isinstance(type_, ty.VoidType | ty.PackageType | ty.BlockType):
            raise P4Error(f"`{type_}` is no type of a value", node.location)
        return type_

    def _element(self, node: ast.TypeNode, env: Env) -> Type:
        type_ = self.value_type(node, env)
        if isinstance(type_, ty.ExternType):
            raise P4Error(f"a tuple cannot have an element of extern type `{type_}`", node.location)
        return type_

    def _base(self, node: ast.BaseType, env: Env) -> Type:
        if node.name in _PLAIN:
            return _PLAIN[node.name]
        if node.width is None:
            return ty.INT if node.name == "int" else ty.BitType(1)
        width = self.checker.exprs.constant_int(node.width, env)
        if width < 0 or (width == 0 and node.name == "int"):
            raise P4Error(f"{node.name}<{width}> is no type: its width is too small", node.width.location)
        if width > MAX_WIDTH and node.name != "varbit":
            raise P4Error(
                f"{node.name}<{width}> is wider than the {MAX_WIDTH} bits supported", node.width.location
            )
        return {"bit": ty.BitType, "int": ty.IntType, "varbit": ty.VarbitType}[node.name](width)

    def _symbol(self, node: ast.NamedType, env: Env) -> NamedType | Generic | Block:
        symbol = env.lookup(node.name, top=node.absolute)
        if symbol is None:
            raise P4Error(f"type `{node.name}` is not declared", node.location)
        if not isinstance(symbol, NamedType | Generic | Block):
            raise misused(f"`{node.name}` is not a type", node.location, symbol.location)
        return symbol

    def _named(self, node: ast.NamedType, env: Env) -> Type:
        symbol = self._symbol(node, env)
        if isinstance(symbol, Generic):
            raise misused(
                f"`{node.name}` needs {len(symbol.type_params)} type argument(s), as in "
                f"`{node.name}<{', '.join(symbol.type_params)}>`",
                node.location,
                symbol.location,
            )
        return symbol.type

    def _specialized(self, node: ast.SpecializedType, env: Env) -> Type:
        symbol = self._symbol(node.base, env)
        if not isinstance(symbol, Generic):
            raise misused(f"`{node.base.name}` takes no type arguments", node.location, symbol.location)
        args = tuple(self.resolve(each, env) for each in node.args)
        return self.instantiate(symbol, args, node.location)

    def generic(self, node: ast.TypeNode, env: Env) -> Generic | None:
        """The generic declaration that a type without type arguments names, if it names one."""
        symbol = self._symbol(node, env) if isinstance(node, ast.NamedType) else None
        return symbol if isinstance(symbol, Generic) else None

    def block(self, node: ast.TypeNode, env: Env) -> Block | None:
        """The parser or control with a body that a type names."""
        symbol = env.lookup(node.name, top=node.absolute) if isinstance(node, ast.NamedType) else None
        return symbol if isinstance(symbol, Block) else None

    def _stack(self, node: ast.ArrayType, env: Env) -> Type:
        element = self.resolve(node.element, env)
        if not isinstance(element, ty.HeaderType | ty.UnionType):
            raise P4Error(f"a stack is of headers or header unions, not of `{element}`", node.location)
        size = self.checker.exprs.constant_int(node.size, env)
        if size <= 0:
            raise P4Error(f"a stack needs at least one element, not {size}", node.size.location)
        return ty.StackType(element, size)

    # ---- generic declarations

    def declare_generic(self, generic: Generic, env: Env) -> None:
        """Adds a type with type parameters, after checking its declaration."""
        name = generic.decl.name
        env.declare(name, generic)
        self.generics[name] = generic
        _no_duplicates(generic.decl.type_params, "type parameter")
        self.instantiate(generic, tuple(ty.TypeVar(each) for each in generic.type_params), generic.location)

    def instantiate_name(self, name: str, args: tuple[Type, ...]) -> Type:
        """The instance of a generic declaration that exists, as `generics.substitute` wants it."""
        generic = self.generics[name]
        return self.instantiate(generic, args, generic.location)

    def instantiate(self, generic: Generic, args: tuple[Type, ...], location: Location) -> Type:
        """The type of a generic declaration for these arguments. Equal arguments give the same object."""
        if len(args) != len(generic.type_params):
            raise misused(
                f"`{generic.decl.name}` needs {len(generic.type_params)} type argument(s), not {len(args)}",
                location,
                generic.location,
            )
        there = generic.cache.get(args)
        if there is not None:
            return there
        env = generic.env.child()
        for name, arg in zip(generic.decl.type_params, args, strict=True):
            env.declare(name.text, NamedType(arg, name.location))
        type_ = self._make(generic.decl, args, env)
        generic.cache[args] = type_
        return type_

    def _make(self, decl: ast.TypeDecl, args: tuple[Type, ...], env: Env) -> Type:
        match decl:
            case ast.FieldsDecl():
                return self.fields_type(decl, args, env)
            case ast.ExternDecl():
                return self.extern_type(decl, args, env)
            case ast.BlockTypeDecl():
                params = self.parameters(decl.params, env)
                return ty.BlockType(decl.name, decl.kind, params, args, (), decl.annotations, decl.location)
            case _:
                params = self.parameters(decl.params, env, constructor=True)
                return ty.PackageType(decl.name, params, args, decl.annotations, decl.location)

    # ---- declarations

    def fields_type(self, decl: ast.FieldsDecl, args: tuple[Type, ...], env: Env) -> Type:
        """A header, struct or union."""
        _no_duplicates(decl.fields, "field")
        fields = []
        for each in decl.fields:
            field_type = self.value_type(each.type, env)
            _check_field(decl.kind, each, field_type)
            fields.append(ty.Field(each.name, field_type, each.annotations, each.location))
        name = f"{decl.name}<{', '.join(map(str, args))}>" if args else decl.name
        make = {"header": ty.HeaderType, "struct": ty.StructType, "header_union": ty.UnionType}[decl.kind]
        generic = decl.name if args else ""
        type_ = make(name, tuple(fields), decl.annotations, decl.location, generic, args)
        check_header(type_)
        return type_

    def extern_type(self, decl: ast.ExternDecl, args: tuple[Type, ...], env: Env) -> ty.ExternType:
        """An extern object. Its methods see its type parameters, and its own name."""
        methods = [self.method(each, env, decl.name) for each in decl.methods]
        for each in methods:
            if each.returns is None and each.name != decl.name:
                raise P4Error(f"constructor `{each.name}` is not named `{decl.name}`", each.location)
            if each.returns is not None and each.name == decl.name:
                raise P4Error(f"a constructor of `{decl.name}` returns nothing", each.location)
        _no_equal_overloads(methods)
        return ty.ExternType(
            decl.name,
            args,
            tuple(each for each in methods if each.returns is None),
            tuple(each for each in methods if each.returns is not None),
            decl.annotations,
            decl.location,
        )

    def method(self, decl: ast.MethodDecl, env: Env, owner: str) -> ty.Method:
        """A prototype."""
        inner = env.child()
        variables = self.type_variables(decl.type_params, inner)
        params = self.parameters(decl.params, inner, constructor=decl.returns is None)
        returns = None if decl.returns is None else self.resolve(decl.returns, inner)
        if isinstance(returns, ty.InfIntType | ty.BlockType | ty.PackageType):
            raise P4Error(f"`{decl.name}` cannot return `{returns}`", decl.location)
        return ty.Method(
            decl.name, owner, variables, params, returns, decl.abstract, decl.annotations, decl.location
        )

    def type_variables(self, names: tuple[ast.Name, ...], env: Env) -> tuple[ty.TypeVar, ...]:
        """Declares type parameters."""
        _no_duplicates(names, "type parameter")
        variables = tuple(ty.TypeVar(each.text) for each in names)
        for name, variable in zip(names, variables, strict=True):
            env.declare(name.text, NamedType(variable, name.location))
        return variables

    def parameters(
        self, decls: tuple[ast.ParamDecl, ...], env: Env, *, constructor: bool = False
    ) -> tuple[ty.Parameter, ...]:
        """Parameters, with their default values."""
        _no_duplicates(decls, "parameter")
        params = []
        for each in decls:
            type_ = self.resolve(each.type, env)
            optional = find_annotation(each.annotations, "optional") is not None
            default = None
            if each.default is not None:
                if each.direction in ("out", "inout"):
                    raise P4Error(
                        f"{each.direction} parameter `{each.name}` cannot have a default", each.location
                    )
                formal = None if has_variables(type_) else type_
                default = self.checker.exprs.constant(each.default, env, formal, f"default of `{each.name}`")
            direction = ty.Direction(each.direction)
            param = ty.Parameter(
                each.name, direction, type_, default, optional, each.annotations, each.location
            )
            check_parameter(param, constructor=constructor)
            params.append(param)
        return tuple(params)

    def enum(self, decl: ast.EnumDecl, env: Env) -> ty.EnumType | ty.SerEnumType:
        """An enum, with or without an underlying type."""
        _no_duplicates(tuple(name for name, _ in decl.members), "member")
        if not decl.members:
            raise P4Error(f"enum `{decl.name}` has no members", decl.location)
        if decl.type is None:
            for name, value in decl.members:
                if value is not None:
                    raise P4Error(
                        f"`{name.text}` has a value, but enum `{decl.name}` has no underlying type",
                        value.location,
                    )
            return ty.EnumType(
                decl.name, tuple(name.text for name, _ in decl.members), decl.annotations, decl.location
            )
        representation = self.resolve(decl.type, env)
        if not isinstance(representation, ty.BitType | ty.IntType):
            raise P4Error(
                f"an enum is represented by bit<N> or int<N>, not `{representation}`", decl.type.location
            )
        members: dict[str, int] = {}
        for name, value in decl.members:
            if value is None:
                raise P4Error(
                    f"member `{name.text}` needs a value, as `{decl.name}` has a type", name.location
                )
            members[name.text] = self.checker.exprs.constant_int(value, env, representation)
        return ty.SerEnumType(decl.name, representation, members, decl.annotations, decl.location)

    def new_type(self, decl: ast.TypedefDecl, env: Env) -> ty.NewType:
        """`type T name;`"""
        assert isinstance(decl.type, ast.TypeNode)
        type_ = self.resolve(decl.type, env)
        if not isinstance(underlying(type_), ty.BitType | ty.IntType | ty.BoolType | ty.VarbitType):
            raise P4Error(
                f"`type` makes new types of bit<N>, int<N> or bool, not of `{type_}`", decl.location
            )
        return ty.NewType(decl.name, type_, decl.annotations, decl.location)


def _check_field(kind: str, decl: ast.FieldDecl, type_: Type) -> None:
    inner = underlying(type_)
    if isinstance(inner, ty.TypeVar | type(ty.DONT_CARE)):
        return
    allowed: tuple[type[Type], ...]
    match kind:
        case "header":
            allowed = (ty.BitType, ty.IntType, ty.VarbitType, ty.BoolType, ty.StructType)
            if isinstance(inner, ty.StructType):
                for each in inner.fields:
                    _check_header_struct(each.type, decl)
        case "header_union":
            allowed = (ty.HeaderType,)
        case _:
            allowed = (
                ty.BitType, ty.IntType, ty.VarbitType, ty.BoolType, ty.StructType, ty.HeaderType,
                ty.UnionType, ty.StackType, ty.TupleType, ty.EnumType, ty.ErrorType,
            )  # fmt: skip
            if isinstance(inner, ty.ListType | ty.ExternType):
                raise unsupported(f"a struct's field of type `{type_}`", decl.location)
    if not isinstance(inner, allowed):
        raise P4Error(f"a {kind} cannot have a field of type `{type_}`", decl.location)


def _check_header_struct(type_: Type, decl: ast.FieldDecl) -> None:
    inner = underlying(type_)
    if isinstance(inner, ty.StructType):
        for each in inner.fields:
            _check_header_struct(each.type, decl)
    elif not isinstance(inner, ty.BitType | ty.IntType | ty.BoolType | ty.TypeVar):
        raise P4Error(f"a header cannot have a field with a part of type `{type_}`", decl.location)


def _no_duplicates(decls: tuple[ast.Decl, ...] | tuple[ast.Name, ...], what: str) -> None:
    seen: dict[str, Location] = {}
    for each in decls:
        name = each.text if isinstance(each, ast.Name) else each.name
        if name in seen:
            raise declared_twice(f"{what} `{name}` is declared twice", each.location, seen[name])
        seen[name] = each.location


def _no_equal_overloads(methods: list[ty.Method]) -> None:
    for index, new in enumerate(methods):
        for old in methods[:index]:
            same = [each.name for each in new.params] == [each.name for each in old.params]
            if new.name == old.name and same:
                raise declared_twice(
                    f"`{new}` is declared twice with the same parameters", new.location, old.location
                )


def check_parameter(param: ty.Parameter, *, constructor: bool) -> None:
    """Raises `P4Error` for a type or direction that no parameter can have."""
    if isinstance(param.type, ty.VoidType):
        raise P4Error(f"parameter `{param.name}` cannot be void", param.location)
    unpassable = ty.ExternType | ty.BlockType | ty.PackageType | ty.StringType
    if param.direction is not ty.Direction.NONE and isinstance(param.type, unpassable):
        raise P4Error(
            f"parameter `{param.name}` of type `{param.type}` cannot have a direction", param.location
        )
    if not constructor and isinstance(param.type, ty.BlockType | ty.PackageType):
        raise P4Error(f"`{param.type}` can only be the type of a constructor's parameter", param.location)
    if param.direction is not ty.Direction.NONE and param.optional and constructor:
        raise P4Error(f"constructor parameter `{param.name}` cannot have a direction", param.location)


def check_header(type_: ty.FieldsType) -> None:
    """Raises `P4Error` for a header with more than one varbit."""
    varbits = [each for each in type_.fields if isinstance(each.type, ty.VarbitType)]
    if isinstance(type_, ty.HeaderType) and len(varbits) > 1:
        raise P4Error(
            f"header `{type_}` has more than one varbit",
            varbits[1].location,
            ("the first is here", varbits[0].location),
        )
