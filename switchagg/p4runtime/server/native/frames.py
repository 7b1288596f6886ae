"""Our program's tables for frames, as the native engine on Ethernet has them.

    own_source, local, stations, arps, groups --> EtherSwitch.frames    every update, at once
    counts of their entries                   <--

The engine has copies of these tables; this module keeps them equal.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from switchagg.emulator.ether_switch import DROP, FLOOD, FORWARD, LOCAL_ACTIONS, LOCAL_KEYS, OWN_SOURCE_KEYS
from switchagg.p4entities.tables import Entry, Table
from switchagg.p4program.program import ARPS, LOCAL, OWN_SOURCE, STATIONS
from switchagg.p4runtime.server.native.entries import action_of, keys_of, params_of, require_whole
from switchagg.p4runtime.server.native.tables import NativeTables

if TYPE_CHECKING:
    from switchagg.emulator._native import NativeSwitch as FrameEngine

Match = tuple[int, int]


class NativeFrames:
    """The tables of one pipeline."""

    def __init__(self, tables: NativeTables) -> None:
        self._own_source, self._local = tables.table(OWN_SOURCE), tables.table(LOCAL)
        self._stations, self._arps = tables.table(STATIONS), tables.table(ARPS)
        self._single = {
            "returned": tables.counter("SwitchEgress.returned"),
            "unaddressed": tables.counter("SwitchEgress.unaddressed"),
            "malformed": tables.counter("SwitchIngress.malformed"),
        }
        self._engine: FrameEngine | None = None
        self._ids: defaultdict[Entry, int] = defaultdict(itertools.count(1).__next__)
        self._entry_seen: dict[int, int] = {}
        self._station_seen: dict[int, int] = {}
        self._single_seen: dict[str, int] = {}

    def attach(self, engine: FrameEngine, groups: Mapping[int, list[int]]) -> None:
        """Gives the engine all entries and groups, and every change from now on."""
        engine.clear_frame_tables()
        self._engine = engine
        self._entry_seen, self._station_seen = {}, {}
        self._single_seen = dict(engine.ether_counters())
        for table in (OWN_SOURCE, LOCAL, ARPS):
            self._push(table)
        for entry in self._stations.entries:
            self.changed(STATIONS, entry)
        self.default_changed(STATIONS)
        for group, ports in groups.items():
            engine.set_group(group, ports)

    def detach(self) -> None:
        """Stops following: the engine gets other tables."""
        self._engine = None

    def check(self, table: str, entry: Entry) -> None:
        """Raises `StatusError` for an entry that the engine cannot carry out."""
        if table != LOCAL or action_of(entry) != "admit":
            return
        whole = {"ethernet_destination": (1 << 48) - 1, "ipv4_destination": 0xFFFFFFFF}
        require_whole(keys_of(self._local, entry), whole, "admit")

    def changed(self, table: str, entry: Entry, *, gone: bool = False) -> None:
        """Carries an entry over that was inserted, modified or deleted (`gone`)."""
        if self._engine is None:
            return
        if gone:
            self._ids.pop(entry, None)
        if table != STATIONS:
            self._push(table)
            return
        mac = keys_of(self._stations, entry)["ethernet_destination"][0]
        if gone:
            self._engine.remove_station(mac)
            self._station_seen.pop(mac, None)
        else:
            self._engine.set_station(mac, *_station(entry))

    def default_changed(self, table: str) -> None:
        """Carries the default action of a table over."""
        if self._engine is not None and table == STATIONS:
            self._engine.set_default_station(*_station(self._stations.miss))

    def group_changed(self, group: int, ports: list[int] | None) -> None:
        """Carries a group over; None deletes it."""
        if self._engine is None:
            return
        if ports is None:
            self._engine.remove_group(group)
        else:
            self._engine.set_group(group, ports)

    def _push(self, table: str) -> None:
        engine = self._engine
        assert engine is not None
        if table == OWN_SOURCE:
            ranked = _ranked(self._own_source, OWN_SOURCE_KEYS)
            engine.set_own_source([(self._ids[entry], keys) for entry, keys in ranked])
        elif table == LOCAL:
            ranked = _ranked(self._local, LOCAL_KEYS)
            engine.set_local(
                [(self._ids[entry], keys, LOCAL_ACTIONS[action_of(entry)]) for entry, keys in ranked]
            )
        elif table == ARPS:
            replies = [entry for entry in self._arps.entries if action_of(entry) == "arp_reply"]
            targets = (keys_of(self._arps, entry)["hdr.arp.target_ip"][0] for entry in replies)
            macs = (params_of(entry)["mac"] for entry in replies)
            engine.set_arps(dict(zip(targets, macs, strict=True)))

    def settle(self) -> None:
        """Carries the engine's counts over to the present entries and counters."""
        if self._engine is None:
            return
        packets = self._engine.entry_packets()
        for entry in (*self._own_source.entries, *self._local.entries):
            number = self._ids.get(entry, 0)
            count = packets.get(number, 0)
            entry.packets += count - self._entry_seen.get(number, 0)
            self._entry_seen[number] = count
        stations = self._engine.station_packets()
        for entry in self._stations.entries:
            mac = keys_of(self._stations, entry)["ethernet_destination"][0]
            count = stations.get(mac, 0)
            entry.packets += count - self._station_seen.get(mac, 0)
            self._station_seen[mac] = count
        single = self._engine.ether_counters()
        for name, counter in self._single.items():
            counter.packets[0] += single[name] - self._single_seen.get(name, 0)
            self._single_seen[name] = single[name]


def _ranked(table: Table, fields: Sequence[str]) -> list[tuple[Entry, tuple[Match, ...]]]:
    """Returns entries with these matches in the order of look-up: of equal ones the oldest first."""
    entries = sorted(table.entries, key=lambda entry: -entry.priority)
    keys = (keys_of(table, entry) for entry in entries)
    return [(entry, tuple(each[name] for name in fields)) for entry, each in zip(entries, keys, strict=True)]


def _station(entry: Entry) -> tuple[int, int]:
    action, params = action_of(entry), params_of(entry)
    if action == "forward":
        return FORWARD, params["port"]
    if action == "flood":
        return FLOOD, params["group"]
    return DROP, 0
