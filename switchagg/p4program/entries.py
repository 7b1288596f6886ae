"""Entries of the P4 programs' tables, as pure functions of a switch's or a job's records.

    SwitchAddress --------> switch_entries --+
    JobEntry, JobPlace ---> job_entries -----+--> TableEntry, MulticastGroup

One set serves both programs. Every driver of a switch (P4Runtime, bmv2's own protocol, the P4 model) writes
the entries that these functions return; removing those of `job_entries` removes the job.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from switchagg.errors import UsageError
from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4program.program import (
    ADMISSION,
    ARPS,
    DELIVERIES,
    FLOOD_GROUP,
    LINKS,
    LOCAL,
    LOSSES,
    MAX_JOBS,
    OUTCOMES_PER_JOB,
    OWN_SOURCE,
    RECEIVERS,
    STATIONS,
    WORKERS_PER_JOB,
    Entries,
    Form,
    JobPlace,
    Match,
    MulticastGroup,
    Parent,
    Station,
    SwitchAddress,
    TableEntry,
    Target,
    Traffic,
)
from switchagg.wire.header import VERSION, DropReason, Op

if TYPE_CHECKING:
    from switchagg.rules.slots import Address, JobEntry


def _ip(address: str) -> int:
    try:
        return int(ipaddress.IPv4Address(address))
    except ValueError:
        raise UsageError(f"ip is {address!r}; accepted by the P4 programs: an IPv4 address") from None


def _all(bits: int) -> int:
    return (1 << bits) - 1


def _is(value: int, bits: int) -> Ternary:
    return Ternary(value, _all(bits))


_ETHER_TYPE: Final = "ethernet_type"
_TAG_TYPE: Final = "tag_type"
_IPV4: Final = 0x0800
_ARP: Final = 0x0806
_TAGS: Final = (0x8100, 0x88A8)
INGRESS_PORT_KEY: Final = "ingress_port"
_FORM: Final = "meta.form"
_VERSION: Final = "hdr.agg.version"
_OP: Final = "hdr.agg.op"
SOURCE_KEY: Final = "ipv4_source"
SOURCE_PORT_KEY: Final = "udp_source"
JOB_KEY: Final = "hdr.agg.job"
_TOKEN: Final = "hdr.agg.token"
SLOT_KEY: Final = "hdr.agg.slot"
_REPLY: Final = "hdr.agg.reply"

JOB_REFUSALS: Final = {
    80: DropReason.slot,
    70: DropReason.token,
    60: DropReason.source,
    50: DropReason.length,
}
"""Reasons of a job's refusing entries of `ADMISSION`, by priority."""

_WELL_FORMED: Final = Ternary(4, 4)
_CONTRIBUTION: Final = Ternary(0, 0b1110)  # SUM or OR
_THIS_VERSION: Final = _is(VERSION, 4)

# Between neighbours, never forwarded: 01:80:c2:00:00:01 to :0f (IEEE 802.1D), such as PAUSE, LACP and LLDP.
# Not :00, by which bridges find loops: this switch takes no part in that, so it must not cut it off.
_LINK_GROUPS: Final = tuple(Ternary(0x0180C2000000 | low, _all(48) & ~(low - 1)) for low in (1, 2, 4, 8))


def _refuse(reason: DropReason, priority: int, matches: Mapping[str, Match]) -> TableEntry:
    return TableEntry(ADMISSION, matches, "refuse", {}, priority, reason)


