"""Runs the jobs, strikes their processes, and finds what is wrong. One thread, one loop.

    start sites and ranks --> all jobs work --> faults until the time is up --> all jobs work again
                                                                       --> ranks end, nothing is left

A fault's *pause* is the time from its begin until every rank of its site's jobs has completed a collective of
all ranks that it began after the fault.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from switchagg.chaos.faults import Deck, Draw, Kind
from switchagg.chaos.kernel import FullDisk, SocketFilter, lose
from switchagg.chaos.results import Results
from switchagg.chaos.site import Member, Site, environment
from switchagg.chaos.worker import Task
from switchagg.control.client import ControllerClient
from switchagg.errors import SwitchAggError
from switchagg.launch.processes import ONE_THREAD, Child, Ended, Line, ProcessError, Processes, ending

TIMEOUT: Final = 5.0  # of collectives and joins, seconds
DEADLINE: Final = 2.0  # of silent ranks
GRACE: Final = 15.0  # past TIMEOUT, until a rank without a word hangs: many processes share few cores
RECOVERY: Final = 60.0  # seconds for all jobs to work: at first, and after the last fault
_START: Final = 30.0  # for a switch or controller to serve
_END: Final = 15.0  # for ranks to leave, and for their slots to be free
_TICK: Final = 0.2
_RESTART: Final = 0.2  # seconds until a controller whose disk was full is tried again
_MARK: Final = "SWITCHAGG_CHAOS"  # in the environment of all that is started
_KINDS_OF_JOBS: Final = (
    ("float32", 32, "fail", "udp"),
    ("int32", 32, "shrink", "udp"),
    ("float32", "exact", "shrink", "auto"),
    ("float64", 64, "fail", "auto"),
)


@dataclass(eq=False)
class Job:
    """A job: name, site, and its ranks' processes.

    Attributes:
        task: what its ranks add.
        on_loss, transport: of `worker_lib.connect`.
        ranks: by number.
    """

    name: str
    site: Site
    task: Task
    on_loss: str
    transport: str
    ranks: list[RankProcess] = field(default_factory=list)


@dataclass(eq=False)
class RankProcess(Member):
    """The process of a rank, and the ones that came after it.

    Attributes:
        lives: processes so far.
        heard: the time of its last line, or at which its silence began to count.
        last: its last error.
    """

    job: Job | None = None
    place: int = 0
    lives: int = 0
    heard: float = 0.0
    last: str = ""


@dataclass(eq=False)
class Fault:
    """A fault that has struck.

    Attributes:
        draw: what was drawn.
        target: the process.
        began: its time; `ended` is None while it lasts.
        waiting: ranks that have not worked since.
        pause: seconds until all had; None until then.
        errors: of ranks of its site meanwhile.
    """

    draw: Draw
    site: Site
    target: Member
    began: float
    waiting: set[RankProcess]
    ended: float | None = None
    pause: float | None = None
    last: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass
class Outcome:
    """The outcome of a run.

    Attributes:
        faults: in order.
        collectives: results that were checked, over all ranks.
        joins: that succeeded.
        errors: of ranks, by type.
        texts: of these errors, without their numbers.
        slowest: the longest call that ended in an error: seconds, and its text.
        wrong: a sentence for each thing that is wrong.
    """

    faults: list[Fault] = field(default_factory=list)
    collectives: int = 0
    joins: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    wrong: list[str] = field(default_factory=list)


class Chaos:
    """A run: its sites, jobs and faults.

    Args:
        sites: where jobs run, by turns.
        jobs, workers: how many jobs, and ranks of each.
        kinds: of faults, each with a target here.
        seed: of all that is random.
        say: takes a line for the user who watches.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        *,
        jobs: int,
        workers: int,
        kinds: Sequence[Kind],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.outcome = Outcome()
        self._sites, self._say = sites, say
        self._rng = Random(f"{seed} faults")
        self._deck = Deck(kinds, self._rng)
        self._jobs = []
        for number in range(jobs):
            dtype, bits, on_loss, transport = _KINDS_OF_JOBS[number % len(_KINDS_OF_JOBS)]
            elements = Random(f"{seed} job {number}").choice((300, 5_000, 40_000))
            task = Task(dtype, bits, elements, workers, seed + number)
            job = Job(f"chaos-{number}", sites[number % len(sites)], task, on_loss, transport)
            job.ranks = [
                RankProcess(f"{job.name} rank {rank}", job=job, place=rank) for rank in range(workers)
            ]
            self._jobs.append(job)
        self._members: dict[Child, Member] = {}
        self._results = Results()
        self._open: list[Fault] = []
        self._watch: Fault | None = None  # no fault: a wait for all jobs
        self._free: dict[str, dict[str, Any]] = {}  # slots of each site before the first job
        self._processes = Processes()
        self._mark = uuid.uuid4().hex
        self._begin = time.monotonic()
        self._stopping = False

    # ------------------------------------------------------------------ the run

    def run(self, seconds: float) -> Outcome:
        """Runs for so many seconds, and some more to start, recover and end.

        Raises:
            ProcessError: a switch or controller did not start.
        """
        try:
            self._start()
            if self._await_all("at first"):
                self._strike_until(time.monotonic() + seconds)
                self._await_all("after the last fault")
            self._end()
        finally:
            for fault in self._open:
                self._undo(fault)
            self._processes.close()
            self._look_for_processes()
        return self.outcome

    def _start(self) -> None:
        for site in self._sites:
            for member in site.members:
                self._launch(member)
                until = time.monotonic() + _START
                while member not in site.ready:
                    self._step(until)
                    if time.monotonic() > until or member.child is None:
                        raise ProcessError(f"{member.name} did not start within {_START:g} s")
        self._free = {site.name: ControllerClient(site.url).slots() for site in self._sites}
        for job in self._jobs:
            for rank in job.ranks:
                self._launch(rank)

    def _await_all(self, when: str) -> bool:
        """Waits until all jobs work, with everything undone. Returns whether they do."""
        began = time.monotonic()
        waiting = {rank for job in self._jobs for rank in job.ranks}
        watch = self._watch = Fault(_NO_FAULT, self._sites[0], self._sites[0].controller, began, waiting)
        while watch.waiting and time.monotonic() < began + RECOVERY:
            self._step(time.monotonic() + _TICK)
        self._watch = None
        if watch.waiting:
            for rank in sorted(watch.waiting, key=lambda each: each.name):
                state = "runs" if rank.child is not None else "has ended"
                last = f"; its last error: {rank.last}" if rank.last else ""
                self._wrong(f"{rank.name} ({state}) does not work {RECOVERY:g} s long {when}{last}")
        return not watch.waiting

    def _strike_until(self, end: float) -> None:
        follow: Draw | None = None
        due = time.monotonic()
        while (now := time.monotonic()) < end and not self.outcome.wrong:
            if follow is None:
                follow, due = self._deck.draw(), max(now, due)
                due = now + follow.rest
            if now >= due and (follow.overlap or not self._open):
                self._strike(follow, end)
                follow = None
            self._step(min(end, time.monotonic() + _TICK / 4))
        for fault in list(self._open):
            self._undo(fault)

    def _end(self) -> None:
        """Ends the ranks and looks at what they leave behind."""
        self._stopping = True
        until = time.monotonic() + _END
        for rank in (rank for job in self._jobs for rank in job.ranks):
            if rank.child is not None:
                _signal(rank.child, signal.SIGTERM)
        while any(rank.child is not None for job in self._jobs for rank in job.ranks):
            if time.monotonic() > until:
                self._wrong("ranks do not end after SIGTERM")
                return
            self._step(until)
        for site in self._sites:
            self._look_for_jobs(site)

    def _look_for_jobs(self, site: Site) -> None:
        until = time.monotonic() + _END
        while True:
            try:
                client = ControllerClient(site.url)
                jobs, slots = client.jobs(), client.slots()
                found = [f"job {job['name']} ({job['state']}) is still there" for job in jobs]
                if slots != self._free[site.name]:
                    found.append(f"slots were {self._free[site.name]}, and are {slots}")
            except SwitchAggError as error:
                found = [str(error)]
            if not found:
                return
            if time.monotonic() > until:
                for text in found:
                    self._wrong(f"{site.name}, {_END:g} s after the last rank: {text}")
                return
            self._step(time.monotonic() + _TICK)

    def _look_for_processes(self) -> None:
        mark = f"{_MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        self._wrong(f"process {entry.name} is left: {(entry / 'cmdline').read_bytes()!r}")

    # ------------------------------------------------------------------ processes

    def _launch(self, member: Member) -> None:
        if not isinstance(member, RankProcess):
            site = next(site for site in self._sites if member in site.members)
            child = site.start(member, self._processes, {_MARK: self._mark})
        else:
            job = member.job
            assert job is not None
            member.lives += 1
            member.heard, member.due, member.stopped = time.monotonic(), None, False
            given = {
                "task": asdict(job.task),
                "first": member.lives << 24,
                "connect": {
                    "controller": job.site.url,
                    "job": job.name,
                    "rank": member.place,
                    "world_size": job.task.world_size,
                    "on_loss": job.on_loss,
                    "transport": job.transport,
                    "timeout": TIMEOUT,
                    "deadline": DEADLINE,
                },
            }
            line = [sys.executable, "-P", "-m", "switchagg.chaos.worker", json.dumps(given)]
            environ = environment() | ONE_THREAD | {_MARK: self._mark}
            child = member.child = self._processes.start(member.name, line, environment=environ)
        self._members[child] = member

    def _step(self, until: float) -> None:
        """Waits a tick at most, and acts on what has happened and what is due."""
        for event in self._processes.poll(max(0.0, min(_TICK, until - time.monotonic()))):
            match event:
                case Line(child, text):
                    self._line(child, text)
                case Ended(child):
                    self._ended(child)
        now = time.monotonic()
        for fault in list(self._open):
            if fault.ended is None and now >= fault.began + fault.draw.seconds:
                self._undo(fault)
        for member in self._all_members():
            if member.child is None and member.due is not None and now >= member.due and not self._stopping:
                self._launch(member)
        for rank in (rank for job in self._jobs for rank in job.ranks):
            silence = now - rank.heard
            if rank.child is not None and not rank.stopped and silence > TIMEOUT + GRACE:
                self._hangs(rank, silence)

    def _all_members(self) -> list[Member]:
        ranks: list[Member] = [rank for job in self._jobs for rank in job.ranks]
        return [member for site in self._sites for member in site.members] + ranks

    def _hangs(self, rank: RankProcess, silence: float) -> None:
        assert rank.child is not None
        _signal(rank.child, signal.SIGUSR1)
        self._processes.wait(0.5)
        self._wrong(
            f"{rank.name} has said nothing for {silence:.1f} s; it is at\n{rank.child.last_lines(40, 4000)}"
        )
        rank.heard = time.monotonic()

    def _ended(self, child: Child) -> None:
        member = self._members.pop(child)
        if member.child is child:
            member.child = None
        how = child.ending(6, 2000)
        status = child.status
        assert status is not None
        self._processes.forget(child)
        if member.due is not None or self._stopping:
            return
        if member.full is not None or (member.struck and status > 0 and not isinstance(member, RankProcess)):
            member.due = time.monotonic() + _RESTART  # it may start only when the disk has room again
            return
        self._wrong(f"{member.name} {ending(status)} by itself: {how}")
        member.due = time.monotonic() + _RESTART

    # ------------------------------------------------------------------ lines of the ranks

    def _line(self, child: Child, text: str) -> None:
        member = self._members.get(child)
        if not isinstance(member, RankProcess):
            for site in self._sites:
                if member is not None and member in site.members:
                    site.heard(member, text)
            return
        member.heard = time.monotonic()
        said = json.loads(text)
        job, outcome = member.job, self.outcome
        assert job is not None
        match said["kind"]:
            case "joined":
                outcome.joins += 1
            case "done":
                for began, ended, calls, checksum in said["collectives"]:
                    self._done(member, job, began, ended, calls, checksum)
            case "wrong":
                self._wrong(f"{member.name}, call {said['call']}: {said['text']}")
            case "error":
                member.last = f"{said['doing']}: {said['error']}: {said['text']}"
                if self._stopping:
                    return
                outcome.errors[said["error"]] += 1
                outcome.texts[re.sub(r"\d+(\.\d+)?", "N", member.last)] += 1
                outcome.slowest = max(outcome.slowest, (said["seconds"], member.last))
                for fault in self._open:
                    if fault.site is job.site:
                        fault.errors[said["error"]] += 1

    def _done(
        self, rank: RankProcess, job: Job, began: float, ended: float, calls: list[int], checksum: int
    ) -> None:
        self.outcome.collectives += 1
        if found := self._results.add(job.name, rank.place, calls, checksum):
            self._wrong(found)
        if not all(calls):
            return
        watched = self._open if self._watch is None else [*self._open, self._watch]
        for fault in watched:
            if rank in fault.waiting and began > fault.began:
                fault.waiting.discard(rank)
                fault.last = max(fault.last, ended)
        for fault in list(self._open):
            self._close(fault)

    # ------------------------------------------------------------------ faults

    def _strike(self, draw: Draw, end: float) -> None:
        kind = draw.kind
        choice = self._choices(kind)
        if not choice:
            return
        site, target = choice[int(draw.lot * len(choice))]
        child = target.child
        assert child is not None
        now = time.monotonic()
        waiting = {rank for job in self._jobs if job.site is site for rank in job.ranks}
        fault = Fault(draw, site, target, now, waiting)
        match kind.means:
            case "kill":
                target.due = min(end, now + draw.seconds)
                _signal(child, signal.SIGKILL)
            case "stop":
                target.stopped = True
                _signal(child, signal.SIGSTOP)
            case "lose":
                try:
                    target.filters.append(SocketFilter(child.pid, lose(draw.loss)))
                except OSError as error:
                    self._say(f"{kind.text}: left out, {error.strerror}")
                    return
            case "fill":
                target.full = FullDisk(site.folder)
        target.struck += 1
        self._open.append(fault)
        self.outcome.faults.append(fault)
        share = f", {draw.loss:.0%} of the packets" if kind.loss != (1.0, 1.0) else ""
        self._say(f"{now - self._begin:6.1f} s  {kind.text}: {target.name}, {draw.seconds:.1f} s{share}")

    def _choices(self, kind: Kind) -> list[tuple[Site, Member]]:
        """Returns the processes that run, that a fault may strike, and that none strikes already."""
        found: list[tuple[Site, Member]] = []
        for site in self._sites:
            if kind.target == "switch" and site.switch is not None:
                found.append((site, site.switch))
            elif (kind.target == "controller" and site.separate) or (
                kind.target == "host" and not site.separate
            ):
                found.append((site, site.controller))
        if kind.target == "worker":
            found = [
                (job.site, rank)
                for job in self._jobs
                if kind.means != "lose" or job.transport == "udp"
                for rank in job.ranks
            ]
        return [
            (site, each)
            for site, each in found
            if each.child is not None
            and not each.struck
            and (isinstance(each, RankProcess) or each in site.ready)
        ]

    def _undo(self, fault: Fault) -> None:
        """Ends a fault. Safe to call twice."""
        if fault.ended is not None:
            return
        target = fault.target
        fault.ended = time.monotonic()
        match fault.draw.kind.means:
            case "stop":
                target.stopped = False
                if isinstance(target, RankProcess):
                    target.heard = fault.ended
                if target.child is not None:
                    _signal(target.child, signal.SIGCONT)
            case "lose":
                while target.filters:
                    target.filters.pop().remove()
            case "fill":
                assert target.full is not None
                target.full.remove()
                target.full = None
        target.struck -= 1
        self._close(fault)

    def _close(self, fault: Fault) -> None:
        """Takes a fault off the list once it has ended and all work again."""
        if fault.ended is not None and not fault.waiting:
            fault.pause = max(0.0, fault.last - fault.began)
            self._open.remove(fault)

    def _wrong(self, text: str) -> None:
        self.outcome.wrong.append(f"at {time.monotonic() - self._begin:.1f} s: {text}")


_NO_FAULT: Final = Draw(Kind("none", "none", "worker", "stop", (0.0, 0.0)), 0.0, 0.0, 1.0, 0.0, False)


def _signal(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.pidfd, number)
