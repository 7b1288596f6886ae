"""Messages in protobuf's text format and in JSON, without protobuf.

A `Message` is its fields in order. A value is an int, bool, str, bytes, `Enum`, `Message`, a list of
these for a repeated field, or a dict of strings to messages for a map. Fields with a default value are
left out, as protobuf leaves them out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, TypeAlias


class Enum(str):
    """The name of an enum's value."""

    __slots__ = ()


class Long(int):
    """An integer of 64 bits, which JSON has as a string."""


Value: TypeAlias = "int | bool | str | bytes | Message | list[Any] | dict[str, Message]"


class Message:
    """A message. Fields are added in order; a field that is given as None, or empty, is not there."""

    __slots__ = ("fields",)

    def __init__(self, **fields: Value | None) -> None:
        self.fields: dict[str, Value] = {}
        self.update(fields)

    def set(self, name: str, value: Value | None) -> None:
        """Sets a field, if its value is not the default."""
        if value is not None and (isinstance(value, Message) or value):
            self.fields[name] = value

    def update(self, fields: Mapping[str, Value | None]) -> None:
        """Sets fields, those whose value is not the default."""
        for name, value in fields.items():
            self.set(name, value)

    def get(self, name: str) -> Any:
        """A field, None where it is not set."""
        return self.fields.get(name)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]

    def to_text(self) -> str:
        """In the text format, as protobuf prints it."""
        lines: list[str] = []
        _text(self, lines, "")
        return "".join(f"{line}\n" for line in lines)

    def to_json(self) -> str:
        """In protobuf's JSON form."""
        return json.dumps(_plain(self), indent=1) + "\n"


def _text(message: Message, lines: list[str], indent: str) -> None:
    for name, value in message.fields.items():
        if isinstance(value, list):
            for each in value:
                _field(name, each, lines, indent)
        elif isinstance(value, dict):
            for key in sorted(value):
                _field(name, Message(key=key, value=value[key]), lines, indent)
        else:
            _field(name, value, lines, indent)


def _field(name: str, value: Value, lines: list[str], indent: str) -> None:
    if isinstance(value, Message):
        lines.append(f"{indent}{name} {{")
        _text(value, lines, indent + "  ")
        lines.append(f"{indent}}}")
    else:
        lines.append(f"{indent}{name}: {_scalar(value)}")


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return str(value)
        case int():
            return str(int(value))
        case bytes():
            return f'"{_escaped(value)}"'
        case _:
            return f'"{_escaped(str(value).encode())}"'


_ESCAPES = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}


def _escaped(data: bytes) -> str:
    return "".join(
        _ESCAPES.get(each) or (chr(each) if 32 <= each < 127 else f"\\{each:03o}") for each in data
    )


def _plain(value: Any) -> Any:
    match value:
        case Message():
            return {_camel(name): _plain(each) for name, each in value.fields.items()}
        case dict():
            return {key: _plain(value[key]) for key in sorted(value)}
        case list():
            return [_plain(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case Long():
            return str(int(value))
        case _:
            return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)
