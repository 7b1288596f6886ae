"""The Tofino 1 architecture for the translator: its externs' objects and what they leave for the switch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from switchagg.p4entities.counters import CounterArray, DirectCounter, Meter, MeterArray, Register
from switchagg.p4entities.matches import MatchKind
from switchagg.p4entities.tables import DEFAULT_SIZE, ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime import hashes
from switchagg.p4model.runtime.emit import Module
from switchagg.p4model.runtime.externs_tna import (
    ALGORITHMS,
    COLOURS,
    ChecksumUnit,
    Constant,
    HashUnit,
    ParserCounter,
    Polynomial,
    residual,
)
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.lowering_tna import TNA_FUNCTIONS, TNA_METHODS
from switchagg.p4model.runtime.packet import PacketIn
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.runtime.table_code import build_table
from switchagg.p4model.runtime.target import Lowering, TableHooks
from switchagg.p4model.types import width_of

_KINDS: Final = {
    "exact": MatchKind.EXACT,
    "ternary": MatchKind.TERNARY,
    "lpm": MatchKind.LPM,
    "range": MatchKind.RANGE,
    "atcam_partition_index": MatchKind.EXACT,
}


class PacketState:
    """What externs leave for the switch, and what they need of it. One object, for the packet that runs."""

    __slots__ = ("_deposits", "digests", "length", "mirrors", "now", "packet", "random", "resubmit")

    def __init__(self, generator: random.Random) -> None:
        self.random = generator
        self.digests: list[tuple[str, dict[str, Any]]] = []
        self.now = 0.0
        self.begin(PacketIn(b""), 0)

    def begin(self, packet: PacketIn, length: int) -> None:
        """Clears what the last packet left."""
        self.packet = packet
        self.length = length
        self.mirrors: list[tuple[int, tuple[int, int]]] = []
        self.resubmit: tuple[int, int] | None = None
        self._deposits: list[tuple[int, Any, str, int]] = []

    def deposit(self, unit: ChecksumUnit, owner: Any, name: str) -> None:
        """subtract_all_and_deposit: the value is known when the parser has ended."""
        self._deposits.append((unit.total, owner, name, self.packet.position))

    def parsed(self) -> None:
        """The parser has ended."""
        packet = self.packet
        for total, owner, name, start in self._deposits:
            setattr(owner, name, residual(total, packet.data[start >> 3 : packet.position >> 3]))
        self._deposits = []

    def outside(self, place: str, index: int, size: int) -> None:
        """A register index that the hardware does not have."""
        raise ModelError(f"{place}: register index {index} is outside of {size} cells")


@dataclass(slots=True)
class TofinoMeter:
    """An indirect meter, and the numbers that its colours are given as."""

    array: MeterArray
    codes: tuple[int, int, int]

    def colour(self, found: int) -> int:
        """The number of a colour."""
        return self.codes[found]


@dataclass(slots=True)
class TofinoDirectMeter:
    """A direct meter, and the numbers that its colours are given as."""

    name: str
    by_bytes: bool
    codes: tuple[int, int, int]
    table: Any = None

    def of(self, entry: Any) -> Meter:
        """The meter of an entry, made when it is first asked for."""
        if entry.meter is None:
            entry.meter = Meter(self.by_bytes)
        meter: Meter = entry.meter
        return meter

    def shade(self, found: int) -> int:
        """The number of a colour."""
        return self.codes[found]


@dataclass(slots=True)
class DirectRegister:
    """A register with a cell for each entry of its table."""

    name: str
    make: Callable[[], Any]
    table: Any = None

    def of(self) -> list[Any]:
        """The cell of the entry whose action runs, as a list of one."""
        cells = self.table.current.cells
        if self.name not in cells:
            cells[self.name] = [self.make()]
        found: list[Any] = cells[self.name]
        return found


@dataclass(slots=True)
class Marker:
    """An extern that says how hardware is used and changes nothing of what a packet sees."""

    name: str


@dataclass
class TofinoTarget:
    """TNA for the translator. `parser_units` start anew with each packet."""

    name: str = "tna"
    clear_on_valid: bool = False
    hashes_valid_only: bool = False
    on_length: Callable[[int], None] | None = None
    functions: Mapping[str, Lowering] = field(default_factory=lambda: TNA_FUNCTIONS)
    methods: Mapping[tuple[str, str], Lowering] = field(default_factory=lambda: TNA_METHODS)
    parser_units: list[ChecksumUnit | ParserCounter] = field(default_factory=list)

    def construct(self, instance: ir.ExternInstance, module: Module) -> Any:
        """The runtime object of an instance. Raises P4Error for an extern that is not supported."""
        name, args = instance.control_name, instance.args
        size = args.get("size")
        number = size if isinstance(size, int) else 0
        by_bytes = getattr(args.get("type"), "name", "") == "BYTES"
        match instance.type.name:
            case "Counter":
                return CounterArray.sized(name, number)
            case "DirectCounter":
                return DirectCounter(name)
            case "Meter":
                return TofinoMeter(MeterArray.sized(name, number, by_bytes), _codes(instance))
            case "DirectMeter":
                return TofinoDirectMeter(name, by_bytes, _codes(instance))
            case "Register":
                return _register(instance, number, module)
            case "DirectRegister":
                return DirectRegister(name, _maker(instance, module))
            case "RegisterAction" | "DirectRegisterAction":
                register = args.get("reg")
                assert isinstance(register, ir.ExternInstance)
                return Marker(name)
            case "RegisterParam":
                return Constant(name, args.get("initial_value"))
            case "Hash":
                return _hash(instance, module)
            case "CRCPolynomial":
                return _polynomial(instance)
            case "Checksum":
                unit = ChecksumUnit()
                self.parser_units.append(unit)
                return unit
            case "ParserCounter":
                counter = ParserCounter(module.errors.get("CounterRange", 0))
                self.parser_units.append(counter)
                return counter
            case "ActionProfile":
                return ActionProfile(name, number)
            case "ActionSelector":
                return _selector(instance, number, module)
            case "Random" | "Mirror" | "Resubmit" | "Digest" | "ParserPriority" | "Atcam" | "Alpm":
                return Marker(name)
        raise unsupported(f"the extern {instance.type.name} in tna", instance.location)

    def make_table(self, table: ir.Table, module: Module) -> Table:
        """The runtime object of a table. Raises P4Error."""
        implementation = table.properties.get("implementation")
        profile = None
        if isinstance(implementation, ir.ExternInstance):
            made = module.namespace[module.extern(implementation)]
            if isinstance(made, ActionProfile):
                profile = made
            elif not isinstance(made, Marker):
                raise unsupported(f"{implementation.type} as an implementation", table.location)
        return build_table(table, _KINDS, profile, module.errors, default_size=DEFAULT_SIZE)

    def hook_table(self, table: ir.Table, made: Table, module: Module) -> TableHooks:
        """Direct externs, which actions call: they must know the entry."""
        hooks = TableHooks()
        for name in ("counters", "meters", "registers"):
            found = table.properties.get(name)
            if isinstance(found, ir.ExternInstance):
                module.namespace[module.extern(found)].table = made
                hooks.needs_current = True
        if made.profile is not None:
            hooks.selector = made.profile.select
        return hooks


def _codes(instance: ir.ExternInstance) -> tuple[int, int, int]:
    written = [instance.args.get(colour) for colour in ("green", "yellow", "red")]
    numbers = [each for each in written if isinstance(each, int)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else COLOURS


def _maker(instance: ir.ExternInstance, module: Module) -> Callable[[], Any]:
    type_ = instance.type.type_args[0]
    initial = instance.args.get("initial_value")
    default = module.layouts.default(type_)

    make_default: Callable[[], Any] = eval(f"lambda: {default}", module.namespace)

    def make() -> Any:
        value = make_default()
        return value if initial is None else _filled(value, initial)

    return make


def _filled(value: Any, initial: ir.Value) -> Any:
    if isinstance(initial, ir.StructValue):
        for name, each in initial.fields.items():
            setattr(value, "f_" + name, _filled(getattr(value, "f_" + name), each))
        return value
    if isinstance(initial, tuple):
        for slot, each in zip(value.__slots__, initial, strict=True):
            setattr(value, slot, _filled(getattr(value, slot), each))
        return value
    return initial


def _register(instance: ir.ExternInstance, size: int, module: Module) -> Register:
    make = _maker(instance, module)
    type_ = instance.type.type_args[0]
    cells = [make() for _ in range(size)] if is_aggregate(type_) else [make()] * size
    return Register(instance.control_name, cells, width_of(type_), make)


def _polynomial(instance: ir.ExternInstance) -> Polynomial:
    args = instance.args
    width = width_of(instance.type.type_args[0]) or 0
    mask = (1 << width) - 1
    numbers = [args.get(name) for name in ("coeff", "init", "xor")]
    coefficient, initial, final = (each if isinstance(each, int) else 0 for each in numbers)
    reversed_ = bool(args.get("reversed"))
    if args.get("msb") or args.get("extended"):
        raise unsupported("a CRCPolynomial with msb or extended", instance.location)
    return Polynomial(hashes.Crc(width, coefficient & mask, initial, final, reversed_, reversed_))


def _hash(instance: ir.ExternInstance, module: Module) -> HashUnit:
    if any(mark.name == "symmetric" for mark in instance.annotations):
        raise unsupported("@symmetric on a hash", instance.location)
    width = width_of(instance.type.type_args[0])
    algorithm = getattr(instance.args.get("algo"), "name", "")
    if width is None:
        raise unsupported(f"a hash to {instance.type.type_args[0]}", instance.location)
    polynomial = instance.args.get("poly")
    if isinstance(polynomial, ir.ExternInstance):
        made = module.namespace[module.extern(polynomial)]
        return HashUnit(instance.control_name, width, made.crc)
    if algorithm == "IDENTITY":
        return HashUnit(instance.control_name, width, None)
    if algorithm not in ALGORITHMS:
        raise unsupported(f"HashAlgorithm_t.{algorithm} without a polynomial", instance.location)
    return HashUnit(instance.control_name, width, ALGORITHMS[algorithm])


def _selector(instance: ir.ExternInstance, size: int, module: Module) -> ActionProfile:
    unit = instance.args.get("hash")
    assert isinstance(unit, ir.ExternInstance)
    made = module.namespace[module.extern(unit)]
    profile = instance.args.get("action_profile")
    if isinstance(profile, ir.ExternInstance):
        members = module.namespace[module.extern(profile)]
        size = members.size
    return ActionProfile(instance.control_name, size, selector=True, select=made.get)
