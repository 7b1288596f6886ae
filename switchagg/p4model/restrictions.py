"""What the language and the core library forbid beyond types: each rule a function that raises `P4Error`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from switchagg.p4model import ir
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.symbols import Frame
from switchagg.p4model.types import (
    BitType,
    BlockType,
    BoolType,
    Direction,
    EnumType,
    ErrorType,
    ExternType,
    FieldsType,
    HeaderType,
    InfIntType,
    IntType,
    ListType,
    Method,
    PackageType,
    Parameter,
    StackType,
    StringType,
    StructType,
    TupleType,
    Type,
    TypeVar,
    UnionType,
    VarbitType,
    VoidType,
    has_varbit,
    underlying,
    width_of,
)


def parameter(param: Parameter, *, constructor: bool) -> None:
    """A parameter of anything."""
    if isinstance(param.type, VoidType):
        raise P4Error(f"parameter `{param.name}` cannot be void", param.location)
    unpassable = ExternType | BlockType | PackageType | StringType
    if param.direction is not Direction.NONE and isinstance(param.type, unpassable):
        raise P4Error(
            f"parameter `{param.name}` of type `{param.type}` cannot have a direction", param.location
        )
    if not constructor and isinstance(param.type, BlockType | PackageType):
        raise P4Error(f"`{param.type}` can only be the type of a constructor's parameter", param.location)
    if param.direction is not Direction.NONE and param.optional and constructor:
        raise P4Error(f"constructor parameter `{param.name}` cannot have a direction", param.location)


def own_parameter(param: Parameter, kind: str) -> None:
    """A parameter of a function or action of the program."""
    if param.optional:
        raise P4Error(f"parameter `{param.name}` of a {kind} cannot be @optional", param.location)
    if kind == "action" and isinstance(param.type, InfIntType | StringType | ExternType | BlockType):
        raise P4Error(f"a parameter of an action cannot be of type `{param.type}`", param.location)


def type_arguments(bindings: Mapping[TypeVar, Type], name: str, location: Location) -> None:
    """What a call's type parameters can stand for."""
    for variable, bound in bindings.items():
        if isinstance(bound, VoidType | BlockType | PackageType):
            raise P4Error(f"type argument `{variable}` of `{name}` cannot be `{bound}`", location)
        if has_plain_int(bound):
            raise P4Error(
                f"type argument `{variable}` of `{name}` has no width: write a number as in 8w1", location
            )


def has_plain_int(type_: Type) -> bool:
    """Whether `int` occurs in a type."""
    match type_:
        case InfIntType():
            return True
        case TupleType(elements):
            return any(map(has_plain_int, elements))
        case ListType(element):
            return has_plain_int(element)
        case StructType(name=""):
            return any(has_plain_int(each.type) for each in type_.fields)
        case _:
            return False


def extern_call(method: Method, frame: Frame, location: Location) -> None:
    """Where functions of the core library can be called."""
    if method.name == "verify" and not method.owner and frame.kind != "parser":
        raise P4Error("`verify` can only be called in a parser", location)


def packet_method(call: ir.MethodCall) -> None:
    """What packet_in and packet_out take."""
    owner, name = call.method.owner, call.method.name
    first = call.args[0].value if call.args else None
    if (owner, name) == ("packet_in", "extract"):
        if first is None:
            return
        if not isinstance(first.type, HeaderType):
            raise P4Error(f"`extract` takes a header, not `{first.type}`", first.location)
        varbits = sum(isinstance(each.type, VarbitType) for each in first.type.fields)
        if len(call.args) == 1 and varbits:
            raise P4Error(f"`{first.type}` has a varbit: `extract` needs its length too", first.location)
        if len(call.args) == 2 and not varbits:
            raise P4Error(f"`{first.type}` has no varbit whose length could be given", first.location)
    elif (owner, name) == ("packet_in", "lookahead"):
        if width_of(call.type) is None or has_varbit(call.type):
            raise P4Error(f"`lookahead` needs a type of fixed size, not `{call.type}`", call.location)
    elif (owner, name) == ("packet_out", "emit") and first is not None and not _emittable(first.type):
        raise P4Error(f"`emit` takes headers, not `{first.type}`", first.location)


def _emittable(type_: Type) -> bool:
    if isinstance(type_, StructType):
        return all(_emittable(each.type) for each in type_.fields)
    return isinstance(type_, HeaderType | StackType | UnionType)


def header(type_: FieldsType) -> None:
    """A header's fields together."""
    varbits = [each for each in type_.fields if isinstance(each.type, VarbitType)]
    if isinstance(type_, HeaderType) and len(varbits) > 1:
        raise P4Error(
            f"header `{type_}` has more than one varbit",
            varbits[1].location,
            notes=(("the first is here", varbits[0].location),),
        )


def control_plane_data(action: ir.Action, location: Location) -> None:
    """What a table's entries can carry for an action."""
    for param in action.params:
        scalar = BitType | IntType | BoolType | ErrorType | EnumType
        if param.direction is Direction.NONE and not isinstance(underlying(param.type), scalar):
            raise P4Error(
                f"parameter `{param.name}` of action `{action.name}` is of type `{param.type}`, "
                "which no entry can give",
                location,
                notes=(("the parameter is declared here", param.location),),
            )


def reaches_an_end(name: str, states: Mapping[str, ir.State], location: Location) -> None:
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
