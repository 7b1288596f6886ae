"""The state of one session: its ranks, its engine, and the reason why it cannot be used any more, if any.

`Session` (the collectives) and `Work` (waiting) share one. `worker_lib/monitor.py` tells it of other ranks.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from switchagg.errors import SessionBrokenError, SwitchAggError, WorkerLostError
from switchagg.rules.planner import SkipPolicy
from switchagg.runtime import SYSTEM
from worker_lib import _native
from worker_lib.membership import Loss
from worker_lib.monitor import MembershipMonitor
from worker_lib.secret import Secret
from worker_lib.timeline import STATUSES, Timeline

# Statuses of a `_native.Collective`.
PENDING, DONE, MISMATCH, TIMEOUT, ABORTED, LOST, MOVED, DAMAGED = range(8)
NO_ANSWER: Final = "the controller does not answer either"
_ASK_TIMEOUT: Final = 3.0  # seconds for asking the controller who is missing, after a timeout
_PROBE_SECONDS: Final = 0.5  # for a small packet's answer
SLICE_NS: Final = 50_000_000  # how often a waiting thread looks for signals
_LEAVE_SECONDS: Final = 5.0  # at most, for other threads to come out of the engine
_TOLD: Final = 4  # of a session's last collectives, in the notes of an error

Begun = tuple[_native.Collective, _native.KnownCall]


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One of a session's last collectives, for a look back.

    Attributes:
        generation: the membership that it belongs to; counts from 0.
        number: of the call in that generation, from 0: the same at all ranks.
        call: "allreduce(float32, shape (10,), sum, 32 bits)".
        status: one of `worker_lib.timeline.STATUSES`.
        called: seconds since the epoch.
        seconds: that it took, or has taken so far.
        packets, results: packet numbers assigned so far, and RESULTs that have come for them.
    """

    generation: int
    number: int
    call: str
    status: str
    called: float
    seconds: float
    packets: int
    results: int

    def __str__(self) -> str:
        what = f"#{self.number} {self.call}: {self.status}"
        if self.status == "done":
            return f"{what} after {self.seconds:.3g} s"
        return f"{what} after {self.seconds:.3g} s with {self.results} of {self.packets or '?'} results"


