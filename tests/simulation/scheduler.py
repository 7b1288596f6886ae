"""Processes and threads in virtual time.

A thread is a greenlet: it goes on until it waits, and never at the same time as another. Time passes only
while all wait: then the network goes on, up to the next timer or until an engine has news. So the order of
everything follows from the seed.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

from tests.simulation.library import library

SECOND: Final = 1_000_000_000
UNIX: Final = 1_800_000_000.0  # at virtual time 0
_MOST_TURNS: Final = 200_000  # of threads and the network, in one run; hundreds are usual
Waiters = list[tuple["Thread", int]]


class Endless(Exception):
    """Threads go on and on."""


class Thread:
    """One thread of a process; has the methods of `threading.Thread` that the product uses."""

    def __init__(self, process: Process, program: Callable[[], None], name: str) -> None:
        self.process, self.name = process, name
        self._program = program
        self._started = self._ended = False
        self._over: Waiters = []
        self.ticket = 0  # of its present wait; earlier ones are over
        self.greenlet = greenlet(self._run, process.scheduler.hub)

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"

    def start(self) -> None:
        self.process.check()
        self._started = True
        self.process.threads.append(self)
        self.process.scheduler.ready.append((self, True))

    def is_alive(self) -> bool:
        return self._started and not self._ended

    def join(self, timeout: float | None = None) -> None:
        scheduler = self.process.scheduler
        until = None if timeout is None else scheduler.after(timeout)
        while self.is_alive() and not scheduler.expired(until):
            scheduler.block(self._over, until)

    def _run(self, _: object = None) -> None:
        try:
            self._program()
        except GreenletExit:
            pass
        except Exception as error:
            if not self.process.dead:
                self.process.scheduler.errors.append((f"{self}", error))
        finally:
            self._ended = True
            self.process.scheduler.wake(self._over)


class Process:
    """A process at a host: its threads, its random numbers, and its `switchagg.runtime.Runtime`."""

    def __init__(self, scheduler: Scheduler, name: str, host: int) -> None:
        self.scheduler, self.name, self.host = scheduler, name, host
        self.threads: list[Thread] = []
        self.dead = False
        self.stopped_until = 0
        self.random = random.Random(f"{scheduler.seed} {name}")
        self.at_end: list[Callable[[], None]] = []  # as a kernel does: sockets are closed

    def check(self) -> None:
        """Ends the calling thread if its process has ended."""
        if self.dead:
            raise GreenletExit

    def kill(self) -> None:
        """Ends the process at once: no thread of it does anything any more."""
        if self.dead:
            return
        self.dead = True
        for each in self.at_end:
            each()
        threads, self.threads = self.threads, []
        for thread in threads:
            if thread.greenlet is not getcurrent() and not thread.greenlet.dead:
                thread.ticket += 1
                # From the hub: a thread that ends goes back there.
                thread.greenlet.throw(GreenletExit)
        if getcurrent() in [thread.greenlet for thread in threads]:
            raise GreenletExit

    def run(self, program: Callable[[], None], name: str) -> Thread:
        """Starts a thread."""
        thread = Thread(self, program, name)
        thread.start()
        return thread

    # The runtime.

    def monotonic(self) -> float:
        return self.scheduler.now / SECOND

    def unix(self) -> float:
        return UNIX + self.scheduler.now / SECOND

    def sleep(self, seconds: float) -> None:
        self.check()
        until = self.scheduler.after(seconds)
        while not self.scheduler.expired(until):
            self.scheduler.block(None, until)

    def thread(self, program: Callable[[], None], name: str) -> Thread:
        return Thread(self, program, name)

    def current_thread(self) -> Thread | None:
        return self.scheduler.current

    def event(self) -> Event:
        return Event(self.scheduler)

    def condition(self, lock: Any = None) -> Condition:
        return Condition(self.scheduler, lock)

    def wake_up(self) -> WakeUp:
        return WakeUp(self.scheduler)

    def random_bits(self, bits: int) -> int:
        return self.random.getrandbits(bits)

    def random_bytes(self, count: int) -> bytes:
        return self.random.randbytes(count)


class Event:
    """As `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiters: Waiters = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._scheduler.wake(self._waiters)

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else self._scheduler.after(timeout)
        while not self._set and not self._scheduler.expired(until):
            self._scheduler.block(self._waiters, until)
        return self._set


class Condition:
    """As `threading.Condition`, of threads that run one at a time."""

    def __init__(self, scheduler: Scheduler, lock: Any = None) -> None:
        self._scheduler = scheduler
        self._lock = threading.RLock() if lock is None else lock
        self._waiters: Waiters = []

    def __enter__(self) -> None:
        assert self._lock.acquire(blocking=False), "a thread waits while it holds a lock"

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            until = None if timeout is None else self._scheduler.after(timeout)
            return self._scheduler.block(self._waiters, until)
        finally:
            assert self._lock.acquire(blocking=False), "a thread waits while it holds a lock"

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._scheduler.now / SECOND + timeout
        while not predicate():
            left = None if until is None else until - self._scheduler.now / SECOND
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify(self) -> None:
        self._scheduler.wake(self._waiters, 1)

    def notify_all(self) -> None:
        self._scheduler.wake(self._waiters)


class WakeUp:
    """As `switchagg.runtime.WakeUp`; engines find it by its descriptor."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._event = Event(scheduler)
        self.descriptor = scheduler.next_number()
        scheduler.wake_ups[self.descriptor] = self
        self._wake_ups = scheduler.wake_ups

    def set(self) -> None:
        self._event.set()

    def wait(self) -> None:
        self._event.wait()
        self._event._set = False

    def close(self) -> None:
        self._wake_ups.pop(self.descriptor, None)


class Scheduler:
    """Runs the threads of all processes, and the network while they wait.

    Attributes:
        now: nanoseconds.
        errors: exceptions that ended threads, which is always wrong.
        on_news: called with the host of an engine that has news.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.hub = getcurrent()
        self.ready: deque[tuple[Thread, bool]] = deque()
        self.current: Thread | None = None
        self.now = int(library.system_now())
        self.errors: list[tuple[str, Exception]] = []
        self.on_news: Callable[[int], None] = lambda _: None
        self.wake_ups: dict[int, WakeUp] = {}
        self.switches = 0
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._turns = 0
        self._last: Thread | None = None

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def after(self, seconds: float) -> int:
        """Returns when so long has passed: later than now, or what is left of a wait might never pass."""
        return self.now + (max(1, round(min(seconds, 1e9) * SECOND)) if seconds > 0 else 0)

    def expired(self, until: int | None) -> bool:
        return until is not None and self.now >= until

    def at(self, time: int, call: Callable[[], None]) -> None:
        """Calls a function, which does not wait, at a time."""
        heapq.heappush(self._timers, (time, self.next_number(), call))

    def block(self, waiters: Waiters | None, until: int | None) -> bool:
        """The calling thread waits until it is woken, or for so long. Returns False after that time."""
        thread = self.current
        assert thread is not None, "only threads wait"
        thread.process.check()
        thread.ticket += 1
        if waiters is not None:
            waiters.append((thread, thread.ticket))
        if until is not None:
            self.at(until, partial(self._wake, thread, thread.ticket, False))
        woken = self.hub.switch()
        thread.process.check()
        return bool(woken)

    def wake(self, waiters: Waiters, most: int | None = None) -> None:
        """Wakes threads in the order in which they began to wait."""
        while waiters and most != 0:
            if self._wake(*waiters.pop(0), True) and most is not None:
                most -= 1

    def _wake(self, thread: Thread, ticket: int, woken: bool) -> bool:
        if thread.ticket != ticket or thread.process.dead:
            return False
        thread.ticket += 1
        self.ready.append((thread, woken))
        return True

    def run(self, until: int, done: Callable[[], bool]) -> None:
        """Goes on until a time, or until `done`, which is asked after every event.

        Raises:
            Endless: threads go on and on, with less and less time between.
        """
        while not done() and self.now < until:
            self._count_turn()
            while self.ready:
                self._count_turn()
                self._resume(*self.ready.popleft())
            if self.errors:
                return
            timer = self._timers[0][0] if self._timers else until
            if timer > self.now:
                host = library.run(min(timer, until))
                self.now = int(library.system_now())
                if host is not None:
                    self.on_news(host)
                    continue
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()

    def _count_turn(self) -> None:
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise Endless(f"no end at {self.now / SECOND:.9f} s of virtual time: {self._last} goes on and on")

    def _resume(self, thread: Thread, woken: bool) -> None:
        process = thread.process
        if process.dead or thread.greenlet.dead:
            return
        if process.stopped_until > self.now:
            self.at(process.stopped_until, lambda: self.ready.append((thread, woken)))
            return
        self.switches += 1
        self.current = self._last = thread
        try:
            thread.greenlet.switch(woken)
        finally:
            self.current = None
