"""Reads and writes of a switch's tables, groups and counters through one client, a batch or a few each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from switchagg.errors import SwitchError
from switchagg.p4entities.matches import Exact, Range, Ternary
from switchagg.p4program import counters as p4_counters
from switchagg.p4program import program as p4_program
from switchagg.p4program.program import ADMISSION, DELIVERIES, Match, MulticastGroup, TableEntry
from switchagg.p4runtime.client.connection import Client, WriteFailed
from switchagg.p4runtime.client.layout import Difference, Found, InstalledJob, Layout
from switchagg.p4runtime.client.rows import Key, Row, Schema, in_order, octets
from switchagg.p4runtime.protos import code_pb2, p4runtime_pb2

INSERT: Final = p4runtime_pb2.Update.INSERT
MODIFY: Final = p4runtime_pb2.Update.MODIFY
DELETE: Final = p4runtime_pb2.Update.DELETE
_COUNTERS: Final = (p4_program.OUTCOMES, p4_program.WORKER_PACKETS, p4_program.WORKER_REPEATS)
_KINDS: Final = {INSERT: "insert", MODIFY: "modify", DELETE: "delete"}
_CELL_WRITES_REFUSED: Final = (code_pb2.UNIMPLEMENTED, code_pb2.PERMISSION_DENIED)

_log = logging.getLogger(__name__)


class Tables:
    """A switch's tables, groups and counters, through one client.

    Args:
        writes: counts the updates that are sent, by kind: insert, modify, delete, clear (a counter's cell).
    """

    def __init__(self, client: Client, layout: Layout, writes: Counter[str]) -> None:
        self._client, self._schema, self._layout, self._writes = client, layout.schema, layout, writes

    # ---- tables and groups ----

    def read(self) -> Found:
        """Reads back what the driver owns. Raises `SwitchError`."""
        asked = [p4runtime_pb2.Entity(table_entry={"table_id": table}) for table in self._layout.owned]
        if self._layout.floods:
            default = {"table_id": self._schema.table(p4_program.STATIONS), "is_default_action": True}
            asked.append(p4runtime_pb2.Entity(table_entry=default))
        asked.append(p4runtime_pb2.Entity(packet_replication_engine_entry={"multicast_group_entry": {}}))
        rows, groups, miss = {}, {}, None
        for each in self._client.read_all(asked):
            if each.HasField("packet_replication_engine_entry"):
                group = group_of_message(each.packet_replication_engine_entry)
                groups[group.group] = group
            elif each.table_entry.is_default_action:
                miss = row_of(each.table_entry)
            elif not each.table_entry.is_const:
                row = row_of(each.table_entry)
                rows[row.key] = row
        return Found(rows, groups, miss)

    def admission_keys(self) -> set[Key]:
        """Reads the keys of the admission table's entries."""
        asked = p4runtime_pb2.Entity(table_entry={"table_id": self._schema.table(ADMISSION)})
        return {row_of(each.table_entry).key for each in self._client.read_all([asked])}

    def write(self, made: Difference) -> None:
        """Writes a difference. Raises `SwitchError`; what was written until then stays."""
        updates = [row_update(DELETE, row) for row in made.delete]
        self.delete(updates + [group_update(DELETE, group) for group in made.delete_groups])
        updates = [
            *(group_update(MODIFY, group) for group in made.modify_groups),
            *(group_update(INSERT, group) for group in made.insert_groups),
            *(row_update(MODIFY, row) for row in made.modify),
            *(row_update(INSERT, row) for row in made.insert),
        ]
        if made.set_default:
            updates.append(default_update(self._schema, self._layout.flood))
        self._send(updates)

    def insert(self, job: InstalledJob) -> None:
        """Writes a job, or nothing of it. Raises `SwitchError`."""
        updates = [group_update(INSERT, job.group), *(row_update(INSERT, row) for row in job.rows)]
        try:
            self._send(updates)
        except SwitchError as error:
            codes = error.codes if isinstance(error, WriteFailed) else [0] * len(updates)
            done = [each for each, code in zip(updates, codes, strict=True) if code == 0]
            for each in done:
                each.type = DELETE
            try:
                self.delete(done[::-1])
            except SwitchError as second:
                # It is nobody's, so that it goes when the switch is reconciled.
                _log.warning("half of job %d stays: %s", job.entry.job, second)
            raise

    def remove(self, job: InstalledJob) -> None:
        """Takes off a job, whatever of it is there. Raises `SwitchError`."""
        updates = [row_update(DELETE, row) for row in reversed(job.rows)]
        self.delete([*updates, group_update(DELETE, job.group)])

    def shut(self, job: InstalledJob) -> None:
        """Takes off the entries of a job's fenced workers. Raises `SwitchError`."""
        rows = sorted(job.shut, key=lambda row: -row.priority)
        self.delete([row_update(DELETE, row) for row in rows])

    def delete(self, updates: Sequence[Any]) -> None:
        """Deletes; what is not there is no error. Raises `SwitchError`."""
        left = list(updates)
        while left:
            try:
                self._send(left)
                return
            except WriteFailed as error:
                if set(error.codes) - {0, code_pb2.NOT_FOUND, code_pb2.CANCELLED}:
                    raise
                left = [
                    each for each, code in zip(left, error.codes, strict=True) if code == code_pb2.CANCELLED
                ]

    def _send(self, updates: Sequence[Any]) -> None:
        self._writes.update(_KINDS[each.type] for each in updates)
        self._client.write_all(updates)

    # ---- counters ----

    def clear(self, job: InstalledJob) -> bool:
        """Sets the counters of a job's index to zero. False where the switch has none that can be written."""
        updates = [cell_update(self._schema.counter(name), index) for name, index in _cells(job)]
        self._writes["clear"] += len(updates)
        try:
            self._client.write_all(updates)
        except WriteFailed as error:
            if not any(code in _CELL_WRITES_REFUSED for code in error.codes):
                raise
            return False
        return True

    def counts(self, job: InstalledJob) -> Counter[str]:
        """A job's counters, as they stand on the switch. Raises `SwitchError`."""
        entries = [message(row, named=True) for row in job.rows if self._counts_directly(row)]
        return Counter(
            p4_counters.job_counters(job.entry, job.place, job.entries, self._reader([job], entries))
        )

    def all_counts(self, jobs: Sequence[InstalledJob]) -> tuple[Counter[str], dict[int, Counter[str]]]:
        """Packets that no job had, by reason; and jobs' counters, by their ids. Raises `SwitchError`."""
        tables = [name for name in (ADMISSION, DELIVERIES) if self._schema.has_table(name)]
        reader = self._reader(jobs, [{"table_id": self._schema.table(name)} for name in tables])
        return p4_counters.refusals(self._layout.common, reader), {
            job.entry.job: Counter(p4_counters.job_counters(job.entry, job.place, job.entries, reader))
            for job in jobs
        }

    def _counts_directly(self, row: Row) -> bool:
        if self._schema.has_table(DELIVERIES) and row.table == self._schema.table(DELIVERIES):
            return True
        return row.table == self._schema.table(ADMISSION) and not row.params

    def _reader(self, jobs: Sequence[InstalledJob], direct: Sequence[Any]) -> p4_counters.Reader:
        """Reads the cells of jobs, and the direct counters of these `p4.v1.TableEntry`s, wildcards or not."""
        numbers = {name: self._schema.counter(name) for name in _COUNTERS}
        asked = [p4runtime_pb2.Entity(direct_counter_entry={"table_entry": entry}) for entry in direct]
        for job in jobs:
            for name, index in _cells(job):
                cell = {"counter_id": numbers[name], "index": {"index": index}}
                asked.append(p4runtime_pb2.Entity(counter_entry=cell))
        entries: dict[Key, int] = {}
        cells: dict[tuple[int, int], int] = {}
        for each in self._client.read_all(asked):
            if each.HasField("counter_entry"):
                cell = each.counter_entry
                cells[cell.counter_id, cell.index.index] = cell.data.packet_count
            else:
                counted = each.direct_counter_entry
                entries[row_of(counted.table_entry).key] = counted.data.packet_count

        def of_entry(entry: TableEntry) -> int:
            if not self._schema.has_table(entry.table):
                return 0
            return entries.get(self._schema.row(entry).key, 0)

        return p4_counters.Reader(of_entry, lambda name, index: cells.get((numbers[name], index), 0))


def _cells(job: InstalledJob) -> list[tuple[str, int]]:
    index, outcomes = job.place.index, p4_program.OUTCOMES_PER_JOB
    cells = [(p4_program.OUTCOMES, index * outcomes + each) for each in range(outcomes)]
    for worker in job.entry.workers:
        place = index * p4_program.WORKERS_PER_JOB + worker.bit
        cells += [(p4_program.WORKER_PACKETS, place), (p4_program.WORKER_REPEATS, place)]
    return cells


# ---- rows and groups as messages ----


def row_of(message: Any) -> Row:
    """A `p4.v1.TableEntry` as a row."""
    matches = in_order((int(each.field_id), _match(each)) for each in message.match)
    action = message.action.action
    params = in_order((int(each.param_id), int.from_bytes(each.value, "big")) for each in action.params)
    return Row(message.table_id, matches, message.priority, action.action_id, params, bytes(message.metadata))


def _match(message: Any) -> Match:
    def number(value: bytes) -> int:
        return int.from_bytes(value, "big")

    kind = message.WhichOneof("field_match_type")
    if kind == "ternary":
        return Ternary(number(message.ternary.value), number(message.ternary.mask))
    if kind == "range":
        return Range(number(message.range.low), number(message.range.high))
    return Exact(number(getattr(message, kind or "exact").value))


def message(row: Row, *, named: bool = False) -> Any:
    """A row as a `p4.v1.TableEntry`; `named` leaves out what does not name the entry."""
    made = p4runtime_pb2.TableEntry(table_id=row.table, priority=row.priority)
    for number, match in row.matches:
        field = made.match.add(field_id=number)
        match match:
            case Exact(value):
                field.exact.value = octets(value)
            case Ternary(value, mask):
                field.ternary.value, field.ternary.mask = octets(value), octets(mask)
            case Range(low, high):
                field.range.low, field.range.high = octets(low), octets(high)
    if not named:
        made.metadata = row.metadata
        action = made.action.action
        action.action_id = row.action
        for number, value in row.params:
            action.params.add(param_id=number, value=octets(value))
    return made


def row_update(change: int, row: Row) -> Any:
    """The update that writes a row, or deletes it."""
    return p4runtime_pb2.Update(type=change, entity={"table_entry": message(row, named=change == DELETE)})


def group_of_message(engine: Any) -> MulticastGroup:
    """A multicast group from a `p4.v1.PacketReplicationEngineEntry`, its copies in order of port and id."""
    entry = engine.multicast_group_entry
    replicas = []
    for each in entry.replicas:
        named = each.WhichOneof("port_kind") == "port"
        port = int.from_bytes(each.port, "big") if named else int(each.egress_port)
        replicas.append((port, int(each.instance)))
    return MulticastGroup(int(entry.multicast_group_id), tuple(sorted(replicas)))


def group_update(change: int, group: MulticastGroup) -> Any:
    """The update that writes a multicast group, or deletes it."""
    replicas = [{"egress_port": port, "instance": number} for port, number in group.replicas]
    entry = {"multicast_group_id": group.group, "replicas": [] if change == DELETE else replicas}
    engine = {"multicast_group_entry": entry}
    return p4runtime_pb2.Update(type=change, entity={"packet_replication_engine_entry": engine})


def cell_update(counter: int, index: int) -> Any:
    """The update that sets a cell of a counter to zero."""
    cell = {"counter_id": counter, "index": {"index": index}, "data": {}}
    return p4runtime_pb2.Update(type=MODIFY, entity={"counter_entry": cell})


def default_update(schema: Schema, entry: TableEntry) -> Any:
    """The update that sets a table's default action."""
    update = row_update(MODIFY, schema.row(entry))
    update.entity.table_entry.is_default_action = True
    return update
