"""The STF format, p4c's small tests of P4 programs: reads it and runs it against a switch.

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

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from switchagg.errors import UsageError
from switchagg.p4entities.counters import CounterArray, DirectCounter, Meter, MeterArray, Rate, Register
from switchagg.p4entities.matches import Exact, KeyField, Lpm, Match, MatchKind, Ternary, Wildcard
from switchagg.p4entities.replication import CloneSession, Replication
from switchagg.p4entities.tables import Action, Entry, Table
from switchagg.p4model.runtime.switch import ModelSwitch, check_port, named


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
    """Returns a decimal, 0x or 0b number. Raises ValueError."""
    text = text.strip()
    try:
        return int(text) if re.fullmatch(r"-?[0-9]+", text) else int(text, 0)
    except ValueError:
        raise ValueError(f"{text!r} is no number such as 12, 0x0c or 0b1100") from None


def parse_stf(text: str, name: str) -> list[Statement]:
    """Returns the statements of a file. Raises StfError naming file and line."""
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
        if len(words) < COMMANDS[word][0]:
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


_T = TypeVar("_T")
Words = tuple[str, ...]
_OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DIGIT_BITS = {"0x": 4, "0b": 1, "0o": 3}
_EXTERNS: Final = {
    Register: "register",
    CounterArray: "counter",
    DirectCounter: "direct counter",
    MeterArray: "meter",
}


@dataclass(slots=True)
class StfReport:
    """The findings of a test. Every problem begins with the test's file and line."""

    packets: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if all packets and counters were as expected."""
        return not self.problems


def _rate(text: str) -> Rate:
    rate, _, burst = text.partition(":")
    try:
        return Rate(float(rate) * 1e6, int(burst))
    except ValueError:
        raise UsageError(f"{text} is no rate:burst such as 0.01:5") from None


class StfRunner:
    """One test on one switch."""

    def __init__(self, switch: ModelSwitch, name: str) -> None:
        self._switch = switch
        self._name = name
        self._bmv2 = switch.program.architecture == "v1model"
        self._entries: dict[str, Entry] = {}
        self._received: dict[int, list[bytes]] = {}
        self._expected: dict[int, list[Expect]] = {}
        self._ports: set[int] = set()
        self._now = 0.0
        self.report = StfReport()

    def run(self, text: str) -> StfReport:
        """Runs all statements, then compares. Raises StfError, or what the switch raises."""
        for statement in parse_stf(text, self._name):
            try:
                self._step(statement)
            except StfError:
                raise
            except (UsageError, ValueError) as error:
                raise StfError(f"{self._name}:{statement.line}: {error}") from None
        self._compare()
        return self.report

    def _step(self, statement: Statement) -> None:
        match statement:
            case Packet(port=port, data=data):
                check_port(port)
                self._ports.add(port)
                self._now += 0.001
                self.report.packets += 1
                for out, sent in self._switch.process(port, data, self._now):
                    self._received.setdefault(out, []).append(sent)
            case Expect(port=int() as port):
                self._ports.add(port)
                self._expected.setdefault(port, []).append(statement)
            case Expect():
                pass
            case Add():
                self._add(statement)
            case SetDefault(table=table, action=action):
                chosen = _named(self._switch.tables, table, "table")
                found = self._action(chosen, action.name)
                chosen.set_default(found.name, self._arguments(found, action))
            case Check():
                self._check(statement)
            case Command(word="wait"):
                self._now += 1
            case Command(word="remove"):
                for each in self._switch.tables.values():
                    if each.keys and not each.const_entries:
                        each.clear()
            case Command(word=word, words=words):
                COMMANDS[word][1](self, words)

    # ---- tables ----

    def _add(self, statement: Add) -> None:
        table = _named(self._switch.tables, statement.table, "table")
        action = self._action(table, statement.action.name)
        written = {self._key(table, name): value for name, value in statement.keys}
        matches: list[Match] = []
        for spec in table.keys:
            value = written.get(spec.name)
            if value is not None:
                matches.append(self._match(spec, value))
            else:
                matches.append(Exact(0) if spec.kind is MatchKind.EXACT else Wildcard())
        priority = statement.priority or 0
        arguments = self._arguments(action, statement.action)
        if self._bmv2:
            entry = table.add(matches, action.name, arguments, priority)
        else:
            if all(spec.kind is MatchKind.EXACT for spec in table.keys):
                priority = 0
            present = table.lookup(matches, -priority)
            if present is not None:
                table.remove(present)
            entry = table.add(matches, action.name, arguments, -priority)
        if statement.name is not None:
            self._entries[statement.name] = entry

    def _action(self, table: Table, name: str) -> Action:
        return _named(table.actions, name, f"action of table {table.name}")

    def _arguments(self, action: Action, text: ActionText) -> dict[str, int]:
        names = [each.name for each in action.parameters]
        arguments = {}
        for key, value in text.arguments:
            given = names[int(key)] if key.isdigit() and int(key) < len(names) else key
            arguments[given] = number(value)
        return arguments

    def _key(self, table: Table, name: str) -> str:
        names = [spec.name for spec in table.keys]
        name = re.sub(r"\$(\d+)", r"[\1]", name)
        tries = [name, name + "$", name + ".$valid$", re.sub(r"valid$", "$valid$", name)]
        for each in tries:
            if each in names:
                return each
        for each in tries:
            ending = [full for full in names if full.endswith("." + each)]
            # A slice may go by the name of its field.
            ending = ending or [full for full in names if full.partition("[")[0].endswith("." + each)]
            if ending:
                return ending[-1]
        raise UsageError(f"table {table.name} has no key field {name}; it has {', '.join(names)}")

    def _match(self, spec: KeyField, text: str) -> Match:
        if "/" in text:
            first, _, second = text.partition("/")
            return Lpm(number(first), number(second))
        if "&&&" in text:
            first, _, second = text.partition("&&&")
            return Ternary(number(first), number(second))
        base = text[:2].lower()
        if base not in _DIGIT_BITS:
            return Exact(number(text))
        bits, digits = _DIGIT_BITS[base], text[2:]
        value = number(base + digits.replace("*", "0"))
        if not self._bmv2:
            value &= spec.full
        if spec.kind is MatchKind.LPM:
            return Lpm(value, min((len(digits) - digits.count("*")) * bits, spec.width))
        mask = 0
        for digit in digits:
            mask = mask << bits | (0 if digit == "*" else (1 << bits) - 1)
        if spec.kind is MatchKind.TERNARY and ("*" in digits or self._bmv2):
            return Ternary(value, mask & spec.full)
        return Exact(value)

    # ---- counters, registers, and what simple_switch_CLI knows ----

    def _check(self, statement: Check) -> None:
        if statement.word == "check_register":
            register = self.extern(Register, statement.target)
            found = _half(register.cell(number(statement.index)), statement.what)
        elif statement.index.startswith("$"):
            entry = self._entries.get(statement.index[1:])
            if entry is None:
                raise UsageError(f"no entry was named {statement.index[1:]}")
            self.extern(DirectCounter, statement.target)
            found = entry.bytes if statement.what == "bytes" else entry.packets
        else:
            packets, size = self.extern(CounterArray, statement.target).read(number(statement.index))
            found = size if statement.what == "bytes" else packets
        if not _OPERATORS[statement.operator](found, statement.number):
            self.report.problems.append(
                f"{self._name}:{statement.line}: {statement.target}({statement.index}) is {found}, "
                f"not {statement.operator} {statement.number}"
            )

    def extern(self, kind: type[_T], name: str) -> _T:
        """Returns the object of an extern. Raises TableError."""
        return _named(self._switch.externs_of(kind), name, _EXTERNS[kind])

    @property
    def replication(self) -> Replication:
        """The switch's replication engine."""
        return self._switch.replication

    def set_rates(self, meters: Sequence[Meter], rates: Sequence[str]) -> None:
        """Sets the rates of meters, as simple_switch_CLI writes them."""
        # The CLI's rates are tokens a microsecond.
        parsed = [_rate(each) for each in rates]
        for meter in meters:
            meter.set_rates(parsed[0], parsed[-1], self._now)

    # ---- what came out ----

    def _compare(self) -> None:
        for port in sorted(self._ports):
            got, wanted = self._received.get(port, []), self._expected.get(port, [])
            if any(each.data is None for each in wanted) and got:
                continue
            for place, each in enumerate(wanted):
                where = f"{self._name}:{each.line}: port {port}, packet {place + 1}"
                if place >= len(got):
                    self.report.problems.append(f"{where}: nothing came; expected {each.data or 'a packet'}")
                elif each.data is not None:
                    problem = mismatch(each.data, got[place])
                    if problem:
                        self.report.problems.append(f"{where}: {problem}")
            for extra in got[len(wanted) :]:
                self.report.problems.append(f"{self._name}: port {port}: unexpected packet {extra.hex()}")


