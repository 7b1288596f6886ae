"""From tokens to the syntax tree of `ast`, with lark and grammar.lark."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
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
    """Where the tables of the grammar are kept from one process to the next; nowhere if that is not
    possible.
    """
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
    """What could have come instead, where that is little enough to be of help."""
    spelled = {kind: f"`{text}`" for text, kind in {**KEYWORDS, **SOFT_KEYWORDS}.items()}
    spelled |= {kind: f"`{text}`" for text, kind in MARKS.items()}
    spelled |= {"NAME": "a name", "TYPE": "a type", "INTEGER": "a number", "STRING_LITERAL": "a string"}
    spelled |= {"_ARGS_OPEN": "`<`", "_ARGS_CLOSE": "`>`", "$END": "the end", "DOT_PREFIX": "`.`"}
    words = sorted({spelled.get(each, "") for each in names} - {""})
    return f"; expected {' or '.join(words)}" if 0 < len(words) <= 4 else ""


def _some(children: Iterable[T | None]) -> tuple[T, ...]:
    return tuple(each for each in children if each is not None)


class _Builder(Transformer[Any, Any]):
    """One method a rule of the grammar; the names are the rules'."""

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

    def params(self, c: Children) -> tuple[ast.ParamDecl, ...]:
        return _some(c)

    def param(self, c: Children) -> ast.ParamDecl:
        notes, direction, kind, name, default = c
        return ast.ParamDecl(name.location, str(name), notes or (), direction or "", kind, default)

    def direction(self, c: Children) -> str:
        return str(c[0])

    # ---- declarations

    def const_decl(self, c: Children) -> ast.ConstDecl:
        notes, kind, name, value = c
        return ast.ConstDecl(name.location, str(name), notes or (), kind, value)

    def var_decl(self, c: Children) -> ast.VarDecl:
        notes, kind, name, value = c
        return ast.VarDecl(name.location, str(name), notes or (), kind, value)

    def instance_decl(self, c: Children) -> ast.InstanceDecl:
        notes, kind, args, name, body = c
        return ast.InstanceDecl(name.location, str(name), notes or (), kind, args, body)

    def object_body(self, c: Children) -> tuple[ast.Decl, ...]:
        return tuple(c)

    def extern_decl(self, c: Children) -> ast.ExternDecl:
        notes, name, params, *methods = c
        return ast.ExternDecl(name.location, str(name), notes or (), params or (), tuple(methods))

    def extern_function(self, c: Children) -> ast.ExternFunctionDecl:
        notes, returns, name, type_params, params = c
        method = ast.MethodDecl(
            name.location, str(name), notes or (), returns, type_params or (), params, False
        )
        return ast.ExternFunctionDecl(name.location, str(name), notes or (), method)

    def method(self, c: Children) -> ast.MethodDecl:
        notes, abstract, returns, name, type_params, params = c
        return ast.MethodDecl(
            name.location, str(name), notes or (), returns, type_params or (), params, abstract is not None
        )

    def constructor(self, c: Children) -> ast.MethodDecl:
        notes, name, params = c
        return ast.MethodDecl(name.location, str(name), notes or (), None, (), params, False)

    def function_decl(self, c: Children) -> ast.FunctionDecl:
        notes, returns, name, type_params, params, body = c
        return ast.FunctionDecl(
            name.location, str(name), notes or (), returns, type_params or (), params, body
        )

    def members_decl(self, c: Children) -> ast.MembersDecl:
        notes, kind, names = c
        return ast.MembersDecl(kind.location, str(kind), notes or (), names or ())

    def fields_decl(self, c: Children) -> ast.FieldsDecl:
        notes, kind, name, params, *fields = c
        return ast.FieldsDecl(name.location, str(name), notes or (), str(kind), params or (), tuple(fields))

    def field(self, c: Children) -> ast.FieldDecl:
        notes, kind, name = c
        return ast.FieldDecl(name.location, str(name), notes or (), kind)

    def enum_decl(self, c: Children) -> ast.EnumDecl:
        notes, kind, name, members = c
        return ast.EnumDecl(name.location, str(name), notes or (), kind, members)

    def enum_members(self, c: Children) -> tuple[tuple[ast.Name, ast.Expr | None], ...]:
        return _some(c)

    def enum_member(self, c: Children) -> tuple[ast.Name, ast.Expr | None]:
        return _name(c[0]), c[1]

    def typedef_decl(self, c: Children) -> ast.TypedefDecl:
        notes, _, kind, name = c
        return ast.TypedefDecl(name.location, str(name), notes or (), kind, False)

    def newtype_decl(self, c: Children) -> ast.TypedefDecl:
        notes, _, kind, name = c
        return ast.TypedefDecl(name.location, str(name), notes or (), kind, True)

    def block_type_decl(self, c: Children) -> ast.BlockTypeDecl:
        notes, kind, name, type_params, params = c
        return ast.BlockTypeDecl(name.location, str(name), notes or (), str(kind), type_params or (), params)

    def package_decl(self, c: Children) -> ast.PackageDecl:
        notes, name, type_params, params = c
        return ast.PackageDecl(name.location, str(name), notes or (), type_params or (), params)

    def action_decl(self, c: Children) -> ast.ActionDecl:
        notes, name, params, body = c
        return ast.ActionDecl(name.location, str(name), notes or (), params, body)

    # ---- parsers

    def parser_decl(self, c: Children) -> ast.ParserDecl:
        notes, _, name, type_params, params, constructor, *rest = c
        return ast.ParserDecl(
            name.location,
            str(name),
            notes or (),
            type_params or (),
            params,
            constructor or (),
            tuple(each for each in rest if not isinstance(each, ast.StateDecl)),
            tuple(each for each in rest if isinstance(each, ast.StateDecl)),
        )

    def value_set(self, c: Children) -> ast.ValueSetDecl:
        notes, kind, size, name = c
        return ast.ValueSetDecl(name.location, str(name), notes or (), kind, size)

    def state(self, c: Children) -> ast.StateDecl:
        notes, name, *body, transition = c
        return ast.StateDecl(name.location, str(name), notes or (), tuple(body), transition)

    def transition(self, c: Children) -> ast.TransitionNode:
        return ast.TransitionNode(c[1].location, str(c[1]), (), None)

    def select(self, c: Children) -> ast.TransitionNode:
        keyword, exprs, *cases = c
        return ast.TransitionNode(keyword.location, "", exprs or (), tuple(cases))

    def select_case(self, c: Children) -> ast.SelectCaseNode:
        keys, _, state = c
        return ast.SelectCaseNode(keys[0].location, keys, _name(state))

    def many_keysets(self, c: Children) -> tuple[ast.Expr, ...]:
        return tuple(c)

    one_keyset = many_keysets

    def mask(self, c: Children) -> ast.MaskExpr:
        return ast.MaskExpr(c[0].location, c[0], c[1])

    def range(self, c: Children) -> ast.RangeExpr:
        return ast.RangeExpr(c[0].location, c[0], c[1])

    def default(self, c: Children) -> ast.DefaultExpr:
        return ast.DefaultExpr(c[0].location)

    def dont_care(self, c: Children) -> ast.DontCareExpr:
        return ast.DontCareExpr(c[0].location)

    # ---- controls and tables

    def control_decl(self, c: Children) -> ast.ControlDecl:
        notes, _, name, type_params, params, constructor, *local, body = c
        return ast.ControlDecl(
            name.location,
            str(name),
            notes or (),
            type_params or (),
            params,
            constructor or (),
            tuple(local),
            body,
        )

    def table_decl(self, c: Children) -> ast.TableDecl:
        notes, name, *properties = c
        return ast.TableDecl(name.location, str(name), notes or (), tuple(properties))

    def keys(self, c: Children) -> ast.PropertyNode:
        return ast.PropertyNode(c[0].location, "key", (), False, tuple(c[1:]))

    def actions(self, c: Children) -> ast.PropertyNode:
        return ast.PropertyNode(c[0].location, "actions", (), False, tuple(c[1:]))

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

    def empty(self, c: Children) -> ast.EmptyStmt:
        return ast.EmptyStmt(c[0].location)

    def assign(self, c: Children) -> ast.AssignStmt:
        target, op, value = c
        return ast.AssignStmt(op.location, target, str(op), value)

    def call_statement(self, c: Children) -> ast.CallStmt:
        return ast.CallStmt(c[0].location, c[0])

    def declare(self, c: Children) -> ast.DeclStmt:
        return ast.DeclStmt(c[0].location, c[0])

    def if_(self, c: Children) -> ast.IfStmt:
        keyword, condition, then, orelse = c
        return ast.IfStmt(keyword.location, condition, then, orelse)

    def return_(self, c: Children) -> ast.ReturnStmt:
        return ast.ReturnStmt(c[0].location, c[1])

    def exit_(self, c: Children) -> ast.ExitStmt:
        return ast.ExitStmt(c[0].location)

    def break_(self, c: Children) -> ast.BreakStmt:
        return ast.BreakStmt(c[0].location)

    def continue_(self, c: Children) -> ast.ContinueStmt:
        return ast.ContinueStmt(c[0].location)

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

    def for_parts(self, c: Children) -> tuple[ast.Stmt, ...]:
        return _some(c)

    def for_in(self, c: Children) -> ast.ForInStmt:
        _, keyword, notes, kind, name, _, collection, body = c
        variable = ast.VarDecl(name.location, str(name), notes or (), kind, None)
        return ast.ForInStmt(keyword.location, variable, collection, body)

    # ---- types

    def base_type(self, c: Children) -> ast.BaseType:
        return ast.BaseType(c[0].location, str(c[0]), None)

    def sized_type(self, c: Children) -> ast.BaseType:
        return ast.BaseType(c[0].location, str(c[0]), c[1])

    def named_type(self, c: Children) -> ast.NamedType:
        return ast.NamedType(c[0].location, str(c[0]), False)

    def absolute_type(self, c: Children) -> ast.NamedType:
        return ast.NamedType(c[1].location, str(c[1]), True)

    def special_type(self, c: Children) -> ast.SpecializedType:
        return ast.SpecializedType(c[0].location, c[0], c[1])

    def type_args(self, c: Children) -> tuple[ast.TypeNode, ...]:
        return _some(c)

    def dont_care_type(self, c: Children) -> ast.DontCareTypeNode:
        return ast.DontCareTypeNode(c[0].location)

    def array_type(self, c: Children) -> ast.ArrayType:
        return ast.ArrayType(c[0].location, c[0], c[1])

    def tuple_type(self, c: Children) -> ast.TupleTypeNode:
        return ast.TupleTypeNode(c[0].location, c[1])

    def list_type(self, c: Children) -> ast.ListTypeNode:
        return ast.ListTypeNode(c[0].location, c[1])

    # ---- expressions

    def args(self, c: Children) -> tuple[ast.Arg, ...]:
        return _some(c)

    def positional(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, "", c[0])

    def positional_dont_care(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, "", ast.DontCareExpr(c[0].location))

    def named(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, str(c[0]), c[1])

    def named_dont_care(self, c: Children) -> ast.Arg:
        return ast.Arg(c[0].location, str(c[0]), ast.DontCareExpr(c[1].location))

    def expressions(self, c: Children) -> tuple[ast.Expr, ...]:
        return _some(c)

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

    def index(self, c: Children) -> ast.IndexExpr:
        return ast.IndexExpr(c[0].location, c[0], c[1])

    def slice(self, c: Children) -> ast.SliceExpr:
        return ast.SliceExpr(c[0].location, c[0], c[1], c[3], False)

    def plus_slice(self, c: Children) -> ast.SliceExpr:
        return ast.SliceExpr(c[0].location, c[0], c[1], c[3], True)

    def member(self, c: Children) -> ast.MemberExpr:
        return ast.MemberExpr(c[1].location, c[0], str(c[1]))

    def type_member(self, c: Children) -> ast.MemberExpr:
        return ast.MemberExpr(c[1].location, ast.TypeExpr(c[0].location, c[0]), str(c[1]))

    def error_member(self, c: Children) -> ast.MemberExpr:
        return ast.MemberExpr(c[1].location, ast.TypeExpr(c[0].location, self.base_type(c)), str(c[1]))

    def call(self, c: Children) -> ast.CallExpr:
        return ast.CallExpr(c[0].location, c[0], (), c[1])

    def generic_call(self, c: Children) -> ast.CallExpr:
        return ast.CallExpr(c[0].location, c[0], c[1], c[2])

    def construct(self, c: Children) -> ast.ConstructExpr:
        return ast.ConstructExpr(c[0].location, c[0], c[1])

    def integer(self, c: Children) -> ast.IntExpr:
        token = c[0]
        value, width, signed = number(token)
        return ast.IntExpr(token.location, value, width, signed, str(token))

    def string(self, c: Children) -> ast.StringExpr:
        return ast.StringExpr(c[0].location, unquote(c[0]))

    def true(self, c: Children) -> ast.BoolExpr:
        return ast.BoolExpr(c[0].location, True)

    def false(self, c: Children) -> ast.BoolExpr:
        return ast.BoolExpr(c[0].location, False)

    def this(self, c: Children) -> ast.ThisExpr:
        return ast.ThisExpr(c[0].location)

    def dots(self, c: Children) -> ast.DotsExpr:
        return ast.DotsExpr(c[0].location)

    def invalid(self, c: Children) -> ast.InvalidExpr:
        return ast.InvalidExpr(c[0].location)

    def list_expr(self, c: Children) -> ast.ListExpr:
        return ast.ListExpr(c[0].location, c[1] or ())

    def struct_expr(self, c: Children) -> ast.StructExpr:
        brace, (fields, dots), _ = c
        return ast.StructExpr(brace.location, fields, dots)

    def struct_fields(self, c: Children) -> tuple[tuple[tuple[ast.Name, ast.Expr], ...], bool]:
        fields = tuple(each for each in c if isinstance(each, tuple))
        return fields, any(isinstance(each, P4Token) for each in c)

    def struct_field(self, c: Children) -> tuple[ast.Name, ast.Expr]:
        return _name(c[0]), c[1]

    def non_type_path(self, c: Children) -> ast.PathExpr:
        return ast.PathExpr(c[0].location, str(c[0]), False)

    def absolute_path(self, c: Children) -> ast.PathExpr:
        return ast.PathExpr(c[1].location, str(c[1]), True)


def _name(token: P4Token) -> ast.Name:
    return ast.Name(token.location, str(token))


# The rules `if` and `for` have names that are keywords here.
setattr(_Builder, "if", _Builder.if_)
setattr(_Builder, "for", _Builder.for_)
