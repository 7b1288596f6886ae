"""The jobs that the native engine has, by the entries of a client's tables. No I/O.

A job begins when it is whole: its `initialise` entry, a `contribute` entry for each of its workers, their
multicast group, and a receiver for each of the group's replicas; below another switch (`contribute_below`)
also the parent's receiver, and the deliveries for all and for each worker. A job that lacks only workers
begins with its first INIT: these workers are shut out of it for good. Packets that come earlier belong to
no job.

While it runs, a worker is shut out (fenced) whenever another entry than its own is the first to match its
packets: its own was removed, or a `refuse` of higher priority covers it. It comes back with its entry. The
job ends, and its slots with it, when its `initialise` entry, its group, one of its receivers or of its
deliveries is deleted. An update that would change a running job is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from switchagg.errors import UsageError
from switchagg.p4entities.tables import Entry, Table
from switchagg.p4program.program import Form, JobPlace, Parent, Station
from switchagg.p4runtime.server.errors import StatusError, failed_precondition, resource_exhausted
from switchagg.p4runtime.server.native.entries import Contribution, Delivery, Initialise, Receiver
from switchagg.rules.slots import JobEntry, ParentEntry, WorkerEntry
from switchagg.wire.header import VERSION, Op


class Engine(Protocol):
    """The engine that runs jobs: a `Switch`, which needs no places, or an `EtherSwitch`."""

    def add_job(self, job: JobEntry, place: JobPlace | None = None) -> None: ...
    def remove_job(self, job_id: int) -> None: ...
    def fence(self, job_id: int, bits: int) -> None: ...
    def admit(self, job_id: int, bits: int) -> None: ...


class Rehearsal:
    """An engine with slots and without packets, for a pipeline that is saved and not committed."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._jobs: dict[int, JobEntry] = {}

    def add_job(self, job: JobEntry, place: JobPlace | None = None) -> None:  # noqa: ARG002
        """Raises `UsageError` where a switch would."""
        end = job.base + job.slots
        if end > self._capacity:
            raise UsageError(f"slots {job.base}..{end - 1} are outside the switch's {self._capacity}")
        for other in self._jobs.values():
            if job.base < other.base + other.slots and other.base < end:
                raise UsageError(f"slots {job.base}..{end - 1} overlap those of job {other.job}")
        self._jobs[job.job] = job

    def remove_job(self, job_id: int) -> None:
        """Forgets it."""
        del self._jobs[job_id]

    def fence(self, job_id: int, bits: int) -> None:
        """Does nothing: there are no packets."""

    admit = fence


@dataclass(slots=True)
class RunningJob:
    """A job that the engine has.

    Attributes:
        place: ports and MACs, on Ethernet.
        workers: each worker's entry when the job began, by bit.
        receivers, group: the numbers of its receivers, its parent's among them, and of its group.
        fenced: the bits of workers that are shut out.
    """

    entry: JobEntry
    place: JobPlace | None
    initialise: Initialise
    workers: dict[int, Contribution]
    receivers: frozenset[int]
    group: int
    fenced: int = 0


@dataclass(frozen=True, slots=True)
class _JobParts:
    """The entries that together are a job.

    Attributes:
        replicas: the receivers of its group, with their ports.
        receivers: all receivers, by their numbers.
    """

    initialise: Initialise
    workers: Sequence[Contribution]
    deliveries: Sequence[Delivery]
    group: int
    replicas: Mapping[int, int]
    receivers: Mapping[int, Receiver]


