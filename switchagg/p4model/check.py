"""Checks a program and elaborates it: from `ast` to `ir`. `load` is the way in.

`Checker` holds the shared state and the parts: a class for types, for expressions, for calls, and so on. The
parts reach each other through it, because types contain expressions and expressions contain types and calls.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from switchagg.p4model import ast, ir
from switchagg.p4model.check_blocks import Blocks, Instances
from switchagg.p4model.check_calls import Calls, Functions
from switchagg.p4model.check_expressions import Expressions
from switchagg.p4model.check_statements import Statements
from switchagg.p4model.check_tables import Keysets, Tables
from switchagg.p4model.check_types import Types
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.parser import parse
from switchagg.p4model.preprocess import preprocess
from switchagg.p4model.symbols import Block, Env, Frame, Generic, NamedType, Overloads
from switchagg.p4model.types import PackageType, Parameter

_ARCHITECTURES = {"tofino1_arch": "tna", "tofino1arch": "tna", "tofino": "tna", "tofino1_base": "tna"}
_TOFINO = re.compile(r'^\s*#\s*include\s*[<"](tna|tofino1_arch)\.p4[>"]', re.MULTILINE)


def load(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    defines: Sequence[str] = (),
) -> ir.Program:
    """Reads, checks and elaborates a program.

    Args:
        path: the source file.
        include_dirs: where to look for included files before the folder that comes with this package.
        defines: macros, `NAME` or `NAME=value`.

    Raises:
        P4Error: the program is wrong, or uses what is not supported; the message has the place.
    """
    name = os.fspath(path)
    source = preprocess(path, include_dirs, [*_predefined(path), *defines])
    try:
        checker = Checker()
        checker.program(parse(source))
        return checker.result(name, source.sources)
    except P4Error as error:
        raise error.with_sources(source.sources) from None
    except RecursionError as error:
        deep = P4Error("this is nested too deeply", _innermost(error, Location(name, 0, 0)))
        raise deep.with_sources(source.sources) from None


def _innermost(error: RecursionError, otherwise: Location) -> Location:
    """The place of the node that the deepest call with one was about."""
    place = otherwise
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, ast.Node | ir.Expr) and value.location.line:
                place = value.location
    return place


def _predefined(path: str | os.PathLike[str]) -> list[str]:
    """The macros that the target's compiler defines."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return ["__p4c__=1", *(["__TARGET_TOFINO__=1"] if _TOFINO.search(text) else ["__TARGET_BMV2__=1"])]


class Checker:
    """The state of one check, and its parts."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.match_kinds: list[str] = []
        self.frame = Frame("top")
        self.top = Env(None, self.frame)
        self.blocks_declared: list[Block] = []
        self.actions: list[ir.Action] = []
        self.action_params: dict[ir.Action, tuple[Parameter, ...]] = {}
        """With default values, which the typed program does not have."""
        self.types = Types(self)
        self.exprs = Expressions(self)
        self.calls = Calls(self)
        self.keysets = Keysets(self)
        self.statements = Statements(self)
        self.functions = Functions(self)
        self.tables = Tables(self)
        self.blocks = Blocks(self)
        self.instances = Instances(self)

    def program(self, program: ast.Program) -> None:
        """Checks all declarations, in order, and then the blocks that nothing instantiated."""
        for decl in program.declarations:
            self._declare(decl)
        for block in self.blocks_declared:
            if not block.instantiated:
                self.blocks.check_unused(block)

    def _declare(self, decl: ast.Decl) -> None:
        env = self.top
        match decl:
            case ast.MembersDecl():
                self._members(decl)
            case ast.FieldsDecl() | ast.ExternDecl() | ast.BlockTypeDecl() | ast.PackageDecl():
                self._type(decl, env)
            case ast.EnumDecl():
                env.declare(decl.name, NamedType(self.types.enum(decl, env), decl.location))
            case ast.TypedefDecl():
                self._typedef(decl, env)
            case ast.MethodDecl():
                env.declare(decl.name, Overloads([self.types.method(decl, env, "")]))
            case ast.ParserDecl() | ast.ControlDecl():
                self.blocks_declared.append(self.blocks.declare(decl, env))
            case ast.ConstDecl():
                self.statements.constant(decl, env)
            case ast.ActionDecl():
                action = self.functions.action(decl, env)
                env.declare(decl.name, action)
                self.actions.append(action)
            case ast.FunctionDecl():
                self.functions.declare(decl, env)
            case ast.InstanceDecl():
                self.instances.declare(decl, env)
            case _:
                raise P4Error("this cannot be declared here", decl.location)

    def _members(self, decl: ast.MembersDecl) -> None:
        there = self.errors if decl.name == "error" else self.match_kinds
        for each in decl.members:
            if each.text in there:
                raise P4Error(f"{decl.name} `{each.text}` is declared twice", each.location)
            there.append(each.text)

    def _type(self, decl: ast.TypeDecl, env: Env) -> None:
        generic = Generic(decl, env.snapshot(), tuple(each.text for each in decl.type_params))
        if decl.type_params:
            self.types.declare_generic(generic, env)
            return
        if isinstance(decl, ast.ExternDecl):
            # The methods of an extern can name it.
            generic.env = env
        type_ = self.types.instantiate(generic, (), decl.location)
        self.types.generics[decl.name] = generic
        env.declare(decl.name, NamedType(type_, decl.location))

    def _typedef(self, decl: ast.TypedefDecl, env: Env) -> None:
        match decl.type:
            case ast.FieldsDecl() as inner:
                self._type(inner, env)
                type_ = self.types.resolve(ast.NamedType(inner.location, inner.name, False), env)
            case ast.EnumDecl() as inner_enum:
                type_ = self.types.enum(inner_enum, env)
                env.declare(inner_enum.name, NamedType(type_, inner_enum.location))
            case ast.TypeNode() as node:
                type_ = self.types.new_type(decl, env) if decl.distinct else self.types.resolve(node, env)
            case _:
                raise AssertionError(decl.type)
        env.declare(decl.name, NamedType(type_, decl.location))

    def result(self, path: str, sources: Mapping[str, str]) -> ir.Program:
        """The elaborated program. Raises `P4Error` without an instance of a package named `main`."""
        main = self.top.own().get("main")
        if main is None:
            raise P4Error("the program has no instance named `main`", Location(path, 0, 0))
        if not isinstance(main, ir.PackageInstance):
            raise P4Error("`main` must be an instance of a package", main.location)
        symbols = self.top.own().items()
        types = {name: each.type for name, each in symbols if isinstance(each, NamedType)}
        instances = [each for each in self.frame.instances if isinstance(each, ir.ExternInstance)]
        return ir.Program(
            path,
            _architecture(main.type),
            main,
            tuple(self.errors),
            tuple(self.match_kinds),
            types,
            tuple(instances),
            tuple(self.actions),
            sources,
        )


def _architecture(package: PackageType) -> str:
    name = Path(package.location.file).stem
    return _ARCHITECTURES.get(name, name)
