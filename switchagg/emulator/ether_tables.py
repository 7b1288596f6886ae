"""Entries of our program's tables for frames, into a switch on Ethernet that no P4Runtime client fills.

p4_entries.switch_entries, stations --> EtherSwitch.set_own_source, set_local, set_arps, set_station, ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from switchagg.emulator.ether_switch import FLOOD, FORWARD, EtherSwitch
from switchagg.p4program.program import (
    ARPS,
    FLOOD_GROUP,
    LOCAL,
    OWN_SOURCE,
    Entries,
    Exact,
    Range,
    Station,
    TableEntry,
)

OWN_SOURCE_KEYS: Final = (
    "ethernet_source",
    "ethernet_type",
    "tag_type",
    "hdr.arp.sender_ip",
    "ipv4_source",
)
LOCAL_KEYS: Final = ("ethernet_destination", "meta.traffic", "hdr.arp.target_ip", "ipv4_destination")
LOCAL_ACTIONS: Final = {"pass": 0, "answer_arp": 1, "answer_echo": 2, "admit": 3, "drop_local": 4}
"""The engine's numbers of the actions of `local`."""


def install(switch: EtherSwitch, entries: Entries, stations: Iterable[Station]) -> None:
    """Fills a started switch's tables for frames; frames for unknown stations are flooded by all ports.

    Args:
        entries: those of a switch; what is in other tables is left out.
    """
    ordered = sorted(entries.tables, key=lambda entry: -entry.priority)
    own_source = [each for each in ordered if each.table == OWN_SOURCE]
    local = [each for each in ordered if each.table == LOCAL]
    switch.set_own_source(
        [(number, _matches(each, OWN_SOURCE_KEYS)) for number, each in enumerate(own_source, 1)]
    )
    switch.set_local(
        [
            (number, _matches(each, LOCAL_KEYS), LOCAL_ACTIONS[each.action])
            for number, each in enumerate(local, 1 + len(own_source))
        ]
    )
    switch.set_arps(
        {
            key.value: each.params["mac"]
            for each in ordered
            if each.table == ARPS and isinstance(key := each.matches["hdr.arp.target_ip"], Exact)
        }
    )
    switch.set_group(FLOOD_GROUP, list(switch.ports))
    switch.set_default_station(FLOOD, FLOOD_GROUP)
    for station in stations:
        switch.set_station(station.mac, FORWARD, station.port)


def _matches(entry: TableEntry, keys: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    found = []
    for key in keys:
        match = entry.matches.get(key)
        assert not isinstance(match, Range), "tables for frames have no ranges"
        if match is None:
            found.append((0, 0))
        elif isinstance(match, Exact):
            found.append((match.value, (1 << 64) - 1))
        else:
            found.append((match.value, match.mask))
    return tuple(found)
