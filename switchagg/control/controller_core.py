"""The controller's threads, lock and order of things; `controller.py` has what others call.

    a call -> the book changes -> the store -> agents, members' lines, answers
    agents' reports, the ticker: the same

One lock guards the book of jobs. A call changes the book and then, still holding the lock, writes what must
survive to the store, queues what switches are to do with their agents, and sends what members are to know on
their lines; none of these waits for anybody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final

from switchagg.control import job_codec as saved
from switchagg.control import views
from switchagg.control.agent import Agent
from switchagg.control.answers import AdmittedView
from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.events import IN_STORE, EventLog
from switchagg.control.history import INTERVAL, History
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import (
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
from switchagg.control.jobs.job import Generation, Job, Member
from switchagg.control.jobs.placement import Room
from switchagg.control.jobs.records import (
    EventStream,
    JobState,
)
from switchagg.control.jobs.tuning import Tuning
from switchagg.control.store import Changes, MemoryStore, Store
from switchagg.control.tenants import Tenants
from switchagg.errors import AdmissionError, SwitchAggError, SwitchError, UsageError
from switchagg.rules.planner import SkipPolicy
from switchagg.rules.switch import Capacity, Reconciled
from switchagg.rules.wiring import Attachment, checked

TICK: Final = 0.1  # seconds between looks at deadlines
STALL: Final = 2.0  # seconds after which it was the controller that slept, and not the members
STOP_PATIENCE: Final = 1.5  # seconds for the last words to switches

_log = logging.getLogger(__name__)


class Shell:
    """A controller without what others ask it for. See `switchagg.control.controller.Controller`."""

    def __init__(
        self,
        drivers: Sequence[SwitchDriver],
        *,
        store: Store | None = None,
        words: int | None = None,
        slots: int | None = None,
        policy: SkipPolicy | None = None,
        wiring: Mapping[str, Attachment] | None = None,
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
        attachments = checked({name: (wiring or {}).get(name, Attachment()) for name in names})
        self._book = JobBook(
            [
                Room(driver.name, driver.capacity, words, slots, attachments[driver.name], driver.address)
                for driver in drivers
            ],
            policy=policy,
        )
        self._agents = {driver.name: Agent(driver, self) for driver in drivers}
        self._lock = threading.Lock()
        self._epoch = time.time() - time.monotonic()
        self._lines: dict[Member, EventStream] = {}
        self._members: dict[EventStream, Member] = {}
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
                refuse(future, AdmissionError("the controller is stopping", "stopping"))
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

    # What agents report. `Office` says what each is.

    def wanted(self, generation: Generation) -> bool:
        with self._lock:
            job = self._book.at(generation.id)
            return job is not None and job.generation is not None and generation in job.generation.parts

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
            self._book.switch_measured(switch, capacity, self._drivers[switch].address)

    def switch_up(self, switch: str, found: Reconciled) -> None:
        with self._changing():
            self._book.switch_up(switch, found)

    def switch_down(self, switch: str, why: str) -> None:
        with self._changing():
            self._book.switch_down(switch, why)

    # With the lock held.

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._act()

    def _admitted(self, member: Member) -> AdmittedView:
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
            [*earlier.events, *changes.events][-IN_STORE:],
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
                        refuse(future, AdmissionError(refusal, code))
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
                refuse(future, AdmissionError(f"{what}: {member.why}" if member.why else what, "lost"))
        if (history := self._histories.get(member.job.number)) is not None:
            history.forget(member.cookie)

    # By themselves.

    def _tick(self) -> None:
        last, sampled = time.monotonic(), 0.0
        while not self._stop.wait(TICK):
            now = time.monotonic()
            try:
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
            except Exception:
                # Whatever is wrong with one job: deadlines of the others go on.
                _log.exception("a look at deadlines failed")
            last = now


def refuse(future: Future[Any], error: AdmissionError) -> None:
    """Answers a question with an error, if anybody still waits for it."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
