"""A client's updates as the native engine needs them: jobs, tables for frames, counters that are up to date.

The tables have taken an update already, with the checks of any switch; a `StatusError` from here undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from switchagg.p4entities.matches import Canonical
from switchagg.p4entities.tables import Entry, Table
from switchagg.p4program.program import ADMISSION, DELIVERIES, RECEIVERS
from switchagg.p4runtime.server.errors import StatusError
from switchagg.p4runtime.server.native.entries import admission_of, delivery_of, job_of, receiver_of
from switchagg.p4runtime.server.native.frames import NativeFrames
from switchagg.p4runtime.server.native.jobs import NativeJobs
from switchagg.p4runtime.server.schema import EntityListener


class NativeUpdates(EntityListener):
    """Turns entries and groups into jobs.

    Args:
        settle: carries the engine's counts of a job, or of all, over to the tables; called before entries
            change and before counts are read.
        words: the largest K.
        frames: the tables for frames of an engine on Ethernet; None for another.
    """

    def __init__(
        self, jobs: NativeJobs, settle: Callable[[int | None], None], words: int, frames: NativeFrames | None
    ) -> None:
        self._jobs = jobs
        self._settle = settle
        self._words = words
        self._frames = frames
        self._groups: dict[int, Any] = {}

    def before_read(self) -> None:
        self._settle(None)

    def before_change(self, table: Table, matches: Sequence[Canonical], *, new: bool) -> None:
        if table.name == ADMISSION:
            self._settle(job_of(table, matches))
        elif not new and (table.name == DELIVERIES or self._frames is not None):
            self._settle(None)

    def changed(self, table: Table, entry: Entry, metadata: bytes, *, new: bool) -> None:
        jobs = self._jobs
        if table.name == ADMISSION:
            port = jobs.controller_port
            said = admission_of(table, entry, metadata, controller_port=port, words=self._words)
            jobs.add(entry, said) if new else jobs.change(entry, said)
            jobs.refence(job_of(table, entry.matches))
        elif table.name == RECEIVERS:
            jobs.set_receiver(receiver_of(table, entry))
        elif table.name == DELIVERIES:
            jobs.add_delivery(entry, delivery_of(table, entry))
        elif self._frames is not None:
            self._frames.check(table.name, entry)
            self._frames.changed(table.name, entry)

    def removed(self, table: Table, entry: Entry) -> None:
        if table.name == ADMISSION:
            self._jobs.forget(entry)
            self._jobs.refence(job_of(table, entry.matches))
        elif table.name == RECEIVERS:
            self._jobs.drop_receiver(receiver_of(table, entry).number)
        elif table.name == DELIVERIES:
            self._jobs.drop_delivery(entry)
        elif self._frames is not None:
            self._frames.changed(table.name, entry, gone=True)

    def default_changed(self, table: Table) -> None:
        if self._frames is not None:
            self._frames.default_changed(table.name)

    # ---- multicast groups: jobs' RESULTs go to them, and on Ethernet flooded frames ----

    def receivers(self, group: int) -> Mapping[int, int] | None:
        """Returns the receivers of a group with their ports, 0 without Ethernet; None for no such group."""
        entry = self._groups.get(group)
        return None if entry is None else self._receivers(entry)

    def ports(self) -> Mapping[int, list[int]]:
        """Returns the ports of each group, a port once for each of its replicas."""
        return {number: [_port(each) for each in entry.replicas] for number, entry in self._groups.items()}

    def group_changed(self, group: int, entry: Any | None) -> None:
        before = self._groups.get(group)
        if entry is None:
            del self._groups[group]
            self._jobs.group_gone(group)
        else:
            if before is not None:
                self._jobs.check_group(group, self._receivers(entry))
            self._groups[group] = entry
            try:
                self._jobs.begin_whole()
            except StatusError:
                if before is None:
                    del self._groups[group]
                else:
                    self._groups[group] = before
                raise
        if self._frames is not None:
            self._frames.group_changed(group, self.ports().get(group))

    def _receivers(self, entry: Any) -> Mapping[int, int]:
        return {each.instance: _port(each) if self._jobs.ethernet else 0 for each in entry.replicas}


def _port(replica: Any) -> int:
    named = replica.WhichOneof("port_kind") == "port"
    return int.from_bytes(replica.port, "big") if named else int(replica.egress_port)
