"""The syntax tree: the program as written, before names are resolved.

The typed and elaborated program, which `load()` returns and the runtime executes, is
`switchagg.p4model.ir`; its docstring is the contract. Of this module the runtime sees `Annotation` only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from switchagg.p4model.errors import Location, P4Error


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
class Record:
    """Base of frozen dataclasses that compare by identity; a subclass needs no decorator."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)


class Node(Record):
    """Base of everything that has a place in the source."""

    location: Location


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


class Name(Node):
    """A name where it is declared or, in `PathExpr` and `NamedType`, used."""

    text: str


# ---- types as written


class TypeNode(Node):
    """Base of types as written."""


class BaseType(TypeNode):
    """bool, error, match_kind, string, void, bit, int, varbit. `width` is None where none is written."""

    name: str
    width: Expr | None = None


class NamedType(TypeNode):
    """A type by its name; `absolute` with a dot before it."""

    name: str
    absolute: bool = False


class SpecializedType(TypeNode):
    """`base<args>`"""

    base: NamedType
    args: tuple[TypeNode, ...]


class ArrayType(TypeNode):
    """`element[size]`"""

    element: TypeNode
    size: Expr


class TupleTypeNode(TypeNode):
    """`tuple<...>`"""

    args: tuple[TypeNode, ...]


class ListTypeNode(TypeNode):
    """`list<...>`"""

    element: TypeNode


class DontCareTypeNode(TypeNode):
    """`_` among type arguments."""


# ---- expressions


class Expr(Node):
    """Base of expressions."""


class IntExpr(Expr):
    """A number; `width` 0 for one without a width prefix."""

    value: int
    width: int
    signed: bool
    text: str


class BoolExpr(Expr):
    """true, false"""

    value: bool


class StringExpr(Expr):
    """A string literal, without its quotes; escapes resolved."""

    value: str


class PathExpr(Expr):
    """A name; `absolute` with a dot before it."""

    name: str
    absolute: bool = False


class ThisExpr(Expr):
    """`this`, in an abstract method's body."""


class DotsExpr(Expr):
    """`...`"""


class DontCareExpr(Expr):
    """`_` as an argument or keyset."""


class DefaultExpr(Expr):
    """`default` as a keyset or label."""


class MaskExpr(Expr):
    """`value &&& mask`"""

    value: Expr
    mask: Expr


class RangeExpr(Expr):
    """`low .. high`"""

    low: Expr
    high: Expr


class TypeExpr(Expr):
    """A type where an expression stands, as in `Enum.member` and `error.NoError`."""

    type: TypeNode


class MemberExpr(Expr):
    """`base.member`. The location is that of the member's name."""

    base: Expr
    member: str


class IndexExpr(Expr):
    """`base[index]`"""

    base: Expr
    index: Expr


class SliceExpr(Expr):
    """`base[high:low]`, or `base[low+:width]`"""

    base: Expr
    first: Expr
    second: Expr
    by_width: bool = False


class UnaryExpr(Expr):
    """`! ~ - +`"""

    op: str
    operand: Expr


class BinaryExpr(Expr):
    """Two operands. The location is the operator's."""

    op: str
    left: Expr
    right: Expr


class TernaryExpr(Expr):
    """`condition ? yes : no`"""

    condition: Expr
    yes: Expr
    no: Expr


class CastExpr(Expr):
    """`(type) operand`"""

    type: TypeNode
    operand: Expr


class Arg(Node):
    """An argument. `name` is empty for a positional one."""

    value: Expr
    name: str = ""


class CallExpr(Expr):
    """`callee<type_args>(args)`"""

    callee: Expr
    args: tuple[Arg, ...]
    type_args: tuple[TypeNode, ...] = ()


class ConstructExpr(Expr):
    """`type(args)`: an instance without a name."""

    type: TypeNode
    args: tuple[Arg, ...]


class ListExpr(Expr):
    """`{a, b}`, a last `...` included; in keysets `(a, b)` too."""

    elements: tuple[Expr, ...]


class StructExpr(Expr):
    """`{a = 1, b = 2}`; `dots` with a last `...`."""

    fields: tuple[tuple[Name, Expr], ...]
    dots: bool


class InvalidExpr(Expr):
    """`{#}`"""


# ---- declarations


class Decl(Node):
    """Base of declarations. The location is that of the name."""

    name: str
    annotations: Annotations


class GenericDecl(Decl):
    """Base of declarations that can have type parameters."""

    type_params: tuple[Name, ...]


class ParamDecl(Decl):
    """A parameter; `direction` is empty, in, out or inout."""

    direction: str
    type: TypeNode
    default: Expr | None


class ConstDecl(Decl):
    """`const type name = value;`"""

    type: TypeNode
    value: Expr


class VarDecl(Decl):
    """`type name = value;`"""

    type: TypeNode
    value: Expr | None


class InstanceDecl(Decl):
    """`type(args) name = { methods };` `body` is None without an initializer."""

    type: TypeNode
    args: tuple[Arg, ...]
    body: tuple[Decl, ...] | None


class FieldDecl(Decl):
    """A field of a header, struct or union."""

    type: TypeNode


class FieldsDecl(GenericDecl):
    """`kind` is header, struct or header_union."""

    kind: str
    fields: tuple[FieldDecl, ...]


