"""Which jobs the native engine has, by what a client's tables hold. No I/O.

A job begins when it is whole: its `initialise` entry, a `contribute` entry for each of its workers, their
multicast group, and a receiver for each of the group's replicas. Or with its first INIT, if only workers are
missing by then: these are shut out of it for good. Packets that come earlier are of no job.

While it runs, a worker is shut out (fenced) whenever another entry than its own is the first to match its
packets: its own was removed, or one of higher priority says `refuse`. It comes back with its entry. The job
ends, and its slots with it, when its `initialise` entry, its group or one of its receivers goes. What would
change a job that runs is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from switchagg.control.drivers.p4_program import Form
from switchagg.emulator.p4runtime.errors import Code, Refused
from switchagg.emulator.p4runtime.native_entries import Contribution, Initialise, Receiver
from switchagg.errors import UsageError
from switchagg.p4model.runtime.tables import Entry, Table
from switchagg.slots import JobEntry, WorkerEntry
from switchagg.wire import VERSION, Op


class Engine(Protocol):
    """What carries jobs out: a `Switch`."""

    def add_job(self, job: JobEntry) -> None: ...
    def remove_job(self, job_id: int) -> None: ...
    def fence(self, job_id: int, bits: int) -> None: ...
    def admit(self, job_id: int, bits: int) -> None: ...


class Rehearsal:
    """An engine that has slots and no packets: for a pipeline that is saved and not committed."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._jobs: dict[int, JobEntry] = {}

    def add_job(self, job: JobEntry) -> None:
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
        """Nothing: no packets come."""

    def admit(self, job_id: int, bits: int) -> None:
        """Nothing: no packets come."""


@dataclass(slots=True)
class Running:
    """A job that the engine has.

    Attributes:
        workers: what each worker's entry said when the job began, by bit.
        fenced: the bits of those who are shut out.
    """

    entry: JobEntry
    initialise: Initialise
    workers: dict[int, Contribution]
    fenced: int