def mismatch(expected: str, received: bytes) -> str | None:
    """Returns the difference of a packet from the expected one; None if there is none."""
    digits = expected.lower()
    exact = digits.endswith("$")
    digits = digits.rstrip("$")
    text = received.hex()
    if len(text) < len(digits):
        return f"too short: got {text}, expected {digits}"
    if exact and len(text) > len(digits):
        return f"too long: got {text}, expected {digits}"
    if any(wanted not in ("*", found) for wanted, found in zip(digits, text, strict=False)):
        return f"got {text}, expected {digits}"
    return None


# As p4c's tests write names: any ending, also one that does not begin at a dot.
_named = partial(named, before=(".", ""))


def _half(cell: Any, what: str | None) -> int:
    """A register's cell, or the part of it that `lo` or `hi` names: a struct's first or second field."""
    fields = list(vars(cell).values()) if hasattr(cell, "__dict__") else [cell]
    return int(fields[1 if what == "hi" and len(fields) > 1 else 0])


def _engine(execute: Callable[[Replication, list[int]], object]) -> Callable[[StfRunner, Words], object]:
    """Returns a command whose words are numbers for the replication engine."""
    return lambda runner, words: execute(runner.replication, [number(each) for each in words])


def _get_session(engine: Replication, numbers: list[int]) -> None:
    if engine.session(numbers[0]) is None:
        raise UsageError(f"there is no clone session {numbers[0]}")


