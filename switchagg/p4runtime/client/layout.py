"""The wanted contents of a P4 switch, and their difference from those read back. No I/O.

    spec, program, P4Info -> `Layout`: rows and group of a job, and of the switch itself
    Layout, jobs that belong there, what was read back -> `Difference`: what to write, and nothing else

A job's index among the jobs (which names its multicast group, receivers and counters) is stored only in the
`initialise` entry of the job, whose `tally` (counter index) is index * 32. A new job gets the lowest index
that is free.

The controller owns all of `own_source`, `local`, `arps`, `admission`, `deliveries` and `receivers`, the
multicast groups of jobs and of flooding, and the stations that the spec names. Other stations and groups are
not ours and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from switchagg.errors import SwitchAggError, SwitchError
from switchagg.p4entities.matches import Ternary
from switchagg.p4program import entries as p4_entries
from switchagg.p4program import program as p4_program
from switchagg.p4program.program import JobPlace, MulticastGroup, Parent, Station, SwitchAddress, TableEntry
from switchagg.p4runtime.client.pipeline import Program
from switchagg.p4runtime.client.rows import Key, Row, Schema
from switchagg.p4runtime.client.spec import P4RuntimeSpec, default_mac
from switchagg.rules.slots import JobEntry, ParentEntry
from switchagg.rules.switch import Reconciled
from switchagg.wire.header import DEFAULT_PORT

OWNED: Final = (
    p4_program.OWN_SOURCE,
    p4_program.LOCAL,
    p4_program.ARPS,
    p4_program.ADMISSION,
    p4_program.DELIVERIES,
    p4_program.RECEIVERS,
    p4_program.STATIONS,
)
_NATIVE_PORT: Final = 1


@dataclass(frozen=True, slots=True)
class InstalledJob:
    """A job on a switch.

    Attributes:
        entries: as `p4_entries` gives them, of all its workers.
        rows: the same in numbers, in the order in which they are written, without those of fenced workers.
        shut: the rows that fenced workers would have.
    """

    entry: JobEntry
    place: JobPlace
    entries: p4_program.Entries
    rows: tuple[Row, ...]
    shut: tuple[Row, ...]
    fenced: int

    @property
    def group(self) -> MulticastGroup:
        """Its multicast group, the copies in order."""
        return _sorted(self.entries.groups[0])


@dataclass(frozen=True, slots=True)
class Found:
    """The contents read back: rows of our tables, groups, and the default action of `stations`."""

    rows: Mapping[Key, Row]
    groups: Mapping[int, MulticastGroup]
    default: Row | None


@dataclass(slots=True)
class Difference:
    """Writes that bring a switch to the wanted contents, in the order of the fields.

    Attributes:
        set_default: the default action of `stations` has to be set.
    """

    delete: list[Row] = field(default_factory=list)
    delete_groups: list[MulticastGroup] = field(default_factory=list)
    modify_groups: list[MulticastGroup] = field(default_factory=list)
    insert_groups: list[MulticastGroup] = field(default_factory=list)
    modify: list[Row] = field(default_factory=list)
    insert: list[Row] = field(default_factory=list)
    set_default: bool = False
    jobs: dict[int, InstalledJob] = field(default_factory=dict)
    outcome: Reconciled = field(default_factory=Reconciled)


class Layout:
    """The wanted contents of one switch."""

    def __init__(self, spec: P4RuntimeSpec, program: Program, schema: Schema) -> None:
        self._spec, self._program, self.schema = spec, program, schema
        own = spec.own or program.own
        if own is None:
            raise SwitchError("its own address is not known; give address=IPv4 in the switch's spec")
        # The port of the native engine's program is not that of its socket.
        self.own = own if program.ethernet else SwitchAddress(own.mac, own.ip, DEFAULT_PORT)
        self.common = p4_entries.switch_entries(program.ports, own, spec.flooded)
        # One for each MAC: a host may have several addresses.
        stations = {each.mac: each for each in spec.stations.values()}
        entries = (*self.common.tables, *map(p4_entries.station_entry, stations.values()))
        self.common_rows = tuple(schema.rows(entries))
        self.flood = TableEntry(p4_program.STATIONS, {}, "flood", {"group": p4_program.FLOOD_GROUP})
        self.owned = tuple(schema.table(each) for each in OWNED if schema.has_table(each))
        self._admission = schema.table(p4_program.ADMISSION)
        self._stations = schema.table(p4_program.STATIONS) if schema.has_table(p4_program.STATIONS) else None
        self._receivers = schema.table(p4_program.RECEIVERS)
        self._job_field = schema.field(p4_program.ADMISSION, p4_entries.JOB_KEY)
        self._initialise = schema.action(p4_program.ADMISSION, "initialise")
        self._counter_index = schema.param(p4_program.ADMISSION, "initialise", "tally")

    @property
    def floods(self) -> bool:
        """True if the program forwards frames by station."""
        return self._stations is not None

    def free_index(self, used: Iterable[int]) -> int:
        """The lowest index that no job has. Raises `SwitchError` where there is none."""
        free = set(range(p4_program.MAX_JOBS)).difference(used)
        if not free:
            raise SwitchError(f"there are {p4_program.MAX_JOBS} jobs already, as many as there can be")
        return min(free)

    def holding(self, entry: JobEntry, index: int, fenced: int = 0) -> InstalledJob:
        """A job at an index. Raises `SwitchError` or `UsageError` for one that the switch cannot hold."""
        ports = self._program.ports
        if self._program.native:
            ports = replace(ports, words=entry.words)
        stations = {each.bit: self._station(each.ip) for each in entry.workers}
        place = JobPlace(index, stations, None if entry.parent is None else self._parent(entry.parent))
        entries = p4_entries.job_entries(ports, entry, place)
        closed = {id(each) for each in p4_entries.worker_entries(entries, entry, fenced)}
        shut: list[Row] = []
        rows: list[Row] = []
        initialise_words = b"words=%d" % entry.words if self._program.native else b""
        for each in entries.tables:
            row = self.schema.row(each, initialise_words if each.action == "initialise" else b"")
            (shut if id(each) in closed else rows).append(row)
        # A worker can be answered before it is admitted, and its job refuses strangers before that.
        rows.sort(key=lambda row: (row.table == self._admission, row.priority))
        return InstalledJob(entry, place, entries, tuple(rows), tuple(shut), fenced)

    def _parent(self, above: ParentEntry) -> Parent:
        station = self._station(above.ip)
        return Parent(station, above.ip, above.token, above.base, above.result_token, above.port)

    def _station(self, ip: str) -> Station:
        if not self._program.ethernet:
            return Station(_NATIVE_PORT, default_mac(ip))
        station = self._spec.stations.get(ip)
        if station is None:
            known = ", ".join(sorted(self._spec.stations)) or "none"
            raise SwitchError(
                f"there is no station {ip} in the switch's spec, which packets of a worker or of another "
                f"switch could come from; its stations: {known}"
            )
        tna = self._program.ports.packet_out_port != 0
        if tna and station.port >> 7 != self._program.ports.init_port >> 7:
            raise SwitchError(
                f"station {ip} is on port {station.port}, in pipe {station.port >> 7}; "
                f"jobs run in pipe {self._program.ports.init_port >> 7}, which has registers of its own"
            )
        return station

    def job_of(self, row: Row) -> int | None:
        """The id of the job that an entry of the admission table is about."""
        match = row.field(self._job_field) if row.table == self._admission else None
        return match.value if isinstance(match, Ternary) and match.mask == 0xFFFF else None

    def indices(self, rows: Iterable[Row]) -> dict[int, int]:
        """The indices of jobs, by their ids, as their `initialise` entries say them."""
        found: dict[int, int] = {}
        taken: set[int] = set()
        for row in rows:
            job = self.job_of(row)
            if job is not None and row.action == self._initialise:
                index, rest = divmod(row.param(self._counter_index) or 0, p4_program.OUTCOMES_PER_JOB)
                if not rest and index < p4_program.MAX_JOBS and index not in taken and job not in found:
                    found[job] = index
                    taken.add(index)
        return found

    def difference(self, found: Found, entries: Sequence[JobEntry], fenced: Mapping[int, int]) -> Difference:
        """Returns the writes after which the switch holds these jobs and no others.

        Raises `SwitchError` or `UsageError` for a job that it cannot hold.
        """
        indices = self.indices(found.rows.values())
        wanted_ids = {each.job for each in entries}
        used = {index for job, index in indices.items() if job in wanted_ids}
        made = Difference()
        kept: list[int] = []
        missing: list[int] = []
        for entry in entries:
            index = indices.get(entry.job)
            if index is None:
                index = self.free_index(used)
                used.add(index)
            try:
                holding = self.holding(entry, index, fenced.get(entry.job, 0))
            except SwitchAggError as error:
                raise SwitchError(f"job {entry.job} cannot be here any more: {error}") from error
            made.jobs[entry.job] = holding
            there = found.groups.get(holding.group.group) == holding.group
            whole = there and all(found.rows.get(row.key) == row for row in holding.rows)
            (kept if whole else missing).append(entry.job)
        wanted = [*self.common_rows, *(row for each in made.jobs.values() for row in each.rows)]
        groups = [_sorted(each) for each in self.common.groups if self.floods]
        self._compare_rows(made, found, wanted)
        _compare_groups(made, found, [*groups, *(each.group for each in made.jobs.values())])
        made.set_default = self.floods and not self._floods_already(found)
        known = {self.job_of(row) for row in found.rows.values()}
        removed = sorted(each for each in known if each is not None and each not in wanted_ids)
        made.outcome = Reconciled(tuple(kept), tuple(missing), tuple(removed))
        return made

    def common_difference(self, found: Found) -> Difference:
        """Returns the writes for what the switch needs before any job. Jobs that are there stay."""
        made = Difference(set_default=self.floods and not self._floods_already(found))
        self._compare_rows(made, found, self.common_rows)
        made.delete.clear()
        _compare_groups(made, found, self.common.groups if self.floods else ())
        made.delete_groups.clear()
        return made

    def _compare_rows(self, made: Difference, found: Found, wanted: Sequence[Row]) -> None:
        keys = {row.key for row in wanted}
        for key, row in found.rows.items():
            if key not in keys and row.table != self._stations:
                made.delete.append(row)
        # Admissions go first.
        made.delete.sort(key=lambda row: (row.table != self._admission, -row.priority))
        for row in wanted:
            there = found.rows.get(row.key)
            if there is None:
                made.insert.append(row)
            elif there != row:
                made.modify.append(row)

    def _floods_already(self, found: Found) -> bool:
        flood, there = self.schema.row(self.flood), found.default
        return there is not None and (there.action, there.params) == (flood.action, flood.params)


def _compare_groups(made: Difference, found: Found, wanted: Sequence[MulticastGroup]) -> None:
    numbers = {each.group for each in wanted}
    for number, group in found.groups.items():
        if number not in numbers and 1 <= number <= p4_program.MAX_JOBS:
            made.delete_groups.append(group)
    for group in wanted:
        there = found.groups.get(group.group)
        if there is None:
            made.insert_groups.append(group)
        elif there != group:
            made.modify_groups.append(group)


def _sorted(group: MulticastGroup) -> MulticastGroup:
    return MulticastGroup(group.group, tuple(sorted(group.replicas)))