class EnumDecl(Decl):
    """An enum; `type` and the members' values are None without a representation."""

    type: TypeNode | None
    members: tuple[tuple[Name, Expr | None], ...]


class MembersDecl(Decl):
    """`error { ... }` and `match_kind { ... }`; `name` says which."""

    members: tuple[Name, ...]


class TypedefDecl(Decl):
    """`typedef type name;`, and with `distinct`, `type type name;`"""

    type: TypeNode | FieldsDecl | EnumDecl
    distinct: bool = False


class MethodDecl(Decl):
    """A method or extern function; `returns` is None for a constructor."""

    params: tuple[ParamDecl, ...]
    returns: TypeNode | None = None
    type_params: tuple[Name, ...] = ()
    abstract: bool = False


class ExternDecl(GenericDecl):
    """`extern name<T> { methods }`"""

    methods: tuple[MethodDecl, ...]


class FunctionDecl(GenericDecl):
    """A function with a body, or the implementation of an abstract method."""

    returns: TypeNode
    params: tuple[ParamDecl, ...]
    body: BlockStmt


class PackageDecl(GenericDecl):
    """`package name<T>(params);`"""

    params: tuple[ParamDecl, ...]


class BlockTypeDecl(GenericDecl):
    """A parser or control without a body; `kind` says which."""

    kind: str
    params: tuple[ParamDecl, ...]


TypeDecl: TypeAlias = FieldsDecl | ExternDecl | BlockTypeDecl | PackageDecl


class BlockDecl(GenericDecl):
    """Base of a parser and a control with a body. `type_params` is not empty only in a wrong program."""

    params: tuple[ParamDecl, ...]
    constructor_params: tuple[ParamDecl, ...]
    locals: tuple[Decl, ...]


class ParserDecl(BlockDecl):
    """A parser with a body."""

    states: tuple[StateDecl, ...]


class StateDecl(Decl):
    """A parser state; `transition` is None where none is written."""

    body: tuple[Stmt, ...]
    transition: TransitionNode | None


class ControlDecl(BlockDecl):
    """A control with a body."""

    body: BlockStmt


class ValueSetDecl(Decl):
    """`value_set<type>(size) name;`"""

    type: TypeNode
    size: Expr


class ActionDecl(Decl):
    """`action name(params) body`"""

    params: tuple[ParamDecl, ...]
    body: BlockStmt


class TableDecl(Decl):
    """`table name { properties }`"""

    properties: tuple[PropertyNode, ...]


# ---- parts of parsers and tables


class TransitionNode(Node):
    """`transition name;`, or with `cases`, `transition select (exprs) { cases }`"""

    target: str
    exprs: tuple[Expr, ...] = ()
    cases: tuple[SelectCaseNode, ...] | None = None


class SelectCaseNode(Node):
    """`keyset : state;`"""

    keys: tuple[Expr, ...]
    state: Name


class PropertyNode(Node):
    """A property of a table. The type of `value` depends on the name; an expression for custom ones."""

    name: str
    annotations: Annotations
    const: bool
    value: Expr | tuple[KeyNode, ...] | tuple[ActionRefNode, ...] | tuple[EntryNode, ...]


class KeyNode(Node):
    """`expr : match_kind annotations;`"""

    expr: Expr
    match_kind: Name
    annotations: Annotations


class ActionRefNode(Node):
    """`name` or `name(args)`; `args` is None for the first."""

    path: PathExpr
    args: tuple[Arg, ...] | None
    annotations: Annotations = ()


class EntryNode(Node):
    """`const priority = p : keyset : action annotations;`"""

    const: bool
    priority: Expr | None
    keys: tuple[Expr, ...]
    action: ActionRefNode


# ---- statements


class Stmt(Node):
    """Base of statements."""


class DeclStmt(Stmt):
    """A variable, constant, or instance among statements."""

    decl: VarDecl | ConstDecl | InstanceDecl


class AssignStmt(Stmt):
    """`target op value`; `op` is `=`, `+=`, ... The location is the operator's."""

    target: Expr
    op: str
    value: Expr


class CallStmt(Stmt):
    """A call."""

    call: CallExpr


class BlockStmt(Stmt):
    """`{ ... }`"""

    body: tuple[Stmt, ...]
    annotations: Annotations = ()


class IfStmt(Stmt):
    """if, else"""

    condition: Expr
    then: Stmt
    orelse: Stmt | None


class ReturnStmt(Stmt):
    """return"""

    value: Expr | None


class ExitStmt(Stmt):
    """exit"""


class BreakStmt(Stmt):
    """break"""


class ContinueStmt(Stmt):
    """continue"""


class EmptyStmt(Stmt):
    """`;`"""


class SwitchCaseNode(Node):
    """`label: body`; `body` is None for a label that falls through."""

    label: Expr
    body: BlockStmt | None


class SwitchStmt(Stmt):
    """switch"""

    subject: Expr
    cases: tuple[SwitchCaseNode, ...]


class ForStmt(Stmt):
    """`for (init; condition; update) body`"""

    init: tuple[Stmt, ...]
    condition: Expr
    update: tuple[Stmt, ...]
    body: Stmt


class ForInStmt(Stmt):
    """`for (type name in collection) body`; the collection may be a `RangeExpr`."""

    variable: VarDecl
    collection: Expr
    body: Stmt


class Program(Record):
    """The declarations of the top level, those of included files too."""

    declarations: tuple[Decl, ...]
