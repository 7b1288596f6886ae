"""A worker's place in a job: who it is now, whether it can still be used, and how one waits for a collective.

`Session` adds the collectives. The engine's end states become exceptions here, with what the keeper knows
about the other ranks.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from switchagg.errors import (
    CollectiveTimeout,
    MismatchError,
    SessionBrokenError,
    SwitchAggError,
    WorkerLostError,
)
from switchagg.rules.planner import SkipPolicy
from worker_lib import _native
from worker_lib.keeper import Keeper
from worker_lib.membership import Loss
from worker_lib.messages import Label, called, mismatch_message, ranks_text
from worker_lib.work import ABORTED, DONE, LOST, MISMATCH, MOVED, PENDING, TIMEOUT, Withdrawn, Work

_SLICE_NS: Final = 50_000_000  # how often a waiting thread looks for signals
_SILENCE_NS: Final = 1_000_000_000  # nothing heard for this long, and a rank has left: no use to wait
_ASK_TIMEOUT: Final = 1.0  # seconds for asking the controller who is missing, after a timeout
_LEAVE_SECONDS: Final = 5.0  # at most, for other threads to come out of the engine


class Place:
    """What a session is apart from its collectives; see `Session`.

    Args:
        rank, world_size: at first.
        engine, keeper: None in a group that was made of one.
        policy: the skip policy at admission.
        timeout: seconds that a collective may take unless the call says otherwise.
        name: of the job.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        *,
        engine: _native.Engine | None,
        keeper: Keeper | None,
        policy: SkipPolicy,
        timeout: float,
        name: str,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.places = tuple(range(world_size)) if keeper is None else keeper.generations[0].places
        self.timeout = timeout
        self.name = name
        self._admitted = policy
        self._engine = engine
        self._keeper = keeper
        self._generation = 0  # the engine's number of the one that rank and world_size are of
        self._pid = os.getpid()
        self._broken: str | None = None
        self._closed = False
        self._pending: list[Work] = []
        self._lock = threading.Lock() if keeper is None else keeper.lock
        # Threads in the engine. Who enters says so first and then looks at _closed; close() sets that first
        # and then looks here.
        self._inside: set[int] = set()
        self._groups_made = 0
        if keeper is not None:
            weakref.finalize(self, keeper.drop).atexit = False

    @property
    def transport(self) -> str:
        """How packets travel: "shm", "udp", or "none" in a group that was made of one."""
        return "none" if self._keeper is None else self._keeper.transport

    def close(self) -> None:
        """Leaves the job. Collectives still on their way are aborted. Safe to call twice, and in a forked
        child."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        if self._engine is not None:
            begun = self._engine.begun
            self._engine.close()
            self._see_them_out()
            if self._keeper is not None:
                self._keeper.leave(begun)
        self._pending.clear()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"broken: {self._broken}" if self._broken else "open"
        return f"<worker_lib.Session {self.name!r} rank {self.rank} of {self.world_size}, {state}>"

    # ------------------------------------------------------------------ who we are

    def _check_open(self) -> None:
        """Before every call: raises if there can be none, or if its caller does not know yet who is gone."""
        if self._pid != os.getpid():
            raise SessionBrokenError(
                f"this session belongs to process {self._pid}; a forked child (here {os.getpid()}) must "
                "connect() itself"
            )
        if self._closed:
            raise SessionBrokenError("this session is closed; connect again")
        if self._broken is not None:
            raise SessionBrokenError(f"this session is broken ({self._broken}); connect again")
        keeper = self._keeper
        if keeper is None or self._engine is None:
            return
        if keeper.over is not None:
            raise self._over("this call")
        if keeper.owed is not None:
            raise self._tell(keeper.owed, "this call")
        if self._engine.generation != self._generation:
            with self._lock:
                self._adopt(self._engine.generation)

    def _adopt(self, generation: int) -> None:
        """Takes over who we are in a newer generation. With the lock held, and only inside calls: between
        two calls, rank and world_size stay as they are."""
        assert self._keeper is not None
        if generation <= self._generation:
            return
        self._generation = generation
        now = self._keeper.generations[generation]
        self.rank, self.world_size, self.places = now.rank, now.world_size, now.places
        self._admitted = self._keeper.policies[generation]
        self._groups_made = 0

    def _tell(self, loss: Loss, doing: str) -> WorkerLostError:
        """The error about a loss; after it the caller knows, and calls belong to the new generation."""
        assert self._keeper is not None
        assert self._engine is not None
        with self._lock:
            if self._keeper.owed is loss:
                self._keeper.owed = None
            if self._keeper.owed is None:
                self._adopt(self._engine.generation)
        return loss.error(doing)

    def _over(self, doing: str) -> SwitchAggError:
        """The error about why the session has ended."""
        assert self._keeper is not None
        cause = self._keeper.over
        assert cause is not None
        if self._broken is None:
            self._broken = cause.text
        return cause.error(doing)

    # ------------------------------------------------------------------ waiting

    def _forget_done(self) -> None:
        """Lets go of the tensors of collectives that nobody waited for."""
        if self._pending:
            with self._lock:
                self._pending = [w for w in self._pending if not w.done()]

    @contextmanager
    def _within(self, label: Label) -> Iterator[None]:
        """Around what a thread does in the engine. An interruption breaks the session: the tensors of the
        collective may go with its caller."""
        me = threading.get_ident()
        self._inside.add(me)
        try:
            yield
        except BaseException as error:
            if self._broken is None:
                self._break(f"{called(label)} was interrupted by {type(error).__name__}")
            raise
        finally:
            self._inside.discard(me)

    def _drive(self, native: _native.Collective, label: Label, seconds: float) -> None:
        """Runs the engine until a collective is no longer pending, for at most `seconds`; how it ended is for
        `_wait` to say."""
        assert self._engine is not None
        limit = time.monotonic_ns() + int(seconds * 1e9)
        with self._within(label):
            while not self._closed and native.status == PENDING:
                left = limit - time.monotonic_ns()
                if left <= 0:
                    break
                self._engine.wait(native, min(left, _SLICE_NS))

    def _wait(self, native: _native.Collective, label: Label, timeout: float | None, seconds: float) -> None:
        assert self._engine is not None
        if self._pid != os.getpid():
            self._check_open()
        limit = time.monotonic() + (timeout or 0.0)
        with self._within(label):
            while True:
                status = native.status if self._closed else self._engine.wait(native, _SLICE_NS)
                if status == DONE:
                    if native.generation > self._generation:
                        with self._lock:
                            self._adopt(native.generation)
                    self._forget_done()
                    return
                if status != PENDING:
                    break
                name = called(label)
                if timeout is not None and time.monotonic() >= limit:
                    self._break(f"{name} was not done within {timeout} s")
                    raise self._timeout_error(native, name, timeout)
                self._look_for_the_left(name)
        raise self._failed(native, status, called(label), seconds)

    def _failed(self, native: _native.Collective, status: int, name: str, seconds: float) -> Exception:
        """The error for a collective that ended otherwise than done."""
        keeper = self._keeper
        if status == MISMATCH:
            return MismatchError(mismatch_message(native, name, self.rank))
        if status == MOVED:
            return Withdrawn(
                f"ranks called {name} before and after another rank came back, and its result depends on how "
                "many they are. Nothing was changed; call it again."
            )
        if status == TIMEOUT:
            self._break(f"{name} timed out")
            return self._timeout_error(native, name, seconds)
        if status == LOST and keeper is not None:
            loss = keeper.losses.get(native.generation) or keeper.left
            if loss is not None:
                return self._tell(loss, f"{name} on rank {self.rank}")
        if status == ABORTED and keeper is not None and keeper.over is not None:
            return self._over(f"{name} on rank {self.rank}")
        return SessionBrokenError(
            f"{name} was abandoned: {self._broken or 'the session was closed'}. Its tensor is undefined; "
            "connect again."
        )

    def _look_for_the_left(self, name: str) -> None:
        """Raises where a rank has left in the middle of what is waited for: no event says how far it came."""
        assert self._engine is not None
        left = None if self._keeper is None else self._keeper.left
        if left is not None and self._engine.silence_ns > _SILENCE_NS:
            self._break(left.text)
            raise left.error(name)

    def _see_them_out(self) -> None:
        """Lets other threads come back from the engine, which has nothing for them to wait for any more.

        A thread that still waits for the interpreter in there when the interpreter ends would end the process
        with an abort.
        """
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._inside - {threading.get_ident()} and time.monotonic() < deadline:
            time.sleep(0.0005)

    def _break(self, why: str) -> None:
        """From here on no buffer is touched and every call raises."""
        self._broken = why
        if self._engine is not None:
            self._engine.abort()

    def _standing(self) -> tuple[tuple[int, ...], str]:
        """Ranks that are gone, and what else is wrong, as the controller knows."""
        if self._keeper is None:
            return (), ""
        try:
            return self._keeper.member.standing(_ASK_TIMEOUT)
        except SwitchAggError:
            return (), "the controller does not answer either"

    def _timeout_error(self, native: _native.Collective, name: str, timeout: float) -> SwitchAggError:
        assert self._engine is not None
        ranks, trouble = self._standing()
        seconds = f"{timeout:g} s"
        if ranks:
            return WorkerLostError(
                f"{ranks_text(ranks)} left the job or died; {name} could not be done within {seconds}", ranks
            )
        stats: dict[str, Any] = self._engine.stats()
        parts = [
            f"{name} was not done within {seconds} on rank {self.rank} of {self.world_size}",
            f"{native.results} of {native.packets or '?'} results so far asked for had come",
            f"{stats['retransmissions']} packets had been sent again",
        ]
        if stats["refused"]:
            parts.append("the switch's port refuses packets: no switch is running there")
        elif not stats["results"]:
            parts.append(
                "nothing has ever come from the switch: is there a firewall, or are the other ranks late?"
            )
        elif native.results == 0:
            parts.append("perhaps a rank has not called it")
        if trouble:
            parts.append(trouble)
        return CollectiveTimeout("; ".join(parts) + ". The session is broken: connect again.")

    def _after_fork(self) -> None:
        if self._engine is not None:
            self._engine.abandon()
        if self._keeper is not None:
            self._keeper.abandon()
