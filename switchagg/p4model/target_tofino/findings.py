"""A rule of the chip that a program breaks, with the places that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from switchagg.p4model.errors import Location, P4Error


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where; `notes` are further places."""

    reason: str
    location: Location
    notes: tuple[tuple[str, Location], ...] = ()

    def text(self, sources: Mapping[str, str]) -> str:
        """As an error message, with the source lines."""
        return str(P4Error(self.reason, self.location, notes=self.notes).with_sources(sources))
