"""The first difference between two P4Infos, in words."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import Any


def difference(given: Any, ours: Any, *, ignored: Collection[str] = ()) -> str | None:
    """Returns the first difference; None if there is none. The order of objects and pkg_info do not matter.

    Args:
        ignored: kinds of objects, such as "registers"; or "size", of all objects.
    """
    for name in (field.name for field in given.DESCRIPTOR.fields):
        if name == "pkg_info" or name in ignored:
            continue
        if name in ("type_info", "externs"):
            if getattr(given, name) != getattr(ours, name):
                return f"{name.removesuffix('_info').removesuffix('s')}s differ"
            continue
        theirs = {each.preamble.id: each for each in getattr(given, name)}
        here = {each.preamble.id: each for each in getattr(ours, name)}
        for number in theirs.keys() | here.keys():
            if number not in theirs:
                return f"it lacks {here[number].preamble.name} ({name})"
            if number not in here:
                return f"the program has no {theirs[number].preamble.name} ({name}, id {number:#x})"
            if _compared(theirs[number], ignored) != _compared(here[number], ignored):
                return f"{here[number].preamble.name} ({name}) differs"
    return None


def _compared(message: Any, ignored: Collection[str]) -> Any:
    if "size" not in ignored or "size" not in message.DESCRIPTOR.fields_by_name:
        return message
    copied = deepcopy(message)
    copied.ClearField("size")
    return copied