def switch_entries(target: Target, address: SwitchAddress, ports: tuple[int, ...]) -> Entries:
    """Returns what a switch needs before its first job.

    Args:
        ports: the switch's ports, over which frames for unknown stations are flooded. The table of stations
            wants `flood` with `FLOOD_GROUP` for its default action.
    """
    ip = _ip(address.ip)
    mac = _is(address.mac, 48)
    arp = {"meta.traffic": _is(Traffic.ARP, 3)}
    own = {"ethernet_destination": mac, "ipv4_destination": _is(ip, 32)}
    init = _is(target.init_port, 9)
    contribution = {_VERSION: _THIS_VERSION, _OP: _CONTRIBUTION}
    initialisation = {INGRESS_PORT_KEY: init, _VERSION: _THIS_VERSION, _OP: _is(Op.INIT, 4)}
    other_words = _is(Form.OTHER_WORDS, 3)
    tables = (
        TableEntry(OWN_SOURCE, {"ethernet_source": mac}, "drop_own_source", {}, 3),
        *(
            TableEntry(OWN_SOURCE, types | sender, "drop_own_source", {}, priority)
            for kind, sender, priority in (
                (_ARP, {"hdr.arp.sender_ip": _is(ip, 32)}, 2),
                (_IPV4, {SOURCE_KEY: _is(ip, 32)}, 1),
            )
            for types in (
                {_ETHER_TYPE: _is(kind, 16)},
                *({_ETHER_TYPE: _is(tag, 16), _TAG_TYPE: _is(kind, 16)} for tag in _TAGS),
            )
        ),
        TableEntry(LOCAL, arp | {"hdr.arp.target_ip": _is(ip, 32)}, "answer_arp", {}, 4),
        TableEntry(LOCAL, own | {"meta.traffic": _is(Traffic.AGGREGATION, 3)}, "admit", {}, 3),
        TableEntry(LOCAL, own | {"meta.traffic": _is(Traffic.ECHO, 3)}, "answer_echo", {}, 2),
        TableEntry(LOCAL, {"ethernet_destination": mac}, "drop_local", {}, 1),
        # Frames are classified behind at most one VLAN tag.
        TableEntry(LOCAL, {"meta.traffic": _is(Traffic.TAGS, 3)}, "drop_local", {}, 5),
        *(TableEntry(LOCAL, {"ethernet_destination": group}, "drop_local", {}, 1) for group in _LINK_GROUPS),
        TableEntry(ARPS, {"hdr.arp.target_ip": Exact(ip)}, "arp_reply", {"mac": address.mac}),
        _refuse(DropReason.truncated, 100, {_FORM: _is(Form.TRUNCATED, 3)}),
        _refuse(DropReason.op, 95, {INGRESS_PORT_KEY: init, **contribution}),
        _refuse(DropReason.job, 45, {_FORM: _WELL_FORMED, **contribution}),
        _refuse(DropReason.job, 44, {_FORM: other_words, **contribution}),
        _refuse(DropReason.job, 43, {_FORM: _is(Form.SKIP, 3), **initialisation}),
        _refuse(DropReason.length, 31, initialisation),
        _refuse(DropReason.length, 30, contribution),
        _refuse(DropReason.op, 20, {_VERSION: _THIS_VERSION}),
        _refuse(DropReason.version, 10, {}),
        TableEntry(DELIVERIES, {_VERSION: _THIS_VERSION}, "refuse_result", {}, 2, DropReason.op),
        TableEntry(DELIVERIES, {}, "refuse_result", {}, 1, DropReason.version),
    )
    return Entries(tables, (MulticastGroup(FLOOD_GROUP, tuple((port, 0) for port in ports)),))


