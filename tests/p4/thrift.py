"""As much of Thrift's binary protocol as bmv2's runtime server needs: calls, and their results.

A value is written as a pair of its type and itself; a struct as a list of (field id, type, value).
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

STOP: Final = 0
BOOL: Final = 2
BYTE: Final = 3
DOUBLE: Final = 4
I16: Final = 6
I32: Final = 8
I64: Final = 10
STRING: Final = 11
STRUCT: Final = 12
MAP: Final = 13
SET: Final = 14
LIST: Final = 15

_NUMBERS: Final = {BOOL: ">?", BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}
_CALL: Final = 0x80010001


class ThriftError(Exception):
    """The server answered with an exception; `fields` is what it holds, by field id."""

    def __init__(self, method: str, fields: dict[int, Any]) -> None:
        super().__init__(f"{method}: {fields}")
        self.fields = fields


def _encode(kind: int, value: Any) -> bytes:
    if kind in _NUMBERS:
        return struct.pack(_NUMBERS[kind], value)
    if kind == STRING:
        data = value.encode() if isinstance(value, str) else value
        return struct.pack(">i", len(data)) + data
    if kind == LIST:
        element, values = value
        return struct.pack(">bi", element, len(values)) + b"".join(_encode(element, each) for each in values)
    assert kind == STRUCT
    fields = [struct.pack(">bh", kind, number) + _encode(kind, field) for number, kind, field in value]
    return b"".join(fields) + bytes([STOP])


class Client:
    """A connection to one server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, service: str, method: str, arguments: list[tuple[int, int, Any]]) -> Any:
        """Calls a method and returns its result, None for void. Raises `ThriftError`."""
        name = f"{service}:{method}"
        head = struct.pack(">I", _CALL) + _encode(STRING, name) + struct.pack(">i", 0)
        self._socket.sendall(head + _encode(STRUCT, arguments))
        kind = self._number(">I") & 0xFF
        self._decode(STRING)
        self._number(">i")
        fields = self._decode(STRUCT)
        if kind == 3 or any(fields.keys() - {0}):
            raise ThriftError(name, fields)
        return fields.get(0)

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the server closed the connection")
        return data

    def _decode(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == STRING:
            return self._read(self._number(">i"))
        if kind in (LIST, SET):
            element = self._number(">b")
            return [self._decode(element) for _ in range(self._number(">i"))]
        assert kind == STRUCT, f"a Thrift type {kind}"
        fields = {}
        while (field := self._number(">b")) != STOP:
            number = self._number(">h")
            fields[number] = self._decode(field)
        return fields
