"""Type parameters: replacing them by arguments, and finding the arguments from what a call is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from switchagg.p4model.types import (
    DONT_CARE,
    BitType,
    BlockType,
    DontCareType,
    ExternType,
    FieldsType,
    HeaderType,
    InfIntType,
    IntType,
    ListType,
    PackageType,
    SetType,
    StackType,
    TupleType,
    Type,
    TypeVar,
    UnionType,
)

Bindings = dict[TypeVar, Type]
Instantiate = Callable[[str, tuple[Type, ...]], Type]
"""Makes a type of a generic declaration, by name, and type arguments."""


def has_variables(type_: Type) -> bool:
    """Whether there is a type parameter, or `_`, in it."""
    match type_:
        case TypeVar() | DontCareType():
            return True
        case TupleType(elements):
            return any(map(has_variables, elements))
        case ListType(element) | SetType(element) | StackType(element, _):
            return has_variables(element)
        case FieldsType() | ExternType() | BlockType() | PackageType():
            return any(map(has_variables, type_.type_args))
        case _:
            return False


def substitute(type_: Type, bindings: Mapping[TypeVar, Type], instantiate: Instantiate) -> Type:
    """The type with its parameters replaced as far as they are bound."""
    if not has_variables(type_):
        return type_

    def again(part: Type) -> Type:
        return substitute(part, bindings, instantiate)

    match type_:
        case TypeVar():
            bound = bindings.get(type_, type_)
            return bound if bound is type_ or not has_variables(bound) else again(bound)
        case TupleType(elements):
            return TupleType(tuple(map(again, elements)))
        case ListType(element):
            return ListType(again(element))
        case SetType(element):
            return SetType(again(element))
        case StackType(element, size):
            new = again(element)
            assert isinstance(new, HeaderType | UnionType)
            return StackType(new, size)
        case FieldsType():
            return instantiate(type_.generic, tuple(map(again, type_.type_args)))
        case ExternType() | BlockType() | PackageType():
            return instantiate(type_.name, tuple(map(again, type_.type_args)))
        case _:
            return type_


def unify(formal: Type, actual: Type, bindings: Bindings, open_: frozenset[TypeVar]) -> bool:
    """Binds variables of `open_` in the formal type so that the actual one fits; false where it cannot.

    Where no variable is concerned the answer is true: whether the types agree is found out when the
    argument is converted. A variable bound to `int`, by a number without width, is bound anew by a type
    with a width.
    """
    match formal:
        case TypeVar() if formal in open_:
            return _bind(formal, actual, bindings)
        case TupleType(elements):
            if isinstance(actual, TupleType):
                return len(elements) == len(actual.elements) and all(
                    unify(left, right, bindings, open_)
                    for left, right in zip(elements, actual.elements, strict=True)
                )
            return not has_variables(formal)
        case SetType(element):
            return unify(element, actual.element if isinstance(actual, SetType) else actual, bindings, open_)
        case ListType(element):
            if isinstance(actual, ListType):
                return unify(element, actual.element, bindings, open_)
            if isinstance(actual, TupleType):
                return all(unify(element, each, bindings, open_) for each in actual.elements)
            return not has_variables(formal)
        case StackType(element, _):
            return not isinstance(actual, StackType) or unify(element, actual.element, bindings, open_)
        case FieldsType() if formal.generic:
            return _unify_fields(formal, actual, bindings, open_)
        case ExternType() if isinstance(actual, ExternType):
            return formal.name == actual.name and _unify_all(
                formal.type_args, actual.type_args, bindings, open_
            )
        case PackageType() if isinstance(actual, PackageType):
            return formal.name == actual.name and _unify_all(
                formal.type_args, actual.type_args, bindings, open_
            )
        case BlockType() if isinstance(actual, BlockType):
            return _unify_blocks(formal, actual, bindings, open_)
        case _:
            return True


def _bind(variable: TypeVar, actual: Type, bindings: Bindings) -> bool:
    bound = bindings.get(variable)
    if actual is DONT_CARE:
        return True
    if bound is None or bound is DONT_CARE or bound == actual:
        bindings[variable] = actual
        return True
    if isinstance(bound, InfIntType):
        if isinstance(actual, BitType | IntType):
            bindings[variable] = actual
        return isinstance(actual, BitType | IntType)
    # What is left may be an implicit cast, which is tried when the argument is converted.
    return True


def _unify_all(
    formal: tuple[Type, ...], actual: tuple[Type, ...], bindings: Bindings, open_: frozenset[TypeVar]
) -> bool:
    return len(formal) == len(actual) and all(
        unify(left, right, bindings, open_) for left, right in zip(formal, actual, strict=True)
    )


def _unify_fields(formal: FieldsType, actual: Type, bindings: Bindings, open_: frozenset[TypeVar]) -> bool:
    if isinstance(actual, TupleType):
        types = tuple(each.type for each in formal.fields)
        return len(types) == len(actual.elements) and _unify_all(types, actual.elements, bindings, open_)
    if not isinstance(actual, FieldsType):
        return not has_variables(formal)
    if actual.generic == formal.generic:
        return _unify_all(formal.type_args, actual.type_args, bindings, open_)
    for field in formal.fields:
        there = actual.find(field.name)
        if there is not None and not unify(field.type, there.type, bindings, open_):
            return False
    return True


def _unify_blocks(
    formal: BlockType, actual: BlockType, bindings: Bindings, open_: frozenset[TypeVar]
) -> bool:
    required = [each for each in formal.params if not each.optional]
    if formal.kind != actual.kind or not len(required) <= len(actual.params) <= len(formal.params):
        return False
    # Optional parameters come last, and some of the last ones can be left out.
    return all(
        left.direction == right.direction and unify(left.type, right.type, bindings, open_)
        for left, right in zip(formal.params, actual.params, strict=False)
    )
