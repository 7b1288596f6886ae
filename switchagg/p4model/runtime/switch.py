"""A switch that runs a P4 program: packets in, packets out, and the control plane's view of its state.

    process ─► arrivals ─► ingress ─► departures ─► egress ─► out
                  ▲           │                        │
                  └───────────┴── resubmitted, recirculated

Departures go first, so that a packet is through before a packet that it sent round again begins. An
architecture defines what its ingress and egress do with one packet. Time comes in with each packet and is
never read from a clock.
"""

from __future__ import annotations

import abc
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from switchagg.errors import SwitchError, UsageError
from switchagg.p4entities.counters import CounterArray, MeterArray, Register
from switchagg.p4entities.matches import TableError, ValueSet
from switchagg.p4entities.replication import Replication
from switchagg.p4entities.tables import ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.runtime.emit import Module

_T = TypeVar("_T")

PORTS: Final = 512
"""Both architectures number their ports with 9 bits."""
MAX_PASSES: Final = 4096


def check_port(port: int) -> int:
    """Returns the port. Raises `UsageError` for a number that no switch has."""
    if not 0 <= port < PORTS:
        raise UsageError(f"port is {port}; accepted: 0..{PORTS - 1}")
    return port


class ModelError(SwitchError):
    """A packet led the program to a state that no switch can go on from: a failed assert, an endless loop."""


@dataclass(frozen=True, slots=True)
class Event:
    """A step. `kind` is one of packet, state, extract, error, table, action, message, drop, send."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:8} {self.text}"


@dataclass(slots=True)
class Trace:
    """The steps of one packet, copies and all, in order: for people, and for tests."""

    events: list[Event] = field(default_factory=list)

    def add(self, kind: str, text: str) -> None:
        """Adds a step."""
        self.events.append(Event(kind, text))

    def state(self, name: str) -> None:
        """Adds the state that a parser enters."""
        self.add("state", name)

    def extract(self, name: str, header: Any) -> None:
        """Adds a header that was extracted."""
        self.add("extract", f"{name} {_shown(header)}")

    def table(self, table: Any, key: tuple[Any, ...], entry: Any, chosen: Any) -> None:
        """Adds the look-up of a table, and the action that runs."""
        self.add("table", f"{table.name} ({_pairs(table.keys, key)}) {'hit' if entry.hit else 'miss'}")
        self.add("action", f"{chosen.action.name}({_pairs(chosen.action.parameters, chosen.args)})")

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))


def _pairs(fields: Sequence[Any], values: Sequence[Any]) -> str:
    return ", ".join(f"{each.name}={int(value):#x}" for each, value in zip(fields, values, strict=False))


def _shown(value: Any) -> str:
    """Returns a header or struct by its fields, a number in hexadecimal."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return hex(value)
    slots = getattr(value, "__slots__", None)
    if slots is None or isinstance(value, tuple):
        return str(value)
    fields = [name for name in slots if name.startswith("f_")]
    return f"{{{', '.join(f'{name[2:]}={_shown(getattr(value, name))}' for name in fields)}}}"


class State(Protocol):
    """The state that an architecture's externs share while a packet is under way."""

    now: float


