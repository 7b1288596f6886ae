"""The syntax tree: the program as written, before names are resolved.

The typed and elaborated program, which `load()` returns and the runtime executes, is
`switchagg.p4model.ir`; its docstring is the contract. Of this module the runtime sees `Annotation` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from switchagg.p4model.errors import Location, P4Error


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Base of everything that has a place in the source."""

    location: Location


@dataclass(frozen=True, slots=True, eq=False)
class Annotation(Node):
    """`@name`, `@name(...)`, `@name[...]`, `@pragma name ...`.

    Attributes:
        name: without the `@`.
        body: the tokens of the body as one text, None where there is no body.
        values: the body read as a list of integers and strings, where it is one: `@name("x")` has `("x",)`.
        pairs: the body read as `key = value, ...`, where it is that.
        structured: written with brackets.
    """

    name: str
    body: str | None = None
    values: tuple[int | str | bool, ...] = ()
    pairs: tuple[tuple[str, int | str | bool], ...] = ()
    structured: bool = False


Annotations: TypeAlias = tuple[Annotation, ...]


def find_annotation(annotations: Iterable[Annotation], name: str) -> Annotation | None:
    """The first annotation of this name."""
    return next((each for each in annotations if each.name == name), None)


def own_name(name: str, annotations: Iterable[Annotation]) -> str:
    """The name in @name, without a dot before it; `name` where there is none."""
    note = find_annotation(annotations, "name")
    return str(note.values[0]).removeprefix(".") if note is not None and note.values else name


def control_name(name: str, annotations: Annotations, path: str) -> str:
    """The full name of what is declared as `name` in the block that is known as `path`."""
    note = find_annotation(annotations, "name")
    if note is not None:
        if len(note.values) != 1 or not isinstance(note.values[0], str):
            raise P4Error('@name takes one string, as in @name("x")', note.location)
        name = note.values[0]
        if name.startswith("."):
            return name[1:]
    return f"{path}.{name}" if path else name


@dataclass(frozen=True, slots=True, eq=False)
class Name(Node):
    """A name where it is declared or, in `PathExpr` and `NamedType`, used."""

    text: str


# ---- types as written


@dataclass(frozen=True, slots=True, eq=False)
class TypeNode(Node):
    """Base of types as written."""


@dataclass(frozen=True, slots=True, eq=False)
class BaseType(TypeNode):
    """bool, error, match_kind, string, void, bit, int, varbit. `width` is None where none is written."""

    name: str
    width: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class NamedType(TypeNode):
    """A type by its name; `absolute` with a dot before it."""

    name: str
    absolute: bool


