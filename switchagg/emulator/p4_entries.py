"""Writes what `p4_entries` gives into a switch of the P4 model."""

from __future__ import annotations

from switchagg.p4entities import matches
from switchagg.p4entities.tables import Entry
from switchagg.p4model.runtime.switch import ModelSwitch
from switchagg.p4program.program import Entries, Exact, Match, Range, TableEntry

Installed = list[tuple[TableEntry, Entry]]


def install(switch: ModelSwitch, entries: Entries) -> Installed:
    """Adds all entries and groups; each entry with what it became. Raises TableError if one does not fit."""
    made = [(entry, insert(switch, entry)) for entry in entries.tables]
    for group in entries.groups:
        switch.replication.set_group(group.group, [(rid, port) for port, rid in group.replicas])
    return made


def remove(switch: ModelSwitch, entries: Entries, made: Installed) -> None:
    """Takes off what `install` added."""
    for entry, installed in made:
        switch.table(entry.table).remove(installed)
    for group in entries.groups:
        switch.replication.remove_group(group.group)


def insert(switch: ModelSwitch, entry: TableEntry) -> Entry:
    """Adds one entry. Raises TableError if it does not fit."""
    keys = {name: _match(match) for name, match in entry.matches.items()}
    return switch.table(entry.table).add(keys, entry.action, entry.params, entry.priority)


def _match(match: Match) -> matches.Match:
    if isinstance(match, Exact):
        return matches.Exact(match.value)
    if isinstance(match, Range):
        return matches.Range(match.low, match.high)
    return matches.Ternary(match.value, match.mask)
