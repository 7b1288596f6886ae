"""The Tofino 1 architecture for the translator: the objects behind its externs, and their shared state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from switchagg.p4entities.counters import CounterArray, DirectCounter, DirectMeter, MeterArray, Register
from switchagg.p4entities.matches import MatchKind
from switchagg.p4entities.tables import DEFAULT_SIZE, ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime import hashes
from switchagg.p4model.runtime.emit import Body, Module, TableHooks
from switchagg.p4model.runtime.extern_calls import lower
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.runtime.tables import build_table
from switchagg.p4model.runtime.tna_calls import TNA_FUNCTIONS, TNA_METHODS
from switchagg.p4model.runtime.values import PacketIn, ParserReject
from switchagg.p4model.types import width_of

_KINDS: Final = {
    "exact": MatchKind.EXACT,
    "ternary": MatchKind.TERNARY,
    "lpm": MatchKind.LPM,
    "range": MatchKind.RANGE,
    "atcam_partition_index": MatchKind.EXACT,
}


class PacketState:
    """State that externs share with the switch: one object, for the packet that runs."""

    __slots__ = ("_deposits", "digests", "length", "mirrors", "now", "packet", "random", "resubmit")

    def __init__(self, generator: random.Random, digests: list[tuple[str, dict[str, Any]]]) -> None:
        self.random = generator
        self.digests = digests
        self.now = 0.0
        self.begin(PacketIn(b""), 0)

    def begin(self, packet: PacketIn, length: int) -> None:
        """Clears the state for a new packet."""
        self.packet = packet
        self.length = length
        self.mirrors: list[tuple[int, tuple[int, int]]] = []
        self.resubmit: tuple[int, int] | None = None
        self._deposits: list[tuple[int, Any, str, int]] = []

    def deposit(self, unit: ChecksumUnit, owner: Any, name: str) -> None:
        """Notes a subtract_all_and_deposit; its value is known at the end of the parser."""
        self._deposits.append((unit.total, owner, name, self.packet.position))

    def parsed(self) -> None:
        """Computes the deposits at the end of the parser."""
        packet = self.packet
        for total, owner, name, start in self._deposits:
            setattr(owner, name, residual(total, packet.data[start >> 3 : packet.position >> 3]))
        self._deposits = []

    def outside(self, place: str, index: int, size: int) -> None:
        """Raises ModelError for a register index that the hardware does not have."""
        raise ModelError(f"{place}: register index {index} is outside of {size} cells")


@dataclass(slots=True)
class TofinoMeter:
    """An indirect meter, and the numbers of green, yellow and red."""

    array: MeterArray
    codes: tuple[int, int, int]


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
    """An extern that configures hardware without an effect on packets."""

    name: str


@dataclass
class TofinoTarget:
    """TNA for the translator. `parser_units` start anew with each packet."""

    name: str = "tna"
    clear_on_valid: bool = False
    hashes_valid_only: bool = False
    on_length: Callable[[int], None] | None = None
    parser_units: list[ChecksumUnit | ParserCounter] = field(default_factory=list)

    def lower(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> str:
        return lower(body, call, TNA_FUNCTIONS, TNA_METHODS)

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
                return DirectMeter(name, by_bytes, _codes(instance))
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
            hooks.selects = made.profile.select is not None
        return hooks


def _codes(instance: ir.ExternInstance) -> tuple[int, int, int]:
    written = [instance.args.get(colour) for colour in ("green", "yellow", "red")]
    numbers = [each for each in written if isinstance(each, int)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else COLOURS


def _maker(instance: ir.ExternInstance, module: Module) -> Callable[[], Any]:
    type_ = instance.type.type_args[0]
    initial = instance.args.get("initial_value")
    default = module.classes.default(type_)

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


# The colours as a Tofino encodes them; red is 3.
COLOURS: Final = (0, 1, 3)


@dataclass(slots=True)
class HashUnit:
    """A hash of bit strings, filled up to whole bytes with zeros in front."""

    name: str
    width: int
    function: Callable[[bytes], int] | None

    def get(self, bits: int, value: int) -> int:
        """The hash, cut to the unit's width; for the identity, the last bits themselves."""
        if self.function is None:
            return value & ((1 << self.width) - 1)
        return self.function(value.to_bytes((bits + 7) // 8, "big")) & ((1 << self.width) - 1)


@dataclass(slots=True)
class Polynomial:
    """CRCPolynomial: a check of one's own."""

    crc: hashes.Crc


class ChecksumUnit:
    """A parser's or deparser's 16-bit ones' complement unit. Starts at zero with each packet."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def start(self) -> None:
        """Begins anew."""
        self.total = 0

    def add(self, bits: int, value: int) -> None:
        """Adds a bit string of 16-bit words."""
        self.total = _plus(self.total, hashes.ones_complement_sum(hashes.to_bytes(value, bits)))

    def subtract(self, bits: int, value: int) -> None:
        """Takes a bit string of 16-bit words off."""
        self.total = _plus(self.total, hashes.ones_complement_sum(hashes.to_bytes(value, bits)) ^ 0xFFFF)

    def verify(self) -> bool:
        """Returns True for a wrong sum, as Tofino programs use it."""
        return self.total != 0xFFFF

    def get(self) -> int:
        """The complement of the sum."""
        return self.total ^ 0xFFFF


def _plus(first: int, second: int) -> int:
    total = first + second
    return (total & 0xFFFF) + (total >> 16)


def checksum_update(bits: int, value: int, zeros_as_ones: bool) -> int:
    """A deparser's checksum over a bit string."""
    found = hashes.internet_checksum(hashes.to_bytes(value, bits))
    return 0xFFFF if zeros_as_ones and found == 0 else found


def residual(subtracted: int, extracted: bytes) -> int:
    """subtract_all_and_deposit: `subtracted` less the headers extracted since, as a sum."""
    return _plus(subtracted, hashes.ones_complement_sum(extracted) ^ 0xFFFF)


class ParserCounter:
    """The parser's signed 8-bit counter."""

    __slots__ = ("range_error", "value")

    def __init__(self, range_error: int) -> None:
        self.value = 0
        self.range_error = range_error

    def set(self, value: int) -> None:
        """Sets it to a constant or to the low 8 bits of a field."""
        self.value = _signed8(value)

    def set_field(self, field: int, most: int, rotate: int, mask: int, add: int) -> None:
        """Sets it to a field, rotated right within 8 bits, masked to `mask` + 1 bits, plus `add`.

        Raises ParserReject(CounterRange) for more than `most`.
        """
        field &= 0xFF
        rotated = (field >> (rotate & 7) | field << (8 - (rotate & 7))) & 0xFF
        value = (rotated & ((2 << mask) - 1)) + _signed8(add)
        if value > most:
            raise ParserReject(self.range_error)
        self.value = _signed8(value)

    def is_zero(self) -> bool:
        """Returns True at 0."""
        return self.value == 0

    def is_negative(self) -> bool:
        """Returns True below 0."""
        return self.value < 0

    def add(self, value: int) -> None:
        """Adds a number, positive or negative."""
        self.value = _signed8(self.value + value)


def _signed8(value: int) -> int:
    return (value + 128 & 0xFF) - 128


@dataclass(slots=True)
class Mirror:
    """Mirror: sends a copy of the packet, with a header before it, to a session."""

    name: str
    type: int | None


@dataclass(slots=True)
class Constant:
    """RegisterParam: a number that the control plane may change."""

    name: str
    value: Any


# By name; IDENTITY and CUSTOM are treated where they are used.
ALGORITHMS: Final[dict[str, Callable[[bytes], int]]] = {
    "XOR8": lambda data: hashes.xor_words(data, 8),
    "XOR16": lambda data: hashes.xor_words(data, 16),
    "XOR32": lambda data: hashes.xor_words(data, 32),
    "CRC8": hashes.CRC8,
    "CRC16": hashes.CRC16,
    "CRC32": hashes.CRC32,
    "CRC64": hashes.CRC64,
    # The driver draws a random matrix; any fixed function of the bits is as good.
    "RANDOM": hashes.Crc(64, 0xAD93D23594C935A9, 0x9E3779B97F4A7C15),
}
