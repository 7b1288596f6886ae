"""Random changes of bytes, tokens and JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

INTEGERS: Final = (
    *(
        0,
        1,
        -1,
        2,
        3,
        7,
        8,
        16,
        31,
        32,
        33,
        127,
        128,
        255,
        256,
        257,
        65535,
        65536,
        2**31 - 1,
        2**31,
        2**32 - 1,
    ),
    2**32,
    2**53,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**31),
    -(2**63),
    -(2**63) - 1,
    10**30,
    10**400,
)
TEXTS: Final = (
    *(
        "",
        " ",
        "\0",
        "a",
        "0",
        "-1",
        "1e9",
        "nan",
        "inf",
        "null",
        "true",
        "é",
        "٣",
        "１",
        "\u202e",
        "\U0001f600",
    ),
    *(
        "\ufeff",
        "a" * 128,
        "a" * 129,
        "a" * 5000,
        "../..",
        "%00",
        "%",
        "%ff",
        "%2e%2e%2f",
        "[",
        "]",
        "::1",
        "10.0.0.1",
    ),
    *(
        "255.255.255.255",
        "0.0.0.0",
        "1.2.3",
        "a\nb",
        "\r\n",
        "\x7f",
        "'",
        '"',
        "{}",
        "{0}",
        "%s",
        "$(id)",
        ";",
        "--",
    ),
)


def bytes_changed(data: bytes, random: Random, changes: int | None = None) -> bytes:
    """Returns `data` with some bytes flipped, left out, repeated, inserted, or cut off."""
    changed = bytearray(data)
    for _ in range(changes or random.choice((1, 1, 1, 2, 4, 16))):
        at = random.randrange(len(changed) + 1)
        end = min(len(changed), at + random.choice((1, 1, 2, 8, 64)))
        match random.randrange(6):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << random.randrange(8)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at:end] * random.choice((1, 2, 50))
            case 3:
                changed[at:at] = random.randbytes(random.choice((1, 2, 9)))
            case 4:
                changed[at:end] = bytes([random.choice((0, 0xFF, 0x7F, 0x80, 0x0A, 0x20))]) * (end - at)
            case _ if random.randrange(4) == 0:
                del changed[at:]
    return bytes(changed)


def tokens_changed(
    tokens: Sequence[str], random: Random, vocabulary: Sequence[str], others: Sequence[str]
) -> list[str]:
    """Returns tokens with some left out, repeated, swapped, nested, or replaced.

    Args:
        tokens: of a text; joined they are the text.
        vocabulary: tokens of the language.
        others: the tokens of another text.
    """
    changed = list(tokens)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(changed) + 1)
        end = min(len(changed), at + random.choice((1, 1, 2, 3, 8, 30)))
        match random.randrange(24):
            case each if each > 9 and changed:  # another token of the same kind
                same = [token for token in changed if _kind(token) == _kind(changed[at % len(changed)])]
                same += [token for token in vocabulary if _kind(token) == _kind(changed[at % len(changed)])]
                changed[at % len(changed)] = random.choice(same)
            case 0:
                del changed[at:end]
            case 1:
                changed[at:at] = [*changed[at:end], " "] * random.choice((1, 1, 2, 20))
            case 2 if changed:
                other = random.randrange(len(changed))
                at %= len(changed)
                changed[at], changed[other] = changed[other], changed[at]
            case 3 | 4:
                changed[at:end] = [" ", random.choice(vocabulary), " "]
            case 5 if changed:
                changed[at:end] = [changed[random.randrange(len(changed))]]
            case 6:
                start = random.randrange(len(others) + 1)
                changed[at:at] = others[start : start + random.choice((1, 4, 20, 60))]
            case 7 if random.randrange(8) == 0:
                opening, closing = random.choice(
                    (("(", ")"), ("{", "}"), ("[", "]"), ("<", ">"), ("- ", ""), ("!", ""))
                )
                times = random.choice((3, 60, 400, 3000))
                changed[at:end] = [*[opening] * times, *changed[at:end], *[closing] * times]
            case _:
                changed.insert(at, random.choice(vocabulary))
    return changed


def _kind(token: str) -> str:
    if token[:1].isdigit():
        return "number"
    return "word" if token[:1].isalpha() or token[:1] == "_" else "blank" if token.isspace() else "mark"


def value_changed(value: Any, random: Random) -> Any:
    """Returns JSON's types with one value in them replaced, left out, or added."""
    match value:
        case dict() if value and random.randrange(6):
            name = random.choice(list(value))
            if random.randrange(8) == 0:
                return {each: value[each] for each in value if each != name}
            return {**value, name: value_changed(value[name], random)}
        case list() if value and random.randrange(6):
            at = random.randrange(len(value))
            new = random.choice(([], [value[at]] * 2, [value_changed(value[at], random)]))
            return [*value[:at], *new, *value[at + 1 :]]
        case int() if not isinstance(value, bool) and random.randrange(2):
            return value + random.choice((1, -1, 2**16, -(2**32)))
        case str() if value and random.randrange(2):
            return bytes_changed(value.encode(), random).decode("utf-8", "replace")
    return any_value(random)


def any_value(random: Random, depth: int = 0) -> Any:
    """Returns a random value of JSON's types; NaN and infinities among them."""
    match random.randrange(9 if depth < 3 else 7):
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2 | 3:
            return random.choice(INTEGERS)
        case 4:
            return random.choice((0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), -float("inf"), 1e16))
        case 5 | 6:
            return random.choice(TEXTS)
        case 7:
            return [any_value(random, depth + 1) for _ in range(random.choice((0, 1, 2, 9)))]
        case _:
            return {
                str(random.choice(TEXTS)): any_value(random, depth + 1)
                for _ in range(random.choice((0, 1, 3)))
            }
