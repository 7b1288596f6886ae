"""What an architecture must say for its programs to be translated: how to make its externs, how to call them.

The translator knows of parsers, controls, tables and the core library. A target gives

    functions   name of an extern function -> how a call of it is written
    methods     (extern, method) -> how a call of it is written
    construct   the runtime object behind an extern instance
    hook_table  what happens round a table's action: direct counters, selectors

A way of writing a call takes a `Call` and returns the code of its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from switchagg.p4model import ir
from switchagg.p4model.errors import Location, unsupported
from switchagg.p4model.types import Type, width_of

if TYPE_CHECKING:
    from switchagg.p4entities.tables import Table
    from switchagg.p4model.runtime.emit import Body, Module


@dataclass(slots=True)
class TableHooks:
    """Lines round a table's action, in which `e` is the entry that was found."""

    before: list[str] = field(default_factory=list)
    needs_current: bool = False
    selector: Callable[[int, int], int] | None = None


class Target(Protocol):
    """An architecture."""

    name: str
    clear_on_valid: bool
    hashes_valid_only: bool
    on_length: Callable[[int], None] | None
    functions: Mapping[str, Lowering]
    methods: Mapping[tuple[str, str], Lowering]

    def construct(self, instance: ir.ExternInstance, module: Module) -> Any:
        """The runtime object of an instance. Raises P4Error for an extern that is not supported."""

    def make_table(self, table: ir.Table, module: Module) -> Table:
        """The runtime object of a table, without its default and entries' actions."""

    def hook_table(self, table: ir.Table, made: Table, module: Module) -> TableHooks:
        """What happens round the table's action."""


class Call:
    """A call of an extern function or method, as a lowering sees it."""

    def __init__(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> None:
        self.body = body
        self.call = call
        self.module = body.module
        self.location: Location = call.location

    @property
    def object(self) -> str:
        """Code of the object whose method is called."""
        assert isinstance(self.call, ir.MethodCall)
        target = self.call.target
        if isinstance(target, ir.ExternInstance):
            return self.module.extern(target)
        from switchagg.p4model.runtime.expressions import expression

        return expression(self.body, target)

    def argument(self, name: str) -> ir.Expr | None:
        """The expression that a parameter gets; None if the call leaves it out or has no such parameter."""
        for each in self.call.args:
            if each.param.name == name:
                return each.value
        return None

    def required(self, name: str) -> ir.Expr:
        """The expression that a parameter gets. Raises P4Error if the call leaves it out."""
        found = self.argument(name)
        if found is None:
            raise unsupported(f"{self.call.method} without {name}", self.location)
        return found

    def values(self, *names: str) -> list[str]:
        """Codes of arguments, evaluated in this order."""
        from switchagg.p4model.runtime.expressions import expression

        return self.body.ordered([partial(expression, self.body, each) for each in map(self.required, names)])

    def value(self, name: str) -> str:
        """Code of one argument."""
        return self.values(name)[0]

    def bits(self, name: str) -> str:
        """Code of an argument laid out as a bit string: (bits, value)."""
        from switchagg.p4model.runtime.bit_strings import bit_string

        return bit_string(self.body, self.required(name))

    def store(self, name: str, code: str) -> None:
        """Assigns to an out parameter; does nothing if the call leaves it out."""
        found = self.argument(name)
        if found is not None:
            from switchagg.p4model.runtime.lvalues import lvalue

            lvalue(self.body, found).store(code)

    def type(self, name: str) -> Type:
        """The type of an argument."""
        return self.required(name).type

    def width(self, name: str) -> int:
        """Bits of an argument. Raises P4Error if there is no such number."""
        return self.width_of(self.type(name), name)

    def width_of(self, type_: Type, what: str) -> int:
        """Bits of a type. Raises P4Error if there is no such number."""
        width = width_of(type_)
        if width is None:
            raise unsupported(f"{self.call.method} with {what} of type {type_}", self.location)
        return width


Lowering = Callable[[Call], str]
