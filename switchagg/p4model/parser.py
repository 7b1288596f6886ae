"""Parses tokens to the syntax tree of `ast`, with lark and grammar.lark."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import lark
from lark import Lark, Transformer, UnexpectedInput, UnexpectedToken

from switchagg.p4model import ast
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.lexer import (
    KEYWORDS,
    MARKS,
    SOFT_KEYWORDS,
    P4Lexer,
    P4Token,
    classify,
    number,
    scan,
    unquote,
)
from switchagg.p4model.preprocess import Preprocessed

_GRAMMAR: Final = Path(__file__).parent / "grammar.lark"

Children: TypeAlias = list[Any]
T = TypeVar("T")


def parse(source: Preprocessed) -> ast.Program:
    """The syntax tree of a preprocessed program. Raises `P4Error` where the text is not P4."""
    tokens = classify(scan(source.lines))
    try:
        return _build().parse(tokens)  # type: ignore[arg-type, return-value, unused-ignore]
    except UnexpectedInput as error:
        raise _syntax_error(error, tokens) from None
    except lark.exceptions.VisitError as error:
        if isinstance(error.orig_exc, P4Error):
            raise error.orig_exc from None
        raise


@functools.cache
def _build() -> Lark:
    text = _GRAMMAR.read_text(encoding="utf-8")
    return Lark(
        text, parser="lalr", lexer=P4Lexer, start="program", transformer=_Builder(), cache=_cache_file(text)
    )


def _cache_file(text: str) -> str | bool:
    """The file that keeps the tables of the grammar between processes; False if there cannot be one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchagg"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    if not os.access(base, os.W_OK):
        return False
    digest = hashlib.sha256(f"{lark.__version__}\n{text}".encode()).hexdigest()[:16]
    return str(base / f"p4-grammar-{digest}.lark")


def _syntax_error(error: UnexpectedInput, tokens: Sequence[P4Token]) -> P4Error:
    if not isinstance(error, UnexpectedToken):
        return P4Error(f"syntax error: {error}", tokens[-1].location)
    token = error.token
    if not isinstance(token, P4Token):
        last = tokens[-1].location if tokens else Location("", 0, 0)
        return P4Error("syntax error: the program ends too early", last)
    index = next(index for index, each in enumerate(tokens) if each is token)
    before = tokens[index - 1] if index else None
    if token.type == "NAME" and "TYPE" in error.expected:
        return P4Error(f"`{token}` is not a type that is declared", token.location)
    if before is not None and before.type == "NAME" and token.type in ("NAME", "LT", "_LPAR", "TYPE"):
        return P4Error(f"`{before}` is not a type that is declared", before.location)
    expected = _expected(error.expected)
    shown = "a number" if token.type == "INTEGER" else f"`{token}`"
    return P4Error(f"syntax error: unexpected {shown}{expected}", token.location)


def _expected(names: Iterable[str]) -> str:
    """The tokens that were expected, if they are at most four."""
    spelled = {kind: f"`{text}`" for text, kind in {**KEYWORDS, **SOFT_KEYWORDS}.items()}
    spelled |= {kind: f"`{text}`" for text, kind in MARKS.items()}
    spelled |= {"NAME": "a name", "TYPE": "a type", "INTEGER": "a number", "STRING_LITERAL": "a string"}
    spelled |= {"_ARGS_OPEN": "`<`", "_ARGS_CLOSE": "`>`", "$END": "the end", "DOT_PREFIX": "`.`"}
    words = sorted({spelled.get(each, "") for each in names} - {""})
    return f"; expected {' or '.join(words)}" if 0 < len(words) <= 4 else ""


