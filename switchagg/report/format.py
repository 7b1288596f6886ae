"""Figures as the listings show them. Every function takes None for "not known" and says ``-``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

NONE: Final = "-"


def plain(text: object) -> str:
    """Returns a text that is safe on a terminal: what a stranger wrote may hold its control sequences."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in words)


def size(count: float | None) -> str:
    """Bytes in the decimal unit that fits: ``1.53 MB``."""
    if count is None:
        return NONE
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(value) < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{significant(value)} {unit}"


def throughput(gigabytes: float | None) -> str:
    """Gigabytes a second in the unit that fits."""
    return NONE if gigabytes is None else f"{size(gigabytes * 1e9)}/s"


def percent(share: float | None) -> str:
    """A share of 1 in per cent."""
    if share is None:
        return NONE
    value = share * 100
    return "<0.01%" if 0 < value < 0.01 else f"{significant(value)}%"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that say something."""
    if seconds is None:
        return NONE
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours < 48 else f"{hours // 24}d{hours % 24}h"


def microseconds(value: float | None) -> str:
    """A round trip."""
    if value is None:
        return NONE
    return f"{significant(value)} us" if value < 999.5 else f"{significant(value / 1000)} ms"


def count(value: int | None) -> str:
    """A count with its thousands apart."""
    return NONE if value is None else f"{value:,}"


def ranks(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2,5``."""
    parts = []
    rest = sorted(numbers)
    while rest:
        length = 1
        while length < len(rest) and rest[length] == rest[0] + length:
            length += 1
        if length < 3:
            length = 1
        parts.append(str(rest[0]) if length == 1 else f"{rest[0]}-{rest[length - 1]}")
        rest = rest[length:]
    return ",".join(parts) or NONE


def policy(given: Mapping[str, Any] | None) -> str:
    """A skip policy in few words."""
    if not given:
        return NONE
    parts = ["dense" if given.get("dense") else "skip"]
    if given.get("block"):
        parts.append(f"block {given['block']}")
    if given.get("bits"):
        parts.append(f"{given['bits']} bits")
    return ", ".join(parts)


def joined(job: Mapping[str, Any]) -> str:
    """The number of a job's ranks that have joined, and of all."""
    there = sum(member["state"] == "joined" for member in job["members"])
    return f"{there}/{job['world_size']}"


def in_state(job: Mapping[str, Any], state: str) -> str:
    """The ranks of a job that are in this state."""
    return ranks([member["rank"] for member in job["members"] if member["state"] == state])


def rate(job: Mapping[str, Any], name: str) -> float | None:
    """One of a job's rates; None while it has none."""
    value = (job.get("rates") or {}).get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def significant(value: float, digits: int = 3, *, thousands: str = "") -> str:
    """So many significant digits, at most 6 decimals, no exponent; ``thousands`` goes between thousands."""
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:{thousands}.{min(6, max(0, places))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def figure(value: str | int | float | bool | None) -> str:
    """A cell of a table: four significant digits of a float, whole numbers with their thousands apart."""
    match value:
        case None:
            return NONE
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            if not math.isfinite(value):
                return NONE
            in_range = value == 0 or 1e-3 <= abs(value) < 1e6
            return significant(value, 4, thousands=",") if in_range else f"{value:.2e}"
    return value
