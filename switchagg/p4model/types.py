"""The types of P4_16 after resolution: no typedefs, no unresolved names, generics replaced by instances.

Structural types (bit<8>, tuple<...>, stacks) compare by what they are made of. Nominal types (headers,
structs, enums, externs, ...) compare by identity: one declaration gives one object, and a generic
declaration one object for each list of type arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final

from switchagg.p4model.ast import Annotation, Record
from switchagg.p4model.errors import NOWHERE, Location

if TYPE_CHECKING:
    from switchagg.p4model.ir import Expr


MAX_WIDTH: Final = 2048
"""Bits of the widest bit<N>: what p4c allows by default."""


class Type:
    """Base of all types. `str()` gives the type as P4 writes it."""

    __slots__ = ()


class Direction(StrEnum):
    """Direction of a parameter. `NONE`: control-plane data, an extern, or a constant."""

    NONE = ""
    IN = "in"
    OUT = "out"
    INOUT = "inout"


# ---- scalars


@dataclass(frozen=True)
class _WordType(Type):
    """Base of types that P4 writes as one word."""

    _word: ClassVar[str]

    def __init_subclass__(cls, word: str = "") -> None:
        cls._word = word

    def __str__(self) -> str:
        return self._word


@dataclass(frozen=True)
class _SizedType(_WordType):
    """Base of types that P4 writes as a word and a width."""

    width: int

    def __str__(self) -> str:
        return f"{self._word}<{self.width}>"


class BitType(_SizedType, word="bit"):
    """Unsigned, `width` bits; width 0 is allowed."""


class IntType(_SizedType, word="int"):
    """Signed, two's complement, `width` bits."""


class VarbitType(_SizedType, word="varbit"):
    """From 0 to `width` bits, known at run time."""


class InfIntType(_WordType, word="int"):
    """`int`: an integer of any size, at compile time only."""


class BoolType(_WordType, word="bool"):
    """`bool`"""


class StringType(_WordType, word="string"):
    """`string`: at compile time only."""


class VoidType(_WordType, word="void"):
    """`void`: of calls that return nothing."""


class ErrorType(_WordType, word="error"):
    """`error`: its members are `Program.errors`."""


class MatchKindType(_WordType, word="match_kind"):
    """`match_kind`"""


class DontCareType(_WordType, word="_"):
    """The type of `_` and `default` where a set of any type is expected, and of `...`."""


class _NominalType(Record, Type):
    """Base of types that are known by their name, with type arguments if there are any."""

    name: str

    def __str__(self) -> str:
        args: tuple[Type, ...] = getattr(self, "type_args", ())
        return f"{self.name}<{', '.join(map(str, args))}>" if args else self.name


class EnumType(_NominalType):
    """An enum without representation: only its members' names count."""

    members: tuple[str, ...]
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


class SerEnumType(_NominalType):
    """An enum with an underlying bit<N> or int<N>; values that no member names are possible too."""

    underlying: BitType | IntType
    members: Mapping[str, int]
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


class NewType(_NominalType):
    """`type bit<9> PortId_t;`: represented as its underlying type, distinct from it."""

    underlying: Type
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


# ---- aggregates


class Field(Record):
    """A field of a header, struct or union."""

    name: str
    type: Type
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


class FieldsType(Record, Type):
    """Base of header, struct and header_union. `name` includes type arguments, as in `S<bit<8>>`."""

    name: str
    fields: tuple[Field, ...]
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE
    generic: str = ""
    type_args: tuple[Type, ...] = ()
    _by_name: dict[str, Field] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._by_name.update({each.name: each for each in self.fields})

    def find(self, name: str) -> Field | None:
        """The field of this name, if there is one."""
        return self._by_name.get(name)

    def __str__(self) -> str:
        return self.name


class HeaderType(FieldsType):
    """A header: fields and a validity bit."""


class StructType(FieldsType):
    """A struct. With an empty name it is the type of `{a = 1, b = 2}` where no other type was expected."""


class UnionType(FieldsType):
    """A header_union: at most one of its headers is valid."""


@dataclass(frozen=True, slots=True)
class StackType(Type):
    """`element[size]`: a stack of headers or header unions."""

    element: HeaderType | UnionType
    size: int

    def __str__(self) -> str:
        return f"{self.element}[{self.size}]"


