"""Hooks for a switch that does more with entities than to keep them: the native engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from switchagg.p4entities.matches import Canonical
from switchagg.p4entities.tables import Entry, Table


class EntityListener:
    """Follows table entries and multicast groups. This one does nothing, as for a switch made of tables.

    A `StatusError` of `changed` or `group_changed` undoes the update.
    """

    def before_read(self) -> None:
        """Entries or counters are about to be read, or counters to be set."""

    def before_change(self, table: Table, matches: Sequence[Canonical], *, new: bool) -> None:
        """An entry with these matches is about to be inserted (`new`), modified or deleted."""

    def changed(self, table: Table, entry: Entry, metadata: bytes, *, new: bool) -> None:
        """An entry was inserted (`new`) or modified; `metadata` is the client's. May raise `StatusError`."""

    def removed(self, table: Table, entry: Entry) -> None:
        """An entry was deleted."""

    def default_changed(self, table: Table) -> None:
        """The default action of a table was set."""

    def group_changed(self, group: int, entry: Any | None) -> None:
        """A multicast group was written, as a `MulticastGroupEntry`; None: deleted.

        May raise `StatusError`.
        """
