"""Indirect counters: `CounterEntry`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from switchagg.p4entities.counters import CounterArray
from switchagg.p4entities.matches import TableError
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import Code, Refused, unimplemented
from switchagg.p4runtime.server.handlers import Change, only_modify
from switchagg.p4runtime.server.schema import Schema, counted


def indices(message: Any, size: int, where: str) -> range:
    """The index that a message names, or all. Raises `Refused` for one that is not there."""
    if not message.HasField("index"):
        return range(size)
    index = message.index.index
    if not 0 <= index < size:
        raise Refused(Code.OUT_OF_RANGE, f"{where}: there is no index {index}; there is 0..{size - 1}")
    return range(index, index + 1)


class Counters:
    """The indirect counters of a switch."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def write(self, change: Change, message: Any) -> None:
        """Sets the counts at an index, or at all of them. Raises `Refused`."""
        name, counter = self._counter(message.counter_id)
        only_modify(change, f"counter {name}")
        for index in indices(message, len(counter.packets), f"counter {name}"):
            counter.write(index, message.data.packet_count, message.data.byte_count)

    def read(self, message: Any) -> Iterator[Any]:
        """The counts that a `CounterEntry` asks for. Raises `Refused`."""
        numbers = [message.counter_id] if message.counter_id else self._schema.counter_ids()
        for number in numbers:
            packets, length = counted(self._schema.counter(number))
            name, counter = self._counter(number)
            for index in indices(message, len(counter.packets), f"counter {name}"):
                answer = p4runtime_pb2.Entity()
                answer.counter_entry.counter_id = number
                answer.counter_entry.index.index = index
                answer.counter_entry.data.packet_count = counter.packets[index] if packets else 0
                answer.counter_entry.data.byte_count = counter.bytes[index] if length else 0
                yield answer

    def _counter(self, number: int) -> tuple[str, CounterArray]:
        name = self._schema.counter(number).preamble.name
        try:
            return name, self._schema.switch.counter(name)
        except TableError as error:
            raise unimplemented(str(error)) from None
