"""One thread a switch, which carries out the controller's effects on it in order.

A switch that does not answer delays only itself. Failed changes are not kept: the agent reads back what the
switch holds and corrects the difference (`SwitchDriver.reconcile`), until that succeeds and after every
reconnect. Nothing is installed before that, since the slots of a job that may still be on the switch, in
whole or in part, must not be given to another. Changes go before questions, of which people may ask many.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Final

from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.jobs.book import JobBook
from switchagg.control.jobs.effects import Fence, Install, Remove, SwitchEffect
from switchagg.control.jobs.job import Generation, Job
from switchagg.errors import SwitchAggError, SwitchError
from switchagg.rules.switch import ChangeKind, SwitchChange
from switchagg.runtime import Runtime

INIT_ATTEMPTS: Final = 10  # a packet that is lost this often is not lost by accident
INIT_PAUSE: Final = 0.01  # seconds between attempts
RETRY: Final = 1.0  # seconds until a switch that could not be reconciled is tried again

_log = logging.getLogger(__name__)


class Agent:
    """Carries out what is queued for one switch, from `start()` to `stop()`.

    Args:
        changing: holds the controller's lock, yields its book, and carries out the book's effects at the end.
    """

    def __init__(
        self,
        driver: SwitchDriver,
        changing: Callable[[], AbstractContextManager[JobBook]],
        runtime: Runtime,
    ) -> None:
        self.driver = driver
        self._changing = changing
        self._runtime = runtime
        self._work: deque[Callable[[], None]] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        self._more = runtime.condition()
        self._stopping = False
        self._down: str | None = "it has not been reached yet"
        self._retry_at: float | None = None
        self._installed: set[int] = set()
        self._thread = runtime.thread(self._run, f"switchagg-switch-{driver.name}")
        self._cache: dict[int, Mapping[str, int]] = {}
        self.counters: Mapping[str, int] = {}  # of the switch, as last read
        self._cached_at = -1e9
        self._refreshing = False

    # From any thread.

    def start(self) -> None:
        """Starts the thread, and listens to the driver's changes."""
        self._thread.start()
        self.driver.watch(self._changed)

    def stop(self, patience: float) -> None:
        """Ends the thread after the queued changes, or after `patience` seconds."""
        with self._more:
            self._stopping = True
            self._more.notify()
        if self._thread.is_alive():
            self._thread.join(patience)

    def queue(self, effect: SwitchEffect) -> None:
        """Queues an effect."""
        match effect:
            case Install(job, generation):
                self._put(lambda: self._install(job, generation))
            case Remove(generation):
                self._put(lambda: self._remove(generation))
            case Fence(generation, bits):
                self._put(lambda: self._fence(generation, bits))

    def ask(self, question: Callable[[SwitchDriver], Any], patience: float) -> Any:
        """Returns the result of `question`, called in turn. Raises `SwitchError` if that takes too long."""
        future: Future[Any] = Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    if self._down is not None:
                        raise SwitchError(f"switch {self.driver.name!r} is down: {self._down}")
                    future.set_result(question(self.driver))
                except Exception as error:
                    future.set_exception(error)

        done = self._runtime.event()
        future.add_done_callback(lambda _: done.set())
        self._put(answer, self._asked)
        if not done.wait(patience):
            future.cancel()
            raise SwitchError(f"switch {self.driver.name!r} did not answer within {patience:g} seconds")
        return future.result()

    def refresh(self, age: float, patience: float) -> None:
        """Reads the counters unless they are younger than `age` seconds; waits at most `patience` seconds."""
        with self._more:
            fresh = self._runtime.monotonic() - self._cached_at < age
            if self._refreshing or (fresh and self._installed <= self._cache.keys()):
                return
            self._refreshing = True
        done = self._runtime.event()

        def read() -> None:
            try:
                if self._down is None:
                    self._read_counters()
            except SwitchError as error:
                _log.debug("counters of switch %r: %s", self.driver.name, error)
            finally:
                self._refreshing = False
                done.set()

        self._put(read, self._asked)
        if patience:
            done.wait(patience)

    def job_counters(self, job_id: int) -> Mapping[str, int]:
        """Returns a job's counters as last read; empty before."""
        return self._cache.get(job_id, {})

    def _put(self, work: Callable[[], None], queue: deque[Callable[[], None]] | None = None) -> None:
        with self._more:
            (self._work if queue is None else queue).append(work)
            self._more.notify()

    def _changed(self, change: SwitchChange) -> None:
        if change.kind is ChangeKind.lost:
            self._put(lambda: self._lost(change.why or "it cannot be reached"))
        else:
            self._put(self._reconcile)

    # In the thread.

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                _log.exception("switch %r", self.driver.name)
                self._retry_at = self._runtime.monotonic() + RETRY

    def _next(self) -> Callable[[], None] | None:
        with self._more:
            while True:
                if self._work:
                    return self._work.popleft()
                if self._stopping:
                    return self._asked.popleft() if self._asked else None
                now = self._runtime.monotonic()
                if self._retry_at is not None and self._retry_at <= now:
                    self._retry_at = None
                    return self._reconcile
                if self._asked:
                    return self._asked.popleft()
                self._more.wait(None if self._retry_at is None else self._retry_at - now)

    def _install(self, job: Job, generation: Generation) -> None:
        try:
            if self._retry_at is not None and self._down is None:
                self._reconcile()
            with self._changing() as book:
                if not book.wants(generation):
                    return
            if self._down is not None:
                raise SwitchError(f"switch {self.driver.name!r} is down: {self._down}")
            try:
                self.driver.install_job(generation.entry)
            except BaseException:
                self._retry_at = self._runtime.monotonic() + RETRY  # a part may be installed
                raise
            self._installed.add(generation.id)
            self._initialise(generation)
        except SwitchAggError as error:
            _log.warning("job %r: %s", job.name, error)
            with self._changing() as book:
                book.opening_failed(job, generation, error)
        except Exception as error:
            _log.exception("job %r", job.name)
            with self._changing() as book:
                book.opening_failed(job, generation, SwitchError(f"its driver failed: {error!r}"))
        else:
            with self._changing() as book:
                book.opened(job, generation, self._runtime.monotonic())

    def _initialise(self, generation: Generation) -> None:
        for attempt in range(INIT_ATTEMPTS):
            if attempt:
                self._runtime.sleep(INIT_PAUSE)
                generation.ask_again(attempt)
            for echo in self.driver.packets_out(list(generation.pending.values())):
                generation.echoed(echo)
            if not generation.pending:
                return
        raise SwitchError(
            f"{len(generation.pending)} of {generation.entry.slots} slots were not initialised: "
            f"no echo after {INIT_ATTEMPTS} attempts"
        )

    def _remove(self, generation: Generation) -> None:
        if generation.id in self._installed:
            self._installed.discard(generation.id)
            self._cache.pop(generation.id, None)
            self._attempt(lambda: self.driver.remove_job(generation.id))

    def _fence(self, generation: Generation, bits: int) -> None:
        if generation.id in self._installed:
            self._attempt(lambda: self.driver.fence(generation.id, bits))

    def _attempt(self, change: Callable[[], None]) -> None:
        """Makes a change now, or leaves it to the next `reconcile`."""
        if self._down is not None:
            return
        try:
            change()
        except SwitchError as error:
            _log.warning("switch %r: %s", self.driver.name, error)
            self._retry_at = self._runtime.monotonic() + RETRY

    def _reconcile(self) -> None:
        self._retry_at = None
        name = self.driver.name
        try:
            capacity, address = self.driver.capacity, self.driver.address
            with self._changing() as book:
                generations = book.table.on_switch(name)
                book.switch_measured(name, capacity, address)
            found = self.driver.reconcile(
                [generation.entry for generation in generations],
                {generation.id: generation.fenced for generation in generations if generation.fenced},
            )
        except SwitchAggError as error:
            self._lost(str(error))
            self._retry_at = self._runtime.monotonic() + RETRY
            return
        self._installed = set(found.kept)
        self._down = None
        with self._changing() as book:
            book.switch_up(name, found)

    def _lost(self, why: str) -> None:
        self._down = why
        with self._changing() as book:
            book.switch_down(self.driver.name, why)

    def _read_counters(self) -> None:
        self.counters = dict(self.driver.counters())
        self._cache = {job_id: dict(self.driver.job_counters(job_id)) for job_id in list(self._installed)}
        self._cached_at = self._runtime.monotonic()