class NativeJobs:
    """The jobs of one pipeline.

    Args:
        admission: the table.
        engine: runs the jobs.
        controller_port: that of the program.
        words: K of jobs whose entries give none.
        ethernet: workers have places.

    Attributes:
        running: the jobs that the engine has, by id.
        controller_port: the port of INITs.
        on_end: called with the id of a job that ends, while it still runs.
        receivers_of: returns the receivers of a multicast group with their ports; None for an unknown group.
    """

    def __init__(
        self, admission: Table, engine: Engine, *, controller_port: int, words: int, ethernet: bool = False
    ) -> None:
        self._engine = engine
        self.running: dict[int, RunningJob] = {}
        self.on_end: Callable[[int], None] = lambda _: None
        self.receivers_of: Callable[[int], Mapping[int, int] | None] = lambda _: None
        self._admission = admission
        self.controller_port = controller_port
        self._words = words
        self.ethernet = ethernet
        self._order = [key.name for key in admission.keys]
        self._said: dict[Entry, Initialise | Contribution] = {}
        self._jobs: dict[int, dict[Entry, Initialise | Contribution]] = {}
        self._receivers: dict[int, Receiver] = {}
        self._deliveries: dict[Entry, Delivery] = {}

    # ---- the client's entries; each method raises `StatusError` with nothing changed here ----

    def add(self, entry: Entry, said: Initialise | Contribution | None) -> None:
        """Takes an admission entry that was inserted; None for one that refuses."""
        if said is None:
            return
        self._check_running(said)
        mine = self._jobs.setdefault(said.job, {})
        mine[entry] = self._said[entry] = said
        try:
            self._begin(said.job)
        except StatusError:
            self.forget(entry)
            raise

    def change(self, entry: Entry, said: Initialise | Contribution | None) -> None:
        """Takes an admission entry that was modified."""
        before = self._said.get(entry)
        if said == before:
            return
        if before is not None and before.job in self.running:
            raise _runs(before.job, "what its entries do")
        self.forget(entry)
        try:
            self.add(entry, said)
        except StatusError:
            self.add(entry, before)
            raise

    def forget(self, entry: Entry) -> None:
        """Takes an admission entry away."""
        said = self._said.pop(entry, None)
        if said is None:
            return
        mine = self._jobs[said.job]
        del mine[entry]
        if not mine:
            del self._jobs[said.job]
        if isinstance(said, Initialise) and self._initialise(said.job) is None:
            self._end(said.job)

    def set_receiver(self, receiver: Receiver) -> None:
        """Takes a receiver that was inserted or modified."""
        before = self._receivers.get(receiver.number)
        for job, running in self.running.items():
            if before != receiver and receiver.number in running.receivers:
                raise _runs(job, f"receiver {receiver.number}")
        self._receivers[receiver.number] = receiver
        try:
            self.begin_whole()
        except StatusError:
            del self._receivers[receiver.number]
            if before is not None:
                self._receivers[receiver.number] = before
            raise

    def drop_receiver(self, number: int) -> None:
        """Takes a receiver away."""
        self._receivers.pop(number, None)
        self._end_with(lambda running: number in running.receivers)

    def add_delivery(self, entry: Entry, said: Delivery | None) -> None:
        """Takes an entry of the deliveries that was inserted or modified."""
        before = self._deliveries.get(entry)
        if said == before:
            return
        for each in (said, before):
            if each is not None and self._runs_below(each.job):
                raise _runs(each.job, "whom its parent's RESULTs are for")
        self._set_delivery(entry, said)
        try:
            if said is not None:
                self._begin(said.job)
        except StatusError:
            self._set_delivery(entry, before)
            raise

    def drop_delivery(self, entry: Entry) -> None:
        """Takes an entry of the deliveries away."""
        said = self._deliveries.pop(entry, None)
        if said is not None and self._runs_below(said.job):
            self._end(said.job)

    def _runs_below(self, job: int) -> bool:
        return job in self.running and self.running[job].entry.parent is not None

    def _set_delivery(self, entry: Entry, said: Delivery | None) -> None:
        if said is None:
            self._deliveries.pop(entry, None)
        else:
            self._deliveries[entry] = said

    def delivery_entry(self, job: int, bit: int | None) -> Entry | None:
        """Returns the entry that the parent's RESULTs for a worker hit; for None those for all."""
        return next(
            (entry for entry, each in self._deliveries.items() if (each.job, each.bit) == (job, bit)), None
        )

    def check_group(self, group: int, receivers: Mapping[int, int]) -> None:
        """Raises `StatusError` if a running job has this group with other receivers or ports."""
        for job, running in self.running.items():
            if running.group == group and receivers != self.receivers_of(group):
                raise _runs(job, f"multicast group {group}")

    def begin_whole(self) -> None:
        """Begins all jobs that are whole now."""
        for job in list(self._jobs):
            self._begin(job)

    def group_gone(self, group: int) -> None:
        """Ends the jobs of a group that was deleted."""
        self._end_with(lambda running: running.group == group)

    # ---- what the engine has ----

    def move_to(self, engine: Engine) -> None:
        """Runs the jobs on this engine from now on."""
        self._engine = engine
        for job, running in self.running.items():
            engine.add_job(running.entry, running.place)
            engine.fence(job, running.fenced)

    def clear(self) -> None:
        """Takes all jobs off the engine."""
        for job in list(self.running):
            self._end(job)

    def refence(self, job: int | None) -> None:
        """Shuts workers out and lets them in, after the admission table has changed for a job, or for all."""
        for number in list(self.running) if job is None else [job]:
            running = self.running.get(number)
            if running is None:
                continue
            bits = [worker.bit for worker in running.entry.workers]
            fenced = sum(1 << bit for bit in bits if self._shut_out(running, bit))
            if out := fenced & ~running.fenced:
                self._engine.fence(number, out)
            if back := running.fenced & ~fenced:
                self._engine.admit(number, back)
            running.fenced = fenced

    def takes_init(self, job: int, token: int, slot: int) -> bool:
        """Returns True if an INIT gets through; if not, the entry that it hits counts it.

        A job that lacks only workers begins now. Raises `StatusError` if its entries do not agree.
        """
        found = self.first(op=Op.INIT, job=job, token=token, slot=slot, port=self.controller_port)
        if found is not None and isinstance(self._said.get(found), Initialise):
            if job not in self.running:
                self._begin(job, partly=True)
            if job in self.running:
                return True
        if found is not None:
            found.packets += 1
        return False

    def first(
        self,
        *,
        op: int = Op.SUM,
        version: int = VERSION,
        form: Form = Form.SKIP,
        source: tuple[int, int] = (0, 0),
        job: int = 0,
        token: int = 0,
        slot: int = 0,
        port: int = 0,
    ) -> Entry | None:
        """Returns the entry that a packet hits."""
        packet = {
            "ingress_port": port,
            "meta.form": form,
            "hdr.agg.version": version,
            "hdr.agg.op": op,
            "ipv4_source": source[0],
            "udp_source": source[1],
            "hdr.agg.job": job,
            "hdr.agg.token": token,
            "hdr.agg.slot": slot,
        }
        return self._admission.find(tuple(int(packet[name]) for name in self._order))

    def unknown_job(self) -> int:
        """Returns the id of a job that no entry names."""
        return next(number for number in range(0xFFFF, 0, -1) if number not in self._jobs)

    def entry_of(self, said: Initialise | Contribution) -> Entry | None:
        """Returns the entry with this meaning, if it exists."""
        return next((entry for entry, each in self._jobs.get(said.job, {}).items() if each == said), None)

    # ---- a job's beginning and end ----

    def _shut_out(self, running: RunningJob, bit: int) -> bool:
        said = running.workers.get(bit)
        entry = None if said is None else self.entry_of(said)
        if said is None or entry is None:
            return True
        hit = self.first(source=said.key, job=said.job, token=said.token, slot=said.base, port=said.port)
        return hit is not entry

    def _initialise(self, job: int) -> Initialise | None:
        return next((each for each in self._jobs.get(job, {}).values() if isinstance(each, Initialise)), None)

    def _workers(self, job: int) -> list[Contribution]:
        return [each for each in self._jobs.get(job, {}).values() if isinstance(each, Contribution)]

    def _end_with(self, does: Callable[[RunningJob], bool]) -> None:
        for job, running in list(self.running.items()):
            if does(running):
                self._end(job)

    def _end(self, job: int) -> None:
        if job in self.running:
            self.on_end(job)
            del self.running[job]
            self._engine.remove_job(job)

    def _check_running(self, said: Initialise | Contribution) -> None:
        running = self.running.get(said.job)
        if running is None:
            return
        if isinstance(said, Initialise):
            if said != running.initialise:
                raise _runs(said.job, "its slots")
        elif running.workers.get(said.bit) != said:
            raise _runs(said.job, f"worker {said.bit}")

    def _begin(self, job: int, *, partly: bool = False) -> None:
        """Gives a job to the engine if it is whole. Raises `StatusError` if its entries do not agree."""
        if job in self.running:
            return
        initialise, workers = self._initialise(job), self._workers(job)
        _check_agreement(job, initialise, workers)
        if initialise is None or not workers:
            return
        missing = workers[0].full & ~sum(1 << each.bit for each in workers)
        made = None if missing and not partly else self._made(initialise, workers)
        if made is None:
            return
        try:
            self._engine.add_job(made.entry, made.place)
        except UsageError as error:
            raise failed_precondition(str(error)) from None
        except MemoryError:
            raise resource_exhausted(
                f"job {job}: no memory for {made.entry.slots} slots of {made.entry.words} words"
            ) from None
        self.running[job] = made
        self.refence(job)

    def _made(self, initialise: Initialise, workers: list[Contribution]) -> RunningJob | None:
        """Returns the job of these entries; None while another part of it is missing."""
        deliveries = [each for each in self._deliveries.values() if each.job == initialise.job]
        group = workers[0].group
        if workers[0].below:
            to_all = next((each for each in deliveries if each.bit is None), None)
            if to_all is None or workers[0].receiver not in self._receivers:
                return None
            if not {each.bit for each in workers} <= {each.bit for each in deliveries}:
                return None
            group = to_all.group
        replicas = self.receivers_of(group)
        if replicas is None or any(number not in self._receivers for number in replicas):
            return None
        parts = _JobParts(initialise, workers, deliveries, group, replicas, self._receivers)
        return _make_job(parts, words=self._words, ethernet=self.ethernet)


