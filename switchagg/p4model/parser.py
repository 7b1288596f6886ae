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


def _head(notes: ast.Annotations | None, name: P4Token) -> tuple[Location, str, ast.Annotations]:
    """The fields that all declarations begin with."""
    return name.location, str(name), notes or ()


class _Builder(Transformer[Any, Any]):
    """One method a rule of the grammar; the names are the rules'. `_PLAIN` has the rules without a method."""

    params = enum_members = object_body = many_keysets = one_keyset = for_parts = type_args = args = _some
    expressions = _some

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

    def param(self, c: Children) -> ast.ParamDecl:
        notes, direction, kind, name, default = c
        return ast.ParamDecl(*_head(notes, name), direction or "", kind, default)

    def direction(self, c: Children) -> str:
        return str(c[0])

    # ---- declarations

    def const_decl(self, c: Children) -> ast.ConstDecl:
        notes, kind, name, value = c
        return ast.ConstDecl(*_head(notes, name), kind, value)

    def var_decl(self, c: Children) -> ast.VarDecl:
        notes, kind, name, value = c
        return ast.VarDecl(*_head(notes, name), kind, value)

    def instance_decl(self, c: Children) -> ast.InstanceDecl:
        notes, kind, args, name, body = c
        return ast.InstanceDecl(*_head(notes, name), kind, args, body)

    def extern_decl(self, c: Children) -> ast.ExternDecl:
        notes, name, type_params, *methods = c
        return ast.ExternDecl(*_head(notes, name), type_params or (), tuple(methods))

    def extern_function(self, c: Children) -> ast.MethodDecl:
        notes, returns, name, type_params, params = c
        return ast.MethodDecl(*_head(notes, name), returns, type_params or (), params, False)

    def method(self, c: Children) -> ast.MethodDecl:
        notes, abstract, returns, name, type_params, params = c
        return ast.MethodDecl(*_head(notes, name), returns, type_params or (), params, abstract is not None)

    def constructor(self, c: Children) -> ast.MethodDecl:
        notes, name, params = c
        return ast.MethodDecl(*_head(notes, name), None, (), params, False)

    def function_decl(self, c: Children) -> ast.FunctionDecl:
        notes, returns, name, type_params, params, body = c
        return ast.FunctionDecl(*_head(notes, name), returns, type_params or (), params, body)

    def members_decl(self, c: Children) -> ast.MembersDecl:
        notes, kind, names = c
        return ast.MembersDecl(*_head(notes, kind), names or ())

    def fields_decl(self, c: Children) -> ast.FieldsDecl:
        notes, kind, name, type_params, *fields = c
        return ast.FieldsDecl(*_head(notes, name), str(kind), type_params or (), tuple(fields))

    def field(self, c: Children) -> ast.FieldDecl:
        notes, kind, name = c
        return ast.FieldDecl(*_head(notes, name), kind)

    def enum_decl(self, c: Children) -> ast.EnumDecl:
        notes, kind, name, members = c
        return ast.EnumDecl(*_head(notes, name), kind, members)

    def enum_member(self, c: Children) -> tuple[ast.Name, ast.Expr | None]:
        return _name(c[0]), c[1]

    def typedef_decl(self, c: Children) -> ast.TypedefDecl:
        notes, keyword, kind, name = c
        return ast.TypedefDecl(*_head(notes, name), kind, keyword.type == "TYPE_KEYWORD")

    newtype_decl = typedef_decl

    def block_type_decl(self, c: Children) -> ast.BlockTypeDecl:
        notes, kind, name, type_params, params = c
        return ast.BlockTypeDecl(*_head(notes, name), str(kind), type_params or (), params)

    def package_decl(self, c: Children) -> ast.PackageDecl:
        notes, name, type_params, params = c
        return ast.PackageDecl(*_head(notes, name), type_params or (), params)

    def action_decl(self, c: Children) -> ast.ActionDecl:
        notes, name, params, body = c
        return ast.ActionDecl(*_head(notes, name), params, body)

    # ---- parsers

    def parser_decl(self, c: Children) -> ast.ParserDecl:
        notes, _, name, type_params, params, constructor, *rest = c
        local = tuple(each for each in rest if not isinstance(each, ast.StateDecl))
        states = tuple(each for each in rest if isinstance(each, ast.StateDecl))
        return ast.ParserDecl(
            *_head(notes, name), type_params or (), params, constructor or (), local, states
        )

    def value_set(self, c: Children) -> ast.ValueSetDecl:
        notes, kind, size, name = c
        return ast.ValueSetDecl(*_head(notes, name), kind, size)

    def state(self, c: Children) -> ast.StateDecl:
        notes, name, *body, transition = c
        return ast.StateDecl(*_head(notes, name), tuple(body), transition)

    def transition(self, c: Children) -> ast.TransitionNode:
        return ast.TransitionNode(c[1].location, str(c[1]), (), None)

    def select(self, c: Children) -> ast.TransitionNode:
        keyword, exprs, *cases = c
        return ast.TransitionNode(keyword.location, "", exprs or (), tuple(cases))

    def select_case(self, c: Children) -> ast.SelectCaseNode:
        keys, _, state = c
        return ast.SelectCaseNode(keys[0].location, keys, _name(state))

    # ---- controls and tables

    def control_decl(self, c: Children) -> ast.ControlDecl:
        notes, _, name, type_params, params, constructor, *local, body = c
        return ast.ControlDecl(
            *_head(notes, name), type_params or (), params, constructor or (), tuple(local), body
        )

    def table_decl(self, c: Children) -> ast.TableDecl:
        notes, name, *properties = c
        return ast.TableDecl(*_head(notes, name), tuple(properties))

    def keys(self, c: Children) -> ast.PropertyNode:
        return ast.PropertyNode(c[0].location, str(c[0]), (), False, tuple(c[1:]))

    actions = keys

    def entries(self, c: Children) -> ast.PropertyNode:
        notes, const, keyword, *entries = c
        return ast.PropertyNode(keyword.location, "entries", notes or (), const is not None, tuple(entries))

    def property(self, c: Children) -> ast.PropertyNode:
        notes, const, name, value = c
        return ast.PropertyNode(name.location, str(name), notes or (), const is not None, value)

    def const_flag(self, c: Children) -> P4Token:
        token: P4Token = c[0]
        return token

    def key(self, c: Children) -> ast.KeyNode:
        expr, _, kind, notes = c
        return ast.KeyNode(expr.location, expr, _name(kind), notes or ())

    def action_item(self, c: Children) -> ast.ActionRefNode:
        notes, action = c
        return ast.ActionRefNode(action.location, action.path, action.args, notes or ())

    def action_ref(self, c: Children) -> ast.ActionRefNode:
        return ast.ActionRefNode(c[0].location, c[0], c[1], ())

    def entry(self, c: Children) -> ast.EntryNode:
        const, priority, _, keys, _, action, notes = c if len(c) == 7 else (c[0], None, None, *c[-4:])
        call = ast.ActionRefNode(action.location, action.path, action.args, notes or ())
        return ast.EntryNode(keys[0].location, const is not None, priority, keys, call)

    # ---- statements

    def block(self, c: Children) -> ast.BlockStmt:
        notes, brace, *body = c
        return ast.BlockStmt(brace.location, tuple(body[:-1]), notes or ())

    def assign(self, c: Children) -> ast.AssignStmt:
        target, op, value = c
        return ast.AssignStmt(op.location, target, str(op), value)

    def switch(self, c: Children) -> ast.SwitchStmt:
        keyword, subject, *cases = c
        return ast.SwitchStmt(keyword.location, subject, tuple(cases))

    def switch_case(self, c: Children) -> ast.SwitchCaseNode:
        label, _, body = c
        return ast.SwitchCaseNode(label.location, label, body)

    def switch_block(self, c: Children) -> ast.BlockStmt:
        return ast.BlockStmt(c[0].location, tuple(c[1:]), ())

    def for_(self, c: Children) -> ast.ForStmt:
        _, keyword, init, condition, update, body = c
        return ast.ForStmt(keyword.location, init, condition, update, body)

    def for_in(self, c: Children) -> ast.ForInStmt:
        _, keyword, notes, kind, name, _, collection, body = c
        return ast.ForInStmt(keyword.location, ast.VarDecl(*_head(notes, name), kind, None), collection, body)

    # ---- types

    def base_type(self, c: Children) -> ast.BaseType:
        return ast.BaseType(c[0].location, str(c[0]), c[1] if len(c) > 1 else None)

    sized_type = base_type

    def named_type(self, c: Children) -> ast.NamedType:
        return ast.NamedType(c[-1].location, str(c[-1]), len(c) > 1)

    absolute_type = named_type

    # ---- expressions

    def positional(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, "", c[0])

    def positional_dont_care(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, "", ast.DontCareExpr(c[0].location))

    def named(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, str(c[0]), c[1])

    def named_dont_care(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, str(c[0]), ast.DontCareExpr(c[1].location))

    def ternary(self, c: Children) -> ast.TernaryExpr:
        condition, mark, yes, _, no = c
        return ast.TernaryExpr(mark.location, condition, yes, no)

    def binary(self, c: Children) -> ast.BinaryExpr:
        left, op, right = c
        return ast.BinaryExpr(op.location, str(op), left, right)

    def unary_op(self, c: Children) -> ast.UnaryExpr:
        return ast.UnaryExpr(c[0].location, str(c[0]), c[1])

    def cast(self, c: Children) -> ast.CastExpr:
        return ast.CastExpr(c[0].location, c[1], c[3])

    def slice(self, c: Children) -> ast.SliceExpr:
        base, first, mark, second = c
        return ast.SliceExpr(base.location, base, first, second, mark.type == "PLUS_COLON")

    plus_slice = slice

    def member(self, c: Children) -> ast.MemberExpr:
        return ast.MemberExpr(c[1].location, c[0], str(c[1]))

    def type_member(self, c: Children) -> ast.MemberExpr:
        return ast.MemberExpr(c[1].location, ast.TypeExpr(c[0].location, c[0]), str(c[1]))

    def error_member(self, c: Children) -> ast.MemberExpr:
        return self.type_member([self.base_type(c[:1]), c[1]])

    def call(self, c: Children) -> ast.CallExpr:
        return ast.CallExpr(c[0].location, c[0], (), c[1])

    def integer(self, c: Children) -> ast.IntExpr:
        return ast.IntExpr(c[0].location, *number(c[0]), str(c[0]))

    def string(self, c: Children) -> ast.StringExpr:
        return ast.StringExpr(c[0].location, unquote(c[0]))

    def true(self, c: Children) -> ast.BoolExpr:
        return ast.BoolExpr(c[0].location, c[0].type == "TRUE")

    false = true

    def list_expr(self, c: Children) -> ast.ListExpr:
        return ast.ListExpr(c[0].location, c[1] or ())

    def struct_expr(self, c: Children) -> ast.StructExpr:
        brace, (fields, dots), _ = c
        return ast.StructExpr(brace.location, fields, dots)

    def struct_fields(self, c: Children) -> tuple[tuple[tuple[ast.Name, ast.Expr], ...], bool]:
        fields = tuple(each for each in c if isinstance(each, tuple))
        return fields, any(isinstance(each, P4Token) for each in c)

    struct_field = enum_member

    def non_type_path(self, c: Children) -> ast.PathExpr:
        return ast.PathExpr(c[-1].location, str(c[-1]), len(c) > 1)

    absolute_path = non_type_path


