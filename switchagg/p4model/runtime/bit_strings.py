"""Values laid out as bit strings: what hashes, checksums and mirrored headers are made of.

A bit string is a pair (bits, value). What is known at translation becomes one expression of shifts. bmv2
leaves the fields of invalid headers out of what it hashes; there, the fields of one header that follow each
other are a run that is there if the header is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from switchagg.p4model import ir
from switchagg.p4model.runtime.emit import Body
from switchagg.p4model.runtime.expressions import expression
from switchagg.p4model.runtime.header_classes import to_pattern
from switchagg.p4model.types import (
    FieldsType,
    HeaderType,
    StackType,
    TupleType,
    Type,
    VarbitType,
    underlying,
    width_of,
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Codes of bits and value, and of the header that must be valid, if any."""

    bits: str
    value: str
    header: str | None


def bit_string(body: Body, expr: ir.Expr) -> str:
    """Code of a value as (bits, value)."""
    parts = _element(body, expr)
    runs = [(header, list(run)) for header, run in groupby(parts, lambda piece: piece.header)]
    codes = [_run(header, run) for header, run in runs]
    if not codes:
        return "(0, 0)"
    return codes[0] if len(codes) == 1 else f"join({', '.join(codes)})"


def _run(header: str | None, run: list[_Piece]) -> str:
    if all(piece.bits.isdigit() for piece in run):
        total = left = sum(int(piece.bits) for piece in run)
        terms = []
        for piece in run:
            left -= int(piece.bits)
            terms.append(f"({piece.value}) << {left}" if left else f"({piece.value})")
        code = f"({total}, {' | '.join(terms)})"
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
