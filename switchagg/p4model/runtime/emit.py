"""Python functions while they are written: lines, names, temporaries, and the module that they belong to.

Module      shared by the whole program: namespace, classes of headers, the functions written so far
Block       a parser or control instance while its functions are written
Body        one Python function
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from switchagg.p4entities.matches import MatchKind, ValueSet
from switchagg.p4entities.tables import Action, ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import Location, unsupported
from switchagg.p4model.runtime import values
from switchagg.p4model.runtime.header_classes import HeaderClasses, is_aggregate
from switchagg.p4model.runtime.tables import build_table, build_value_set
from switchagg.p4model.runtime.values import ParserReject
from switchagg.p4model.walk import nodes

# Expressions that need no temporary: constants, temporaries, or empty.
_SIMPLE = re.compile(r"-?\d\w*|t\d+|True|False|None|")


Callee = ir.Function | ir.Action | ir.ControlInstance | ir.ParserInstance
_PREFIXES: Final = {ir.Function: "fn_", ir.Action: "a_", ir.ControlInstance: "c_", ir.ParserInstance: "p_"}


def identifier(text: str) -> str:
    """Returns `text` as a part of a Python name."""
    cleaned = re.sub(r"\W", "_", text)
    return cleaned + "_" if keyword.iskeyword(cleaned) else cleaned


class ExitAnalysis:
    """Finds the actions, functions, tables and controls that may run `exit`."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def may_exit(
        self, owner: ir.Action | ir.Function | ir.Table | ir.ControlInstance | ir.ParserInstance
    ) -> bool:
        """Returns True if running this may end in `exit`."""
        if id(owner) not in self._known:
            self._known[id(owner)] = False
            self._known[id(owner)] = self._search(owner)
        return self._known[id(owner)]

    def _search(self, owner: object) -> bool:
        if isinstance(owner, ir.Table):
            called = [each.action for each in owner.actions]
            called += [owner.default.action] if owner.default else []
            return any(self.may_exit(each) for each in called)
        if isinstance(owner, ir.Action | ir.Function | ir.ControlInstance):
            return any(self._exits(each) for each in nodes(owner.body))
        return False

    def _exits(self, node: object) -> bool:
        match node:
            case ir.Exit():
                return True
            case ir.FunctionCall(function=owner) | ir.DirectActionCall(action=owner):
                return self.may_exit(owner)
            case ir.TableApply(table=owner) | ir.BlockApply(instance=owner):
                return self.may_exit(owner)
            case ir.ActionSwitch(apply=apply):
                return self.may_exit(apply.table)
            case _:
                return False


@dataclass(slots=True)
class Marker:
    """An extern that configures hardware without an effect on packets."""

    name: str


