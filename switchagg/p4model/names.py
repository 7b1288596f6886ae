"""Names as the control plane sees them."""

from __future__ import annotations

from collections.abc import Callable

from switchagg.p4model import ast
from switchagg.p4model.annotations import find
from switchagg.p4model.errors import P4Error
from switchagg.p4model.types import FieldsType, Type


def control_name(name: str, annotations: ast.Annotations, path: str) -> str:
    """The full name of what is declared as `name` in the block that is known as `path`."""
    note = find(annotations, "name")
    if note is not None:
        if len(note.values) != 1 or not isinstance(note.values[0], str):
            raise P4Error('@name takes one string, as in @name("x")', note.location)
        name = note.values[0]
        if name.startswith("."):
            return name[1:]
    return f"{path}.{name}" if path else name


def key_name(expr: ast.Expr, annotations: ast.Annotations, type_of: Callable[[ast.Expr], Type]) -> str:
    """The name of a table's key: its @name, or the expression as p4c writes it.

    Args:
        type_of: the type of an expression in the key; a field's @name replaces its name.

    Raises:
        P4Error: the expression is not one that p4c has a name for.
    """
    note = find(annotations, "name")
    if note is not None and note.values and isinstance(note.values[0], str):
        return note.values[0].removeprefix(".")

    def part(node: ast.Expr) -> str:
        match node:
            case ast.PathExpr():
                return node.name
            case ast.MemberExpr():
                return _member_name(part(node.base), node, type_of(node.base))
            case ast.CallExpr(callee=ast.MemberExpr(member="isValid") as callee):
                return f"{part(callee.base)}.$valid$"
            case ast.IndexExpr():
                return f"{part(node.base)}[{part(node.index)}]"
            case ast.SliceExpr(by_width=False):
                return f"{part(node.base)}[{part(node.first)}:{part(node.second)}]"
            case ast.IntExpr():
                return _number(node)
            case ast.BinaryExpr(op="&"):
                return f"{part(node.left)} & {part(node.right)}"
            case _:
                raise P4Error(
                    'a key that is not just a field needs a name: write @name("...")', node.location
                )

    return part(expr)


def _member_name(base: str, node: ast.MemberExpr, type_: Type) -> str:
    field = type_.find(node.member) if isinstance(type_, FieldsType) else None
    note = find(field.annotations, "name") if field is not None else None
    name = str(note.values[0]) if note is not None and note.values else node.member
    return name[1:] if name.startswith(".") else f"{base}.{name}"


def _number(node: ast.IntExpr) -> str:
    """In the base in which it is written."""
    digits = node.text.rpartition("w")[2].rpartition("s")[2][:2].lower()
    base = {"0x": "0x{:x}", "0b": "0b{:b}", "0o": "0o{:o}"}.get(digits, "{}")
    return base.format(node.value)
