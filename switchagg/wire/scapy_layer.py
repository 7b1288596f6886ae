"""The wire format as a scapy layer, bound to the UDP port when this module is imported.

    >>> from scapy.all import IP, UDP
    >>> from switchagg.wire.scapy_layer import SwitchAgg
    >>> packet = IP() / UDP(dport=48879) / SwitchAgg(op="SUM", flags="payload", job=7, seq=1, words=[1] * 16)

Needs scapy, which the base install does not bring.
"""

from __future__ import annotations

import struct
from typing import Any

from switchagg.wire import header as wire

try:
    from scapy.fields import (
        BitEnumField,
        BitField,
        ConditionalField,
        Field,
        FlagsField,
        IntField,
        ShortField,
        XIntField,
    )
    from scapy.layers.inet import UDP
    from scapy.packet import Packet, bind_bottom_up, bind_layers
except ImportError as error:
    raise ImportError("switchagg.wire.scapy_layer needs scapy: pip install 'switchagg[scapy]'") from error


def _field(field: wire.Field) -> Any:
    default = wire.VERSION if field.name == "version" else 0
    if field.name == "op":
        return BitEnumField(field.name, default, field.bits, {op.value: op.name for op in wire.Op})
    if field.name == "flags":
        names = [flag.name.lower() for flag in wire.Flag if flag.name]
        return FlagsField(field.name, default, field.bits, names)
    if field.bits == 16:
        return ShortField(field.name, default)
    if field.bits == 32:
        return (XIntField if field.hexadecimal else IntField)(field.name, default)
    return BitField(field.name, default, field.bits)


class WordsField(Field):  # type: ignore[misc]  # scapy has no types here
    """All whole 32-bit words up to the end of the datagram, as a list of int."""

    islist = 1

    def addfield(self, _: Any, data: bytes, values: list[int]) -> bytes:
        return data + struct.pack(f">{len(values)}I", *values)

    def getfield(self, _: Any, data: bytes) -> tuple[bytes, list[int]]:
        count = len(data) // 4
        return data[4 * count :], list(struct.unpack(f">{count}I", data[: 4 * count]))

    def any2i(self, _: Any, values: Any) -> list[int]:
        return [] if values is None else [int(value) for value in values]


class SwitchAgg(Packet):  # type: ignore[misc]
    """The 16-byte header, and the words where the payload flag is set."""

    name = "SwitchAgg"
    fields_desc = [  # noqa: RUF012  # as scapy wants it
        *(_field(field) for field in wire.FIELDS),
        ConditionalField(WordsField("words", [], "I"), lambda packet: packet.flags.payload),
    ]

    def mysummary(self) -> str:
        words = f", {len(self.words)} words" if self.flags.payload else ""
        return str(self.sprintf("SwitchAgg %SwitchAgg.op% job %SwitchAgg.job% seq %SwitchAgg.seq%")) + words


bind_bottom_up(UDP, SwitchAgg, sport=wire.DEFAULT_PORT)
bind_layers(UDP, SwitchAgg, dport=wire.DEFAULT_PORT)
