"""The packet header vector: an estimate of the bits that headers and metadata take."""

from __future__ import annotations

from collections.abc import Iterable

from switchagg.p4model import ir, walk
from switchagg.p4model.annotations import find
from switchagg.p4model.types import FieldsType, StackType, StructType, width_of


def bits(blocks: Iterable[ir.ParserInstance | ir.ControlInstance | None]) -> int:
    """Bits of what the blocks of ingress, or of egress, have in their headers and use of their metadata.

    A header that is extracted or made valid counts whole, in whole bytes. Other
    fields count if something mentions them, rounded up to containers of 8, 16 and 32 bits.
    """
    headers: dict[str, int] = {}
    mentioned: dict[str, int] = {}
    for block in blocks:
        for node in walk.nodes(*_bodies(block)) if block is not None else ():
            match node:
                case ir.MethodCall(method=method, args=args) if method.name == "extract":
                    if args[0].value is not None:
                        _header(args[0].value, headers)
                case ir.BuiltinCall(builtin=ir.Builtin.SET_VALID, base=base):
                    _header(base, headers)
                case ir.FieldAccess(base=base, name=name) if isinstance(base.type, StructType):
                    width = width_of(node.type)
                    if width is not None and not isinstance(node.type, FieldsType | StackType):
                        mentioned[f"{base.type.name}.{name}"] = width
                case ir.Declare(variable=variable):
                    mentioned[f"{variable.name}@{node.location}"] = width_of(variable.type) or 0
                case _:
                    pass
    return sum(headers.values()) + sum(map(_container, mentioned.values()))


def _header(expr: ir.Expr, found: dict[str, int]) -> None:
    """Adds a header by the struct that it is a field of, and its name there; of a stack, all of it."""
    if isinstance(expr, ir.StackNext | ir.StackLast | ir.Index):
        expr = expr.base
    if find(getattr(expr.type, "annotations", ()), "__intrinsic_metadata") is not None:
        return
    name = f"{expr.base.type}.{expr.name}" if isinstance(expr, ir.FieldAccess) else str(expr.type)
    count = expr.type.size if isinstance(expr.type, StackType) else 1
    element = expr.type.element if isinstance(expr.type, StackType) else expr.type
    found[name] = count * -(-(width_of(element) or 0) // 8) * 8


def _bodies(block: ir.ParserInstance | ir.ControlInstance) -> list[object]:
    if isinstance(block, ir.ParserInstance):
        return [
            block.prologue,
            *(state.body for state in block.states.values()),
            *(state.transition for state in block.states.values()),
        ]
    bodies: list[object] = [block.prologue, block.body]
    bodies += [each.body for each in block.actions]
    bodies += [key.expr for table in block.tables for key in table.keys]
    for instance in block.instances:
        if isinstance(instance, ir.ControlInstance):
            bodies += _bodies(instance)
        elif isinstance(instance, ir.ExternInstance):
            bodies += [each.body for each in instance.methods.values()]
    return bodies


def _container(width: int) -> int:
    whole, rest = divmod(width, 32)
    return whole * 32 + (0 if not rest else 8 if rest <= 8 else 16 if rest <= 16 else 32)
