"""The STF format: small tests of P4 programs, as p4c has them beside its own. This module reads it.

    add table [priority] key:value ... action(arg:value, ...) [= name]     value: number, 0x**ff, 0x0a000000/8
    setdefault table action(arg:value, ...)
    packet port hexdigits            hexadecimal, blanks between
    expect port [hexdigits]          * for any digit, $ at the end for "and nothing after it"
    wait        remove all        no_packet
    check_counter name(index or $name) [packets|bytes == number]           likewise check_register
    mc_mgrp_create ..., mirroring_add ..., register_write ..., and others of simple_switch_CLI

A line is a statement, unless it ends with a backslash; `#` begins a comment, `;` may end a statement. An
action without arguments may go without parentheses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from switchagg.errors import UsageError
from switchagg.p4model.runtime.switch import check_port

# What simple_switch_CLI knows and STF passes on: how many words each takes at least.
COMMANDS: Final = {
    "mirroring_add": 2,
    "mirroring_add_mc": 2,
    "mirroring_delete": 1,
    "mirroring_get": 1,
    "mc_mgrp_create": 1,
    "mc_node_create": 1,
    "mc_node_update": 1,
    "mc_node_associate": 2,
    "counter_read": 2,
    "counter_write": 4,
    "register_read": 2,
    "register_write": 3,
    "register_reset": 1,
    "meter_get_rates": 2,
    "meter_set_rates": 3,
    "meter_array_set_rates": 2,
}


class StfError(UsageError):
    """A line that is no STF, or that does not suit the program. The message begins with file and line."""


@dataclass(frozen=True, slots=True)
class ActionText:
    """An action as written: its name, and its arguments by name (or position, where no name is written)."""

    name: str
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One line: its number, its first word in lower case, and what the word is about."""

    line: int
    word: str


@dataclass(frozen=True, slots=True)
class Add(Statement):
    """`add`. `keys` as written, in order."""

    table: str
    priority: int | None
    keys: tuple[tuple[str, str], ...]
    action: ActionText
    name: str | None


@dataclass(frozen=True, slots=True)
class SetDefault(Statement):
    """`setdefault`"""

    table: str
    action: ActionText


@dataclass(frozen=True, slots=True)
class Packet(Statement):
    """`packet`"""

    port: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Expect(Statement):
    """`expect`; `data` is None for a packet of any content, and for `no_packet` the port is None too."""

    port: int | None
    data: str | None


@dataclass(frozen=True, slots=True)
class Check(Statement):
    """`check_counter` and `check_register`: `what` is packets, bytes, or a half of a cell (lo, hi)."""

    target: str
    index: str
    what: str | None
    operator: str
    number: int


@dataclass(frozen=True, slots=True)
class Command(Statement):
    """One of COMMANDS, `wait`, or `remove`, with its words."""

    words: tuple[str, ...]


_NAME = r'(?:"[^"]+"|[A-Za-z_$][\w$.\[\]:<>-]*)'
_CALL = re.compile(rf"({_NAME})\s*\(([^)]*)\)\s*(?:=\s*(\w+))?\s*;?\s*$")
_BARE = re.compile(r'(?:"[^"]+"|(?<!\S)[A-Za-z_$][\w$.]*)$')
_CHECK = re.compile(rf"({_NAME})\s*\(\s*(\$?\w+)\s*\)\s*(?:(\w+)\s*)?(==|!=|<=|>=|=|<|>)?\s*(\w+)?\s*;?\s*$")


def number(text: str) -> int:
    """A decimal, 0x or 0b number. Raises ValueError."""
    text = text.strip()
    try:
        return int(text) if re.fullmatch(r"-?[0-9]+", text) else int(text, 0)
    except ValueError:
        raise ValueError(f"{text!r} is no number such as 12, 0x0c or 0b1100") from None


def parse_stf(text: str, name: str) -> list[Statement]:
    """The statements of a file. Raises StfError naming file and line."""
    statements = []
    held = ""
    for place, line in enumerate(text.splitlines(), 1):
        stripped = held + line.split("#", 1)[0].strip().rstrip(";").strip()
        held = ""
        if stripped.endswith("\\"):
            held = stripped[:-1]
        if held or not stripped:
            continue
        word, _, rest = stripped.partition(" ") if " " in stripped else stripped.partition("\t")
        try:
            statements.append(_statement(place, word.lower(), rest.strip()))
        except (ValueError, IndexError) as error:
            if isinstance(error, StfError):
                raise StfError(f"{name}:{place}: {error}") from None
            raise StfError(f"{name}:{place}: this is no {word} statement: {line.strip()}") from None
    return statements


def _statement(line: int, word: str, rest: str) -> Statement:
    if word == "packet":
        port, data = _port(rest)
        return Packet(line, word, port, bytes.fromhex(data))
    if word == "expect":
        port, data = _port(rest)
        if not re.fullmatch(r"[0-9a-fA-F*]*\$?", data):
            raise ValueError
        return Expect(line, word, port, data or None)
    if word == "no_packet":
        return Expect(line, word, None, None)
    if word == "add":
        return _add(line, word, rest)
    if word == "setdefault":
        table = re.match(r'"[^"]*"|\S+', rest)
        if table is None:
            raise ValueError
        return SetDefault(line, word, _unquoted(table.group(0)), _action(rest[table.end() :])[0])
    if word in ("check_counter", "check_register"):
        match = _CHECK.fullmatch(rest)
        if match is None:
            raise ValueError
        target, index, what, operator, value = match.groups()
        operator = "==" if operator in (None, "=") else operator
        return Check(line, word, _unquoted(target), index, what, operator, number(value or "0"))
    words = tuple(rest.split())
    if word in ("wait", "remove"):
        return Command(line, word, words)
    if word in COMMANDS:
        if len(words) < COMMANDS[word]:
            raise ValueError
        return Command(line, word, words)
    raise StfError(f"{word} is not a statement that this runner knows")


def _port(rest: str) -> tuple[int, str]:
    words = rest.split()
    port = int(words[0])
    try:
        check_port(port)
    except UsageError as error:
        raise StfError(str(error)) from None
    return port, "".join(words[1:])


def _add(line: int, word: str, rest: str) -> Add:
    match = _CALL.search(rest) or _BARE.search(rest)
    if match is None:
        raise ValueError
    action, name = _action(match.group(0))
    # Blanks after a colon belong to the key before them.
    head = re.findall(r'(?:"[^"]*"|[^\s"])+', re.sub(r":\s+", ":", rest[: match.start()]))
    table = _unquoted(head.pop(0))
    priority = None
    if head and re.fullmatch(r"\d+", head[0]):
        priority = int(head.pop(0))
    keys = []
    for each in head:
        key, colon, value = each.rpartition(":")
        if not colon:
            raise ValueError
        keys.append((_unquoted(key), value.rstrip(",")))
    return Add(line, word, table, priority, tuple(keys), action, name)


def _action(text: str) -> tuple[ActionText, str | None]:
    match = _CALL.fullmatch(text.strip())
    if match is None and _BARE.fullmatch(text.strip()):
        return ActionText(_unquoted(text.strip()), ()), None
    if match is None:
        raise ValueError
    arguments = []
    for place, each in enumerate(re.split(r"[,\s]+(?=[\w$\"]+\s*:)|,", match.group(2))):
        if not each.strip():
            continue
        key, colon, value = each.rpartition(":")
        arguments.append((_unquoted(key.strip()) if colon else str(place), value.strip()))
    return ActionText(_unquoted(match.group(1)), tuple(arguments)), match.group(3)


def _unquoted(text: str) -> str:
    return text[1:-1] if text.startswith('"') else text