def _runs(job: int, what: str) -> StatusError:
    return failed_precondition(
        f"job {job} runs, and {what} cannot change under it: delete its `initialise` entry first"
    )


# ---- a job of its entries ----


def _check_agreement(job: int, initialise: Initialise | None, workers: list[Contribution]) -> None:
    """Raises `StatusError` if a job's entries contradict each other."""

    def disagree(what: str) -> StatusError:
        return failed_precondition(f"job {job}: its entries do not agree on {what}")

    entries: list[Initialise | Contribution] = [*workers, *([initialise] if initialise else [])]
    for what, values in (
        ("its slots", {(each.base, each.slots) for each in entries}),
        ("its tally", {each.tally for each in entries}),
        ("its workers", {each.full for each in workers}),
        ("its multicast group", {each.group for each in workers}),
        ("whether it has a parent", {each.below for each in workers}),
    ):
        if len(values) > 1:
            raise disagree(f"{what}: {', '.join(map(str, sorted(values)))}")
    for what, found in (
        ("who is which worker: two have one bit", [each.bit for each in workers]),
        ("who is which worker: two have one address", [each.source for each in workers]),
        ("who gets what: two have one receiver", [each.receiver for each in workers if not each.below]),
    ):
        if len(set(found)) != len(found):
            raise disagree(what)