def job_entries(target: Target, job: JobEntry, place: JobPlace) -> Entries:
    """Returns what a job needs. Removing them all removes the job.

    Raises `UsageError` for a K that the program was not compiled for, slots that it has not, an index that is
    out of range, a worker without a station, or a job that asks not to touch words.
    """
    _check(target, job, place)
    slots = Ternary(job.base, _all(16) & ~(job.slots - 1))
    this_job = _is(job.job, 16)
    contribution = {_VERSION: _THIS_VERSION, _OP: _CONTRIBUTION, JOB_KEY: this_job}
    well_formed = {_FORM: _WELL_FORMED, **contribution}
    initialisation = {
        INGRESS_PORT_KEY: _is(target.init_port, 9),
        _FORM: _is(Form.SKIP, 3),
        _VERSION: _THIS_VERSION,
        _OP: _is(Op.INIT, 4),
        JOB_KEY: this_job,
    }
    tally = place.index * OUTCOMES_PER_JOB
    slots_log = job.slots.bit_length() - 1
    full = sum(1 << worker.bit for worker in job.workers)
    offset = 0 if place.parent is None else job.base - place.parent.base
    params = {"slots_log": slots_log, "port": target.controller_port, "tally": tally}
    tables = [
        TableEntry(ADMISSION, initialisation | {SLOT_KEY: slots}, "initialise", params, 90),
        _refuse(DropReason.slot, 80, initialisation),
        _refuse(DropReason.source, 60, well_formed),
        _refuse(DropReason.length, 50, {_FORM: _is(Form.OTHER_WORDS, 3), **contribution}),
    ]
    for worker in job.workers:
        station, number = place.stations[worker.bit], receiver(place, worker.bit)
        known = {
            INGRESS_PORT_KEY: _is(station.port, 9),
            SOURCE_KEY: _is(_ip(worker.ip), 32),
            SOURCE_PORT_KEY: _is(worker.port, 16),
            **well_formed,
        }
        right_token = known | {_TOKEN: _is(worker.token, 32)}
        params = {
            "worker": 1 << worker.bit,
            "others": full & ~(1 << worker.bit),
            "minus_slots": -job.slots % 2**32,
            "slots_log": slots_log,
            "alone": int(len(job.workers) == 1),
            "tally": tally,
            "worker_tally": place.index * WORKERS_PER_JOB + worker.bit,
        }
        if place.parent is None:
            action = "contribute"
            params |= {"port": station.port, "receiver": number, "group": group_of(place)}
        else:
            action = "contribute_below"
            params |= {
                "port": place.parent.station.port,
                "receiver": _parent_receiver(place),
                "reply": worker.bit + 1,
            }
        tables += [
            TableEntry(ADMISSION, right_token | {SLOT_KEY: slots}, action, params, 90),
            _refuse(DropReason.slot, 80, right_token),
            _refuse(DropReason.token, 70, known),
            _receiver(number, "to_worker", station, (worker.ip, worker.port), job.result_token, offset),
        ]
    if place.parent is not None:
        tables += _below(job, place, place.parent)
    ordered = sorted(job.workers, key=lambda worker: worker.bit)
    replicas = tuple((place.stations[each.bit].port, receiver(place, each.bit)) for each in ordered)
    return Entries(tuple(tables), (MulticastGroup(group_of(place), replicas),))


def worker_entries(entries: Entries, job: JobEntry, bits: int) -> tuple[TableEntry, ...]:
    """Returns those of a job's entries that know the workers with these bits. Removing them fences these.

    Their packets then hit the job's entry for strangers. All else stays, RESULTs to them too: it is harmless,
    and the others' rounds go on.
    """
    fenced = (worker for worker in job.workers if bits & 1 << worker.bit)
    sources = {(_is(_ip(worker.ip), 32), _is(worker.port, 16)) for worker in fenced}
    return tuple(
        entry
        for entry in entries.tables
        if entry.table == ADMISSION
        and (entry.matches.get(SOURCE_KEY), entry.matches.get(SOURCE_PORT_KEY)) in sources
    )


def _check(target: Target, job: JobEntry, place: JobPlace) -> None:
    if job.words != target.words:
        raise UsageError(f"job {job.job} has K = {job.words}; this program is compiled for {target.words}")
    if job.base + job.slots > target.slots:
        raise UsageError(
            f"slots {job.base}..{job.base + job.slots - 1} are outside the switch's {target.slots}"
        )
    if not job.touch:
        raise UsageError(f"job {job.job} asks not to touch words, which a P4 program always does")
    if job.shared:
        raise UsageError(f"job {job.job} shares slots, which the native switch alone can have")
    if not 0 <= place.index < MAX_JOBS:
        raise UsageError(f"job index {place.index}; accepted: 0..{MAX_JOBS - 1}")
    parent = place.parent
    if parent is not None and (parent.base % job.slots or not 0 <= parent.base <= 2**16 - job.slots):
        raise UsageError(
            f"job {job.job}: its base at the parent is {parent.base}; accepted: a multiple of its "
            f"{job.slots} slots, below {2**16}"
        )
    for worker in job.workers:
        if worker.bit not in place.stations:
            raise UsageError(f"the place of job {job.job} has no station for worker {worker.bit}")


