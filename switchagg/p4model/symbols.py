"""Nested environments of names, and the symbols that names refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from switchagg.p4model import ast, ir
from switchagg.p4model.errors import Location, declared_twice
from switchagg.p4model.types import BlockType, ExternType, Method, Parameter, Type, TypeVar

FrameKind: TypeAlias = Literal["top", "parser", "control", "action", "function", "method", "table"]


class _Declared:
    """Base of symbols with a declaration, whose place is theirs."""

    __slots__ = ()
    decl: ast.Decl

    @property
    def location(self) -> Location:
        return self.decl.location


@dataclass(slots=True, eq=False)
class Generic(_Declared):
    """A declaration with type parameters; `cache` holds the types made of it so far, by their arguments."""

    decl: ast.TypeDecl
    env: Env
    type_params: tuple[str, ...]
    cache: dict[tuple[Type, ...], Type] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Block(_Declared):
    """A parser or control with a body, of which instances are made."""

    type: BlockType
    decl: ast.ParserDecl | ast.ControlDecl
    env: Env
    instantiated: bool = False


@dataclass(slots=True, eq=False)
class UserFunction(_Declared):
    """A function with a body; `cache` holds its instances, by type arguments."""

    decl: ast.FunctionDecl
    env: Env
    type_params: tuple[TypeVar, ...]
    params: tuple[Parameter, ...]
    returns: Type
    cache: dict[tuple[Type, ...], ir.Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.decl.name


@dataclass(slots=True, eq=False)
class Overloads:
    """Functions of one name, which differ in their parameters."""

    members: list[UserFunction | Method]

    @property
    def location(self) -> Location:
        return self.members[0].location


class Constant(ast.Record):
    """A name for a value that is known at compile time."""

    value: ir.Expr
    location: Location


class NamedType(ast.Record):
    """A name for a type."""

    type: Type
    location: Location


Symbol: TypeAlias = (
    NamedType | Generic | Block | Overloads | Constant | ir.Variable | ir.Action | ir.Table | ir.ValueSet
    | ir.ExternInstance | ir.ParserInstance | ir.ControlInstance | ir.PackageInstance
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Frame:
    """The body that is being checked.

    Attributes:
        path: the control-plane name that names in this body are prefixed with; empty at the top.
        returns: type of the value of `return`; None where there is no `return`.
        instances: the instances that the block has so far; those of the top level at the top.
        loops: number of open loops.
        owner: of a method: the type of its instance.
        states: of a parser: the names that a transition can name.
    """

    kind: FrameKind
    path: str = ""
    returns: Type | None = None
    instances: list[ir.Instance] = field(default_factory=list)
    loops: int = 0
    states: frozenset[str] = frozenset()
    owner: ExternType | None = None
    block: Frame | None = None
    """The parser or control that an action or method is in; None for those of the top level."""


class Env:
    """Names, nested in a parent environment. At the top level a body sees only earlier declarations."""

    __slots__ = ("_limit", "_names", "_order", "frame", "parent")

    def __init__(self, parent: Env | None, frame: Frame, limit: int | None = None) -> None:
        self.parent = parent
        self.frame = frame
        self._names: dict[str, Symbol] = {}
        self._order: dict[str, int] = {}
        self._limit = limit

    def child(self, frame: Frame | None = None) -> Env:
        """A new environment inside this one."""
        return Env(self, frame or self.frame)

    def snapshot(self) -> Env:
        """An environment that sees what has been declared in this one so far."""
        return Env(self, self.frame, len(self._order))

    def declare(self, name: str, symbol: Symbol) -> None:
        """Adds a name; functions of one name are joined. Raises `P4Error` for a name that is taken."""
        there = self._names.get(name)
        if isinstance(there, Overloads) and isinstance(symbol, Overloads):
            _join(there, symbol)
            return
        if there is not None:
            raise declared_twice(f"`{name}` is declared twice", symbol.location, there.location)
        self._order[name] = len(self._order)
        self._names[name] = symbol

    def lookup(self, name: str, *, top: bool = False) -> Symbol | None:
        """The symbol of a name here; with `top`, its symbol at the top level."""
        env: Env | None = self
        limit: int | None = None
        found: Symbol | None = None
        while env is not None:
            symbol = env._names.get(name)
            if symbol is not None and (limit is None or env._order[name] < limit):
                if not top:
                    return symbol
                found = symbol if env.frame.kind == "top" else None
            limit = env._limit
            env = env.parent
        return found

    def own(self) -> Mapping[str, Symbol]:
        """The names of this environment alone."""
        return self._names

    def names(self) -> Iterator[str]:
        """All names that are known here."""
        env: Env | None = self
        while env is not None:
            yield from env._names
            env = env.parent


def _join(there: Overloads, added: Overloads) -> None:
    for new in added.members:
        for old in there.members:
            if [each.name for each in old.params] == [each.name for each in new.params]:
                raise declared_twice(
                    f"`{new.name}` is declared twice with the same parameters", new.location, old.location
                )
        there.members.append(new)
