"""The first difference between two P4Infos, as a message."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def difference(given: Any, ours: Any, *, ignored: Collection[str] = ()) -> str | None:
    """Returns the first difference; None without any. The order of objects and pkg_info do not matter.

    Args:
        ignored: kinds of objects, such as "registers"; or "size", of all objects.
    """
    for field in given.DESCRIPTOR.fields:
        name = field.name
        if name == "pkg_info" or name in ignored:
            continue
        if name == "type_info":
            if given.type_info != ours.type_info:
                return "types differ"
            continue
        if name == "externs":
            if list(given.externs) != list(ours.externs):
                return "externs differ"
            continue
        theirs = {each.preamble.id: each for each in getattr(given, name)}
        here = {each.preamble.id: each for each in getattr(ours, name)}
        for number in theirs.keys() | here.keys():
            if number not in theirs:
                return f"it lacks {here[number].preamble.name} ({name})"
            if number not in here:
                return f"the program has no {theirs[number].preamble.name} ({name}, id {number:#x})"
            if not _same(theirs[number], here[number], ignored):
                return f"{here[number].preamble.name} ({name}) differs"
    return None


def _same(one: Any, other: Any, ignored: Collection[str]) -> bool:
    if "size" in ignored and "size" in one.DESCRIPTOR.fields_by_name:
        copies = []
        for each in (one, other):
            copies.append(type(each)())
            copies[-1].CopyFrom(each)
            copies[-1].ClearField("size")
        one, other = copies
    return bool(one == other)