@dataclass(frozen=True, slots=True)
class TupleType(Type):
    """`tuple<...>`, and the type of `{a, b}` where no other type was expected."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True, slots=True)
class ListType(Type):
    """`list<element>`: at compile time only."""

    element: Type

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class SetType(Type):
    """The type of masks, ranges, value sets and `_` in keysets."""

    element: Type

    def __str__(self) -> str:
        return f"set<{self.element}>"


# ---- what can be called or instantiated


class TypeVar(_NominalType):
    """A type parameter, before it is replaced by an argument."""


class Parameter(Record):
    """A parameter of anything that has some. With a `default`, or `optional`, an argument may be missing.

    For a parameter of a body that the program contains, `ir.Variable` is what expressions refer to.
    """

    name: str
    direction: Direction
    type: Type
    default: Expr | None = None
    optional: bool = False
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


class Method(Record):
    """A method or a constructor of an extern, or an extern function; several can have one name.

    `returns` is None for a constructor. `owner` is the extern's name, empty for a function.
    """

    name: str
    owner: str
    type_params: tuple[TypeVar, ...]
    params: tuple[Parameter, ...]
    returns: Type | None
    abstract: bool = False
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


class ExternType(_NominalType):
    """An extern, with its type arguments. One object for each list of arguments."""

    type_args: tuple[Type, ...]
    constructors: tuple[Method, ...]
    methods: tuple[Method, ...]
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE

    def find(self, name: str) -> tuple[Method, ...]:
        """All methods of this name; overloads differ in their number of parameters."""
        return tuple(each for each in self.methods if each.name == name)


class BlockType(_NominalType):
    """The type of a parser or control: of one with a body, or declared by an architecture."""

    kind: str
    """`parser` or `control`"""
    params: tuple[Parameter, ...]
    type_args: tuple[Type, ...] = ()
    constructor_params: tuple[Parameter, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


class PackageType(_NominalType):
    """A package of an architecture, with its type arguments."""

    constructor_params: tuple[Parameter, ...]
    type_args: tuple[Type, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    location: Location = NOWHERE


class ApplyResultType(Record, Type):
    """The type of `table.apply()`: `hit` and `miss` are bool, `action_run` is the action (in switch)."""

    table: str

    def __str__(self) -> str:
        return f"apply_result({self.table})"


BOOL = BoolType()
INT = InfIntType()
STRING = StringType()
VOID = VoidType()
ERROR = ErrorType()
MATCH_KIND = MatchKindType()
DONT_CARE = DontCareType()


def underlying(type_: Type) -> Type:
    """The type that represents values: looks through `type` declarations and serializable enums."""
    while isinstance(type_, NewType | SerEnumType):
        type_ = type_.underlying
    return type_


def width_of(type_: Type) -> int | None:
    """Bits of a value in a header or table key: a varbit's maximum, 1 for bool. None without a fixed size."""
    type_ = underlying(type_)
    match type_:
        case BitType(width) | IntType(width) | VarbitType(width):
            return width
        case BoolType():
            return 1
        case StackType(element, size):
            return total(sum, [width_of(element)] * size)
        case TupleType(elements):
            return total(sum, map(width_of, elements))
        case FieldsType():
            combine = functools.partial(max, default=0) if isinstance(type_, UnionType) else sum
            return total(combine, [width_of(each.type) for each in type_.fields])
        case _:
            return None


def total(combine: Callable[[list[int]], int], widths: Iterable[int | None]) -> int | None:
    """The widths combined, for example by `sum`; None if one of them is."""
    known = []
    for each in widths:
        if each is None:
            return None
        known.append(each)
    return combine(known)


def has_varbit(type_: Type) -> bool:
    """True if the size of a value is known only at run time."""
    match underlying(type_):
        case VarbitType():
            return True
        case StackType(element, _):
            return has_varbit(element)
        case TupleType(elements):
            return any(map(has_varbit, elements))
        case FieldsType() as aggregate:
            return any(has_varbit(each.type) for each in aggregate.fields)
        case _:
            return False


Bindings = dict[TypeVar, Type]
Instantiate = Callable[[str, tuple[Type, ...]], Type]
"""Makes a type of a generic declaration, by name, and type arguments."""


def has_variables(type_: Type) -> bool:
    """True if the type contains a type parameter or `_`."""
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
        case ListType(element) | SetType(element):
            return type(type_)(again(element))
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
    """Binds variables of `open_` in the formal type so that the actual one fits; False if that is impossible.

    Types without variables give True: they are compared when the argument is converted. A variable bound to
    `int`, by a number without width, is bound again by a type with a width.
    """
    match formal:
        case TypeVar() if formal in open_:
            return _bind(formal, actual, bindings)
        case TupleType(elements):
            if isinstance(actual, TupleType):
                return _unify_all(elements, actual.elements, bindings, open_)
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
        case ExternType() | PackageType() if isinstance(actual, ExternType | PackageType):
            same = type(formal) is type(actual) and formal.name == actual.name
            return same and _unify_all(formal.type_args, actual.type_args, bindings, open_)
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
    # An implicit cast may still be possible: it is tried when the argument is converted.
    return True


def _unify_all(
    formal: tuple[Type, ...], actual: tuple[Type, ...], bindings: Bindings, open_: frozenset[TypeVar]
) -> bool:
    return len(formal) == len(actual) and all(
        unify(left, right, bindings, open_) for left, right in zip(formal, actual, strict=True)
    )


def _unify_fields(formal: FieldsType, actual: Type, bindings: Bindings, open_: frozenset[TypeVar]) -> bool:
    if isinstance(actual, TupleType):
        return _unify_all(tuple(each.type for each in formal.fields), actual.elements, bindings, open_)
    if not isinstance(actual, FieldsType):
        return not has_variables(formal)
    if actual.generic == formal.generic:
        return _unify_all(formal.type_args, actual.type_args, bindings, open_)
    for each in formal.fields:
        there = actual.find(each.name)
        if there is not None and not unify(each.type, there.type, bindings, open_):
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