def _make_job(parts: _JobParts, *, words: int, ethernet: bool) -> RunningJob:
    """Returns the job. Raises `StatusError` if its entries do not agree.

    Args:
        words: K if the entry gives none.
        ethernet: the job has places.
    """
    initialise, workers = parts.initialise, parts.workers
    replicas, receivers = parts.replicas, parts.receivers
    job = initialise.job
    below = workers[0].below
    answers = {each.bit: each for each in parts.deliveries if each.bit is not None}
    numbers = {each.bit: answers[each.bit].receiver if below else each.receiver for each in workers}
    theirs = set(numbers.values())
    missing = workers[0].full & ~sum(1 << each.bit for each in workers)
    others = sorted(replicas.keys() - theirs)
    bits = [bit for bit in range(32) if missing & 1 << bit]
    if not theirs <= replicas.keys() or len(others) != len(bits):
        raise failed_precondition(
            f"job {job}: its multicast group has receivers {sorted(replicas)}, its workers "
            f"{sorted(theirs)}, and {len(bits)} workers are missing"
        )
    for each in workers:
        address = receivers[numbers[each.bit]].address
        if address != each.source:
            raise failed_precondition(
                f"job {job}: worker {each.bit} sends from {_shown(each.source)}, its RESULTs go to "
                f"{_shown(address)}; accepted: one address for both"
            )
    for bit, number in zip(bits, others, strict=True):
        numbers[bit] = number
    to_workers = [receivers[number] for number in replicas]
    if len({each.token for each in to_workers}) != 1:
        raise failed_precondition(f"job {job}: its receivers have different tokens")
    parent = _parent(parts) if below else None
    offset = 0 if parent is None else (initialise.base - parent.base) % 2**16
    for receiver in to_workers:
        if receiver.parent or receiver.offset != offset:
            action = "to_parent" if receiver.parent else f"to_worker with offset {receiver.offset}"
            raise failed_precondition(
                f"job {job}: receiver {receiver.number} is {action}; accepted: to_worker with offset {offset}"
            )
    admitted = [WorkerEntry(each.bit, *each.source, each.token) for each in workers]
    # Shut out from the start: their tokens stay unknown.
    strangers = [WorkerEntry(bit, *receivers[numbers[bit]].address, secrets.randbits(32)) for bit in bits]
    try:
        entry = JobEntry(
            job,
            initialise.base,
            initialise.slots,
            initialise.words or words,
            to_workers[0].token,
            tuple(sorted(admitted + strangers, key=lambda worker: worker.bit)),
            parent=parent,
        )
    except UsageError as error:
        raise failed_precondition(str(error)) from None
    place = _place(parts, numbers) if ethernet else None
    mine = frozenset(replicas) | ({workers[0].receiver} if below else frozenset())
    return RunningJob(entry, place, initialise, {each.bit: each for each in workers}, mine, parts.group)


