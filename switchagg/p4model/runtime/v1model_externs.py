"""The v1model architecture for the translator: its externs.

`V1Target` makes the objects behind them, `PacketState` is what they share (`RT` in translated code),
and the lowerings write their calls as code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from switchagg.p4entities.counters import CounterArray, DirectCounter, DirectMeter, MeterArray, Register
from switchagg.p4entities.matches import MatchKind
from switchagg.p4entities.tables import ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime import hashes
from switchagg.p4model.runtime.emit import Body, Module
from switchagg.p4model.runtime.expressions import expression, wrapped
from switchagg.p4model.runtime.extern_calls import CORE, Call, Lowering, does, lower
from switchagg.p4model.runtime.hashes import to_bytes
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.types import FieldsType, StringType, TupleType, underlying, width_of


class PacketState:
    """State that externs share with the switch: one object, for the packet that runs."""

    __slots__ = (
        "checksum_error",
        "clone",
        "digests",
        "ingress_length",
        "length",
        "messages",
        "metadata",
        "now",
        "payload",
        "random",
        "recirculate",
        "resubmit",
        "truncate",
    )

    def __init__(
        self, generator: random.Random, digests: list[tuple[str, dict[str, Any]]], messages: list[str]
    ) -> None:
        self.random = generator
        self.digests = digests
        self.messages = messages
        self.now = 0.0
        self.begin(0)

    def begin(self, length: int) -> None:
        """Clears the state for a new packet."""
        self.checksum_error = 0
        self.clone: tuple[int, int | None] | None = None
        self.resubmit: tuple[int | None] | None = None
        self.recirculate: tuple[int | None] | None = None
        self.truncate: int | None = None
        self.payload = b""
        self.ingress_length = length
        self.length = length
        self.metadata: Any = None

    def log(self, message: str, values: tuple[Any, ...]) -> None:
        """Collects a message of log_msg."""
        parts = message.split("{}")
        text = parts[0]
        for part, value in zip(parts[1:], [*values, *[""] * len(parts)], strict=False):
            text += f"{int(value) if isinstance(value, bool) else value}{part}"
        self.messages.append(text)

    def failed(self, place: str, what: str) -> None:
        """Raises ModelError for an assert or assume whose condition is false."""
        raise ModelError(f"{place}: {what} failed")


class V1Target:
    """v1model for the translator."""

    name = "v1model"
    clear_on_valid = True
    hashes_valid_only = True
    pads_flexible = False
    match_kinds: Mapping[str, MatchKind] = {kind.value: kind for kind in MatchKind}

    def __init__(self, state: PacketState) -> None:
        self._state = state
        self.on_length: Callable[[int], None] | None = self._add_length

    def _add_length(self, count: int) -> None:
        self._state.length += count

    def lower(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> str:
        return lower(body, call, V1MODEL)

    def construct(self, instance: ir.ExternInstance, module: Module) -> Any:
        """The runtime object of an instance. Raises P4Error for an extern that is not supported."""
        name, args = instance.control_name, instance.args
        kind = getattr(args.get("type"), "name", "")
        size = args.get("size")
        number = size if isinstance(size, int) else 0
        match instance.type.name:
            case "counter":
                return CounterArray.sized(name, number)
            case "direct_counter":
                return DirectCounter(name)
            case "meter":
                return MeterArray.sized(name, number, kind == "bytes")
            case "direct_meter":
                return DirectMeter(name, kind == "bytes")
            case "register":
                return _register(instance, number, module)
            case "action_profile":
                return ActionProfile(name, number)
            case "action_selector":
                return _selector(instance, number)
            case "Checksum16":
                return None
        raise unsupported(f"the extern {instance.type.name} in v1model", instance.location)

    def hook_table(self, table: ir.Table, made: Table, module: Module) -> list[str]:
        """Direct counters and meters, which work by themselves."""
        lines = []
        for name in ("counters", "meters"):
            found = table.properties.get(name)
            if not isinstance(found, ir.ExternInstance):
                continue
            code = module.extern(found)
            direct = module.namespace[code]
            direct.table = made
            if isinstance(direct, DirectCounter):
                lines += ["if e.hit:", "    e.packets += 1", "    e.bytes += RT.ingress_length"]
            elif isinstance(direct, DirectMeter):
                meter = f"{code}.of(e).execute(RT.ingress_length, RT.now)"
                lines += [f"{code}.colour = {meter} if e.hit else None"]
        return lines


def _register(instance: ir.ExternInstance, size: int, module: Module) -> Register:
    type_ = instance.type.type_args[0]
    if is_aggregate(type_):
        raise unsupported(f"a register of {type_}", instance.location)
    zero = eval(module.classes.default(type_), module.namespace)
    return Register(instance.control_name, [zero] * size, width_of(type_), lambda: zero)


def _selector(instance: ir.ExternInstance, size: int) -> ActionProfile:
    algorithm = instance.args.get("algorithm")
    width = instance.args.get("outputWidth")
    name = getattr(algorithm, "name", "")
    if name not in ALGORITHMS or not isinstance(width, int):
        raise unsupported(f"a selector with HashAlgorithm.{name}", instance.location)
    mask = (1 << width) - 1

    def select(bits: int, value: int) -> int:
        return ALGORITHMS[name](to_bytes(value, bits)) & mask

    return ActionProfile(instance.control_name, size, selector=True, select=select)


# ---- calls as code ----


Hash = Callable[[bytes], int]

# `random` is not here: bmv2 does not know it either.
ALGORITHMS: Final[dict[str, Hash]] = {
    "crc32": hashes.CRC32,
    "crc16": hashes.CRC16,
    "crc32_custom": hashes.CRC32,
    "crc16_custom": hashes.CRC16,
    "identity": hashes.identity,
    "csum16": hashes.internet_checksum,
    "xor16": lambda data: hashes.xor_words(data, 16),
}


def _algorithm(call: Call) -> str:
    """Returns code of the hash function: bytes to number."""
    chosen = call.required("algo")
    if not isinstance(chosen, ir.EnumLiteral):
        raise unsupported("a hash algorithm that is not a constant", chosen.location)
    if chosen.name not in ALGORITHMS:
        raise unsupported(f"HashAlgorithm.{chosen.name}", chosen.location)
    call.module.namespace["ALGORITHMS"] = ALGORITHMS
    call.module.namespace["to_bytes"] = hashes.to_bytes
    return f"ALGORITHMS[{chosen.name!r}]"


def _bytes(call: Call, name: str) -> str:
    held = call.body.hold(call.bits(name))
    return f"to_bytes({held}[1], {held}[0])"


def _hash(call: Call) -> None:
    algorithm = _algorithm(call)
    base = call.body.hold(call.value("base"))
    data = call.body.hold(_bytes(call, "data"))
    most = call.value("max")
    value = f"{base} + {algorithm}({data}) % ({most} or 1)"
    call.store("result", wrapped(call.type("result"), value))


def _checksum(call: Call, *, verify: bool, payload: bool) -> None:
    with call.body.nested(f"if {call.value('condition')}:"):
        algorithm = _algorithm(call)
        data = _bytes(call, "data")
        if payload:
            data += " + RT.payload"
        value = wrapped(call.type("checksum"), f"{algorithm}({data})")
        if verify:
            call.body.emit(f"if {value} != {call.value('checksum')}:")
            call.body.emit("    RT.checksum_error = 1")
        else:
            call.store("checksum", value)


def _checksum16(call: Call) -> str:
    call.module.namespace["internet_checksum"] = hashes.internet_checksum
    call.module.namespace["to_bytes"] = hashes.to_bytes
    return f"internet_checksum({_bytes(call, 'data')})"


def _random(call: Call) -> None:
    low, high = (call.body.hold(code) for code in call.values("lo", "hi"))
    with call.body.nested(f"if {low} <= {high}:"):
        call.store("result", f"RT.random.randint({low}, {high})")


def _mark_to_drop(call: Call) -> None:
    body = call.body
    arguments = [each.value for each in call.call.args]
    place = expression(body, arguments[0]) if arguments and arguments[0] is not None else "RT.metadata"
    body.emit(f"{place}.f_egress_spec = 511")
    body.emit(f"{place}.f_mcast_grp = 0")


def _digest(call: Call) -> None:
    data = call.required("data")
    type_ = underlying(data.type)
    code = call.body.hold(expression(call.body, data))
    if isinstance(type_, FieldsType):
        name = type_.name
        values = ", ".join(f"{each.name!r}: {code}.f_{each.name}" for each in type_.fields)
    elif isinstance(type_, TupleType):
        name = ""
        values = ", ".join(f"'f{place}': {code}[{place}]" for place in range(len(type_.elements)))
    else:
        raise unsupported(f"a digest of {type_}", call.location)
    call.body.emit(f"RT.digests.append(({name!r}, {{{values}}}))")


def _clone(call: Call) -> None:
    session = call.value("session")
    call.body.emit(f"RT.clone = ({session}, {_field_list(call)})")


def _field_list(call: Call) -> str:
    """Returns code of the number of the field list that a copy keeps. Raises P4Error for a list of data."""
    data, index = call.argument("data"), call.argument("index")
    empty = isinstance(data, ir.TupleLiteral | ir.StructLiteral) and not data.elements
    if data is not None and not empty:
        raise unsupported(
            f"{call.call.method} with data; use {call.call.method}_preserving_field_list", data.location
        )
    return "None" if index is None else expression(call.body, index)


def _again(which: str) -> Lowering:
    return lambda call: call.body.emit(f"RT.{which} = ({_field_list(call)},)")


def _assert(call: Call) -> None:
    condition = call.value(call.call.args[0].param.name)
    call.body.emit(f"if not {condition}:")
    call.body.emit(f"    RT.failed({str(call.location)!r}, {call.call.method.name!r})")


def _log(call: Call) -> None:
    message = call.required("msg")
    if not isinstance(message, ir.Literal) or not isinstance(message.type, StringType):
        raise unsupported("log_msg of a text that is not a constant", call.location)
    data = call.argument("data")
    if data is None:
        call.body.emit(f"RT.log({message.value!r}, ())")
        return
    code = expression(call.body, data)
    if isinstance(data.type, FieldsType):
        held = call.body.hold(code)
        code = f"({''.join(f'{held}.f_{each.name}, ' for each in data.type.fields)})"
    elif not isinstance(underlying(data.type), TupleType):
        code = f"({code},)"
    call.body.emit(f"RT.log({message.value!r}, {code})")


def _execute_meter(call: Call) -> None:
    meter = call.object
    index = call.body.hold(call.value("index"))
    with call.body.nested(f"if {index} < len({meter}.cells):"):
        colour = f"{meter}.execute({index}, RT.ingress_length, RT.now)"
        call.store("result", wrapped(call.type("result"), colour))


def _read_meter(call: Call) -> None:
    with call.body.nested(f"if {call.object}.colour is not None:"):
        call.store("result", wrapped(call.type("result"), f"{call.object}.colour"))


def _cells(call: Call, register: str) -> str:
    """Returns code of a register's size; one that is passed as an argument is asked at run time."""
    made = call.module.namespace.get(register)
    return f"len({register}.cells)" if made is None else str(len(made.cells))


