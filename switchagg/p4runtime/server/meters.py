"""Meter configurations, and indirect meters: `MeterEntry`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from switchagg.p4entities.counters import Meter, MeterArray, Rate
from switchagg.p4entities.matches import TableError
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.counters import indices
from switchagg.p4runtime.server.errors import invalid, unimplemented
from switchagg.p4runtime.server.handlers import Change, only_modify
from switchagg.p4runtime.server.schema import Schema


def decode_config(message: Any, where: str) -> tuple[Rate, Rate]:
    """Committed and peak rate of a `MeterConfig`. Raises `Refused`."""
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


def encode_config(meter: Meter | None) -> Any | None:
    """The `MeterConfig` of a meter; None for one without rates."""
    if meter is None or meter.rates is None:
        return None
    committed, peak = meter.rates
    return p4runtime_pb2.MeterConfig(
        cir=int(committed.rate), cburst=committed.burst, pir=int(peak.rate), pburst=peak.burst
    )


class Meters:
    """The indirect meters of a switch. `now` is its time."""

    def __init__(self, schema: Schema, now: Callable[[], float]) -> None:
        self._schema = schema
        self._now = now

    def write(self, change: Change, message: Any) -> None:
        """Sets the meter at an index, or all of them; without a config they are green. Raises `Refused`."""
        name, meter = self._meter(message.meter_id)
        only_modify(change, f"meter {name}")
        if message.HasField("counter_data"):
            raise unimplemented(f"meter {name} does not count by colour")
        committed = peak = None
        if message.HasField("config"):
            committed, peak = decode_config(message.config, f"meter {name}")
        for index in indices(message, len(meter.cells), f"meter {name}"):
            meter.cells[index].set_rates(committed, peak, self._now())

    def read(self, message: Any) -> Iterator[Any]:
        """The meters that a `MeterEntry` asks for. Raises `Refused`."""
        numbers = [message.meter_id] if message.meter_id else self._schema.meter_ids()
        for number in numbers:
            name, meter = self._meter(number)
            for index in indices(message, len(meter.cells), f"meter {name}"):
                answer = p4runtime_pb2.Entity()
                answer.meter_entry.meter_id = number
                answer.meter_entry.index.index = index
                config = encode_config(meter.cells[index])
                if config is not None:
                    answer.meter_entry.config.CopyFrom(config)
                yield answer

    def _meter(self, number: int) -> tuple[str, MeterArray]:
        name = self._schema.meter(number).preamble.name
        try:
            return name, self._schema.switch.meter(name)
        except TableError as error:
            raise unimplemented(str(error)) from None
