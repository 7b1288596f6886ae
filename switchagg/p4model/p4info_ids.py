"""Ids and aliases of P4Info objects, as p4c gives them: the same program has the same ids with either
compiler.

An id is the kind of the object in the highest byte and, below it, a hash of the full name (Jenkins's
one-at-a-time) or what @id says. Where two hashes meet, the name that is later in the alphabet takes the
next free number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum

from switchagg.p4model.annotations import find
from switchagg.p4model.ast import Annotation
from switchagg.p4model.errors import NOWHERE, P4Error


class Kind(IntEnum):
    """The highest byte of an id (P4Runtime specification, "P4Info: ID allocation")."""

    ACTION = 0x01
    TABLE = 0x02
    VALUE_SET = 0x03
    CONTROLLER_HEADER = 0x04
    ACTION_PROFILE = 0x11
    COUNTER = 0x12
    DIRECT_COUNTER = 0x13
    METER = 0x14
    DIRECT_METER = 0x15
    REGISTER = 0x16
    DIGEST = 0x17


def hash_name(name: str) -> int:
    """Jenkins's one-at-a-time hash, 32 bits."""
    value = 0
    for byte in name.encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFFFF


class Symbols:
    """Collects all names first; ids and aliases depend on all of them."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Kind, str], int | None] = {}
        self._taken: set[int] = set()
        self._suffixes: Counter[str] = Counter()
        self._names: set[str] = set()

    def add(self, kind: Kind, name: str, annotations: Iterable[Annotation] = ()) -> None:
        """Adds an object; one that is there already is not added again."""
        if (kind, name) in self._ids:
            return
        self._ids[kind, name] = self._written(kind, annotations)
        if name not in self._names:
            self._names.add(name)
            parts = name.split(".")
            self._suffixes.update(".".join(parts[index:]) for index in range(len(parts)))

    def _written(self, kind: Kind, annotations: Iterable[Annotation]) -> int | None:
        note = find(annotations, "id")
        if note is None:
            return None
        number = single_number(note)
        if number >> 24 not in (0, kind):
            raise P4Error(
                f"@id({number:#x}) is of another kind of object: it should be {kind:#04x}......",
                note.location,
            )
        number |= kind << 24
        if number in self._taken:
            raise P4Error(f"@id({number:#x}) is given twice", note.location)
        self._taken.add(number)
        return number

    def assign(self) -> None:
        """Gives ids to all objects that the program gives none."""
        for kind in sorted({kind for kind, _ in self._ids}):
            for name in sorted(name for each, name in self._ids if each == kind):
                if self._ids[kind, name] is None:
                    self._ids[kind, name] = self._probe(kind, hash_name(name))

    def _probe(self, kind: Kind, value: int) -> int:
        for step in range(1 << 24):
            number = kind << 24 | (value + step) & 0xFFFFFF
            if number not in self._taken:
                self._taken.add(number)
                return number
        raise P4Error("there are more objects than ids", NOWHERE)

    def id(self, kind: Kind, name: str) -> int:
        """The id of an object, after `assign`."""
        number = self._ids[kind, name]
        assert number is not None
        return number

    def alias(self, name: str) -> str:
        """The shortest end of the name that no other name has."""
        parts = name.split(".")
        for count in range(1, len(parts)):
            suffix = ".".join(parts[-count:])
            if self._suffixes[suffix] < 2:
                return suffix
        return name


def field_ids(fields: Sequence[Iterable[Annotation]]) -> list[int]:
    """Ids of match fields, parameters and the like: @id, or the position, counted from 1."""
    written: list[int | None] = []
    for field in fields:
        note = find(field, "id")
        written.append(None if note is None else single_number(note))
        if note is not None and written.count(written[-1]) > 1:
            raise P4Error(f"@id({written[-1]}) is given twice", note.location)
    taken = {each for each in written if each is not None}
    ids, index = [], 1
    for number in written:
        if number is not None:
            ids.append(number)
            index += 1
            continue
        while index in taken:
            index += 1
        taken.add(index)
        ids.append(index)
    return ids


def single_number(note: Annotation) -> int:
    """The value of an annotation that takes one number, which is not negative."""
    if len(note.values) != 1 or not isinstance(note.values[0], int) or note.values[0] < 0:
        raise P4Error(f"@{note.name} takes one number", note.location)
    return note.values[0]
