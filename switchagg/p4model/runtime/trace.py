"""What happened to a packet: states, headers, table look-ups, drops, in order. For people, and for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One step. `kind` is one of packet, state, extract, error, table, action, message, drop, send."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:8} {self.text}"


@dataclass(slots=True)
class Trace:
    """The steps of one packet, copies and all."""

    events: list[Event] = field(default_factory=list)

    def add(self, kind: str, text: str) -> None:
        """Adds a step."""
        self.events.append(Event(kind, text))

    def state(self, name: str) -> None:
        """A parser entered a state."""
        self.add("state", name)

    def extract(self, name: str, header: Any) -> None:
        """A header was extracted."""
        self.add("extract", f"{name} {show(header)}")

    def table(self, table: Any, key: tuple[Any, ...], entry: Any, chosen: Any) -> None:
        """A table was applied."""
        shown = ", ".join(
            f"{spec.name}={value:#x}" for spec, value in zip(table.keys, map(int, key), strict=False)
        )
        self.add("table", f"{table.name} ({shown}) {'hit' if entry.hit else 'miss'}")
        arguments = ", ".join(
            f"{parameter.name}={int(value):#x}"
            for parameter, value in zip(chosen.action.parameters, chosen.args, strict=False)
        )
        self.add("action", f"{chosen.action.name}({arguments})")

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))


def show(value: Any) -> str:
    """A header or struct by its fields, a number in hexadecimal."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return hex(value)
    slots = getattr(value, "__slots__", None)
    if slots is None or isinstance(value, tuple):
        return str(value)
    fields = [name for name in slots if name.startswith("f_")]
    inside = ", ".join(f"{name[2:]}={show(getattr(value, name))}" for name in fields)
    return f"{{{inside}}}"
