"""Reading annotations: `@name("x")`, `@field_list(1, 2)`, `@p4runtime_translation("uri", 32)`, `@id[a =
1]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from switchagg.p4model.ast import Annotation
from switchagg.p4model.errors import Location, P4Error

if TYPE_CHECKING:
    from switchagg.p4model.tokens import Raw

_TEXTS = {"name", "deprecated"}
_ESCAPE = re.compile(r"\\(.)")


def find(annotations: Iterable[Annotation], name: str) -> Annotation | None:
    """The first annotation of this name."""
    return next((each for each in annotations if each.name == name), None)


def annotate(location: Location, name: str, body: Sequence[Raw] | None, *, structured: bool) -> Annotation:
    """Makes an annotation of the tokens of its body; what they mean is kept where they are values or
    pairs.
    """
    if body is None:
        return Annotation(location, name, None, (), (), structured)
    values: list[int | str | bool] = []
    pairs: list[tuple[str, int | str | bool]] = []
    plain = True
    for part in _split(body):
        if len(part) > 2 and part[0].kind == "word" and part[1].text == "=":
            value = _value(part[2:])
            if value is not None:
                pairs.append((part[0].text, value))
        else:
            value = _value(part)
            if value is not None:
                values.append(value)
        plain = plain and value is not None
    if name in _TEXTS and not (plain and len(values) == 1 and isinstance(values[0], str)):
        raise P4Error(f'@{name} takes one string, as in @{name}("...")', location)
    return Annotation(
        location, name, _text(body), tuple(values) if plain else (), tuple(pairs) if plain else (), structured
    )


def _split(body: Sequence[Raw]) -> list[list[Raw]]:
    parts: list[list[Raw]] = [[]]
    for token in body:
        if token.text == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    return [each for each in parts if each]


def _value(tokens: Sequence[Raw]) -> int | str | bool | None:
    if all(each.kind == "string" or each.text == "++" for each in tokens):
        tokens = [each for each in tokens if each.kind == "string"]
        return "".join(unquote(each.text) for each in tokens)
    negative = tokens[0].text == "-" and len(tokens) == 2
    token = tokens[-1]
    if token.kind == "number" and (negative or len(tokens) == 1):
        value = number(token.text)[0]
        return -value if negative else value
    if len(tokens) == 1 and token.text in ("true", "false"):
        return token.text == "true"
    return None


def _text(body: Sequence[Raw]) -> str:
    """The tokens with a blank between two, as p4c prints an annotation that it does not know."""
    return " ".join(each.text for each in body)


def unquote(text: str) -> str:
    """The value of a string literal with its quotes."""
    return _ESCAPE.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text[1:-1])


def number(text: str) -> tuple[int, int, bool]:
    """The value, width (0 without a prefix) and signedness of a number as P4 writes it."""
    width, signed, digits = 0, False, text.replace("_", "")
    prefix = re.match(r"([0-9]+)([ws])", digits)
    if prefix:
        width, signed = int(prefix[1]), prefix[2] == "s"
        digits = digits[prefix.end() :]
    base = {"0x": 16, "0d": 10, "0o": 8, "0b": 2}.get(digits[:2].lower(), 0)
    return (int(digits[2:] or "0", base) if base else int(digits or "0")), width, signed
