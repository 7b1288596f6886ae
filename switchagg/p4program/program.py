"""Names, constants and records that the P4 programs and their control plane share. No I/O.

`p4/switchagg_v1model.p4` and `p4/switchagg_tna.p4` have the same tables, actions and counters; a `Target`
holds what differs. The enums repeat `p4/include/constants.p4`, the names those that p4c gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.wire.header import DEFAULT_PORT, DropReason

MAX_JOBS: Final = 256
MAX_PORT: Final = 511
"""Both architectures number their ports with 9 bits."""
FLOOD_GROUP: Final = 0x1000
V1MODEL_CPU_PORT: Final = 510
"""The controller's port of `switchagg_v1model.p4` (`AGG_CONTROLLER_PORT`), bmv2's ``--cpu-port``."""
TNA_CPU_PORT: Final = 192
"""The controller's port of `switchagg_tna.p4`: that of the Tofino's CPU."""

_FRAMES: Final = "SwitchIngress.frames."
OWN_SOURCE: Final = _FRAMES + "own_source"
LOCAL: Final = _FRAMES + "local"
STATIONS: Final = _FRAMES + "stations"
ADMISSION: Final = _FRAMES + "admission.admission"
DELIVERIES: Final = _FRAMES + "admission.deliveries"
DIRECTION: Final = _FRAMES + "admission.direction"
"""A table of programs that know directed contributions. It has no entries but its constant one."""
ARPS: Final = "SwitchEgress.rewrite.arps"
RECEIVERS: Final = "SwitchEgress.rewrite.receivers"
LINKS: Final = "loss.links"
LOSSES: Final = "loss.losses"
OUTCOMES: Final = "SwitchIngress.outcomes"
WORKER_PACKETS: Final = "SwitchIngress.worker_packets"
WORKER_REPEATS: Final = "SwitchIngress.worker_repeats"


class Traffic(IntEnum):
    """The parser's classes of frames."""

    OTHER = 0
    ARP = 1
    ECHO = 2
    AGGREGATION = 3
    TAGS = 4


class Form(IntEnum):
    """The parser's verdict on a packet's length, flag and K."""

    TRUNCATED = 0
    RAGGED = 1
    OTHER_WORDS = 2
    SKIP = 4
    WORDS = 5


class NextHop(IntEnum):
    """A packet's next hop, which ingress bridges to egress."""

    FORWARD = 0
    STATION = 1
    ARP = 2
    ECHO = 3
    RESULT = 4
    RAISE = 5
    NOBODY = 6


class Outcome(IntEnum):
    """Outcomes of admitted packets; one that completes a slot counts under outcome + `COMPLETING`."""

    STALE = 0
    DUPLICATE = 1
    MISPLACED = 2
    ANSWERED = 3
    INITIALISED = 4
    SKIP = 16
    EMPTY_SKIP = 17
    STORED = 18
    ADDED = 19
    ORED = 20
    FRESH_SKIP = 21
    FRESH_STORED = 22


COMPLETING: Final = 8
OUTCOMES_PER_JOB: Final = 32
WORKERS_PER_JOB: Final = 32


@dataclass(frozen=True, slots=True)
class Target:
    """The differences between the switches that run the programs.

    Attributes:
        controller_port: where packets for the controller leave, with a packet-in header in front.
        init_port: the port that INITs are admitted from.
        packet_out_port: the port in an INIT's packet-out header; 0 runs it through the switch at once.
    """

    controller_port: int
    init_port: int
    packet_out_port: int
    words: int = 64
    slots: int = 16384


def v1model(*, words: int = 64, slots: int = 16384, controller_port: int = V1MODEL_CPU_PORT) -> Target:
    """Returns the target of `switchagg_v1model.p4`, compiled with these macros."""
    return Target(controller_port, controller_port, 0, words, slots)


def tna(*, words: int = 64, slots: int = 16384, controller_port: int = TNA_CPU_PORT, pipe: int = 0) -> Target:
    """Returns the target of `switchagg_tna.p4` for jobs in a pipe, 0..3; INITs recirculate into it."""
    recirculation = pipe << 7 | 68
    return Target(controller_port, recirculation, recirculation, words, slots)


Match = Exact | Ternary | Range
"""A match of an entry. A ternary `value` has no bit outside of its mask."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One entry. Fields that `matches` leaves out match anything; of several, the highest priority wins.

    Attributes:
        priority: 0 in a table of exact matches.
        reason: of a refusing entry of `ADMISSION`: how its counter counts.
    """

    table: str
    matches: Mapping[str, Match]
    action: str
    params: Mapping[str, int]
    priority: int = 0
    reason: DropReason | None = None


@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """A group of the replication engine: (port, replication id) of each copy, in this order."""

    group: int
    replicas: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SwitchAddress:
    """The switch's own addresses.

    Attributes:
        mac: 48 bits.
        ip: an IPv4 address such as 10.0.0.254.
    """

    mac: int
    ip: str
    udp_port: int = DEFAULT_PORT


@dataclass(frozen=True, slots=True)
class Station:
    """A host or a neighbouring switch: its port and its MAC, 48 bits."""

    port: int
    mac: int


@dataclass(frozen=True, slots=True)
class Parent:
    """The switch above, of a job in two levels, which knows this switch as one of its workers.

    Attributes:
        token: this switch's token there.
        base: the job's first slot there; it has as many as here.
        result_token: in the RESULTs that come from there.
    """

    station: Station
    ip: str
    token: int
    base: int
    result_token: int
    udp_port: int = DEFAULT_PORT


@dataclass(frozen=True, slots=True)
class JobPlace:
    """A job's index on a switch, 0..255, and its workers' stations by bit."""

    index: int
    stations: Mapping[int, Station]
    parent: Parent | None = None


@dataclass(frozen=True, slots=True)
class Entries:
    """Table entries and multicast groups to write into a switch."""

    tables: tuple[TableEntry, ...]
    groups: tuple[MulticastGroup, ...]