class SessionState:
    """The state of a session.

    Args:
        rank, world_size: at first.
        engine, monitor: None in a group that was made of one.
        policy: the skip policy at admission.
        timeout: seconds that a collective may take unless the call says otherwise.
        name: of the job.
        secret: of sealed sums, which `close` wipes; none, or an empty one, if they are not.
        timeline: takes all collectives; None: nobody does.

    Attributes:
        sealed: sums are.
        rank, world_size, places: of `generation`; see `Session`.
        generation: the engine's number of the present membership.
        admitted: the skip policy that the ranks of this generation were admitted with.
        broken: the reason why no call is possible any more; None while calls are.
        groups_made: number of `Session.group` calls in this generation.
        caller: of the engine, if there is one.
        quick: the same, where no timeline has to see each call.
        known_calls: the engine's calls of sums in this generation, by what they depend on.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        engine: _native.Engine | None,
        monitor: MembershipMonitor | None,
        policy: SkipPolicy,
        timeout: float,
        name: str,
        secret: Secret | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.places = tuple(range(world_size)) if monitor is None else monitor.generations[0].places
        self.timeout = timeout
        self.name = name
        self.sealed = bool(secret)
        self._secret = secret
        self.admitted = policy
        self.engine = engine
        self.monitor = monitor
        self.timeline = timeline
        self.runtime = SYSTEM if monitor is None else monitor.runtime
        self.generation = 0
        self.broken: str | None = None
        self.closed = False
        self.groups_made = 0
        self.caller = None if engine is None else _native.Caller(engine, SLICE_NS)
        self.quick = self.caller if timeline is None else None
        self.known_calls: dict[Any, _native.KnownCall] = {} if self.caller is None else self.caller.known
        self.pid = os.getpid()
        self._made_in = id(sys.exc_info()[1])  # the exception that was being handled then
        self._pending: deque[tuple[_native.Collective, object]] = deque()  # in the order of calls
        self._lock = threading.Lock() if monitor is None else monitor.lock
        # Threads in the engine. A thread enters itself first and then looks at `closed`; close() sets that
        # first and then looks here.
        self._threads: set[int] = set()
        if monitor is not None:
            weakref.finalize(self, monitor.drop).atexit = False
        if timeline is not None:
            weakref.finalize(self, timeline.close).atexit = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"broken: {self.broken}" if self.broken else "open"
        return f"<worker_lib.Session {self.name!r} rank {self.rank} of {self.world_size}, {state}>"

    # ------------------------------------------------------------------ calls

    def check_open(self) -> None:
        """Before every call: takes over the present membership.

        Raises:
            SessionBrokenError: the session is closed, broken, or another process's.
            WorkerLostError: a rank was lost, and the caller has not been told yet.
            SwitchError: the switch or the controller ended the session.
        """
        if self.pid != os.getpid():
            raise SessionBrokenError(
                f"this session belongs to process {self.pid}; a forked child (here {os.getpid()}) must "
                "connect() itself"
            )
        if self.closed:
            raise SessionBrokenError("this session is closed; connect again")
        if self.broken is not None:
            raise SessionBrokenError(f"this session is broken ({self.broken}); connect again")
        monitor = self.monitor
        if monitor is None or self.engine is None:
            return
        if monitor.over is not None:
            raise self.over_error("this call")
        if monitor.owed is not None:
            raise self.loss_error(monitor.owed, "this call")
        if self.engine.generation != self.generation:
            self.adopt(self.engine.generation)

    def submit(
        self,
        call: _native.Call,
        seconds: float,
        generation: int,
        *,
        background: bool,
        lazy: bool,
        keep: object,
        called: Callable[[], str],
    ) -> _native.Collective | None:
        """Hands a call to the engine; None where the membership is not that of `generation` any more.

        `keep` lives until a collective in the background has ended, whether anybody waits or not. `called`
        names the call in records.
        """
        assert self.engine is not None
        assert self.caller is not None
        me = threading.get_ident()
        with self._lock:
            self._threads.add(me)
            try:
                if self.closed:
                    self.check_open()
                if self.monitor is not None and self.monitor.owed is not None:
                    return None
                nanoseconds = int(min(seconds, 1e9) * 1e9)
                native = self.engine.submit(call, nanoseconds, background and not lazy, generation)
            finally:
                self._threads.discard(me)
            if native is not None:
                self.caller.note(called, native)
                if background:
                    self._pending.append((native, keep))
                if self.timeline is not None:
                    self.timeline.add(native, called, background=background)
        if self.timeline is not None:
            self.timeline.write()
        self.forget_done()
        return native

    def interrupted(self, begun: list[Begun], error: BaseException) -> None:
        """Breaks the session if `Caller` began a collective: its tensors may go with its caller."""
        if begun and self.broken is None:
            self.break_off(f"{begun[0][1].called()} was interrupted by {type(error).__name__}")

    def forget_done(self) -> None:
        """Lets go of the tensors of collectives that nobody waited for."""
        done = []  # let go without the lock
        if self._pending:
            with self._lock:
                while self._pending and self._pending[0][0].status != PENDING:
                    done.append(self._pending.popleft())

    def enter_engine(self) -> None:
        """This thread goes into the engine; `close` waits until it has called `leave_engine`."""
        self._threads.add(threading.get_ident())

    def leave_engine(self) -> None:
        """The reverse of `enter_engine`."""
        self._threads.discard(threading.get_ident())

    def adopt(self, generation: int) -> None:
        """Takes over the membership of a newer generation. Only inside calls: between two calls, rank and
        world_size stay as they are."""
        with self._lock:
            self._adopt(generation)

    def _adopt(self, generation: int) -> None:
        assert self.monitor is not None
        if generation <= self.generation:
            return
        now = self.monitor.generations[generation]
        self.rank, self.world_size, self.places = now.rank, now.world_size, now.places
        self.admitted = self.monitor.policies[generation]
        self.groups_made = 0
        self.known_calls.clear()
        self.generation = generation  # last: other threads look at it without the lock, and then at the rest

    # ------------------------------------------------------------------ errors and the end

    def loss_error(self, loss: Loss, doing: str) -> WorkerLostError:
        """The error about a loss; after it the caller knows, and calls belong to the new generation."""
        assert self.monitor is not None
        assert self.engine is not None
        with self._lock:
            if self.monitor.owed is loss:
                self.monitor.owed = None
            if self.monitor.owed is None:
                self._adopt(self.engine.generation)
        return loss.error(doing)

    def over_error(self, doing: str) -> SwitchAggError:
        """The error with the reason why the session has ended."""
        assert self.monitor is not None
        cause = self.monitor.over
        assert cause is not None
        if self.broken is None:
            self.broken = cause.text
        return cause.error(doing)

    def recent(self) -> list[CollectiveRecord]:
        """The last collectives of this session, in the order of calls."""
        now, clock = round(self.runtime.monotonic() * 1e9), self.runtime.unix()
        return [
            CollectiveRecord(
                native.generation, native.call_number, called(), STATUSES[native.status],
                clock - (now - native.submitted_at) / 1e9,
                ((native.ended_at or now) - native.submitted_at) / 1e9,
                native.packets, native.results,
            )
            for called, native in self._last()
        ]  # fmt: skip

    def timed_out(self) -> str | None:
        """Names the first of the last collectives that was not done in time, if any."""
        return next((called() for called, native in self._last() if native.status == TIMEOUT), None)

    def _last(self) -> list[tuple[Callable[[], str], _native.Collective]]:
        last = [] if self.caller is None else self.caller.recent()
        return sorted(last, key=lambda each: (each[1].generation, each[1].call_number))

    def with_record(self, error: SwitchAggError) -> SwitchAggError:
        """The error, with notes on the last collectives of this rank."""
        lines = [f"  {record}" for record in self.recent()[-_TOLD:]]
        error.add_note("\n".join([f"Last collectives of rank {self.rank}:", *lines]))
        return error

    def lost_ranks(self) -> tuple[tuple[int, ...], str]:
        """Asks the controller which ranks are gone, and what else is wrong with the job."""
        if self.monitor is None:
            return (), ""
        try:
            return self.monitor.member.standing(_ASK_TIMEOUT)
        except SwitchAggError:
            return (), NO_ANSWER

    def late_ranks(self) -> tuple[int, ...] | None:
        """Asks the switch, through the controller, whose packets it waits for; None where it cannot say.

        The engine itself knows of sums that need no slots.
        """
        if self.engine is not None and (late := self.engine.late):
            return tuple(rank for rank in range(late.bit_length()) if late >> rank & 1)
        try:
            return None if self.monitor is None else self.monitor.member.awaited(_ASK_TIMEOUT)
        except SwitchAggError:
            return None

    def small_packets_pass(self) -> bool:
        """Asks the switch itself, after a time-out: True if it answers a packet without words."""
        assert self.engine is not None
        return (
            self.monitor is not None
            and self.monitor.transport not in ("shm", "slots")
            and self.engine.probe(int(_PROBE_SECONDS * 1e9))
        )

    def break_off(self, why: str) -> None:
        """From here on no buffer is touched and every call raises."""
        self.broken = why
        if self.engine is not None:
            self.engine.abort()

    def leave(self, error: BaseException | None) -> None:
        """Leaves the job, with an engine that does nothing any more; the other ranks hear of `error`.

        Does nothing the second time.
        """
        if self.monitor is not None and self.engine is not None:
            self.monitor.leave(self.engine.begun, self.engine.completed, error)

    def leave_at_once(self, error: SwitchAggError) -> None:
        """Leaves because of a time-out, before `close` does.

        Not a job that shrinks: it would go on without this rank, which is not the one that is late.
        """
        if self.monitor is not None and self.monitor.member.on_loss == "fail":
            self.leave(error)

    def error_on_its_way(self) -> BaseException | None:
        """The exception that this thread handles, if it came up in the life of this session.

        None in a job that shrinks, which would take this rank for lost: the caller may be about to go on.
        """
        error = sys.exc_info()[1]
        shrinks = self.monitor is not None and self.monitor.member.on_loss == "shrink"
        return None if shrinks or id(error) == self._made_in else error

    def close(self, error: BaseException | None) -> None:
        """See `Session.close`. The other ranks hear of `error`."""
        if self.closed:
            return
        self.closed = True
        if self.pid != os.getpid():
            return
        if self.engine is not None:
            if error is None:
                self._await_failover()
            self.engine.close()
            self._await_threads()
            if self._secret is not None:
                self._secret.wipe()
            self.leave(error)
            if self.timeline is not None:
                self.timeline.close()
        self._pending.clear()

    def _await_failover(self) -> None:
        """Waits until the other ranks do not need what this one sends again, to the job's deadline."""
        assert self.engine is not None
        monitor = self.monitor
        if monitor is None or not self.engine.recovering:
            return
        until = self.runtime.monotonic() + monitor.member.deadline
        while self.engine.recovering and monitor.over is None and self.runtime.monotonic() < until:
            self.runtime.sleep(0.001)

    def _await_threads(self) -> None:
        """Lets other threads come back from the engine, which has nothing for them to wait for any more.

        A thread that still waits for the interpreter in there when the interpreter ends would end the process
        with an abort.
        """
        deadline = self.runtime.monotonic() + _LEAVE_SECONDS
        while self._inside() and self.runtime.monotonic() < deadline:
            self.runtime.sleep(0.0005)

    def _inside(self) -> bool:
        assert self.caller is not None
        return self.caller.inside > 0 or bool(self._threads - {threading.get_ident()})

    def after_fork(self) -> None:
        """In a forked child: lets go of what is the parent's."""
        if self.timeline is not None:
            self.timeline.abandon()
        if self.engine is not None:
            self.engine.abandon()
        if self._secret is not None:
            self._secret.wipe()
        if self.monitor is not None:
            self.monitor.abandon()
