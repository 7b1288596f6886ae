"""Handlers of the native engine's entities: those of any program, and what follows for jobs and counters.

An update is done to the tables first, where it meets the checks of any switch, and then to the jobs; where
these refuse it, the tables are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from switchagg.p4entities.matches import Match
from switchagg.p4entities.tables import Entry
from switchagg.p4program.program import ADMISSION, DELIVERIES, RECEIVERS
from switchagg.p4runtime.server.counters import Counters
from switchagg.p4runtime.server.errors import Refused
from switchagg.p4runtime.server.handlers import Change
from switchagg.p4runtime.server.native.entries import admission_of, delivery_of, job_of, receiver_of
from switchagg.p4runtime.server.native.frames import NativeFrames
from switchagg.p4runtime.server.native.jobs import NativeJobs
from switchagg.p4runtime.server.replication import ReplicationEngine
from switchagg.p4runtime.server.schema import Schema, TableView
from switchagg.p4runtime.server.tables import Notes, TableEntries

Settle = Callable[[int | None], None]


class NativeTableEntries(TableEntries):
    """Table entries that become jobs.

    Args:
        settle: carries counts of a job, or of all, over; before anything changes and before it is read.
        words: the largest K.
        frames: what the tables for frames are to an engine on Ethernet; None for one that is not.
    """

    def __init__(
        self,
        schema: Schema,
        now: Callable[[], float],
        jobs: NativeJobs,
        settle: Settle,
        words: int,
        frames: NativeFrames | None,
    ) -> None:
        super().__init__(schema, now)
        self._frames = frames
        self._jobs = jobs
        self._settle = settle
        self._words = words

    def read(self, message: Any) -> Iterator[Any]:
        """The entries that a `TableEntry` asks for. Raises `Refused`."""
        self._settle(None)
        return super().read(message)

    def write_counter(self, change: Change, message: Any) -> None:
        """Does one update of a `DirectCounterEntry`. Raises `Refused`."""
        self._settle(None)
        super().write_counter(change, message)

    def read_counter(self, message: Any) -> Iterator[Any]:
        """The counts that a `DirectCounterEntry` asks for. Raises `Refused`."""
        self._settle(None)
        return super().read_counter(message)

    def _insert(self, table: TableView, matches: list[Match], priority: int, message: Any) -> Entry:
        if table.name == ADMISSION:
            self._settle(
                job_of(
                    table.runtime,
                    [
                        key.canonical(each, table.name)
                        for (_, key), each in zip(table.fields, matches, strict=True)
                    ],
                )
            )
        entry = super()._insert(table, matches, priority, message)
        try:
            self._take(table, entry)
        except Refused:
            super()._remove(table, entry)
            raise
        self._refence(table, entry)
        self._frames_changed(table, entry)
        return entry

    def _modify(self, table: TableView, entry: Entry, message: Any, *, constant: bool) -> None:
        self._settle_for(table, entry)
        action, arguments, notes = entry.action, entry.args, replace(self.notes.get(entry, Notes()))
        counts = entry.packets, entry.bytes
        super()._modify(table, entry, message, constant=constant)
        try:
            self._take(table, entry, again=True)
        except Refused:
            entry.set_action(action, arguments)
            self.notes[entry] = notes
            entry.packets, entry.bytes = counts
            raise
        self._refence(table, entry)
        self._frames_changed(table, entry)

    def _remove(self, table: TableView, entry: Entry) -> None:
        self._settle_for(table, entry)
        super()._remove(table, entry)
        if table.name == ADMISSION:
            self._jobs.forget(entry)
        elif table.name == RECEIVERS:
            self._jobs.drop_receiver(receiver_of(table.runtime, entry).number)
        elif table.name == DELIVERIES:
            self._jobs.drop_delivery(entry)
        self._refence(table, entry)
        self._frames_changed(table, entry, gone=True)

    def _write_default(self, change: Change, table: TableView, message: Any) -> None:
        super()._write_default(change, table, message)
        if self._frames is not None:
            self._frames.default_changed(table.name)

    def _frames_changed(self, table: TableView, entry: Entry, *, gone: bool = False) -> None:
        if self._frames is not None:
            self._frames.changed(table.name, entry, gone=gone)

    def _take(self, table: TableView, entry: Entry, *, again: bool = False) -> None:
        if table.name == ADMISSION:
            said = admission_of(
                table.runtime,
                entry,
                self.notes[entry].metadata,
                controller_port=self._jobs.controller_port,
                words=self._words,
            )
            self._jobs.change(entry, said) if again else self._jobs.add(entry, said)
        elif table.name == RECEIVERS:
            self._jobs.set_receiver(receiver_of(table.runtime, entry))
        elif table.name == DELIVERIES:
            self._jobs.add_delivery(entry, delivery_of(table.runtime, entry))
        elif self._frames is not None:
            self._frames.check(table.name, entry)

    def _refence(self, table: TableView, entry: Entry) -> None:
        if table.name == ADMISSION:
            self._jobs.refence(job_of(table.runtime, entry.matches))

    def _settle_for(self, table: TableView, entry: Entry) -> None:
        if table.name == ADMISSION:
            self._settle(job_of(table.runtime, entry.matches))
        elif table.name == DELIVERIES or self._frames is not None:
            self._settle(None)


class NativeCounters(Counters):
    """Indirect counters that are up to date whenever a client looks."""

    def __init__(self, schema: Schema, settle: Settle) -> None:
        super().__init__(schema)
        self._settle = settle

    def write(self, change: Change, message: Any) -> None:
        """Sets the counts at an index, or at all of them. Raises `Refused`."""
        self._settle(None)
        super().write(change, message)

    def read(self, message: Any) -> Iterator[Any]:
        """The counts that a `CounterEntry` asks for. Raises `Refused`."""
        self._settle(None)
        return super().read(message)


class NativeReplication(ReplicationEngine):
    """Multicast groups that jobs' RESULTs go to, and on Ethernet those that frames are flooded to."""

    def __init__(self, schema: Schema, jobs: NativeJobs, frames: NativeFrames | None) -> None:
        super().__init__(schema)
        self._jobs = jobs
        self._frames = frames

    def receivers(self, number: int) -> Mapping[int, int] | None:
        """The receivers of a group with their ports, 0 where ports are nothing; None where there is none."""
        entry = self.groups.get(number)
        return None if entry is None else self._receivers(entry)

    def ports(self) -> Mapping[int, list[int]]:
        """The ports of each group, a port once for each of its replicas."""
        return {number: [_port(each) for each in entry.replicas] for number, entry in self.groups.items()}

    def _receivers(self, entry: Any) -> Mapping[int, int]:
        return {each.instance: _port(each) if self._jobs.ethernet else 0 for each in entry.replicas}

    def write(self, change: Change, message: Any) -> None:
        """Does one update. Raises `Refused`."""
        if message.WhichOneof("type") != "multicast_group_entry":
            super().write(change, message)
            return
        entry = message.multicast_group_entry
        number = entry.multicast_group_id
        if change is Change.MODIFY and number in self.groups:
            self._jobs.check_group(number, self._receivers(entry))
        before = self.groups.get(number)
        super().write(change, message)
        if change is Change.DELETE:
            self._jobs.group_gone(number)
            self._group_changed(number)
            return
        try:
            self._jobs.group_set(number)
        except Refused:
            message = type(message)()
            if before is None:
                message.multicast_group_entry.multicast_group_id = number
                super().write(Change.DELETE, message)
            else:
                message.multicast_group_entry.CopyFrom(before)
                super().write(Change.MODIFY, message)
            raise
        finally:
            self._group_changed(number)

    def _group_changed(self, number: int) -> None:
        if self._frames is not None:
            self._frames.group_changed(number, self.ports().get(number))


def _port(replica: Any) -> int:
    named = replica.WhichOneof("port_kind") == "port"
    return int.from_bytes(replica.port, "big") if named else int(replica.egress_port)