class NativeJobs:
    """The jobs of one pipeline.

    Args:
        admission: the table.
        groups: the receivers of a multicast group, as the client wrote it; None for one that is not there.
        engine: what carries the jobs out.
        controller_port: of the program.
        words: K of jobs whose entries do not say.

    Attributes:
        running: the jobs that the engine has, by id.
        controller_port: where INITs come from.
        on_end: called with the id of a job that ends, while it still runs.
    """

    def __init__(
        self,
        admission: Table,
        groups: Callable[[int], frozenset[int] | None],
        engine: Engine,
        *,
        controller_port: int,
        words: int,
    ) -> None:
        self._engine = engine
        self.running: dict[int, Running] = {}
        self.on_end: Callable[[int], None] = lambda _: None
        self._admission = admission
        self._groups = groups
        self.controller_port = controller_port
        self._words = words
        self._order = [key.name for key in admission.keys]
        self._said: dict[Entry, Initialise | Contribution] = {}
        self._jobs: dict[int, dict[Entry, Initialise | Contribution]] = {}
        self._receivers: dict[int, Receiver] = {}

    # ---- what the client writes; each raises `Refused`, with nothing changed here ----

    def add(self, entry: Entry, said: Initialise | Contribution | None) -> None:
        """An admission entry is there; None is said by one that refuses."""
        if said is None:
            return
        self._check_running(said)
        mine = self._jobs.setdefault(said.job, {})
        mine[entry] = self._said[entry] = said
        try:
            self._begin(said.job)
        except Refused:
            self.forget(entry)
            raise

    def change(self, entry: Entry, said: Initialise | Contribution | None) -> None:
        """An admission entry says this from now on."""
        before = self._said.get(entry)
        if said == before:
            return
        if before is not None and before.job in self.running:
            raise _runs(before.job, "what its entries do")
        self.forget(entry)
        try:
            self.add(entry, said)
        except Refused:
            self.add(entry, before)
            raise

    def forget(self, entry: Entry) -> None:
        """An admission entry is gone."""
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
        """A receiver is there, or another than before."""
        before = self._receivers.get(receiver.number)
        for job, running in self.running.items():
            if before != receiver and any(
                each.receiver == receiver.number for each in running.workers.values()
            ):
                raise _runs(job, f"receiver {receiver.number}")
        self._receivers[receiver.number] = receiver
        try:
            self._begin_with(lambda each: each.receiver == receiver.number)
        except Refused:
            del self._receivers[receiver.number]
            if before is not None:
                self._receivers[receiver.number] = before
            raise

    def drop_receiver(self, number: int) -> None:
        """A receiver is gone."""
        self._receivers.pop(number, None)
        self._end_with(lambda each: each.receiver == number)

    def check_group(self, group: int, receivers: frozenset[int]) -> None:
        """Raises `Refused` where a job that runs has this group with other receivers."""
        for job, running in self.running.items():
            workers = running.workers.values()
            if any(each.group == group for each in workers) and receivers != self._groups(group):
                raise _runs(job, f"multicast group {group}")

    def group_set(self, group: int) -> None:
        """A group is there."""
        self._begin_with(lambda each: each.group == group)

    def group_gone(self, group: int) -> None:
        """A group is gone."""
        self._end_with(lambda each: each.group == group)

    # ---- what the engine has ----

    def move_to(self, engine: Engine) -> None:
        """Carries the jobs out here from now on."""
        self._engine = engine
        for job, running in self.running.items():
            engine.add_job(running.entry)
            engine.fence(job, running.fenced)

    def clear(self) -> None:
        """Takes all jobs off the engine."""
        for job in list(self.running):
            self._end(job)

    def refence(self, job: int | None) -> None:
        """The admission table has changed for a job, or for all: shuts workers out and lets them in."""
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
        """Whether an INIT gets through; if not, the entry that it hits counts it.

        A job that lacks nothing but workers begins now. Raises `Refused` where its entries do not agree.
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
        """The entry that a packet hits."""
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
        """The id of a job that no entry knows."""
        return next(number for number in range(0xFFFF, 0, -1) if number not in self._jobs)

    def entry_of(self, said: Initialise | Contribution) -> Entry | None:
        """The entry that says this now."""
        return next((entry for entry, each in self._jobs.get(said.job, {}).items() if each == said), None)

    # ---- a job's beginning and end ----

    def _shut_out(self, running: Running, bit: int) -> bool:
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

    def _with(self, does: Callable[[Contribution], bool]) -> Iterator[int]:
        for job in list(self._jobs):
            if any(does(each) for each in self._workers(job)):
                yield job

    def _begin_with(self, does: Callable[[Contribution], bool]) -> None:
        for job in self._with(does):
            self._begin(job)

    def _end_with(self, does: Callable[[Contribution], bool]) -> None:
        for job, running in list(self.running.items()):
            if any(does(each) for each in running.workers.values()):
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
        """Gives a job to the engine if it is whole. Raises `Refused` where its entries do not agree."""
        if job in self.running:
            return
        initialise, workers = self._initialise(job), self._workers(job)
        _check_agreement(job, initialise, workers)
        if initialise is None or not workers:
            return
        full, group = workers[0].full, workers[0].group
        missing = full & ~sum(1 << each.bit for each in workers)
        replicas = self._groups(group)
        if (missing and not partly) or replicas is None:
            return
        if any(number not in self._receivers for number in replicas):
            return
        entry = self._entry(initialise, workers, missing, replicas)
        try:
            self._engine.add_job(entry)
        except UsageError as error:
            raise Refused(Code.FAILED_PRECONDITION, str(error)) from None
        except MemoryError:
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"job {job}: no memory for {entry.slots} slots of {entry.words} words",
            ) from None
        self.running[job] = Running(entry, initialise, {each.bit: each for each in workers}, 0)
        self.refence(job)

    def _entry(
        self, initialise: Initialise, workers: list[Contribution], missing: int, replicas: frozenset[int]
    ) -> JobEntry:
        job = initialise.job
        receivers = {number: self._receivers[number] for number in replicas}
        theirs = {each.receiver for each in workers}
        others = sorted(replicas - theirs)
        bits = [bit for bit in range(32) if missing & 1 << bit]
        if not theirs <= replicas or len(others) != len(bits):
            raise Refused(
                Code.FAILED_PRECONDITION,
                f"job {job}: its multicast group has receivers {sorted(replicas)}, its workers "
                f"{sorted(theirs)}, and {len(bits)} workers are missing",
            )
        for each in workers:
            if receivers[each.receiver].address != each.source:
                raise Refused(
                    Code.FAILED_PRECONDITION,
                    f"job {job}: worker {each.bit} sends from {_shown(each.source)}, its RESULTs go to "
                    f"{_shown(receivers[each.receiver].address)}; accepted: one address for both",
                )
        tokens = {each.token for each in receivers.values()}
        if len(tokens) != 1:
            raise Refused(Code.FAILED_PRECONDITION, f"job {job}: its receivers have different tokens")
        admitted = [WorkerEntry(each.bit, *each.source, each.token) for each in workers]
        # Shut out from the start, so nobody needs to know their tokens.
        strangers = [
            WorkerEntry(bit, *receivers[number].address, secrets.randbits(32))
            for bit, number in zip(bits, others, strict=True)
        ]
        try:
            return JobEntry(
                job,
                initialise.base,
                initialise.slots,
                initialise.words or self._words,
                tokens.pop(),
                tuple(sorted(admitted + strangers, key=lambda worker: worker.bit)),
            )
        except UsageError as error:
            raise Refused(Code.FAILED_PRECONDITION, str(error)) from None


def _check_agreement(job: int, initialise: Initialise | None, workers: list[Contribution]) -> None:
    def disagree(what: str) -> Refused:
        return Refused(Code.FAILED_PRECONDITION, f"job {job}: its entries do not agree on {what}")

    entries: list[Initialise | Contribution] = [*workers, *([initialise] if initialise else [])]
    for what, values in (
        ("its slots", {(each.base, each.slots) for each in entries}),
        ("its tally", {each.tally for each in entries}),
        ("its workers", {each.full for each in workers}),
        ("its multicast group", {each.group for each in workers}),
    ):
        if len(values) > 1:
            raise disagree(f"{what}: {', '.join(map(str, sorted(values)))}")
    for what, found in (
        ("who is which worker: two have one bit", [each.bit for each in workers]),
        ("who is which worker: two have one address", [each.source for each in workers]),
        ("who gets what: two have one receiver", [each.receiver for each in workers]),
    ):
        if len(set(found)) != len(found):
            raise disagree(what)


def _runs(job: int, what: str) -> Refused:
    return Refused(
        Code.FAILED_PRECONDITION,
        f"job {job} runs, and {what} cannot change under it: delete its `initialise` entry first",
    )


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
