"""Names as the control plane sees them."""

from __future__ import annotations

from switchagg.p4model import ast
from switchagg.p4model.annotations import find
from switchagg.p4model.errors import P4Error


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


def key_name(expr: ast.Expr, annotations: ast.Annotations) -> str:
    """The name of a table's key: its @name, or the expression as it is written."""
    note = find(annotations, "name")
    if note is not None and note.values and isinstance(note.values[0], str):
        return note.values[0].removeprefix(".")
    return text(expr)


def text(expr: ast.Expr) -> str:
    """An expression as p4c writes it in the names of keys."""
    match expr:
        case ast.PathExpr():
            return expr.name
        case ast.MemberExpr(base=ast.TypeExpr(type=ast.NamedType(name=name))):
            return f"{name}.{expr.member}"
        case ast.MemberExpr():
            return f"{text(expr.base)}.{expr.member}"
        case ast.CallExpr(callee=ast.MemberExpr(member="isValid") as callee):
            return f"{text(callee.base)}.$valid$"
        case ast.CallExpr():
            return f"{text(expr.callee)}({', '.join(text(each.value) for each in expr.args)})"
        case ast.IndexExpr():
            return f"{text(expr.base)}[{text(expr.index)}]"
        case ast.SliceExpr(by_width=False):
            return f"{text(expr.base)}[{text(expr.first)}:{text(expr.second)}]"
        case ast.SliceExpr():
            return f"{text(expr.base)}[{text(expr.first)}+:{text(expr.second)}]"
        case ast.IntExpr():
            return str(expr.value)
        case ast.BoolExpr():
            return "true" if expr.value else "false"
        case ast.BinaryExpr():
            return f"{text(expr.left)} {expr.op} {text(expr.right)}"
        case ast.UnaryExpr():
            return f"{expr.op}{text(expr.operand)}"
        case ast.CastExpr():
            return text(expr.operand)
        case ast.TernaryExpr():
            return f"{text(expr.condition)} ? {text(expr.yes)} : {text(expr.no)}"
        case _:
            return "expression"
