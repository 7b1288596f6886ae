"""Errors in P4 programs: every message of the front end carries file, line and column.

Location    a place in a source file (never in the preprocessor's output)
P4Error     a mistake in a P4 program, or a construct that the model does not support
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switchagg.errors import UsageError


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a source file. Lines and columns count from 1; 0 means the file as a whole."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE = Location("<built-in>", 0, 0)


class P4Error(UsageError):
    """A P4 program that cannot be used. `str()` gives place, reason, the source line and a caret.

    Attributes:
        reason: the message alone.
        location: where the mistake is.
        notes: further places with a remark each, such as an earlier declaration of the same name.
        unsupported: the program may be right, but the model does not support what it uses.
    """

    def __init__(
        self, reason: str, location: Location, *notes: tuple[str, Location], unsupported: bool = False
    ) -> None:
        self.reason = reason
        self.location = location
        self.notes = notes
        self.unsupported = unsupported
        self._sources: Mapping[str, str] = {}
        super().__init__(reason)

    def with_sources(self, sources: Mapping[str, str]) -> P4Error:
        """Adds the texts of the files, by name, so that the message can show the line. Returns itself."""
        self._sources = sources
        return self

    def __str__(self) -> str:
        return message("error", self.reason, self.location, self.notes, self._sources)


def message(
    kind: str,
    reason: str,
    location: Location,
    notes: Sequence[tuple[str, Location]],
    sources: Mapping[str, str],
) -> str:
    """Returns a compiler's message: place, reason, source line and caret, and the notes likewise.

    Args:
        kind: error or warning.
        sources: texts of files by name; other places have no source line.
    """
    lines = [f"{location}: {kind}: {reason}{_excerpt(location, sources)}"]
    lines += [f"{place}: note: {remark}{_excerpt(place, sources)}" for remark, place in notes]
    return "\n".join(lines)


def _excerpt(location: Location, sources: Mapping[str, str]) -> str:
    lines = sources.get(location.file, "").splitlines()
    if not 0 < location.line <= len(lines):
        return ""
    line = lines[location.line - 1]
    # A tab before the caret keeps its width whatever the terminal makes of tabs.
    indent = "".join("\t" if each == "\t" else " " for each in line[: max(location.column - 1, 0)])
    return f"\n{line}\n{indent}^"


def unsupported(construct: str, location: Location) -> P4Error:
    """The error for a construct of the language or of an architecture that the model does not have."""
    return P4Error(f"{construct} is not supported", location, unsupported=True)


def misused(reason: str, location: Location, declaration: Location) -> P4Error:
    """The error for a name that cannot be used so, with a note that points to its declaration."""
    return P4Error(reason, location, ("it is declared here", declaration))


def declared_twice(reason: str, location: Location, first: Location) -> P4Error:
    """The error for a second declaration, with a note that points to the first one."""
    return P4Error(reason, location, ("the first declaration is here", first))