@dataclass(frozen=True, slots=True, eq=False)
class SpecializedType(TypeNode):
    """`base<args>`"""

    base: NamedType
    args: tuple[TypeNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayType(TypeNode):
    """`element[size]`"""

    element: TypeNode
    size: Expr


@dataclass(frozen=True, slots=True, eq=False)
class TupleTypeNode(TypeNode):
    """`tuple<...>`"""

    args: tuple[TypeNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ListTypeNode(TypeNode):
    """`list<...>`"""

    element: TypeNode


@dataclass(frozen=True, slots=True, eq=False)
class DontCareTypeNode(TypeNode):
    """`_` among type arguments."""


# ---- expressions


@dataclass(frozen=True, slots=True, eq=False)
class Expr(Node):
    """Base of expressions."""


@dataclass(frozen=True, slots=True, eq=False)
class IntExpr(Expr):
    """A number; `width` 0 for one without a width prefix."""

    value: int
    width: int
    signed: bool
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class BoolExpr(Expr):
    """true, false"""

    value: bool


@dataclass(frozen=True, slots=True, eq=False)
class StringExpr(Expr):
    """A string literal, without its quotes; escapes resolved."""

    value: str


@dataclass(frozen=True, slots=True, eq=False)
class PathExpr(Expr):
    """A name; `absolute` with a dot before it."""

    name: str
    absolute: bool


@dataclass(frozen=True, slots=True, eq=False)
class ThisExpr(Expr):
    """`this`, in an abstract method's body."""


@dataclass(frozen=True, slots=True, eq=False)
class DotsExpr(Expr):
    """`...`"""


@dataclass(frozen=True, slots=True, eq=False)
class DontCareExpr(Expr):
    """`_` as an argument or keyset."""


@dataclass(frozen=True, slots=True, eq=False)
class DefaultExpr(Expr):
    """`default` as a keyset or label."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskExpr(Expr):
    """`value &&& mask`"""

    value: Expr
    mask: Expr


@dataclass(frozen=True, slots=True, eq=False)
class RangeExpr(Expr):
    """`low .. high`"""

    low: Expr
    high: Expr


@dataclass(frozen=True, slots=True, eq=False)
class TypeExpr(Expr):
    """A type where an expression stands, as in `Enum.member` and `error.NoError`."""

    type: TypeNode


@dataclass(frozen=True, slots=True, eq=False)
class MemberExpr(Expr):
    """`base.member`. The location is that of the member's name."""

    base: Expr
    member: str


@dataclass(frozen=True, slots=True, eq=False)
class IndexExpr(Expr):
    """`base[index]`"""

    base: Expr
    index: Expr


@dataclass(frozen=True, slots=True, eq=False)
class SliceExpr(Expr):
    """`base[high:low]`, or `base[low+:width]`"""

    base: Expr
    first: Expr
    second: Expr
    by_width: bool


@dataclass(frozen=True, slots=True, eq=False)
class UnaryExpr(Expr):
    """`! ~ - +`"""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True, eq=False)
class BinaryExpr(Expr):
    """Two operands. The location is the operator's."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False)
class TernaryExpr(Expr):
    """`condition ? yes : no`"""

    condition: Expr
    yes: Expr
    no: Expr


@dataclass(frozen=True, slots=True, eq=False)
class CastExpr(Expr):
    """`(type) operand`"""

    type: TypeNode
    operand: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Arg(Node):
    """An argument. `name` is empty for a positional one."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class CallExpr(Expr):
    """`callee<type_args>(args)`"""

    callee: Expr
    type_args: tuple[TypeNode, ...]
    args: tuple[Arg, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ConstructExpr(Expr):
    """`type(args)`: an instance without a name."""

    type: TypeNode
    args: tuple[Arg, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ListExpr(Expr):
    """`{a, b}`, a last `...` included; in keysets `(a, b)` too."""

    elements: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StructExpr(Expr):
    """`{a = 1, b = 2}`; `dots` with a last `...`."""

    fields: tuple[tuple[Name, Expr], ...]
    dots: bool


@dataclass(frozen=True, slots=True, eq=False)
class InvalidExpr(Expr):
    """`{#}`"""


# ---- declarations


@dataclass(frozen=True, slots=True, eq=False)
class Decl(Node):
    """Base of declarations. The location is that of the name."""

    name: str
    annotations: Annotations


@dataclass(frozen=True, slots=True, eq=False)
class ParamDecl(Decl):
    """A parameter; `direction` is empty, in, out or inout."""

    direction: str
    type: TypeNode
    default: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class ConstDecl(Decl):
    """`const type name = value;`"""

    type: TypeNode
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class VarDecl(Decl):
    """`type name = value;`"""

    type: TypeNode
    value: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class InstanceDecl(Decl):
    """`type(args) name = { methods };` `body` is None without an initializer."""

    type: TypeNode
    args: tuple[Arg, ...]
    body: tuple[Decl, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class FieldDecl(Decl):
    """A field of a header, struct or union."""

    type: TypeNode


@dataclass(frozen=True, slots=True, eq=False)
class FieldsDecl(Decl):
    """`kind` is header, struct or header_union."""

    kind: str
    type_params: tuple[Name, ...]
    fields: tuple[FieldDecl, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EnumDecl(Decl):
    """An enum; `type` and the members' values are None without a representation."""

    type: TypeNode | None
    members: tuple[tuple[Name, Expr | None], ...]


@dataclass(frozen=True, slots=True, eq=False)
class MembersDecl(Decl):
    """`error { ... }` and `match_kind { ... }`; `name` says which."""

    members: tuple[Name, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TypedefDecl(Decl):
    """`typedef type name;`, and with `distinct`, `type type name;`"""

    type: TypeNode | FieldsDecl | EnumDecl
    distinct: bool


@dataclass(frozen=True, slots=True, eq=False)
class MethodDecl(Decl):
    """A method or extern function; `returns` is None for a constructor."""

    returns: TypeNode | None
    type_params: tuple[Name, ...]
    params: tuple[ParamDecl, ...]
    abstract: bool


@dataclass(frozen=True, slots=True, eq=False)
class ExternDecl(Decl):
    """`extern name<T> { methods }`"""

    type_params: tuple[Name, ...]
    methods: tuple[MethodDecl, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionDecl(Decl):
    """A function with a body, or the implementation of an abstract method."""

    returns: TypeNode
    type_params: tuple[Name, ...]
    params: tuple[ParamDecl, ...]
    body: BlockStmt


@dataclass(frozen=True, slots=True, eq=False)
class PackageDecl(Decl):
    """`package name<T>(params);`"""

    type_params: tuple[Name, ...]
    params: tuple[ParamDecl, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BlockTypeDecl(Decl):
    """A parser or control without a body; `kind` says which."""

    kind: str
    type_params: tuple[Name, ...]
    params: tuple[ParamDecl, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ParserDecl(Decl):
    """A parser with a body. `type_params` is not empty only in a wrong program."""

    type_params: tuple[Name, ...]
    params: tuple[ParamDecl, ...]
    constructor_params: tuple[ParamDecl, ...]
    locals: tuple[Decl, ...]
    states: tuple[StateDecl, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StateDecl(Decl):
    """A parser state; `transition` is None where none is written."""

    body: tuple[Stmt, ...]
    transition: TransitionNode | None


@dataclass(frozen=True, slots=True, eq=False)
class ControlDecl(Decl):
    """A control with a body. `type_params` is not empty only in a wrong program."""

    type_params: tuple[Name, ...]
    params: tuple[ParamDecl, ...]
    constructor_params: tuple[ParamDecl, ...]
    locals: tuple[Decl, ...]
    body: BlockStmt


@dataclass(frozen=True, slots=True, eq=False)
class ValueSetDecl(Decl):
    """`value_set<type>(size) name;`"""

    type: TypeNode
    size: Expr


@dataclass(frozen=True, slots=True, eq=False)
class ActionDecl(Decl):
    """`action name(params) body`"""

    params: tuple[ParamDecl, ...]
    body: BlockStmt


@dataclass(frozen=True, slots=True, eq=False)
class TableDecl(Decl):
    """`table name { properties }`"""

    properties: tuple[PropertyNode, ...]


# ---- parts of parsers and tables


@dataclass(frozen=True, slots=True, eq=False)
class TransitionNode(Node):
    """`transition name;`, or with `cases`, `transition select (exprs) { cases }`"""

    target: str
    exprs: tuple[Expr, ...]
    cases: tuple[SelectCaseNode, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class SelectCaseNode(Node):
    """`keyset : state;`"""

    keys: tuple[Expr, ...]
    state: Name


@dataclass(frozen=True, slots=True, eq=False)
class PropertyNode(Node):
    """A property of a table. The type of `value` depends on the name; an expression for custom ones."""

    name: str
    annotations: Annotations
    const: bool
    value: Expr | tuple[KeyNode, ...] | tuple[ActionRefNode, ...] | tuple[EntryNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class KeyNode(Node):
    """`expr : match_kind annotations;`"""

    expr: Expr
    match_kind: Name
    annotations: Annotations


@dataclass(frozen=True, slots=True, eq=False)
class ActionRefNode(Node):
    """`name` or `name(args)`; `args` is None for the first."""

    path: PathExpr
    args: tuple[Arg, ...] | None
    annotations: Annotations


@dataclass(frozen=True, slots=True, eq=False)
class EntryNode(Node):
    """`const priority = p : keyset : action annotations;`"""

    const: bool
    priority: Expr | None
    keys: tuple[Expr, ...]
    action: ActionRefNode


# ---- statements


@dataclass(frozen=True, slots=True, eq=False)
class Stmt(Node):
    """Base of statements."""


@dataclass(frozen=True, slots=True, eq=False)
class DeclStmt(Stmt):
    """A variable, constant, or instance among statements."""

    decl: VarDecl | ConstDecl | InstanceDecl


@dataclass(frozen=True, slots=True, eq=False)
class AssignStmt(Stmt):
    """`target op value`; `op` is `=`, `+=`, ... The location is the operator's."""

    target: Expr
    op: str
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class CallStmt(Stmt):
    """A call."""

    call: CallExpr


@dataclass(frozen=True, slots=True, eq=False)
class BlockStmt(Stmt):
    """`{ ... }`"""

    body: tuple[Stmt, ...]
    annotations: Annotations


@dataclass(frozen=True, slots=True, eq=False)
class IfStmt(Stmt):
    """if, else"""

    condition: Expr
    then: Stmt
    orelse: Stmt | None


@dataclass(frozen=True, slots=True, eq=False)
class ReturnStmt(Stmt):
    """return"""

    value: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class ExitStmt(Stmt):
    """exit"""


@dataclass(frozen=True, slots=True, eq=False)
class BreakStmt(Stmt):
    """break"""


@dataclass(frozen=True, slots=True, eq=False)
class ContinueStmt(Stmt):
    """continue"""


@dataclass(frozen=True, slots=True, eq=False)
class EmptyStmt(Stmt):
    """`;`"""


@dataclass(frozen=True, slots=True, eq=False)
class SwitchCaseNode(Node):
    """`label: body`; `body` is None for a label that falls through."""

    label: Expr
    body: BlockStmt | None


@dataclass(frozen=True, slots=True, eq=False)
class SwitchStmt(Stmt):
    """switch"""

    subject: Expr
    cases: tuple[SwitchCaseNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ForStmt(Stmt):
    """`for (init; condition; update) body`"""

    init: tuple[Stmt, ...]
    condition: Expr
    update: tuple[Stmt, ...]
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class ForInStmt(Stmt):
    """`for (type name in collection) body`; the collection may be a `RangeExpr`."""

    variable: VarDecl
    collection: Expr
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The declarations of the top level, those of included files too."""

    declarations: tuple[Decl, ...]
