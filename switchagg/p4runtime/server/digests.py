"""Digests: `DigestEntry`, and the lists that the primary gets.

A packet's digests go out at once, `max_list_size` to a list at most, so that no list waits for
`max_timeout_ns`. With `ack_timeout_ns`, the same data goes out once until it is acknowledged or that time is
over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

from switchagg.p4runtime.protos import p4data_pb2, p4runtime_pb2
from switchagg.p4runtime.server.codec import Change, encode
from switchagg.p4runtime.server.errors import already_exists, not_found, unimplemented
from switchagg.p4runtime.server.schema import Schema


class Digests:
    """The digests of a switch. `now` is its time in seconds."""

    def __init__(self, schema: Schema, now: Callable[[], float]) -> None:
        self._schema = schema
        self._now = now
        self._entries: dict[int, Any] = {}
        self._waiting: dict[tuple[int, bytes], float] = {}
        self._lists: dict[tuple[int, int], list[bytes]] = {}
        self._next = 1

    def write(self, change: Change, message: Any) -> None:
        """Switches a digest on, changes how it is sent, or switches it off. Raises `StatusError`."""
        info = self._schema.info("digests", message.digest_id)
        name = info.preamble.name
        _members(self._schema.p4info, info)
        there = message.digest_id in self._entries
        if change is Change.INSERT and there:
            raise already_exists(f"digest {name} is switched on already")
        if change is not Change.INSERT and not there:
            raise not_found(f"digest {name} is not switched on")
        self._forget(message.digest_id)
        if change is Change.DELETE:
            del self._entries[message.digest_id]
            return
        self._entries[message.digest_id] = deepcopy(message)

    def read(self, message: Any) -> Iterator[Any]:
        """The digests that are switched on, of those that are asked for. Raises `StatusError`."""
        if message.digest_id:
            self._schema.info("digests", message.digest_id)
        for number, entry in self._entries.items():
            if message.digest_id in (0, number):
                yield p4runtime_pb2.Entity(digest_entry=entry)

    def acknowledge(self, message: Any) -> None:
        """A client has seen a list."""
        for data in self._lists.pop((message.digest_id, message.list_id), ()):
            self._waiting.pop((message.digest_id, data), None)

    def collect(self, found: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        """`DigestList` messages for what a packet's program gave: (name, values)."""
        now = self._now()
        self._expire(now)
        fresh: dict[int, list[Any]] = {}
        for name, values in found:
            info = self._schema.digest_called(name)
            if info is None or info.preamble.id not in self._entries:
                continue
            number = info.preamble.id
            data = _data(self._schema.p4info, info, values.values())
            timeout = self._entries[number].config.ack_timeout_ns
            key = number, data.SerializeToString(deterministic=True)
            if timeout > 0:
                if key in self._waiting:
                    continue
                self._waiting[key] = now + timeout / 1e9
            fresh.setdefault(number, []).append(data)
        return [each for number, data in fresh.items() for each in self._lists_of(number, data, now)]

    def _lists_of(self, number: int, data: list[Any], now: float) -> Iterator[Any]:
        size = self._entries[number].config.max_list_size
        size = size if size > 0 else len(data)
        for start in range(0, len(data), size):
            made = p4runtime_pb2.DigestList(
                digest_id=number,
                list_id=self._next,
                data=data[start : start + size],
                timestamp=int(now * 1e9),
            )
            self._next += 1
            if self._entries[number].config.ack_timeout_ns > 0:
                sent = [each.SerializeToString(deterministic=True) for each in made.data]
                self._lists[number, made.list_id] = sent
            yield made

    def _expire(self, now: float) -> None:
        for key in [key for key, until in self._waiting.items() if until <= now]:
            del self._waiting[key]
        for place, sent in list(self._lists.items()):
            if not any((place[0], data) in self._waiting for data in sent):
                del self._lists[place]

    def _forget(self, number: int) -> None:
        self._waiting = {key: until for key, until in self._waiting.items() if key[0] != number}
        self._lists = {key: sent for key, sent in self._lists.items() if key[0] != number}


_FLAT = ("bitstring", "bool", "serializable_enum", "new_type", "error")


def _members(p4info: Any, info: Any) -> list[Any]:
    """The types of a digest's members. Raises `StatusError` for members that have members."""
    kind = info.type_spec.WhichOneof("type_spec")
    if kind == "struct":
        specs = [each.type_spec for each in p4info.type_info.structs[info.type_spec.struct.name].members]
    elif kind == "tuple":
        specs = list(info.type_spec.tuple.members)
    else:
        raise unimplemented(f"digest {info.preamble.name} is neither a struct nor a tuple")
    for each in specs:
        if each.WhichOneof("type_spec") not in _FLAT or each.bitstring.HasField("varbit"):
            raise unimplemented(f"digest {info.preamble.name} has members that are not numbers")
    return specs


def _data(p4info: Any, info: Any, values: Iterable[Any]) -> Any:
    """A digest as P4Data."""
    pairs = zip(_members(p4info, info), values, strict=True)
    members = [_scalar(p4info, spec, value) for spec, value in pairs]
    return p4data_pb2.P4Data(**{info.type_spec.WhichOneof("type_spec"): {"members": members}})


def _scalar(p4info: Any, spec: Any, value: Any) -> Any:
    made = p4data_pb2.P4Data()
    match spec.WhichOneof("type_spec"):
        case "bool":
            made.bool = bool(value)
        case "bitstring":
            signed = spec.bitstring.HasField("int")
            width = spec.bitstring.int.bitwidth if signed else spec.bitstring.bit.bitwidth
            made.bitstring = encode(int(value), width, signed=signed)
        case "serializable_enum":
            enum = p4info.type_info.serializable_enums[spec.serializable_enum.name]
            made.enum_value = encode(int(value), enum.underlying_type.bitwidth)
        case "new_type":
            new = p4info.type_info.new_types[spec.new_type.name]
            if new.WhichOneof("representation") == "original_type":
                return _scalar(p4info, new.original_type, value)
            made.bitstring = encode(int(value), new.translated_type.sdn_bitwidth)
        case "error":
            made.error = p4info.type_info.error.members[int(value)]
    return made