def _some(_builder: object, children: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(each for each in children if each is not None)


def _name(token: P4Token) -> ast.Name:
    return ast.Name(token.location, str(token))


class _Builder(Transformer[Any, Any]):
    """One method a rule of the grammar; the names are the rules'. `_NODES` and `_DECLARATIONS` have more."""

    params = constructor_params = enum_members = object_body = many_keysets = one_keyset = for_parts = _some
    type_args = args = expressions = fields = methods = locals = properties = statements = _some
    switch_cases = entries = _some

    def program(self, c: Children) -> ast.Program:
        return ast.Program(tuple(c))

    # ---- names and parameters

    def annotations(self, c: Children) -> ast.Annotations:
        found = tuple(each.annotation for each in c)
        for index, note in enumerate(found):
            for earlier in found[:index]:
                if note.name == earlier.name and (note.structured or earlier.structured):
                    raise P4Error(f"@{note.name} occurs twice, once with brackets", note.location)
        return found

    def names(self, c: Children) -> tuple[ast.Name, ...]:
        return tuple(_name(each) for each in c if each is not None)

    type_params = names

    def direction(self, c: Children) -> str:
        return str(c[0] or "")

    # ---- declarations

    def enum_member(self, c: Children) -> tuple[ast.Name, ast.Expr | None]:
        return _name(c[0]), c[1]

    def parser_decl(self, c: Children) -> ast.ParserDecl:
        notes, _, name, type_params, params, constructor, *rest = c
        local = tuple(each for each in rest if not isinstance(each, ast.StateDecl))
        states = tuple(each for each in rest if isinstance(each, ast.StateDecl))
        return ast.ParserDecl(
            name.location, str(name), notes or (), type_params, params, constructor, local, states
        )

    def select(self, c: Children) -> ast.TransitionNode:
        keyword, exprs, *cases = c
        return ast.TransitionNode(keyword.location, "", exprs, tuple(cases))

    def select_case(self, c: Children) -> ast.SelectCaseNode:
        keys, _, state = c
        return ast.SelectCaseNode(keys[0].location, keys, _name(state))

    # ---- tables

    def keys(self, c: Children) -> ast.PropertyNode:
        return ast.PropertyNode(c[0].location, str(c[0]), (), False, tuple(c[1:]))

    actions = keys

    def const_flag(self, c: Children) -> bool:
        return c[0] is not None

    def key(self, c: Children) -> ast.KeyNode:
        expr, _, kind, notes = c
        return ast.KeyNode(expr.location, expr, _name(kind), notes or ())

    def action_item(self, c: Children) -> ast.ActionRefNode:
        notes, action = c
        return ast.ActionRefNode(action.location, action.path, action.args, notes or ())

    def entry(self, c: Children) -> ast.EntryNode:
        const, priority, _, keys, _, action, notes = c if len(c) == 7 else (c[0], None, None, *c[-4:])
        call = self.action_item([notes, action])
        return ast.EntryNode(keys[0].location, const, priority, keys, call)

    # ---- statements

    def block(self, c: Children) -> ast.BlockStmt:
        notes, brace, body, _ = c
        return ast.BlockStmt(brace.location, body, notes or ())

    def for_in(self, c: Children) -> ast.ForInStmt:
        _, keyword, notes, kind, name, _, collection, body = c
        variable = ast.VarDecl(name.location, str(name), notes or (), kind, None)
        return ast.ForInStmt(keyword.location, variable, collection, body)

    # ---- expressions

    def integer(self, c: Children) -> ast.IntExpr:
        return ast.IntExpr(c[0].location, *number(c[0]), str(c[0]))

    def string(self, c: Children) -> ast.StringExpr:
        return ast.StringExpr(c[0].location, unquote(c[0]))

    def true(self, c: Children) -> ast.BoolExpr:
        return ast.BoolExpr(c[0].location, c[0].type == "TRUE")

    false = true

    def struct_expr(self, c: Children) -> ast.StructExpr:
        brace, (fields, dots), _ = c
        return ast.StructExpr(brace.location, fields, dots)

    def struct_fields(self, c: Children) -> tuple[tuple[tuple[ast.Name, ast.Expr], ...], bool]:
        fields = tuple(each for each in c if isinstance(each, tuple))
        return fields, any(isinstance(each, P4Token) for each in c)

    struct_field = enum_member


_Rules: TypeAlias = dict[str, tuple[Callable[..., ast.Node], *tuple[int, ...]]]

_DECLARATIONS: Final[_Rules] = {
    "param": (ast.ParamDecl, 3, 1, 2, 4), "const_decl": (ast.ConstDecl, 2, 1, 3),
    "var_decl": (ast.VarDecl, 2, 1, 3), "instance_decl": (ast.InstanceDecl, 3, 1, 2, 4),
    "extern_decl": (ast.ExternDecl, 1, 2, 3), "extern_function": (ast.MethodDecl, 2, 4, 1, 3),
    "method": (ast.MethodDecl, 2, 4, 1, 3), "constructor": (ast.MethodDecl, 1, 2),
    "abstract_method": (functools.partial(ast.MethodDecl, abstract=True), 3, 5, 2, 4),
    "function_decl": (ast.FunctionDecl, 2, 3, 1, 4, 5), "members_decl": (ast.MembersDecl, 1, 2),
    "fields_decl": (ast.FieldsDecl, 2, 3, 1, 4), "field": (ast.FieldDecl, 2, 1),
    "enum_decl": (ast.EnumDecl, 2, 1, 3), "typedef_decl": (ast.TypedefDecl, 3, 2),
    "newtype_decl": (functools.partial(ast.TypedefDecl, distinct=True), 3, 2),
    "block_type_decl": (ast.BlockTypeDecl, 2, 3, 1, 4), "package_decl": (ast.PackageDecl, 1, 2, 3),
    "action_decl": (ast.ActionDecl, 1, 2, 3), "value_set": (ast.ValueSetDecl, 3, 1, 2),
    "state": (ast.StateDecl, 1, 2, 3), "control_decl": (ast.ControlDecl, 2, 3, 4, 5, 6, 7),
    "table_decl": (ast.TableDecl, 1, 2), "property": (ast.PropertyNode, 2, 1, 3),
}  # fmt: skip
"""Rules of declarations: the node, the name's index among the children, and those of its own fields."""

_NODES: Final[_Rules] = {
    # parsers, tables, statements
    "transition": (ast.TransitionNode, 1, 1), "action_ref": (ast.ActionRefNode, 0, 0, 1),
    "call_statement": (ast.CallStmt, 0, 0), "declare": (ast.DeclStmt, 0, 0), "empty": (ast.EmptyStmt, 0),
    "assign": (ast.AssignStmt, 1, 0, 1, 2), "if": (ast.IfStmt, 0, 1, 2, 3), "return_": (ast.ReturnStmt, 0, 1),
    "exit_": (ast.ExitStmt, 0), "break_": (ast.BreakStmt, 0), "continue_": (ast.ContinueStmt, 0),
    "switch": (ast.SwitchStmt, 0, 1, 2), "switch_case": (ast.SwitchCaseNode, 0, 0, 2),
    "switch_block": (ast.BlockStmt, 0, 1), "for": (ast.ForStmt, 1, 2, 3, 4, 5),
    # types
    "base_type": (ast.BaseType, 0, 0), "sized_type": (ast.BaseType, 0, 0, 1),
    "named_type": (ast.NamedType, 0, 0), "special_type": (ast.SpecializedType, 0, 0, 1),
    "absolute_type": (functools.partial(ast.NamedType, absolute=True), 1, 1),
    "array_type": (ast.ArrayType, 0, 0, 1), "tuple_type": (ast.TupleTypeNode, 0, 1),
    "list_type": (ast.ListTypeNode, 0, 1), "dont_care_type": (ast.DontCareTypeNode, 0),
    # expressions
    "positional": (ast.Arg, 0, 0), "named": (ast.Arg, 0, 1, 0), "mask": (ast.MaskExpr, 0, 0, 1),
    "range": (ast.RangeExpr, 0, 0, 1), "default": (ast.DefaultExpr, 0), "dont_care": (ast.DontCareExpr, 0),
    "ternary": (ast.TernaryExpr, 1, 0, 2, 4), "binary": (ast.BinaryExpr, 1, 1, 0, 2),
    "unary_op": (ast.UnaryExpr, 0, 0, 1), "cast": (ast.CastExpr, 0, 1, 3), "index": (ast.IndexExpr, 0, 0, 1),
    "slice": (ast.SliceExpr, 0, 0, 1, 3), "member": (ast.MemberExpr, 1, 0, 1),
    "plus_slice": (functools.partial(ast.SliceExpr, by_width=True), 0, 0, 1, 3),
    "call": (ast.CallExpr, 0, 0, 1), "generic_call": (ast.CallExpr, 0, 0, 2, 1),
    "construct": (ast.ConstructExpr, 0, 0, 1), "type_expr": (ast.TypeExpr, 0, 0),
    "list_expr": (ast.ListExpr, 0, 1), "this": (ast.ThisExpr, 0), "dots": (ast.DotsExpr, 0),
    "invalid": (ast.InvalidExpr, 0), "non_type_path": (ast.PathExpr, 0, 0),
    "absolute_path": (functools.partial(ast.PathExpr, absolute=True), 1, 1),
}  # fmt: skip
"""The other rules: the node, the index of the child whose location it has, and those of the node's fields."""


def _make(node: Callable[..., ast.Node], at: int, *fields: int, declares: bool = False) -> Callable[..., Any]:
    def build(_builder: _Builder, c: Children) -> ast.Node:
        head = (str(c[at]), c[0] or ()) if declares else ()
        values = (str(c[index]) if isinstance(c[index], P4Token) else c[index] for index in fields)
        return node(c[at].location, *head, *values)

    return build


for _rule, _made in _DECLARATIONS.items():
    setattr(_Builder, _rule, _make(*_made, declares=True))
for _rule, _made in _NODES.items():
    setattr(_Builder, _rule, _make(*_made))