_PLAIN: Final[dict[str, tuple[Callable[..., ast.Node], int]]] = {
    "mask": (ast.MaskExpr, 0), "range": (ast.RangeExpr, 0), "index": (ast.IndexExpr, 0),
    "generic_call": (ast.CallExpr, 0), "construct": (ast.ConstructExpr, 0),
    "call_statement": (ast.CallStmt, 0), "declare": (ast.DeclStmt, 0),
    "special_type": (ast.SpecializedType, 0), "array_type": (ast.ArrayType, 0),
    "default": (ast.DefaultExpr, 1), "dont_care": (ast.DontCareExpr, 1), "this": (ast.ThisExpr, 1),
    "dots": (ast.DotsExpr, 1), "invalid": (ast.InvalidExpr, 1), "empty": (ast.EmptyStmt, 1),
    "if": (ast.IfStmt, 1), "return_": (ast.ReturnStmt, 1), "exit_": (ast.ExitStmt, 1),
    "break_": (ast.BreakStmt, 1), "continue_": (ast.ContinueStmt, 1), "tuple_type": (ast.TupleTypeNode, 1),
    "list_type": (ast.ListTypeNode, 1), "dont_care_type": (ast.DontCareTypeNode, 1),
}  # fmt: skip
"""Rules whose children are the node's fields, without the keyword in front (1) or from the first on (0)."""


def _plain(node: Callable[..., ast.Node], skipped: int) -> Callable[[_Builder, Children], ast.Node]:
    return lambda _builder, c: node(c[0].location, *c[skipped:])


for _rule, _made in _PLAIN.items():
    setattr(_Builder, _rule, _plain(*_made))
# The name of this rule is a keyword of Python.
setattr(_Builder, "for", _Builder.for_)
