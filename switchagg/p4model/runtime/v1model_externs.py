"""The v1model architecture for the translator: the objects behind its externs, and their shared state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from switchagg.p4entities.counters import CounterArray, DirectCounter, DirectMeter, MeterArray, Register
from switchagg.p4entities.matches import MatchKind
from switchagg.p4entities.tables import DEFAULT_SIZE, ActionProfile, Table
from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.emit import Body, Module, TableHooks
from switchagg.p4model.runtime.extern_calls import lower
from switchagg.p4model.runtime.hashes import to_bytes
from switchagg.p4model.runtime.header_classes import is_aggregate
from switchagg.p4model.runtime.switch import ModelError
from switchagg.p4model.runtime.tables import build_table
from switchagg.p4model.runtime.v1model_calls import ALGORITHMS, V1MODEL_FUNCTIONS, V1MODEL_METHODS
from switchagg.p4model.types import width_of

_KINDS = {kind.value: kind for kind in MatchKind}


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

    def __init__(self, state: PacketState) -> None:
        self._state = state
        self.on_length: Callable[[int], None] | None = self._add_length

    def _add_length(self, count: int) -> None:
        self._state.length += count

    def lower(self, body: Body, call: ir.ExternCall | ir.MethodCall) -> str:
        return lower(body, call, V1MODEL_FUNCTIONS, V1MODEL_METHODS)

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

    def make_table(self, table: ir.Table, module: Module) -> Table:
        """The runtime object of a table. Raises P4Error."""
        implementation = table.properties.get("implementation")
        profile = None
        if isinstance(implementation, ir.ExternInstance):
            profile = module.namespace[module.extern(implementation)]
            if not isinstance(profile, ActionProfile):
                raise unsupported(f"{implementation.type} as an implementation", table.location)
        return build_table(table, _KINDS, profile, module.errors, default_size=DEFAULT_SIZE)

    def hook_table(self, table: ir.Table, made: Table, module: Module) -> TableHooks:
        """Direct counters and meters, which work by themselves."""
        hooks = TableHooks()
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
        hooks.before = lines
        if made.profile is not None:
            hooks.selects = made.profile.select is not None
        return hooks


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
