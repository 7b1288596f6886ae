"""The controller's shared state: its lock, its threads, and the order in which effects are carried out.

    a call -> the book changes -> the journal -> the store; then agents, members' streams, answers
    agents' reports, the ticker: the same

One lock guards the book of jobs. A call changes the book. Still holding the lock, it hands the journal what
must survive, and its effects: what switches are to do, and members' events. The journal writes in a thread of
its own, without the lock; then, with it, effects are queued with the agents and the streams. None of these
waits for anybody.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from switchagg.addresses import ANY_IPV6, exchanges
from switchagg.control import job_codec
from switchagg.control.agent import Agent
from switchagg.control.answers import AdmittedView
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.jobs import effects
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.job import Job, Member
from switchagg.control.jobs.records import JobState, Tenant
from switchagg.control.jobs.switch_resources import SwitchResources
from switchagg.control.journal import Journal
from switchagg.control.member_streams import MemberStreams, admitted
from switchagg.control.store import Changes, Store
from switchagg.control.telemetry import INTERVAL, Telemetry
from switchagg.errors import AdmissionError, SwitchError, UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.wiring import Attachment, checked
from switchagg.runtime import Runtime

TICK: Final = 0.1  # seconds between looks at deadlines
STALL: Final = 2.0  # seconds after which the controller was stalled, and the members were not silent
STOP_PATIENCE: Final = 1.5  # seconds for the last changes of switches

_log = logging.getLogger(__name__)


class ControllerCore:
    """The book of jobs with its switches, streams and store, for a `Controller`."""

    def __init__(
        self,
        drivers: Sequence[SwitchDriver],
        store: Store,
        words: int | None,
        slots: int | None,
        policy: SkipPolicy | None,
        wiring: Mapping[str, Attachment],
        runtime: Runtime,
    ) -> None:
        names = [driver.name for driver in drivers]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UsageError(f"two switches are called {twice[0]!r}; each needs a name of its own")
        attachments = checked({name: wiring.get(name, Attachment()) for name in names})
        _check_families({driver.name: driver.address[0] for driver in drivers}, attachments)
        self.lock = threading.Lock()  # guards everything but the drivers and agents
        self.runtime = runtime
        self.epoch = runtime.unix() - runtime.monotonic()  # the unix time at which the other was 0
        self._heartbeat_address: tuple[str, int] | None = None
        self.outcomes: Counter[str] = Counter()
        self.closed = False
        self.drivers = {driver.name: driver for driver in drivers}
        self.agents = {driver.name: Agent(driver, self.changing, runtime) for driver in drivers}
        self.book = JobBook(
            [
                SwitchResources(
                    driver.name,
                    driver.capacity,
                    words,
                    slots,
                    attachments[driver.name],
                    driver.address,
                    driver.memory,
                )
                for driver in drivers
            ],
            policy=policy,
            draw=lambda: runtime.random_bits(32),
            cookies=lambda: runtime.random_bytes(16),
        )
        self.streams = MemberStreams()
        self.journal = Journal(store, self.lock, self._do_all, runtime)
        self.telemetry = Telemetry(tuned=policy is None)
        self._stop = runtime.event()
        self._ticker = runtime.thread(self._tick, "switchagg-ticker")

    def start(self, heartbeat_address: tuple[str, int] | None) -> None:
        """Takes over the jobs in the store and starts the threads."""
        self._heartbeat_address = heartbeat_address
        kept = self.journal.start()
        with self.lock:
            table = self.book.table
            table.last_id, table.last_number = kept.last_id, max(kept.last_number, *kept.jobs, 0)
            now = self.runtime.monotonic()
            for name in kept.switches.keys() & self.drivers.keys():
                self.book.pool.switches[name].draining = kept.switches[name]
            for number, document in kept.jobs.items():
                self.book.restore(self._loaded(number, document or {}), now)
            self._carry_out()
        self._ticker.start()
        for agent in self.agents.values():
            agent.start()

    def _loaded(self, number: int, document: dict[str, Any]) -> Job:
        """Returns the job of a document. Raises `SwitchError` for one that no controller wrote."""
        table = self.book.table
        try:
            job = job_codec.load(document, self.epoch)
            cookies = [member.cookie for member in job.joined()]
            if job.number != number:
                raise ValueError(f"it calls itself job {job.number}")
            for part in () if job.generation is None else job.generation.parts:
                if part.id in table.ids:
                    raise ValueError(f"its id {part.id} is another job's")
            if len(set(cookies)) < len(cookies) or table.cookies.keys() & set(cookies):
                raise ValueError("two members have the same cookie")
        except ValueError as error:
            where = self.journal.store.where
            raise SwitchError(f"{where}: job {number} in it cannot be read: {error}") from error
        return job

    def close(self) -> None:
        """Refuses pending joins, closes streams and ends the threads. Safe to call twice."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.book.close(for_good=not self.journal.store.persistent)
            self._carry_out()
        self._stop.set()
        if self._ticker.is_alive():
            self._ticker.join()
        self.journal.stop(STOP_PATIENCE)
        with self.lock:
            self.streams.close(AdmissionError("the controller is stopping", "stopping"))
        end = self.runtime.monotonic() + STOP_PATIENCE
        for agent in self.agents.values():
            agent.stop(max(0.0, end - self.runtime.monotonic()))

    # With the lock held, except the first.

    @contextmanager
    def changing(self, *, keep: bool = False) -> Iterator[JobBook]:
        """Holds the lock, yields the book, and carries out the book's effects at the end of the block.

        With `keep` it then waits, without the lock, until the store has what has changed. Raises
        `SwitchError` if the store does not take it.
        """
        with self.lock:
            try:
                yield self.book
            finally:
                self._carry_out()
            number = self.journal.last
        if keep:
            self.journal.wait(number)

    def find(self, tenant: Tenant, name: str, job_id: int | None = None) -> Job | None:
        """Returns the job of that name that the tenant may see; None if there is none.

        Raises `AdmissionError` if an administrator names one that several tenants have.
        """
        job = self.book.table.find(tenant.name, name, job_id)
        if job is not None or not tenant.admin:
            return job
        others = [job for job in self.book.table.jobs() if job.name == name and job_id in (None, job.id)]
        owners = sorted({job.tenant for job in others})
        if len(owners) > 1:
            raise AdmissionError(
                f"tenants {', '.join(owners)} each have a job {name!r}; name the tenant too", "bad_request"
            )
        return others[-1] if others else None

    def admitted(self, member: Member) -> AdmittedView:
        """Returns the event ``admitted`` of a member."""
        assert member.admission is not None
        standby = self.book.failovers.has_standby(member.job)
        address = member.endpoint[0]
        return admitted(member.admission, self.drivers, address, self._heartbeat_address, standby=standby)

    def keep(self, pending: Sequence[effects.Effect] = (), **changes: Any) -> None:
        """Has changes, the fields of `Changes`, written to the store, and then effects carried out."""
        table = self.book.table
        kept = Changes(**changes, last_id=table.last_id, last_number=table.last_number)
        self.journal.add(kept, pending)

    def _carry_out(self) -> None:
        """Has the book's effects carried out: the store first, then switches and members in order."""
        pending = self.book.poll()
        if not pending:
            return
        jobs: dict[int, dict[str, Any] | None] = {}
        events = []
        for effect in pending:
            match effect:
                case effects.SaveJob(job):
                    keep = job_codec.kept(job) and self.journal.store.persistent
                    jobs[job.number] = job_codec.dump(job, self.epoch) if keep else None
                    if job.state is JobState.ended:
                        self.telemetry.forget_job(job)
                case effects.LogEvent():
                    events.append(self.journal.events.add(effect, self.runtime.unix()))
                    _log.info("%s", effect.text, extra={"event": effect})
        self.keep(pending, jobs=jobs, events=events)

    def _do_all(self, pending: Sequence[effects.Effect]) -> None:
        for effect in pending:
            self._do(effect)

    def _do(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Install(_, generation) | effects.Remove(generation) | effects.Fence(generation, _):
                self.agents[generation.slot_range.switch].queue(effect)
            case effects.AnswerJoin(member) if member in self.streams:
                if member.refusal is None:
                    self.outcomes["admitted"] += 1
                    self.streams.send(member, self.admitted(member))
                else:
                    self.outcomes[member.refusal.code] += 1
                    self.streams.refuse(member, member.refusal)
            case effects.SendEvent(member, event):
                self.streams.send(member, event)
            case effects.AnswerStep(member, step, complete_to, refusal):
                if refusal is not None:
                    self.streams.fail(member, step, refusal)
                else:
                    progress = step is effects.ChangeStep.progress
                    self.streams.answer(member, step, complete_to if progress else self.admitted(member))
            case effects.CloseStream(member):
                self.streams.end(member)
                self.telemetry.forget_member(member)

    # The ticker.

    def _tick(self) -> None:
        last, sampled = self.runtime.monotonic(), 0.0
        while not self._stop.wait(TICK):
            now = self.runtime.monotonic()
            try:
                with self.changing() as book:
                    if now - last > STALL:
                        book.table.liveness.extend(now - last)
                    book.tick(now)
                    if now - sampled >= INTERVAL:
                        sampled = now
                        self.telemetry.sample(now, self.runtime.unix())
                    self.journal.tick(now)
            except Exception:
                # An error in one job: deadlines of the others go on.
                _log.exception("a look at deadlines failed")
            last = now


def _check_families(addresses: Mapping[str, str], attachments: Mapping[str, Attachment]) -> None:
    """Raises `UsageError` for a leaf and a root that cannot name each other's address."""
    for name, each in attachments.items():
        for one, other in ((name, each.parent), (each.parent, name)):
            if one is None or other is None:
                continue
            address = addresses[one]
            if address == ANY_IPV6 or not exchanges(address, addresses[other]):
                raise UsageError(
                    f"switch {one} is at {address}, and {other} at {addresses[other]}; accepted of a leaf "
                    "and its parent: one address each, both of IPv4 or both of IPv6"
                )
