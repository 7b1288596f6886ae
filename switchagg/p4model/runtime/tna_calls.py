"""Calls of tna.p4's externs as code. `RT` in translated code is `tna_target.PacketState`."""

from __future__ import annotations

from typing import Final

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.expressions import expression, from_bits, settled, wrapped
from switchagg.p4model.runtime.extern_calls import CORE_FUNCTIONS, CORE_METHODS, Call, Lowering
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.types import FieldsType, Type, VoidType, underlying

_PORT_METADATA_BITS: Final = 64


def _instance(call: Call) -> ir.ExternInstance:
    assert isinstance(call.call, ir.MethodCall)
    target = call.call.target
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
    assert isinstance(call.call, ir.MethodCall)
    value = call.call.type
    if returns:
        return result
    return "0" if isinstance(value, VoidType) else body.module.classes.default(value)


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


def _direct_read(call: Call) -> str:
    return f"{call.object}.of()[0]"


def _direct_write(call: Call) -> None:
    call.body.emit(f"{call.object}.of()[0] = {call.value('value')}")


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
    found = f"{meter}.array.execute({index}, {_length(call)}, RT.now, {_before(call)})"
    return f"{meter}.codes[{found}]"


def _meter_direct(call: Call) -> str:
    meter = call.object
    return (
        f"{meter}.codes[{meter}.of({meter}.table.current).execute({_length(call)}, RT.now, {_before(call)})]"
    )


# ---- hash, random, checksums ----


def _hash(call: Call) -> str:
    held = call.body.hold(call.bits("data"))
    return f"{call.object}.get(*{held})"


def _random(call: Call) -> str:
    width = call.width_of(call.call.type, "a result")
    return f"RT.random.getrandbits({width})"


def _checksum_add(word: str) -> Lowering:
    def lower(call: Call) -> None:
        call.body.emit(f"{call.object}.{word}(*{call.bits('data')})")

    return lower


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


def _counter_add(sign: str) -> Lowering:
    def lower(call: Call) -> None:
        call.body.emit(f"{call.object}.add({sign}{call.value('value')})")

    return lower


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


def _pick(word: str) -> Lowering:
    def lower(call: Call) -> str:
        return f"{word}({', '.join(call.values('t1', 't2'))})"

    return lower


def _funnel(call: Call) -> None:
    high, low, amount = call.values("src1", "src2", "shift_amount")
    width = call.width("dst")
    call.store("dst", wrapped(call.type("dst"), f"({high} << {width} | {low}) >> {amount}"))


def _size(unit: int) -> Lowering:
    def lower(call: Call) -> str:
        return str(-(-call.width_of(call.required("h").type, "a header") // unit))

    return lower


def _plain(word: str) -> Lowering:
    return lambda call: f"{call.object}.{word}()"


TNA_FUNCTIONS: Final[dict[str, Lowering]] = {
    **CORE_FUNCTIONS,
    "max": _pick("max"),
    "min": _pick("min"),
    "funnel_shift_right": _funnel,
    "port_metadata_unpack": _unpack,
    "sizeInBits": _size(1),
    "sizeInBytes": _size(8),
}
TNA_METHODS: Final[dict[tuple[str, str], Lowering]] = {
    **CORE_METHODS,
    ("Register", "read"): _register_read,
    ("Register", "write"): _register_write,
    ("RegisterAction", "execute"): _execute,
    ("RegisterAction", "predicate"): _predicate,
    ("DirectRegister", "read"): _direct_read,
    ("DirectRegister", "write"): _direct_write,
    ("DirectRegisterAction", "execute"): _execute_direct,
    ("DirectRegisterAction", "predicate"): _predicate,
    ("RegisterParam", "read"): lambda call: f"{call.object}.value",
    ("Counter", "count"): _count,
    ("DirectCounter", "count"): _count_direct,
    ("Meter", "execute"): _meter,
    ("DirectMeter", "execute"): _meter_direct,
    ("Hash", "get"): _hash,
    ("Random", "get"): _random,
    ("Checksum", "add"): _checksum_add("add"),
    ("Checksum", "subtract"): _checksum_add("subtract"),
    ("Checksum", "verify"): _plain("verify"),
    ("Checksum", "get"): _plain("get"),
    ("Checksum", "update"): _checksum_update,
    ("Checksum", "subtract_all_and_deposit"): _deposit,
    ("ParserCounter", "set"): _counter_set,
    ("ParserCounter", "is_zero"): _plain("is_zero"),
    ("ParserCounter", "is_negative"): _plain("is_negative"),
    ("ParserCounter", "increment"): _counter_add("+"),
    ("ParserCounter", "decrement"): _counter_add("-"),
    # It matters only under congestion, which the model does not have.
    ("ParserPriority", "set"): lambda _: None,
    ("Mirror", "emit"): _mirror,
    ("Resubmit", "emit"): _resubmit,
    ("Digest", "pack"): _digest,
}
