"""Packet-in and packet-out: P4Runtime's metadata, and the headers that a program marks @controller_header.

packet-out: metadata + payload ─► [header][payload] at the CPU port
at the CPU port: [header][payload] ─► packet-in: metadata + payload

A program without such a header gets, and gives, the payload alone.
"""

from __future__ import annotations

from typing import Any

from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.errors import invalid
from switchagg.p4runtime.server.values import decode, encode


class PacketIo:
    """The two headers of a P4Info message."""

    def __init__(self, p4info: Any) -> None:
        headers = {each.preamble.name: list(each.metadata) for each in p4info.controller_packet_metadata}
        self._out = headers.get("packet_out", [])
        self._in = headers.get("packet_in", [])
        self._in_bits = sum(each.bitwidth for each in self._in)

    def frame(self, message: Any) -> bytes:
        """The frame of a `PacketOut`. Raises `Refused`, unless each field of the header is there once."""
        names = {each.id: each.name for each in self._out}
        given: dict[int, bytes] = {}
        for each in message.metadata:
            if each.metadata_id not in names:
                listed = ", ".join(f"{name} {number}" for number, name in names.items()) or "none"
                raise invalid(f"packet_out has no metadata {each.metadata_id}; it has {listed}")
            if each.metadata_id in given:
                raise invalid(f"packet_out: metadata {names[each.metadata_id]} is given twice")
            given[each.metadata_id] = each.value
        bits = width = 0
        for field in self._out:
            if field.id not in given:
                raise invalid(f"packet_out: metadata {field.name} is missing")
            where = f"packet_out: metadata {field.name}"
            bits = bits << field.bitwidth | decode(given[field.id], field.bitwidth, where)
            width += field.bitwidth
        header = (bits << (-width % 8)).to_bytes((width + 7) // 8, "big")
        return header + bytes(message.payload)

    def packet_in(self, frame: bytes) -> Any | None:
        """The `PacketIn` of a frame; None if it is shorter than the header."""
        size = (self._in_bits + 7) // 8
        if len(frame) < size:
            return None
        bits = int.from_bytes(frame[:size], "big") >> (-self._in_bits % 8)
        message = p4runtime_pb2.PacketIn(payload=frame[size:])
        left = self._in_bits
        for field in self._in:
            left -= field.bitwidth
            value = bits >> left & ((1 << field.bitwidth) - 1)
            message.metadata.add(metadata_id=field.id, value=encode(value, field.bitwidth))
        return message