def _below(job: JobEntry, place: JobPlace, parent: Parent) -> list[TableEntry]:
    """The entries that tie a leaf to its parent."""
    result = {
        INGRESS_PORT_KEY: _is(parent.station.port, 9),
        _FORM: _WELL_FORMED,
        _VERSION: _THIS_VERSION,
        _OP: _is(Op.RESULT, 4),
        SOURCE_KEY: _is(_ip(parent.ip), 32),
        SOURCE_PORT_KEY: _is(parent.udp_port, 16),
        JOB_KEY: _is(job.job, 16),
        _TOKEN: _is(parent.result_token, 32),
        SLOT_KEY: Ternary(parent.base, _all(16) & ~(job.slots - 1)),
    }
    number, address, offset = _parent_receiver(place), (parent.ip, parent.udp_port), parent.base - job.base
    entries = [
        TableEntry(DELIVERIES, result | {_REPLY: _is(0, 16)}, "deliver_all", {"group": group_of(place)}, 3),
        _receiver(number, "to_parent", parent.station, address, parent.token, offset),
    ]
    for worker in job.workers:
        params = {"port": place.stations[worker.bit].port, "receiver": receiver(place, worker.bit)}
        entries.append(
            TableEntry(DELIVERIES, result | {_REPLY: _is(worker.bit + 1, 16)}, "deliver_one", params, 3)
        )
    return entries


def _receiver(
    number: int, action: str, station: Station, address: Address, token: int, offset: int
) -> TableEntry:
    ip, udp_port = address
    params = {"mac": station.mac, "ip": _ip(ip), "udp_port": udp_port, "token": token}
    params["offset"] = offset % 2**16
    return TableEntry(RECEIVERS, {"receiver": Exact(number)}, action, params)


def station_entry(station: Station) -> TableEntry:
    """Returns the entry that forwards frames for a MAC to its port."""
    key = {"ethernet_destination": Exact(station.mac)}
    return TableEntry(STATIONS, key, "forward", {"port": station.port})


def loss_entries(port: int, *, seed: int, share: float, leaving: bool) -> tuple[TableEntry, ...]:
    """Returns the entries that lose a share of a port's packets, in programs compiled with `AGG_LOSS`.

    Args:
        seed: 32 bits. Packet n of the port, from 0, is lost where the low 16 bits of the CRC-32 of seed and n
            (32 bits each, big-endian) are less than `share` of their range.
        share: 0 to 1.
        leaving: lose what leaves by the port; False: what comes in at it.

    Raises `UsageError` for a share out of range.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"share is {share}; accepted: 0 to 1")
    side = "SwitchEgress." if leaving else "SwitchIngress."
    drawn = round(share * 2**16)
    link = TableEntry(side + LINKS, {"port": Exact(port)}, "draw", {"seed": seed})
    if not drawn:
        return (link,)
    losing: dict[str, Match] = {"port": Exact(port), "drawn": Range(0, drawn - 1)}
    return link, TableEntry(side + LOSSES, losing, "lose", {}, 1)


def receiver(place: JobPlace, bit: int) -> int:
    """Returns the number of a worker's addresses, also the replication id of its copy of a RESULT."""
    return 1 + place.index * 64 + bit


def _parent_receiver(place: JobPlace) -> int:
    return 1 + place.index * 64 + 32


def group_of(place: JobPlace) -> int:
    """Returns the multicast group of a job's workers."""
    return 1 + place.index
