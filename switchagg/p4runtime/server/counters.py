"""Indirect counters and meters: `CounterEntry`, `MeterEntry`; and meter configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from switchagg.p4entities.counters import CounterArray, Meter, MeterArray, Rate
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.codec import Change, only_modify
from switchagg.p4runtime.server.errors import invalid, out_of_range, unimplemented
from switchagg.p4runtime.server.schema import EntityListener, Schema, counted


def _indices(message: Any, size: int, where: str) -> range:
    """Returns the index that a message names, or all. Raises `StatusError` for one out of range."""
    if not message.HasField("index"):
        return range(size)
    index = message.index.index
    if not 0 <= index < size:
        raise out_of_range(f"{where}: there is no index {index}; there is 0..{size - 1}")
    return range(index, index + 1)


class Counters:
    """Reads and writes the indirect counters of a switch. `listener` brings them up to date before each."""

    def __init__(self, schema: Schema, listener: EntityListener) -> None:
        self._schema = schema
        self._listener = listener

    def write(self, change: Change, message: Any) -> None:
        """Sets the counts at an index, or at all of them. Raises `StatusError`."""
        self._listener.before_read()
        what, counter = self._opened(message.counter_id)
        only_modify(change, what)
        for index in _indices(message, len(counter.packets), what):
            counter.write(index, message.data.packet_count, message.data.byte_count)

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the counts that a `CounterEntry` asks for. Raises `StatusError`."""
        self._listener.before_read()
        for number in self._schema.asked("counters", message.counter_id):
            what, counter = self._opened(number)
            units = counted(self._schema.info("counters", number))
            for index in _indices(message, len(counter.packets), what):
                data = encode_counts(units, counter.packets[index], counter.bytes[index])
                entry = {"counter_id": number, "index": {"index": index}, "data": data}
                yield p4runtime_pb2.Entity(counter_entry=entry)

    def _opened(self, number: int) -> tuple[str, CounterArray]:
        return self._schema.opened("counters", number, self._schema.switch.counter)


def encode_counts(units: tuple[bool, bool], packets: int, length: int) -> Any:
    """Returns the `CounterData` of a counter that counts packets, bytes, or both."""
    return p4runtime_pb2.CounterData(
        packet_count=packets if units[0] else 0, byte_count=length if units[1] else 0
    )


def decode_config(message: Any, where: str) -> tuple[Rate, Rate]:
    """Returns committed and peak rate of a `MeterConfig`. Raises `StatusError`."""
    for name in ("cir", "cburst", "pir", "pburst"):
        if getattr(message, name) < 0:
            raise invalid(f"{where}: the meter's {name} is {getattr(message, name)}; accepted: 0 or more")
    if message.cir > message.pir:
        raise invalid(
            f"{where}: the meter's committed rate {message.cir} is above its peak rate {message.pir}"
        )
    if message.eburst:
        raise unimplemented(f"{where}: meters have two rates and no excess burst (eburst)")
    return Rate(message.cir, message.cburst), Rate(message.pir, message.pburst)


def copy_config(meter: Meter | None, to: Any) -> None:
    """Writes the rates of a meter into the `config` or `meter_config` field `to`, unless it has none."""
    if meter is not None and meter.rates is not None:
        committed, peak = meter.rates
        to.cir, to.cburst = int(committed.rate), committed.burst
        to.pir, to.pburst = int(peak.rate), peak.burst
        to.SetInParent()


class Meters:
    """Reads and writes the indirect meters of a switch. `now` is its time."""

    def __init__(self, schema: Schema, now: Callable[[], float]) -> None:
        self._schema = schema
        self._now = now

    def write(self, change: Change, message: Any) -> None:
        """Sets the meter at an index, or all; without a config they are green. Raises `StatusError`."""
        what, meter = self._opened(message.meter_id)
        only_modify(change, what)
        if message.HasField("counter_data"):
            raise unimplemented(f"{what} does not count by colour")
        committed = peak = None
        if message.HasField("config"):
            committed, peak = decode_config(message.config, what)
        for index in _indices(message, len(meter.cells), what):
            meter.cells[index].set_rates(committed, peak, self._now())

    def read(self, message: Any) -> Iterator[Any]:
        """Yields the meters that a `MeterEntry` asks for. Raises `StatusError`."""
        for number in self._schema.asked("meters", message.meter_id):
            what, meter = self._opened(number)
            for index in _indices(message, len(meter.cells), what):
                answer = p4runtime_pb2.Entity(meter_entry={"meter_id": number, "index": {"index": index}})
                copy_config(meter.cells[index], answer.meter_entry.config)
                yield answer

    def _opened(self, number: int) -> tuple[str, MeterArray]:
        return self._schema.opened("meters", number, self._schema.switch.meter)
