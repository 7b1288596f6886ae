"""Calls of externs as code: what all architectures share, bit strings, and core.p4's externs.

A lowering takes a `Call`, emits the statements of the call and returns the code of its value. A target has a
lowering for each extern function by `name`, and for each method by `extern.method`.

A bit string, the input of hashes and checksums, is a pair (bits, value). Parts that translation knows
become one expression of shifts. bmv2 leaves the fields of invalid headers out of a hash; there, the fields
of one header that follow each other are a run that is present if the header is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from string import Formatter
from typing import Final

from switchagg.p4model import ir
from switchagg.p4model.errors import Location, unsupported
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.expressions import expression, from_bits, lvalue, reference, settled
from switchagg.p4model.runtime.header_classes import concatenated, to_pattern
from switchagg.p4model.types import (
    FieldsType,
    HeaderType,
    StackType,
    TupleType,
    Type,
    UnionType,
    VarbitType,
    has_varbit,
    underlying,
    width_of,
)


class Call:
    """A call of an extern function or method, as a lowering sees it."""

    def __init__(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> None:
        self.body = body
        self.call = call
        self.module = body.module
        self.location: Location = call.location

    @property
    def method(self) -> ir.MethodCall:
        """The call, of a method."""
        assert isinstance(self.call, ir.MethodCall)
        return self.call

    @property
    def object(self) -> str:
        """Code of the object that the method belongs to."""
        target = self.method.target
        if isinstance(target, ir.ExternInstance):
            return self.module.extern(target)
        return expression(self.body, target)

    def argument(self, name: str) -> ir.Expr | None:
        """Returns the expression for a parameter; None if the call leaves it out or has no such parameter."""
        for each in self.call.args:
            if each.param.name == name:
                return each.value
        return None

    def required(self, name: str) -> ir.Expr:
        """Returns the expression for a parameter. Raises P4Error if the call leaves it out."""
        found = self.argument(name)
        if found is None:
            raise unsupported(f"{self.call.method} without {name}", self.location)
        return found

    def values(self, *names: str) -> list[str]:
        """Returns codes of arguments, evaluated in this order."""
        return self.body.ordered([partial(expression, self.body, each) for each in map(self.required, names)])

    def value(self, name: str) -> str:
        """Returns code of one argument."""
        return self.values(name)[0]

    def bits(self, name: str) -> str:
        """Returns code of an argument as a bit string: (bits, value)."""
        return bit_string(self.body, self.required(name))

    def store(self, name: str, code: str) -> None:
        """Assigns to an out parameter; does nothing if the call leaves it out."""
        found = self.argument(name)
        if found is not None:
            lvalue(self.body, found).store(code)

    def type(self, name: str) -> Type:
        """Returns the type of an argument."""
        return self.required(name).type

    def width(self, name: str) -> int:
        """Returns the bits of an argument. Raises P4Error if its size is not fixed."""
        return self.width_of(self.type(name), name)

    def width_of(self, type_: Type, what: str) -> int:
        """Returns the bits of a type. Raises P4Error if its size is not fixed."""
        width = width_of(type_)
        if width is None:
            raise unsupported(f"{self.call.method} with {what} of type {type_}", self.location)
        return width


Lowering = Callable[[Call], str | None]
"""Emits the statements of a call and returns the code of its value; None if nothing uses it."""


def lower(body: Body, call: ir.ExternCall | ir.MethodCall, lowerings: Mapping[str, Lowering]) -> str:
    """Returns code of the value of an extern's call; emits its statements.

    Raises P4Error for one that `lowerings` lack.
    """
    name = call.method.name
    if isinstance(call, ir.MethodCall):
        name = f"{call.method.owner}.{name}"
    if name not in lowerings:
        raise unsupported(f"{name} in {body.module.target.name}", call.location)
    return lowerings[name](Call(body, call)) or ""


def value(template: str) -> Lowering:
    """Returns the lowering to a template of the value's code, which names arguments and `object`."""
    fields = [field for _, field, _, _ in Formatter().parse(template) if field]
    names = [field for field in fields if field != "object"]

    def lowering(call: Call) -> str:
        owner = call.object if "object" in fields else ""
        return template.format(object=owner, **dict(zip(names, call.values(*names), strict=True)))

    return lowering


def does(template: str) -> Lowering:
    """Returns the lowering to a statement: a template as of `value`."""
    code = value(template)
    return lambda call: call.body.emit(code(call) or "")


@dataclass(frozen=True, slots=True)
class _Piece:
    """Codes of bits and value, and of the header that must be valid, if any."""

    bits: str
    value: str
    header: str | None


def bit_string(body: Body, expr: ir.Expr) -> str:
    """Returns code of a value as a bit string: (bits, value)."""
    parts = _element(body, expr)
    runs = [(header, list(run)) for header, run in groupby(parts, lambda piece: piece.header)]
    codes = [_run(header, run) for header, run in runs]
    if not codes:
        return "(0, 0)"
    return codes[0] if len(codes) == 1 else f"join({', '.join(codes)})"