def _read_register(call: Call) -> None:
    # An index outside the register leaves the destination as it was.
    register = call.object
    index = call.body.hold(call.value("index"))
    with call.body.nested(f"if {index} < {_cells(call, register)}:"):
        call.store("result", f"{register}.cells[{index}]")


def _write_register(call: Call) -> None:
    register = call.object
    index, value = call.values("index", "value")
    index = call.body.hold(index)
    call.body.emit(f"if {index} < {_cells(call, register)}:")
    call.body.emit(f"    {register}.cells[{index}] = {value}")


V1MODEL: Final[dict[str, Lowering]] = {
    **CORE,
    "random": _random,
    "digest": _digest,
    "mark_to_drop": _mark_to_drop,
    "hash": _hash,
    "verify_checksum": partial(_checksum, verify=True, payload=False),
    "update_checksum": partial(_checksum, verify=False, payload=False),
    "verify_checksum_with_payload": partial(_checksum, verify=True, payload=True),
    "update_checksum_with_payload": partial(_checksum, verify=False, payload=True),
    "clone": _clone,
    "clone3": _clone,
    "clone_preserving_field_list": _clone,
    "resubmit": _again("resubmit"),
    "resubmit_preserving_field_list": _again("resubmit"),
    "recirculate": _again("recirculate"),
    "recirculate_preserving_field_list": _again("recirculate"),
    "truncate": does("RT.truncate = {length}"),
    "assert": _assert,
    "assume": _assert,
    "log_msg": _log,
    "counter.count": does("{object}.count({index}, RT.ingress_length)"),
    # The table counts by itself.
    "direct_counter.count": lambda _: None,
    "meter.execute_meter": _execute_meter,
    "direct_meter.read": _read_meter,
    "register.read": _read_register,
    "register.write": _write_register,
    "Checksum16.get": _checksum16,
}
