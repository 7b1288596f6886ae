"""How calls of core.p4's externs are written: packet_in, packet_out, verify."""

from __future__ import annotations

from typing import Final

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.expressions import expression, from_bits
from switchagg.p4model.runtime.lvalues import reference, settled
from switchagg.p4model.runtime.target import Call, Lowering
from switchagg.p4model.types import HeaderType, UnionType, has_varbit, underlying, width_of


def _extract(call: Call) -> str:
    body, packet = call.body, call.object
    arguments = [each.value for each in call.call.args]
    header = arguments[0]
    if header is None:
        assert isinstance(call.call, ir.MethodCall)
        size = call.width_of(call.call.type_args[0], "a header")
        body.emit(f"{packet}.advance({size})")
        return ""
    if not isinstance(underlying(header.type), HeaderType):
        raise unsupported(f"extract into a {header.type}", header.location)
    extra = ""
    if len(arguments) == 2 and arguments[1] is not None:
        extra = f", {expression(body, arguments[1])}"
    target, stack = _header(body, header)
    body.emit(f"{target}.extract({packet}{extra})")
    if stack:
        body.emit(f"{stack}.next += 1")
    if call.module.traced:
        body.emit(f"TR.extract({_shown(header)!r}, {target if not stack else stack + '.last()'})")
    return ""


def _header(body: Body, header: ir.Expr) -> tuple[str, str]:
    """Code of the header to fill, and of the stack whose next one it is."""
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
    assert isinstance(call.call, ir.MethodCall)
    type_ = call.call.type_args[0]
    size = width_of(type_)
    if size is None or has_varbit(type_):
        raise unsupported(f"lookahead of a {type_}", call.location)
    # The packet may be too short: that must show here and not where the value is used.
    return from_bits(call.body, type_, call.body.hold(f"{call.object}.peek({size})"))


def _advance(call: Call) -> str:
    call.body.emit(f"{call.object}.advance({call.value('sizeInBits')})")
    return ""


def _length(call: Call) -> str:
    return f"{call.object}.length()"


def _emit(call: Call) -> str:
    arguments = [each.value for each in call.call.args]
    header = arguments[0]
    assert header is not None
    call.body.emit(f"{expression(call.body, header)}.emit({call.object})")
    return ""


def _verify(call: Call) -> str:
    condition, error = call.values(*(each.param.name for each in call.call.args))
    call.body.emit(f"if not {condition}:")
    call.body.emit(f"    raise ParserReject({error})")
    return ""


CORE_FUNCTIONS: Final[dict[str, Lowering]] = {"verify": _verify}
CORE_METHODS: Final[dict[tuple[str, str], Lowering]] = {
    ("packet_in", "extract"): _extract,
    ("packet_in", "lookahead"): _lookahead,
    ("packet_in", "advance"): _advance,
    ("packet_in", "length"): _length,
    ("packet_out", "emit"): _emit,
}