# Commands of simple_switch_CLI that STF passes on, with the least number of words of each.
COMMANDS: Final[dict[str, tuple[int, Callable[[StfRunner, Words], object]]]] = {
    "mirroring_add": (2, _engine(lambda engine, n: engine.set_session(n[0], CloneSession(port=n[1])))),
    "mirroring_add_mc": (2, _engine(lambda engine, n: engine.set_session(n[0], CloneSession(group=n[1])))),
    "mirroring_delete": (1, _engine(lambda engine, n: engine.remove_session(n[0]))),
    "mirroring_get": (1, _engine(_get_session)),
    "mc_mgrp_create": (1, _engine(lambda engine, n: engine.add_group(n[0]))),
    "mc_node_create": (1, _engine(lambda engine, n: engine.add_node(n[0], n[1:]))),
    "mc_node_update": (1, _engine(lambda engine, n: engine.update_node(n[0], n[1:]))),
    "mc_node_associate": (2, _engine(lambda engine, n: engine.associate(n[0], n[1]))),
    "counter_read": (2, lambda run, w: run.extern(CounterArray, w[0]).read(number(w[1]))),
    "counter_write": (4, lambda run, w: run.extern(CounterArray, w[0]).write(*map(number, w[1:4]))),
    "register_read": (2, lambda run, w: run.extern(Register, w[0]).cell(number(w[1]))),
    "register_write": (3, lambda run, w: run.extern(Register, w[0]).set_cell(number(w[1]), number(w[2]))),
    "register_reset": (1, lambda run, w: run.extern(Register, w[0]).reset()),
    "meter_get_rates": (2, lambda run, w: run.extern(MeterArray, w[0]).cell(number(w[1]))),
    "meter_set_rates": (
        3,
        lambda run, w: run.set_rates([run.extern(MeterArray, w[0]).cell(number(w[1]))], w[2:]),
    ),
    "meter_array_set_rates": (2, lambda run, w: run.set_rates(run.extern(MeterArray, w[0]).cells, w[1:])),
}


def run_stf(switch: ModelSwitch, text: str, name: str) -> StfReport:
    """Runs a test on a fresh switch. Raises StfError for a test that does not suit this program."""
    return StfRunner(switch, name).run(text)
