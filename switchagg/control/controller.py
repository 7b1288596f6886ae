"""Runs the life cycle of jobs (`jobs.py`) against switches, for callers in many threads.

    HTTP ---- calls ----> Controller <---- answers ---- Agent -- SwitchDriver --> a switch
      ^                    one lock                     Agent -- SwitchDriver --> another
      |                      book
      +-- Line: events ------+------ the store

One lock guards the book of jobs. A call changes the book and then, still holding the lock, writes what must
survive to the store, queues what switches are to do with their agents, and sends what members are to know on
their lines; none of these waits for anybody. A ticker thread looks at deadlines and makes the points of
history.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from switchagg.control import saved, views
from switchagg.control.actions import (
    Action,
    Answer,
    Fence,
    Forget,
    Hang,
    Install,
    Note,
    Question,
    Remove,
    Save,
    Settle,
    Tell,
)
from switchagg.control.agent import Agent
from switchagg.control.drivers.base import Capacity, Reconciled, SwitchDriver
from switchagg.control.events import EventLog, describe
from switchagg.control.history import INTERVAL, History
from switchagg.control.job import Generation, Job, Member
from switchagg.control.jobs import JobBook
from switchagg.control.placement import Room
from switchagg.control.records import (
    JobSpec,
    JobState,
    JoinRequest,
    Line,
    MemberState,
    Tenant,
)
from switchagg.control.store import Changes, MemoryStore, Store
from switchagg.control.tenants import Tenants
from switchagg.control.tuning import Tuning
from switchagg.errors import AdmissionError, SwitchAggError, SwitchError, UsageError
from switchagg.planner import SkipPolicy

TICK: Final = 0.1  # seconds between looks at deadlines
STALL: Final = 2.0  # seconds after which it was the controller that slept, and not the members
PATIENCE: Final = 5.0  # seconds that people wait for a switch's counters and slots
STOP_PATIENCE: Final = 1.5  # seconds for the last words to switches
FRESH: Final = 0.9  # seconds that counters are good for

_log = logging.getLogger(__name__)


class Controller:
    """Owns the jobs of some switches, from `start()` to `close()`.

    Args:
        drivers: the switches. The controller does not close them.
        store: what survives a restart; by default nothing does. The controller does not close it.
        words, slots: of a job whose ranks ask for nothing; None takes what suits its switch.
        policy: the skip policy of all jobs; None lets each be tuned from what its members report.

    Raises `UsageError` for defaults that a switch has no room for, or two switches of one name.

    Methods that a tenant calls raise `AdmissionError` where they are refused; nothing has changed then.
    """

    def __init__(
        self,
        drivers: Sequence[SwitchDriver],
        *,
        store: Store | None = None,
        words: int | None = None,
        slots: int | None = None,
        policy: SkipPolicy | None = None,
    ) -> None:
        names = [driver.name for driver in drivers]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UsageError(f"two switches are called {twice[0]!r}; each needs a name of its own")
        self.store = store or MemoryStore()
        self.tenants = Tenants(self.store)
        self.heartbeat_address: tuple[str, int] | None = None
        """Where members send heartbeats to; set before `start()`."""
        self.outcomes: Counter[str] = Counter()
        """Joins by how they ended: ``admitted``, or the code of the refusal."""
        self._drivers = {driver.name: driver for driver in drivers}
        self._book = JobBook(
            [Room(driver.name, driver.capacity, words, slots) for driver in drivers], policy=policy
        )
        self._agents = {driver.name: Agent(driver, self) for driver in drivers}
        self._lock = threading.Lock()
        self._epoch = time.time() - time.monotonic()
        self._lines: dict[Member, Line] = {}
        self._members: dict[Line, Member] = {}
        self._questions: dict[tuple[Member, Question], Future[Any]] = {}
        self._histories: dict[int, History] = {}  # by the number of the job
        self._tunings: dict[int, Tuning] = {}
        self._tuned = policy is None
        self._events = EventLog()
        self._unsaved = Changes()
        self._store_error = ""
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="switchagg-ticker", daemon=True)
        self._closed = False

    def start(self) -> None:
        """Takes up what an earlier controller left, and begins to work.

        Raises `SwitchError` where the store cannot be read.
        """
        kept = self.store.load()
        with self._lock:
            self._events = EventLog(kept.events)
            self._book.last_id, self._book.last_number = kept.last_id, kept.last_number
            now = time.monotonic()
            for name in kept.draining & self._drivers.keys():
                self._book.placement.rooms[name].draining = True
            for document in kept.jobs:
                try:
                    job = saved.load(document, self._epoch)
                except (KeyError, TypeError, ValueError) as error:
                    raise SwitchError(f"a job in the store cannot be read: {error!r}") from error
                self._book.restore(job, now)
            self._act()
        self._ticker.start()
        for agent in self._agents.values():
            agent.start()

    def close(self) -> None:
        """Refuses whoever waits, tells members and closes their lines. Safe to call twice.

        Jobs end, unless the store is one that survives: then they stay on their switches, and their members
        can attach to the next controller.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self.store.persistent:
                self._book.pause()
            else:
                self._book.close()
            self._act()
            for line in self._lines.values():
                line.close()
            self._lines.clear()
            self._members.clear()
            for future in self._questions.values():
                _refuse(future, AdmissionError("the controller is stopping", "stopping"))
            self._questions.clear()
        self._stop.set()
        if self._ticker.is_alive():
            self._ticker.join()
        end = time.monotonic() + STOP_PATIENCE
        for agent in self._agents.values():
            agent.stop(max(0.0, end - time.monotonic()))

    @property
    def busy(self) -> bool:
        """Whether there is a job whose ranks have been admitted and have not all left."""
        with self._lock:
            return any(member.admission for job in self._book.jobs() for member in job.joined())

    # What tenants ask for.

    def create(self, tenant: Tenant, spec: JobSpec) -> dict[str, Any]:
        """Orders a job and returns it: it has its slots, or is queued."""
        with self._changing():
            return self._describe(self._book.create(tenant, spec, time.monotonic()))

    def evict(self, tenant: Tenant, name: str, job_id: int | None = None) -> dict[str, Any]:
        """Ends a job now, whatever its members do, and returns it as it is then."""
        with self._changing():
            job = self._found(tenant, name, job_id)
            self._book.evict(job, tenant.who)
            return self._describe(job)

    def drain(self, tenant: Tenant, name: str, job_id: int | None = None) -> dict[str, Any]:
        """Lets no one else into a job, which ends when its members have left; returns it."""
        with self._changing():
            job = self._found(tenant, name, job_id)
            self._book.drain(job, tenant.who)
            return self._describe(job)

    def drain_switch(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """Puts no new job on a switch, and moves those there as they allow it; returns the switch."""
        return self._set_draining(tenant, name, self._book.drain_switch, True)

    def undrain_switch(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """Lets a switch have new jobs again; returns it."""
        return self._set_draining(tenant, name, self._book.undrain_switch, False)

    def _set_draining(
        self, tenant: Tenant, name: str, change: Callable[[str, str], None], draining: bool
    ) -> dict[str, Any]:
        if not tenant.admin:
            raise AdmissionError("switches are the administrators' affair", "forbidden")
        with self._changing():
            if name not in self._drivers:
                raise AdmissionError(f"there is no switch {name[:128]!r}", "not_found")
            self._keep(Changes(switches={name: draining}))
            change(name, tenant.who)
            return self._switch(name, tenant)

    # What members ask for.

    def join(self, tenant: Tenant, name: str, request: JoinRequest, line: Line) -> None:
        """A rank wants in. `line` gets the event ``admitted``, or is refused, when that is known."""
        with self._changing():
            if self._closed:
                raise AdmissionError("the controller is stopping", "stopping")
            try:
                member = self._book.join(tenant, name, request, time.monotonic())
            except AdmissionError as error:
                self.outcomes[error.code] += 1
                raise
            self._lines[member] = line
            self._members[line] = member

    def attach(self, tenant: Tenant, name: str, rank: int, token: int, line: Line) -> None:
        """An admitted rank has a new connection. `line` gets ``admitted`` again; an older one is closed."""
        with self._changing():
            member = self._present(tenant, name, rank, token)
            if (old := self._lines.pop(member, None)) is not None:
                self._members.pop(old, None)
                old.close()
            self._lines[member] = line
            self._members[line] = member
            line.send(self._admitted(member))
            self._book.attached(member, time.monotonic())

    def line_closed(self, line: Line) -> None:
        """A connection has ended. Its member is lost, if it has no other and did not leave."""
        with self._changing():
            member = self._members.pop(line, None)
            if member is not None and self._lines.pop(member, None) is line and not self._closed:
                self._book.lost([member], "its process ended")

    def leave(self, tenant: Tenant, name: str, rank: int, token: int, begun: int | None = None) -> None:
        """A rank is done with its job, after it has begun so many collectives, if it says so."""
        with self._changing():
            self._book.leave(self._book.member(tenant.name, name, rank, token), begun)

    def heartbeat(
        self, cookie: bytes, sequence: int, fields: Mapping[str, int], now: float | None = None
    ) -> bool:
        """Takes a heartbeat.

        Args:
            cookie: says whose it is.
            sequence: grows by one from heartbeat to heartbeat; late ones are ignored.
            fields: counts since the join, named as in `switchagg.heartbeat`.
            now: on the clock of `time.monotonic`.

        Returns:
            Whether it is some member's.
        """
        now = time.monotonic() if now is None else now
        with self._changing():
            member = self._book.heard(cookie, now)
            if member is None:
                return False
            self._report(member, sequence, fields, now)
            return True

    def beat(
        self, tenant: Tenant, name: str, rank: int, token: int, report: Mapping[str, int] | None = None
    ) -> None:
        """Takes a heartbeat of a rank that says its token. `report` is as `fields` of `heartbeat`."""
        now = time.monotonic()
        with self._changing():
            member = self._present(tenant, name, rank, token)
            self._book.heard(member.cookie, now)
            if report is not None:
                self._report(member, None, report, now)

    def _report(self, member: Member, sequence: int | None, fields: Mapping[str, int], now: float) -> None:
        if sequence is not None:
            if sequence <= member.heartbeats:
                return
            member.heartbeats = sequence
        job = member.job
        self._histories.setdefault(job.number, History()).heard(member.cookie, fields, now)
        if self._tuned:
            decision = self._tunings.setdefault(job.number, Tuning()).heard(job, member, fields, now)
            if decision is not None:
                self._book.set_policy(job, decision.policy, decision.why, now)

    def progress(self, tenant: Tenant, name: str, rank: int, token: int, completed: int) -> Future[int]:
        """A rank has stopped for a change of membership after so many collectives.

        Returns:
            The number that it must complete, when all the others have said theirs.
        """
        with self._changing():
            member = self._present(tenant, name, rank, token)
            future = self._question(member, Question.progress)
            self._ask(future, lambda: self._book.progress(member, completed))
            return future

    def proceed(
        self, tenant: Tenant, name: str, rank: int, token: int, address: str, port: int
    ) -> Future[dict[str, Any]]:
        """A rank is done with the old generation of its job, and will send from this address and port.

        Returns:
            The event ``admitted`` of the new generation, when it is open.
        """
        with self._changing():
            member = self._present(tenant, name, rank, token)
            future = self._question(member, Question.proceed)
            self._ask(future, lambda: self._book.proceed(member, address, port))
            return future

    def _question(self, member: Member, question: Question) -> Future[Any]:
        if (earlier := self._questions.pop((member, question), None)) is not None:
            earlier.cancel()
        future: Future[Any] = Future()
        self._questions[member, question] = future
        return future

    def _ask(self, future: Future[Any], call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException:
            self._questions = {key: each for key, each in self._questions.items() if each is not future}
            raise

    # What agents report. `Office` says what each is.

    def wanted(self, generation: Generation) -> bool:
        with self._lock:
            job = self._book.at(generation.id)
            return job is not None and job.generation is generation

    def belonging(self, switch: str) -> Sequence[Generation]:
        with self._lock:
            return self._book.belonging(switch)

    def opened(self, job: Job, generation: Generation) -> None:
        with self._changing():
            self._book.opened(job, generation, time.monotonic())

    def opening_failed(self, job: Job, generation: Generation, error: SwitchAggError) -> None:
        with self._changing():
            self._book.opening_failed(job, generation, error)

    def switch_measured(self, switch: str, capacity: Capacity) -> None:
        with self._changing():
            self._book.switch_measured(switch, capacity)

    def switch_up(self, switch: str, found: Reconciled) -> None:
        with self._changing():
            self._book.switch_up(switch, found)

    def switch_down(self, switch: str, why: str) -> None:
        with self._changing():
            self._book.switch_down(switch, why)

    # What people look at.

    def jobs(self, tenant: Tenant) -> list[dict[str, Any]]:
        """Returns every job that has not ended and that the tenant may see."""
        self._refresh(0.3)
        with self._lock:
            return [self._describe(job) for job in self._book.jobs() if views.sees(tenant, job.tenant)]

    def job(self, tenant: Tenant, name: str, job_id: int | None = None) -> dict[str, Any] | None:
        """Returns the newest job of that name, or the one with this id; None where there is none."""
        self._refresh(0.3)
        with self._lock:
            job = self._find(tenant, name, job_id)
            return None if job is None else self._describe(job)

    def switches(self, tenant: Tenant) -> list[dict[str, Any]]:
        """Returns the switches, and who has which of their slots."""
        self._refresh(0.3)
        with self._lock:
            return [self._switch(name, tenant) for name in self._drivers]

    def slots(self, tenant: Tenant) -> dict[str, Any]:
        """Returns who has which slots, of all switches together and of each."""
        with self._lock:
            rooms: list[dict[str, Any]] = [
                {
                    "name": room.name,
                    "capacity": room.capacity.slots,
                    "free": room.allocator.free_slots,
                    "largest_free": room.allocator.largest_free,
                    "memory": room.capacity.memory,
                    "memory_used": room.memory_used,
                    "max_words": room.capacity.words,
                    "ranges": views.ranges(room, self._book, tenant),
                }
                for room in self._book.placement.rooms.values()
            ]
        sums = ("capacity", "free", "memory", "memory_used")
        return {
            **{name: sum(int(room[name]) for room in rooms) for name in sums},
            "largest_free": max((room["largest_free"] for room in rooms), default=0),
            "max_words": max((room["max_words"] for room in rooms), default=0),
            "ranges": [{"switch": room["name"], **each} for room in rooms for each in room["ranges"]],
            "switches": rooms,
        }

    def waiting_slots(self, tenant: Tenant, name: str, job_id: int | None = None) -> dict[str, Any] | None:
        """Returns the slots of a job that wait for some ranks; None where there is no such job.

        Of a job that hangs this says whose packets are not there. `slots` is None where the switch does not
        show them. Raises `SwitchError` where it does not answer.
        """
        with self._lock:
            job = self._find(tenant, name, job_id)
            if job is None:
                return None
            generation = job.generation
            if generation is None or not generation.open:
                return {"job": name, "slots": []}
            agent = self._agents[generation.site.switch]
            first, count = generation.site.base, generation.site.slots

        def read(driver: SwitchDriver) -> dict[int, Any]:
            return {index: driver.slot(index) for index in range(first, first + count)}

        states = agent.ask(read, PATIENCE)
        with self._lock:
            if None in states.values() or job.generation is not generation:
                return {"job": name, "slots": None}
            return {"job": name, "slots": views.waiting(states, job)}

    def stats(self, tenant: Tenant) -> dict[str, Any]:
        """Returns the counters of the switches, their sums, and those of every job that the tenant may see.

        A switch that does not answer has ``error`` instead.
        """
        with self._lock:
            there = [
                (job.name, job.id, job.tenant, job.generation.site.switch)
                for job in self._book.jobs()
                if job.generation is not None and job.generation.open and views.sees(tenant, job.tenant)
            ]
        switches: dict[str, dict[str, Any]] = {}
        jobs: list[dict[str, Any]] = []
        total: Counter[str] = Counter()
        for name, agent in self._agents.items():
            mine = [job_id for _, job_id, _, switch in there if switch == name]
            try:
                counters, of_jobs = agent.ask(partial(_counters, mine), PATIENCE)
            except SwitchError as error:
                switches[name] = {"error": str(error)}
                continue
            switches[name] = counters
            total.update(counters)
            jobs += [
                {"name": job, "id": job_id, "tenant": owner, "switch": name, "counters": of_jobs[job_id]}
                for job, job_id, owner, switch in there
                if switch == name and job_id in of_jobs
            ]
        return {"switch": dict(total), "switches": switches, "jobs": jobs}

    def events(self, tenant: Tenant, since: int = 0, limit: int = 200) -> list[dict[str, Any]]:
        """Returns events after number `since`, oldest first; with 0 the newest."""
        with self._lock:
            return [describe(event) for event in self._events.since(since, limit, tenant)]

    def history(self, tenant: Tenant, name: str, job_id: int | None = None) -> dict[str, Any] | None:
        """Returns what a job did in the last ten minutes; None where there is no such job."""
        with self._lock:
            job = self._find(tenant, name, job_id)
            if job is None:
                return None
            history = self._histories.get(job.number)
            points = [] if history is None else history.points()
            return {"job": name, "interval": INTERVAL, "points": points}

    def snapshot(self, tenant: Tenant, since: int = 0) -> dict[str, Any]:
        """Returns all that a page shows, with counters as of a second ago. Waits for nobody."""
        self._refresh(0.0)
        with self._lock:
            return {
                "now": round(time.time(), 3),
                "switches": [self._switch(name, tenant) for name in self._drivers],
                "jobs": [self._describe(job) for job in self._book.jobs() if views.sees(tenant, job.tenant)],
                "events": [describe(event) for event in self._events.since(since, 200, tenant)],
            }

    def health(self) -> dict[str, Any]:
        """Returns whether all is well, and what a person should know."""
        warnings = [warning for driver in self._drivers.values() for warning in driver.warnings]
        with self._lock:
            rooms = self._book.placement.rooms
            states = {name: room.state.value for name, room in rooms.items()}
            if self._store_error:
                warnings.append(f"what has changed is not kept: {self._store_error}")
        first = next(iter(self._drivers.values()), None)
        return {
            "status": "ok",
            "switch": None if first is None else views.endpoint(first),
            "switches": states,
            "warnings": warnings,
        }

    def census(self) -> dict[tuple[str, str], int]:
        """Returns the number of jobs by tenant and state."""
        with self._lock:
            return dict(Counter((job.tenant, job.shown.value) for job in self._book.jobs()))

    def event_counts(self) -> dict[str, int]:
        """Returns how many events of each kind there were since the controller started."""
        with self._lock:
            return dict(self._events.counts)

    # With the lock held.

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._act()

    def _found(self, tenant: Tenant, name: str, job_id: int | None) -> Job:
        job = self._find(tenant, name, job_id)
        if job is None:
            raise AdmissionError(f"there is no job {name[:128]!r}", "not_found")
        return job

    def _find(self, tenant: Tenant, name: str, job_id: int | None = None) -> Job | None:
        job = self._book.find(tenant.name, name, job_id)
        if job is not None or not tenant.admin:
            return job
        others = [
            job for job in self._book.jobs() if job.name == name and (job_id is None or job.id == job_id)
        ]
        owners = sorted({job.tenant for job in others})
        if len(owners) > 1:
            raise AdmissionError(
                f"tenants {', '.join(owners)} each have a job {name!r}; name the tenant too", "bad_request"
            )
        return others[-1] if others else None

    def _present(self, tenant: Tenant, name: str, rank: int, token: int) -> Member:
        member = self._book.member(tenant.name, name, rank, token)
        if member.state is MemberState.lost:
            raise AdmissionError(f"rank {rank} of job {name!r} is lost: {member.why}", "lost")
        if member.state is MemberState.left:
            raise AdmissionError(f"rank {rank} has left job {name!r}", "lost")
        return member

    def _describe(self, job: Job) -> dict[str, Any]:
        agent = None if job.site is None else self._agents[job.site.switch]
        counters = {} if agent is None else agent.job_counters(job.id)
        history = self._histories.get(job.number)
        return views.job_view(job, self._book, history, counters, time.monotonic(), self._epoch)

    def _switch(self, name: str, tenant: Tenant) -> dict[str, Any]:
        room = self._book.placement.rooms[name]
        return views.switch_view(room, self._drivers[name], self._book, self._agents[name].counters, tenant)

    def _admitted(self, member: Member) -> dict[str, Any]:
        assert member.admission is not None
        driver = self._drivers[member.admission.switch]
        return views.admitted(member.admission, driver, self.heartbeat_address)

    def _act(self) -> None:
        """Does what the book asks for: the store first, then switches and members in order."""
        actions = self._book.poll()
        if actions:
            self._record(actions)
            for action in actions:
                self._do(action)

    def _record(self, actions: Sequence[Action]) -> None:
        jobs: dict[int, dict[str, Any] | None] = {}
        events = []
        for action in actions:
            match action:
                case Save(job) | Forget(job):
                    keep = saved.kept(job) and self.store.persistent
                    jobs[job.number] = saved.dump(job, self._epoch) if keep else None
                    if job.state is JobState.ended:
                        self._histories.pop(job.number, None)
                        self._tunings.pop(job.number, None)
                case Note():
                    events.append(self._events.add(action, time.time()))
                    _log.info("%s", action.text, extra={"event": action})
        self._keep(Changes(jobs=jobs, events=events))

    def _keep(self, changes: Changes) -> None:
        """Writes changes, with those that could not be written earlier."""
        earlier = self._unsaved
        self._unsaved = Changes(
            {**earlier.jobs, **changes.jobs},
            [*earlier.events, *changes.events],
            {**earlier.switches, **changes.switches},
            self._book.last_id,
            self._book.last_number,
        )
        try:
            self.store.write(self._unsaved)
        except SwitchError as error:
            if not self._store_error:
                _log.error("%s", error)
            self._store_error = str(error)
        else:
            self._unsaved, self._store_error = Changes(), ""

    def _do(self, action: Action) -> None:
        match action:
            case Install(_, generation) | Remove(generation) | Fence(generation, _):
                self._agents[generation.site.switch].queue(action)
            case Settle(member) if (line := self._lines.get(member)) is not None:
                if member.refusal is None:
                    self.outcomes["admitted"] += 1
                    line.send(self._admitted(member))
                else:
                    self.outcomes[member.refusal.code] += 1
                    del self._lines[member]
                    self._members.pop(line, None)
                    line.refuse(member.refusal)
            case Tell(member, event):
                if (line := self._lines.get(member)) is not None:
                    line.send(event)
            case Answer(member, question, complete_to, refusal, code):
                if (future := self._questions.pop((member, question), None)) is not None:
                    if refusal:
                        _refuse(future, AdmissionError(refusal, code))
                    elif future.set_running_or_notify_cancel():
                        progress = question is Question.progress
                        future.set_result(complete_to if progress else self._admitted(member))
            case Hang(member):
                self._hang(member)

    def _hang(self, member: Member) -> None:
        if (line := self._lines.pop(member, None)) is not None:
            self._members.pop(line, None)
            line.close()
        for question in Question:
            if (future := self._questions.pop((member, question), None)) is not None:
                what = f"rank {member.rank} of job {member.job.name!r} is {member.state.value}"
                _refuse(future, AdmissionError(f"{what}: {member.why}" if member.why else what, "lost"))
        if (history := self._histories.get(member.job.number)) is not None:
            history.forget(member.cookie)

    # By themselves.

    def _tick(self) -> None:
        last, sampled = time.monotonic(), 0.0
        while not self._stop.wait(TICK):
            now = time.monotonic()
            with self._changing():
                if now - last > STALL:
                    self._book.liveness.forgive(now - last)
                self._book.tick(now)
                if now - sampled >= INTERVAL:
                    sampled = now
                    for history in self._histories.values():
                        history.sample(now, time.time())
                if self._store_error:
                    self._keep(Changes())
            last = now

    def _refresh(self, patience: float) -> None:
        end = time.monotonic() + patience
        for agent in self._agents.values():
            agent.refresh(FRESH, max(0.0, end - time.monotonic()))


def _refuse(future: Future[Any], error: AdmissionError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _counters(jobs: Sequence[int], driver: SwitchDriver) -> tuple[dict[str, int], dict[int, dict[str, int]]]:
    return dict(driver.counters()), {job_id: dict(driver.job_counters(job_id)) for job_id in jobs}