def _parent(parts: _JobParts) -> ParentEntry:
    initialise, workers, deliveries = parts.initialise, parts.workers, parts.deliveries
    job = initialise.job
    above = parts.receivers[workers[0].receiver]
    sources = {(each.source, each.token, each.base, each.slots, each.ingress_port) for each in deliveries}
    if len(sources) != 1 or {each.receiver for each in workers} != {above.number}:
        raise failed_precondition(f"job {job}: its entries do not agree on its parent")
    first = deliveries[0]
    if first.slots != initialise.slots:
        raise failed_precondition(
            f"job {job}: it has {initialise.slots} slots, and {first.slots} at its parent; accepted: as many"
        )
    if not above.parent or above.address != first.source:
        raise failed_precondition(
            f"job {job}: its parent's RESULTs come from {_shown(first.source)}, and receiver {above.number} "
            f"is {'to_parent' if above.parent else 'to_worker'} {_shown(above.address)}"
        )
    if above.offset != (first.base - initialise.base) % 2**16:
        raise failed_precondition(
            f"job {job}: to_parent has offset {above.offset}; accepted: from its base here to that at its "
            "parent"
        )
    return ParentEntry(*above.address, above.token, first.base, first.token)


def _place(parts: _JobParts, numbers: Mapping[int, int]) -> JobPlace:
    """Returns the ports and MACs of the job. Raises `StatusError` for a worker that is in two places."""
    job, receivers, replicas = parts.initialise.job, parts.receivers, parts.replicas
    one = {each.bit: each.port for each in parts.deliveries}
    for each in parts.workers:
        ports = {each.port, replicas[numbers[each.bit]], one[each.bit] if each.below else each.way_out}
        if len(ports) != 1:
            raise failed_precondition(
                f"job {job}: worker {each.bit} is expected at port {each.port}, and its RESULTs go to ports "
                f"{sorted(ports)}; accepted: one port for both"
            )
    stations = {bit: Station(replicas[number], receivers[number].mac) for bit, number in numbers.items()}
    first = parts.workers[0]
    if not first.below:
        return JobPlace(0, stations)
    above = receivers[first.receiver]
    ports = {each.ingress_port for each in parts.deliveries} | {each.way_out for each in parts.workers}
    if len(ports) != 1:
        raise failed_precondition(f"job {job}: its parent is at ports {sorted(ports)}; accepted: one port")
    station = Station(ports.pop(), above.mac)
    delivery = parts.deliveries[0]
    parent = Parent(station, above.address[0], above.token, delivery.base, delivery.token, above.address[1])
    return JobPlace(0, stations, parent)


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
