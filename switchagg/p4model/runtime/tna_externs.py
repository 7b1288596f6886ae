"""The Tofino 1 architecture for the translator: its externs.

`TofinoTarget` makes the objects behind them, `PacketState` is what they share (`RT` in translated code),
and the lowerings write their calls as code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from switchagg.p4entities.counters import CounterArray, DirectCounter, DirectMeter, MeterArray, Register
from switchagg.p4entities.matches import MatchKind
from switchagg.p4entities.tables import ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime import hashes
from switchagg.p4model.runtime.emit import Body, Marker, Module
from switchagg.p4model.runtime.expressions import expression, from_bits, settled, wrapped
from switchagg.p4model.runtime.extern_calls import CORE, Call, Lowering, does, lower, value
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.runtime.values import PacketIn, ParserReject
from switchagg.p4model.types import FieldsType, Type, VoidType, underlying, width_of

_KINDS: Final = {
    **{kind.value: kind for kind in MatchKind if kind is not MatchKind.OPTIONAL},
    "atcam_partition_index": MatchKind.EXACT,
}


class PacketState:
    """State that externs share with the switch: one object, for the packet that runs."""

    __slots__ = ("_deposits", "digests", "length", "mirrors", "now", "packet", "pipe", "random", "resubmit")

    def __init__(self, generator: random.Random, digests: list[tuple[str, dict[str, Any]]]) -> None:
        self.random = generator
        self.digests = digests
        self.now = 0.0
        self.pipe = 0
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
class DirectRegister:
    """A register with a cell for each entry of its table."""

    name: str
    make: Callable[[], Any]
    table: Any = None
    pipe: int = 0

    def fresh(self, pipe: int) -> DirectRegister:
        """Returns the register of another pipe, with cells of its own in the same entries."""
        return replace(self, pipe=pipe)

    def of(self) -> list[Any]:
        """The cell of the entry whose action runs, as a list of one."""
        cells = self.table.current.cells
        key = self.name, self.pipe
        if key not in cells:
            cells[key] = [self.make()]
        found: list[Any] = cells[key]
        return found


@dataclass
class TofinoTarget:
    """TNA for the translator. `parser_units` start anew with each packet."""

    name: str = "tna"
    clear_on_valid: bool = False
    hashes_valid_only: bool = False
    pads_flexible: bool = True
    on_length: Callable[[int], None] | None = None
    match_kinds: Mapping[str, MatchKind] = field(default_factory=lambda: _KINDS)
    parser_units: list[ChecksumUnit | ParserCounter] = field(default_factory=list)

    def lower(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> str:
        return lower(body, call, TNA)

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
                return MeterArray.sized(name, number, by_bytes, _codes(instance))
            case "DirectMeter":
                return DirectMeter(name, by_bytes, _codes(instance))
            case "Register":
                return _register(instance, number, module)
            case "DirectRegister":
                return DirectRegister(name, _maker(instance, module))
            case "RegisterAction" | "DirectRegisterAction":
                assert isinstance(args.get("reg"), ir.ExternInstance)
                return Marker(name)
            case "RegisterParam":
                return Constant(name, args.get("initial_value"))
            case "Hash":
                return _hash_unit(instance, module)
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

    def hook_table(self, table: ir.Table, made: Table, module: Module) -> list[str]:
        """Direct externs, which actions call: they must know the entry."""
        properties = [table.properties.get(name) for name in ("counters", "meters", "registers")]
        direct = [each for each in properties if isinstance(each, ir.ExternInstance)]
        for each in direct:
            module.namespace[module.extern(each)].table = made
        return [f"{module.bind(made, table.name)}.current = e"] if direct else []


def _codes(instance: ir.ExternInstance) -> tuple[int, int, int]:
    written = [instance.args.get(colour) for colour in ("green", "yellow", "red")]
    numbers = [each for each in written if isinstance(each, int)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else COLOURS


def _maker(instance: ir.ExternInstance, module: Module) -> Callable[[], Any]:
    type_ = instance.type.type_args[0]
    initial = instance.args.get("initial_value")
    make: Callable[[], Any] = eval(f"lambda: {module.classes.default(type_)}", module.namespace)
    return make if initial is None else lambda: _filled(make(), initial)


def _filled(value: Any, initial: ir.Value) -> Any:
    if isinstance(initial, ir.StructValue):
        fields = {"f_" + name: each for name, each in initial.fields.items()}
    elif isinstance(initial, tuple):
        fields = dict(zip(value.__slots__, initial, strict=True))
    else:
        return initial
    for slot, each in fields.items():
        setattr(value, slot, _filled(getattr(value, slot), each))
    return value


def _register(instance: ir.ExternInstance, size: int, module: Module) -> Register:
    make = _maker(instance, module)
    type_ = instance.type.type_args[0]
    cells = [make() for _ in range(size)] if is_aggregate(type_) else [make()] * size
    return Register(instance.control_name, cells, width_of(type_), make)


def _polynomial(instance: ir.ExternInstance) -> hashes.Crc:
    args = instance.args
    width = width_of(instance.type.type_args[0]) or 0
    mask = (1 << width) - 1
    numbers = [args.get(name) for name in ("coeff", "init", "xor")]
    coefficient, initial, final = (each if isinstance(each, int) else 0 for each in numbers)
    reversed_ = bool(args.get("reversed"))
    if args.get("msb") or args.get("extended"):
        raise unsupported("a CRCPolynomial with msb or extended", instance.location)
    return hashes.Crc(width, coefficient & mask, initial, final, reversed_, reversed_)


def _hash_unit(instance: ir.ExternInstance, module: Module) -> HashUnit:
    if any(mark.name == "symmetric" for mark in instance.annotations):
        raise unsupported("@symmetric on a hash", instance.location)
    width = width_of(instance.type.type_args[0])
    algorithm = getattr(instance.args.get("algo"), "name", "")
    if width is None:
        raise unsupported(f"a hash to {instance.type.type_args[0]}", instance.location)
    polynomial = instance.args.get("poly")
    if isinstance(polynomial, ir.ExternInstance):
        return HashUnit(instance.control_name, width, module.namespace[module.extern(polynomial)])
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


# ---- calls as code ----


_PORT_METADATA_BITS: Final = 64


def _instance(call: Call) -> ir.ExternInstance:
    target = call.method.target
    if not isinstance(target, ir.ExternInstance):
        raise unsupported(f"{call.call.method} of an object that is passed as an argument", call.location)
    return target


def _referred(call: Call, name: str) -> ir.ExternInstance:
    found = _instance(call).args.get(name)
    assert isinstance(found, ir.ExternInstance)
    return found


# ---- registers ----


def _apply(call: Call, register: str, index: str) -> str:
    """Runs the abstract `apply` on the cell at `index`; code of what it returns."""
    body, instance = call.body, _instance(call)
    function = instance.methods.get("apply")
    if function is None:
        raise unsupported(f"{instance.name} without apply", instance.location)
    name = body.block.name_of(function, method=True)
    cell = f"{register}[{index}]"
    returns = len(function.params) > 1
    result = body.temp()
    if is_aggregate(function.params[0].type):
        body.emit(f"{result} = {name}(f, {cell})" if returns else f"{name}(f, {cell})")
    else:
        body.emit(f"{cell}, {result} = {name}(f, {cell})" if returns else f"{cell} = {name}(f, {cell})")
    if returns:
        return result
    type_ = call.method.type
    return "0" if isinstance(type_, VoidType) else body.module.classes.default(type_)


def _execute(call: Call) -> str:
    register = call.module.extern(_referred(call, "reg"))
    size = len(call.module.namespace[register].cells)
    index = call.body.hold(call.value("index"))
    call.body.emit(f"if {index} >= {size}:")
    call.body.emit(f"    RT.outside({str(call.location)!r}, {index}, {size})")
    return _apply(call, f"{register}.cells", index)


def _execute_direct(call: Call) -> str:
    register = call.module.extern(_referred(call, "reg"))
    return _apply(call, f"{register}.of()", "0")


def _predicate(call: Call) -> str:
    codes = []
    for name in ("cmplo", "cmphi"):
        found = call.argument(name)
        codes.append("False" if found is None else expression(call.body, found))
    return f"(1 << ({codes[0]} + 2 * {codes[1]}))"


def _register_read(call: Call) -> str:
    copy = ".copy()" if is_aggregate(call.call.type) else ""
    return f"{call.object}.read({call.value('index')}){copy}"


def _register_write(call: Call) -> None:
    index, value = call.values("index", "value")
    copy = ".copy()" if is_aggregate(call.type("value")) else ""
    call.body.emit(f"{call.object}.write({index}, {value}{copy})")


# ---- counters and meters ----


def _length(call: Call) -> str:
    adjust = call.argument("adjust_byte_count")
    return "RT.length" if adjust is None else f"RT.length - {expression(call.body, adjust)}"


def _count(call: Call) -> None:
    call.body.emit(f"{call.object}.count({call.value('index')}, {_length(call)})")


def _count_direct(call: Call) -> None:
    call.body.emit(f"{call.object}.count({_length(call)})")


def _before(call: Call) -> str:
    colour = call.argument("color")
    # Red is 3 in a Tofino and 2 in our meters.
    return "0" if colour is None else f"min({expression(call.body, colour)}, 2)"


def _meter(call: Call) -> str:
    index = call.value("index")
    meter = call.object
    found = f"{meter}.execute({index}, {_length(call)}, RT.now, {_before(call)}, RT.pipe)"
    return f"{meter}.codes[{found}]"


def _meter_direct(call: Call) -> str:
    meter = call.object
    cell = f"{meter}.of({meter}.table.current)"
    return f"{meter}.codes[{cell}.execute({_length(call)}, RT.now, {_before(call)}, RT.pipe)]"


# ---- hash, random, checksums ----


def _hash(call: Call) -> str:
    held = call.body.hold(call.bits("data"))
    return f"{call.object}.get(*{held})"


def _random(call: Call) -> str:
    width = call.width_of(call.call.type, "a result")
    return f"RT.random.getrandbits({width})"


def _checksum_add(word: str) -> Lowering:
    return lambda call: call.body.emit(f"{call.object}.{word}(*{call.bits('data')})")


def _checksum_update(call: Call) -> str:
    zeros = call.argument("zeros_as_ones")
    flag = "False" if zeros is None else expression(call.body, zeros)
    return f"checksum_update(*{call.bits('data')}, {flag})"


def _deposit(call: Call) -> None:
    target = call.required("residual")
    if not isinstance(target, ir.FieldAccess):
        raise unsupported("subtract_all_and_deposit into a variable", target.location)
    owner = settled(call.body, target.base)
    call.body.emit(f"RT.deposit({call.object}, {owner}, {'f_' + target.name!r})")


# ---- parser ----


def _counter_set(call: Call) -> None:
    arguments = [expression(call.body, each.value) for each in call.call.args if each.value is not None]
    word = "set" if len(arguments) == 1 else "set_field"
    call.body.emit(f"{call.object}.{word}({', '.join(arguments)})")


def _unpack(call: Call) -> str:
    assert isinstance(call.call, ir.ExternCall)
    type_ = call.call.type_args[0]
    size = call.width_of(type_, "port metadata")
    if size > _PORT_METADATA_BITS:
        raise unsupported(f"port metadata of {size} bits; there are {_PORT_METADATA_BITS}", call.location)
    packet = call.value(call.call.args[0].param.name)
    taken = call.body.hold(f"{packet}.take({_PORT_METADATA_BITS})")
    return from_bits(call.body, type_, f"({taken} >> {_PORT_METADATA_BITS - size})")


# ---- deparser ----


def _emission(call: Call) -> str:
    """Code of the bit string that goes with a mirrored or resubmitted packet."""
    header = call.argument("hdr")
    return "(0, 0)" if header is None else call.bits("hdr")


def _mirror(call: Call) -> None:
    session = call.value("session_id")
    call.body.emit(f"RT.mirrors.append(({session}, {_emission(call)}))")


def _resubmit(call: Call) -> None:
    call.body.emit(f"RT.resubmit = {_emission(call)}")


def _digest(call: Call) -> None:
    data = call.required("data")
    type_: Type = underlying(data.type)
    code = call.body.hold(expression(call.body, data))
    if isinstance(type_, FieldsType):
        values = ", ".join(f"{each.name!r}: {code}.f_{each.name}" for each in type_.fields)
    else:
        values = f"'data': {code}"
    call.body.emit(f"RT.digests.append(({_instance(call).control_name!r}, {{{values}}}))")


# ---- functions ----


def _funnel(call: Call) -> None:
    high, low, amount = call.values("src1", "src2", "shift_amount")
    width = call.width("dst")
    call.store("dst", wrapped(call.type("dst"), f"({high} << {width} | {low}) >> {amount}"))


def _size(unit: int) -> Lowering:
    return lambda call: str(-(-call.width_of(call.type("h"), "a header") // unit))


TNA: Final[dict[str, Lowering]] = {
    **CORE,
    "max": value("max({t1}, {t2})"),
    "min": value("min({t1}, {t2})"),
    "funnel_shift_right": _funnel,
    "port_metadata_unpack": _unpack,
    "sizeInBits": _size(1),
    "sizeInBytes": _size(8),
    "Register.read": _register_read,
    "Register.write": _register_write,
    "RegisterAction.execute": _execute,
    "RegisterAction.predicate": _predicate,
    "DirectRegister.read": value("{object}.of()[0]"),
    "DirectRegister.write": does("{object}.of()[0] = {value}"),
    "DirectRegisterAction.execute": _execute_direct,
    "DirectRegisterAction.predicate": _predicate,
    "RegisterParam.read": value("{object}.value"),
    "Counter.count": _count,
    "DirectCounter.count": _count_direct,
    "Meter.execute": _meter,
    "DirectMeter.execute": _meter_direct,
    "Hash.get": _hash,
    "Random.get": _random,
    "Checksum.add": _checksum_add("add"),
    "Checksum.subtract": _checksum_add("subtract"),
    "Checksum.verify": value("{object}.verify()"),
    "Checksum.get": value("{object}.get()"),
    "Checksum.update": _checksum_update,
    "Checksum.subtract_all_and_deposit": _deposit,
    "ParserCounter.set": _counter_set,
    "ParserCounter.is_zero": value("{object}.is_zero()"),
    "ParserCounter.is_negative": value("{object}.is_negative()"),
    "ParserCounter.increment": does("{object}.add(+{value})"),
    "ParserCounter.decrement": does("{object}.add(-{value})"),
    # It matters only under congestion, which the model does not have.
    "ParserPriority.set": lambda _: None,
    "Mirror.emit": _mirror,
    "Resubmit.emit": _resubmit,
    "Digest.pack": _digest,
}