class ModelSwitch(abc.ABC):
    """A switch with a program in it. Names are those of the control plane, in full or from any dot on.

    Attributes:
        digests: the digests since this list was last cleared: (name, values).
        messages: the messages of log_msg since this list was last cleared.
        trace: the steps of the last packet, if `traced`.
    """

    _state: State

    def __init__(self, program: ir.Program, *, seed: int = 0, traced: bool = False) -> None:
        self.program = program
        self.random = random.Random(seed)
        self.trace = Trace()
        self.traced = traced
        self.replication = Replication()
        self.digests: list[tuple[str, dict[str, Any]]] = []
        self.messages: list[str] = []
        self.module: Module
        self.tables: dict[str, Table] = {}
        self.value_sets: dict[str, ValueSet] = {}
        self.externs: dict[str, Any] = {}
        self.now = 0.0
        self._out: list[tuple[int, bytes]] = []
        self._arrivals: deque[Any] = deque()
        self._departures: deque[Any] = deque()

    def process(self, port: int, data: bytes, now: float = 0.0) -> list[tuple[int, bytes]]:
        """Runs one packet that came in at `port`, at `now` seconds. Returns the (port, packet) that go out.

        Raises:
            ModelError: the program failed an assert, or sent a packet round without end.
        """
        self.now = self._state.now = now
        self._out = []
        self._arrivals = deque([self._arrival(port, data)])
        self._departures = deque()
        if self.traced:
            self.trace.events.clear()
        for _ in range(MAX_PASSES):
            if self._departures:
                self._run_egress(self._departures.popleft())
            elif self._arrivals:
                self._run_ingress(self._arrivals.popleft())
            else:
                return self._out
        raise ModelError(f"{self.program.path}: one packet went through more than {MAX_PASSES} passes")

    @abc.abstractmethod
    def _arrival(self, port: int, data: bytes) -> Any:
        """Returns a packet that comes in from outside, as `_run_ingress` takes it."""

    @abc.abstractmethod
    def _run_ingress(self, arrival: Any) -> None:
        """Runs parser to traffic manager; adds to `_departures` and `_arrivals`."""

    @abc.abstractmethod
    def _run_egress(self, packet: Any) -> None:
        """Runs traffic manager to port; adds to `_out` and `_arrivals`."""

    def _note(self, kind: str, text: str) -> None:
        if self.traced:
            self.trace.add(kind, text)

    def _finish(self, module: Module) -> None:
        """Compiles the translated program and takes its tables and externs."""
        module.namespace["TR"] = self.trace
        module.compile()
        self.module = module
        self.tables = module.tables
        self.value_sets = module.value_sets
        self.externs = module.extern_objects

    def table(self, name: str) -> Table:
        """Returns the table of this name. Raises TableError."""
        return named(self.tables, name, "table")

    def value_set(self, name: str) -> ValueSet:
        """Returns the value set of this name. Raises TableError."""
        return named(self.value_sets, name, "value set")

    def counter(self, name: str) -> CounterArray:
        """Returns the indirect counter of this name. Raises TableError."""
        return self._extern(name, "counter", CounterArray)

    def meter(self, name: str) -> MeterArray:
        """Returns the indirect meter of this name. Raises TableError."""
        return self._extern(name, "meter", MeterArray)

    def register(self, name: str) -> Register:
        """Returns the register of this name. Raises TableError."""
        return self._extern(name, "register", Register)

    def profile(self, name: str) -> ActionProfile:
        """Returns the action profile or selector of this name. Raises TableError."""
        return self._extern(name, "action profile", ActionProfile)

    def _extern(self, name: str, what: str, kind: type[_T]) -> _T:
        return named(self.externs_of(kind), name, what)

    def externs_of(self, kind: type[_T]) -> dict[str, _T]:
        """Returns the objects of one kind of extern, by name."""
        return {name: value for name, value in self.externs.items() if isinstance(value, kind)}

    @property
    def source(self) -> str:
        """The Python text that the program was translated to."""
        return self.module.source


def named(things: Mapping[str, _T], name: str, what: str, before: Sequence[str] = (".",)) -> _T:
    """Returns the thing of this name, or the only one whose name ends in it. Raises TableError.

    Args:
        before: texts that may stand before the ending, the preferred one first.
    """
    if name in things:
        return things[name]
    for text in before:
        ending = [full for full in things if full.endswith(text + name)]
        if len(ending) == 1:
            return things[ending[0]]
        if ending:
            raise TableError(f"{what} {name} may be any of {', '.join(sorted(ending))}")
    raise TableError(f"there is no {what} {name}; there is {', '.join(sorted(things)) or 'none'}")
