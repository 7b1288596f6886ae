"""Runs the job life cycle of `jobs.py` against one switch, for callers in many threads.

One lock guards the book of jobs and the order in which the switch hears of changes: what one call queued has
been done before the next call looks. Opening a job therefore holds the lock for the time that its INIT
packets take.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from switchagg.control.drivers.base import SwitchDriver
from switchagg.control.jobs import (
    Install,
    Job,
    JobBook,
    Member,
    Remove,
    Settle,
)
from switchagg.control.records import JobState, JoinRequest, MemberState
from switchagg.errors import SwitchAggError, SwitchError
from switchagg.planner import SkipPolicy

INIT_ATTEMPTS = 10  # a packet that was lost this often was not lost by accident
INIT_PAUSE = 0.01  # seconds between attempts

_log = logging.getLogger(__name__)


class Controller:
    """Owns the jobs of one switch.

    Args:
        driver: the switch. The controller does not close it.
        words, slots, policy: what jobs get whose ranks ask for nothing; see `JobBook`.
    """

    def __init__(
        self,
        driver: SwitchDriver,
        *,
        words: int | None = None,
        slots: int | None = None,
        policy: SkipPolicy | None = None,
    ) -> None:
        self.driver = driver
        self._book = JobBook(driver.capacity, words=words, slots=slots, policy=policy)
        self._lock = threading.Lock()
        self._wake: dict[Member, Callable[[], None]] = {}

    def join(self, name: str, request: JoinRequest, wake: Callable[[], None]) -> Member:
        """Enters a rank. `wake` is called once, from any thread, when its admission or refusal is there.

        Raises `AdmissionError` where it is refused at once.
        """
        with self._lock:
            member = self._book.join(name, request, time.monotonic())
            self._wake[member] = wake
            self._act()
            return member

    def expire(self) -> None:
        """Refuses the joins whose time is up."""
        with self._lock:
            self._book.expire(time.monotonic())
            self._act()

    def leave(self, name: str, rank: int, token: int) -> None:
        """A rank is done. Raises `AdmissionError` for an unknown rank or a wrong token."""
        with self._lock:
            self._book.leave(name, rank, token)
            self._act()

    def lost(self, member: Member) -> None:
        """The connection of a member has closed."""
        with self._lock:
            self._wake.pop(member, None)
            self._book.lost(member)
            self._act()

    @property
    def busy(self) -> bool:
        """Whether there is a job whose ranks have been admitted and have not all left."""
        with self._lock:
            return any(job.entry is not None for job in self._book.jobs())

    def close(self) -> None:
        """Refuses whoever waits and ends all jobs."""
        with self._lock:
            self._book.close()
            self._act()

    # What people look at. Everything returned is made of JSON's types, and holds no token.

    def jobs(self) -> list[dict[str, Any]]:
        """Returns every job that has not ended."""
        with self._lock:
            return [_describe(job) for job in self._book.jobs()]

    def job(self, name: str, job_id: int | None = None) -> dict[str, Any] | None:
        """Returns the newest job of that name, or the one with this id; None where there is none."""
        with self._lock:
            job = self._book.find(name, job_id)
            return None if job is None else _describe(job)

    def slots(self) -> dict[str, Any]:
        """Returns who has which slots."""
        with self._lock:
            allocator = self._book.allocator
            return {
                "capacity": allocator.capacity,
                "free": allocator.free_slots,
                "largest_free": allocator.largest_free,
                "memory": self._book.capacity.memory,
                "memory_used": self._book.memory_used,
                "max_words": self._book.capacity.words,
                "ranges": [_range(job) for job in self._book.jobs() if job.entry is not None],
            }

    def waiting_slots(self, name: str) -> dict[str, Any] | None:
        """Returns the slots of a job that wait for some ranks; None where there is no such job.

        Of a job that hangs this says whose packets are not there. `slots` is None where the switch does not
        show them.
        """
        with self._lock:
            job = self._book.find(name)
            if job is None:
                return None
            entry = job.entry
            if entry is None:
                return {"job": name, "slots": []}
            full = (1 << job.world_size) - 1
            waiting = []
            for index in range(entry.base, entry.base + entry.slots):
                state = self.driver.slot(index)
                if state is None:
                    return {"job": name, "slots": None}
                if state.seen & full != full:
                    waiting.append(
                        {
                            "slot": index,
                            "seq": state.seq,
                            "filled": state.filled,
                            "seen": [rank for rank in range(job.world_size) if state.seen >> rank & 1],
                            "missing": [rank for rank in range(job.world_size) if not state.seen >> rank & 1],
                        }
                    )
            return {"job": name, "slots": waiting}

    def stats(self) -> dict[str, Any]:
        """Returns the counters of the switch and of every open job."""
        with self._lock:
            return {
                "switch": dict(self.driver.counters()),
                "jobs": [
                    {"name": job.name, "id": job.id, "counters": dict(self.driver.job_counters(job.id))}
                    for job in self._book.jobs()
                    if job.entry is not None
                ],
            }

    # Carrying out what the book asks for. With the lock held.

    def _act(self) -> None:
        while actions := self._book.poll():
            for action in actions:
                match action:
                    case Install(job):
                        self._open(job)
                    case Remove(job):
                        self._remove(job)
                    case Settle(member):
                        if wake := self._wake.pop(member, None):
                            wake()

    def _open(self, job: Job) -> None:
        if job.entry is None or job.state is not JobState.opening:
            return
        try:
            self.driver.install_job(job.entry)
            for attempt in range(INIT_ATTEMPTS):
                if attempt:
                    time.sleep(INIT_PAUSE)
                for echo in self.driver.packets_out(job.pending_inits()):
                    job.echoed(echo)
                if not job.pending_inits():
                    break
            else:
                raise SwitchError(
                    f"{len(job.pending_inits())} of {job.entry.slots} slots were not initialised: "
                    f"no echo after {INIT_ATTEMPTS} attempts"
                )
        except SwitchAggError as error:
            _log.warning("job %r: %s", job.name, error)
            self._book.opening_failed(job, error)
        else:
            self._book.opened(job)

    def _remove(self, job: Job) -> None:
        try:
            self.driver.remove_job(job.id)
        except SwitchAggError as error:
            # It was never there, or the switch is gone; in both cases there is nothing left to free.
            _log.warning("removing job %r (id %d): %s", job.name, job.id, error)


def _describe(job: Job) -> dict[str, Any]:
    return {
        "name": job.name,
        "id": job.id or None,
        "state": job.state.value,
        "world_size": job.world_size,
        "members": [
            {
                "rank": rank,
                "state": member.state.value,
                "address": member.request.address,
                "port": member.request.port,
            }
            for rank, member in sorted(job.members.items())
        ],
        "missing": job.missing,
        "lost": job.ranks(MemberState.lost),
        "base": None if job.entry is None else job.entry.base,
        "slots": job.slots,
        "words": job.words,
        "age": round(time.monotonic() - job.created, 3),
    }


def _range(job: Job) -> dict[str, Any]:
    assert job.entry is not None
    return {
        "base": job.entry.base,
        "slots": job.entry.slots,
        "words": job.entry.words,
        "job": job.id,
        "name": job.name,
    }