class Target(Protocol):
    """An architecture, for the translator, which itself knows parsers, controls, tables and the core library.

    Attributes:
        clear_on_valid: a header that becomes valid by setValid holds zeros, as in bmv2; otherwise its old
            values, as in a Tofino.
        hashes_valid_only: hashes leave out the fields of invalid headers, as in bmv2.
        pads_flexible: headers with @flexible are padded to whole bytes, as for a Tofino.
        on_length: called with the bytes that setValid adds to a packet, or setInvalid takes off.
        match_kinds: those that the architecture has, by name.
    """

    name: str
    clear_on_valid: bool
    hashes_valid_only: bool
    pads_flexible: bool
    on_length: Callable[[int], None] | None
    match_kinds: Mapping[str, MatchKind]

    def lower(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> str:
        """Returns code of the value of an extern's call; emits its statements. Raises P4Error."""

    def construct(self, instance: ir.ExternInstance, module: Module) -> Any:
        """Returns the runtime object of an extern instance. Raises P4Error for one that is not supported."""

    def hook_table(self, table: ir.Table, made: Table, module: Module) -> list[str]:
        """Returns lines before the action of a table runs; in them `e` is the entry that was found."""


class Module:
    """The Python module that a program becomes."""

    def __init__(self, program: ir.Program, target: Target, *, traced: bool) -> None:
        self.program = program
        self.target = target
        self.traced = traced
        self.namespace: dict[str, Any] = {
            "Exit": values.Exit,
            "ParserReject": ParserReject,
            "shift_left": values.shift_left,
            "shift_left_signed": values.shift_left_signed,
            "shift_right": values.shift_right,
            "signed": values.signed,
            "join": values.join,
        }
        self.classes = HeaderClasses(
            self.namespace,
            clear_on_valid=target.clear_on_valid,
            on_length=target.on_length is not None,
            pads_flexible=target.pads_flexible,
        )
        if target.on_length is not None:
            self.namespace["on_length"] = target.on_length
        self.exits = ExitAnalysis()
        self.errors = {name: code for code, name in enumerate(program.errors)}
        self.lines: list[str] = []
        self.written: dict[int, str] = {}
        self.requested: list[tuple[Block, Callee, str, bool]] = []
        self.externs: dict[int, str] = {}
        self.extern_objects: dict[str, Any] = {}
        self.tables: dict[str, Table] = {}
        self.value_sets: dict[str, ValueSet] = {}
        # Put before control-plane names: each of several pipelines has its own.
        self.prefix = ""
        self.runs: list[tuple[Action, str]] = []
        self._bound: dict[int, str] = {}
        self._kept: list[Any] = []
        self._count = 0

    def fresh(self, hint: str) -> str:
        """Returns a name that is not in use."""
        self._count += 1
        return f"{identifier(hint)}_{self._count}"

    def bind(self, value: Any, hint: str) -> str:
        """Returns the name of a global that holds this object."""
        known = self._bound.get(id(value))
        if known is None:
            known = self._bound[id(value)] = self.fresh("g_" + hint)
            self._kept.append(value)
            self.namespace[known] = value
        return known

    def extern(self, instance: ir.ExternInstance) -> str:
        """Returns the name of the global with the runtime object of an extern instance."""
        known = self.externs.get(id(instance))
        if known is None:
            made = self.target.construct(instance, self)
            known = self.externs[id(instance)] = self.bind(made, instance.name)
            self.extern_objects[self.prefix + instance.control_name] = made
        return known

    def table(self, table: ir.Table) -> Table:
        """Returns the runtime object of a table, with the source's entries. Raises P4Error."""
        implementation = table.properties.get("implementation")
        profile = None
        if isinstance(implementation, ir.ExternInstance):
            made = self.namespace[self.extern(implementation)]
            if isinstance(made, ActionProfile):
                profile = made
            elif not isinstance(made, Marker):
                raise unsupported(f"{implementation.type} as an implementation", table.location)
        return build_table(table, self.target.match_kinds, profile, self.errors)

    def value_set(self, declared: ir.ValueSet) -> ValueSet:
        """Returns the runtime object of a parser's value set."""
        name = self.prefix + declared.control_name
        known = self.value_sets.get(name)
        if known is None:
            known = self.value_sets[name] = build_value_set(declared)
        return known

    @property
    def source(self) -> str:
        """The text of all classes and functions, for a reader."""
        return "\n".join(self.classes.source) + "\n" + "\n".join(self.lines) + "\n"

    def compile(self) -> None:
        """Defines all functions, and gives actions and entries theirs."""
        text = "\n".join(self.lines) + "\n"
        exec(compile(text, f"<{self.program.path}>", "exec"), self.namespace)
        for action, name in self.runs:
            action.run = self.namespace[name]
        for table in self.tables.values():
            table.rebind()


@dataclass(eq=False)
class Block:
    """A parser or control while its functions are written. Its variables live in attributes of a frame."""

    module: Module
    frame: dict[ir.Variable, str] = field(default_factory=dict)
    tables: dict[int, str] = field(default_factory=dict)

    def name_of(self, callee: Callee, *, method: bool = False) -> str:
        """Returns the name of a callee's Python function, and has it written if it is not.

        Args:
            method: the callee is an abstract method of an extern instance: it uses this block's frame.
        """
        module = self.module
        known = module.written.get(id(callee))
        if known is None:
            prefix = "m_" if method else _PREFIXES[type(callee)]
            known = module.written[id(callee)] = module.fresh(prefix + callee.name)
            framed = method or isinstance(callee, ir.Action)
            module.requested.append((self if framed else Block(module), callee, known, framed))
        return known


class Body:
    """A Python function. A name is its own, or else one of the block's frame `f`."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.module = block.module
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[ir.Variable, str] = {}
        self.outs: list[ir.Variable] = []
        self.updates: list[tuple[ir.Stmt, ...]] = []
        self._aliases: dict[str, str] = {}
        self._temporaries = 0

    # ---- lines ----

    def emit(self, line: str) -> None:
        """Adds a line at the present depth."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def nested(self, line: str = "") -> Iterator[None]:
        """Adds a line, if there is one; all that is emitted inside the context is one level deeper."""
        if line:
            self.emit(line)
        self.depth += 1
        yield
        self.depth -= 1

    def temp(self) -> str:
        """Returns the name of a new temporary."""
        self._temporaries += 1
        return f"t{self._temporaries}"

    def hold(self, code: str) -> str:
        """Evaluates `code` now. Returns the temporary with its value, or `code` itself if it is constant."""
        if _SIMPLE.fullmatch(code):
            return code
        name = self.temp()
        self.emit(f"{name} = {code}")
        return name

    def capture(self, write: Callable[[], str]) -> tuple[str, list[str]]:
        """Returns the result of `write`, and removes and returns the lines that it emitted."""
        mark = len(self.lines)
        with self.nested():
            code = write()
        lines = self.lines[mark:]
        del self.lines[mark:]
        return code, lines

    def ordered(self, writers: Sequence[Callable[[], str]]) -> list[str]:
        """Returns codes of expressions that must be evaluated in this order.

        If a later one emits statements, the earlier ones are evaluated before these.
        """
        codes: list[str] = []
        for write in writers:
            mark = len(self.lines)
            code = write()
            if len(self.lines) > mark:
                held = []
                for position, earlier in enumerate(codes):
                    if not _SIMPLE.fullmatch(earlier):
                        codes[position] = self.temp()
                        held.append("    " * self.depth + f"{codes[position]} = {earlier}")
                self.lines[mark:mark] = held
            codes.append(code)
        return codes

    # ---- variables ----

    def local(self, variable: ir.Variable) -> str:
        """Declares a variable of this function. Returns its Python name."""
        name = self.names[variable] = self.module.fresh("v_" + variable.name)
        return name

    def place(self, variable: ir.Variable, location: Location) -> str:
        """Returns code that reads a variable and, unless it is an aggregate, can be assigned to."""
        name = self.names.get(variable)
        if name is not None:
            return name
        slot = self.block.frame.get(variable)
        if slot is None:
            raise unsupported(f"the use of {variable.name} outside its block", location)
        if not is_aggregate(variable.type):
            return f"f.{slot}"
        # The object stays the same while the frame lives: one look-up a function is enough.
        self._aliases[slot] = f"f.{slot}"
        return slot

    def returned(self, value: str | None) -> str:
        """Returns code of the function's result: its value, if it has one, and its out parameters."""
        parts = [] if value is None else [value]
        parts += [self.place(variable, variable.location) for variable in self.outs]
        if not parts:
            return "None"
        return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"

    def finish(self, name: str, parameters: Sequence[str], head: Sequence[str] = ()) -> None:
        """Adds the function to the module. `head` comes before all that was emitted."""
        aliases = [f"    {slot} = {code}" for slot, code in self._aliases.items()]
        body = [*head, *aliases, *self.lines]
        self.module.lines += [f"def {name}({', '.join(parameters)}):", *(body or ["    pass"])]