def _run(header: str | None, run: list[_Piece]) -> str:
    if all(piece.bits.isdigit() for piece in run):
        pieces = [(f"({piece.value})", int(piece.bits)) for piece in run]
        code = f"({sum(bits for _, bits in pieces)}, {concatenated(pieces)})"
    else:
        code = f"join({', '.join(f'({piece.bits}, {piece.value})' for piece in run)})"
    return code if header is None else f"({code} if {header}.valid else (0, 0))"


def _element(body: Body, expr: ir.Expr) -> list[_Piece]:
    if isinstance(expr, ir.TupleLiteral | ir.StructLiteral):
        return [piece for element in expr.elements for piece in _element(body, element)]
    if isinstance(expr, ir.FieldAccess) and isinstance(underlying(expr.base.type), HeaderType):
        base = expression(body, expr.base)
        return _pieces(body, f"{base}.f_{expr.name}", expr.type, _guard(body, base))
    code = expression(body, expr)
    if not isinstance(expr, ir.VarRef | ir.FieldAccess | ir.Literal):
        code = body.hold(code)
    return _pieces(body, code, expr.type, None)


def _guard(body: Body, header: str) -> str | None:
    return header if body.module.target.hashes_valid_only else None


def _pieces(body: Body, code: str, type_: Type, header: str | None) -> list[_Piece]:
    base = underlying(type_)
    parts: list[tuple[str, Type]]
    if isinstance(base, TupleType):
        held = body.hold(code)
        parts = [(f"{held}[{place}]", each) for place, each in enumerate(base.elements)]
    elif isinstance(base, StackType):
        held = body.hold(code)
        parts = [(f"{held}.items[{place}]", base.element) for place in range(base.size)]
    elif isinstance(base, FieldsType):
        held = body.hold(code)
        if isinstance(base, HeaderType):
            header = _guard(body, held)
        parts = [(f"{held}.f_{each.name}", each.type) for each in base.fields]
    elif isinstance(base, VarbitType):
        return [_Piece(f"{code}[0]", f"{code}[1]", header)]
    else:
        width = width_of(base)
        return [_Piece(str(32 if width is None else width), to_pattern(base, code), header)]
    return [piece for each, each_type in parts for piece in _pieces(body, each, each_type, header)]


def _extract(call: Call) -> None:
    body, packet = call.body, call.object
    arguments = [each.value for each in call.call.args]
    header = arguments[0]
    if header is None:
        body.emit(f"{packet}.advance({call.width_of(call.method.type_args[0], 'a header')})")
        return
    if not isinstance(underlying(header.type), HeaderType):
        raise unsupported(f"extract into a {header.type}", header.location)
    extra = "".join(f", {expression(body, each)}" for each in arguments[1:] if each is not None)
    target, stack = _header(body, header)
    body.emit(f"{target}.extract({packet}{extra})")
    if stack:
        body.emit(f"{stack}.next += 1")
    if call.module.traced:
        body.emit(f"TR.extract({_shown(header)!r}, {target if not stack else stack + '.last()'})")


def _header(body: Body, header: ir.Expr) -> tuple[str, str]:
    """Returns code of the header to fill, and of the stack if it is the stack's next element."""
    if isinstance(header, ir.StackNext):
        stack = body.hold(reference(body, header.base))
        return f"{stack}.vacant()", stack
    if isinstance(header, ir.FieldAccess) and isinstance(underlying(header.base.type), UnionType):
        if isinstance(header.base, ir.StackNext):
            stack = body.hold(reference(body, header.base.base))
            return f"{stack}.vacant().only_{header.name}()", stack
        return f"{settled(body, header.base)}.only_{header.name}()", ""
    return settled(body, header), ""


def _shown(expr: ir.Expr) -> str:
    match expr:
        case ir.VarRef():
            return expr.variable.name
        case ir.FieldAccess():
            return f"{_shown(expr.base)}.{expr.name}"
        case ir.StackNext():
            return f"{_shown(expr.base)}.next"
        case ir.Index(index=ir.Literal(value=number)):
            return f"{_shown(expr.base)}[{number}]"
        case ir.Index():
            return f"{_shown(expr.base)}[...]"
        case _:
            return "?"


def _lookahead(call: Call) -> str:
    type_ = call.method.type_args[0]
    size = width_of(type_)
    if size is None or has_varbit(type_):
        raise unsupported(f"lookahead of a {type_}", call.location)
    # A packet that is too short is to be rejected here, not at the use of the value.
    return from_bits(call.body, type_, call.body.hold(f"{call.object}.peek({size})"))


def _emit(call: Call) -> None:
    arguments = [each.value for each in call.call.args]
    header = arguments[0]
    assert header is not None
    call.body.emit(f"{expression(call.body, header)}.emit({call.object})")


def _verify(call: Call) -> None:
    condition, error = call.values(*(each.param.name for each in call.call.args))
    call.body.emit(f"if not {condition}:")
    call.body.emit(f"    raise ParserReject({error})")


CORE: Final[dict[str, Lowering]] = {
    "verify": _verify,
    "packet_in.extract": _extract,
    "packet_in.lookahead": _lookahead,
    "packet_in.advance": does("{object}.advance({sizeInBits})"),
    "packet_in.length": value("{object}.length()"),
    "packet_out.emit": _emit,
}
