"""One collective on its way, and everything about waiting for it.

    Work() --> submit: prepare, hand to the engine; again if the membership changed meanwhile
    wait() --> run the engine until the collective has ended:
                   done       finish: copy or decode, return the result
                   cancelled  another rank called it for another membership, and all ranks left it undone:
                              submit again, unless it is in the background
                   otherwise  the error, from the engine's status and what the monitor knows of other ranks

A thread that waits runs the engine itself, without the interpreter's lock, and looks up every 50 ms.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from switchagg.errors import (
    CollectiveTimeout,
    IntegrityError,
    MismatchError,
    SessionBrokenError,
    SwitchAggError,
    UsageError,
    WorkerLostError,
)
from switchagg.wire.header import HEADER_BYTES, max_words
from worker_lib import _native
from worker_lib.membership import Loss
from worker_lib.plan import BOUNDED, EXACT, ReduceOp, differing_fields
from worker_lib.session_state import (
    ABORTED,
    DAMAGED,
    DONE,
    LOST,
    MISMATCH,
    MOVED,
    NO_ANSWER,
    PENDING,
    SLICE_NS,
    TIMEOUT,
    SessionState,
)

_L = TypeVar("_L")
_T = TypeVar("_T")
_ETHERNET_MTU: Final = 1500  # bytes
_SLOW: Final = 30.0  # seconds of waiting after which late ranks are named in the log
_REFUSALS: Final = 3  # of packets by the switch's port in such a silence, after which it is gone
_SILENCE_NS: Final = 1_000_000_000  # until it counts that a rank has left, or that the port refuses packets
_SLICES: Final = 4  # of waiting in such a silence, in which the port refuses packets if the switch is gone

# A reduction: its kind and bits, or its name; a call: name, type, shape, reduction. Text only where a message
# needs it.
How = tuple[()] | tuple[ReduceOp, int | str] | str
Label = tuple[str, str, tuple[int, ...], How]


class Retry(Exception):
    """Raised while a call is prepared: the membership changed and nothing was sent, so prepare it again."""


class MembershipChanged(Exception):
    """Raised between two collectives of one call: it must begin again, with the ranks of now."""


class Agreed:
    """The answer to a collective that a call makes first, kept while this rank and their number are the same.

    A call is prepared again if the generation changes before it is carried out. Where ranks stay as they
    were, some of them may have sent it before, and the others must not ask anew.
    """

    def __init__(self) -> None:
        self._membership: tuple[int, int] | None = None
        self._found: Any = None

    def get(self, state: SessionState, ask: Callable[[], Any]) -> Any:
        """Returns the answer for the present membership; ``ask()`` is a collective."""
        if self._membership != (state.rank, state.world_size):
            self._found = ask()
            self._membership = state.rank, state.world_size
        return self._found


class Cancelled(MismatchError):
    """A rank had called this for another number of ranks, and all ranks left it undone."""


@dataclass(slots=True)
class Prepared:
    """A call that is ready for the engine, for the membership of now.

    Attributes:
        call: None where there is nothing to send: a group of one, or no elements.
        result: returned by `Work.wait`.
        label: names the call in messages.
        keep: objects whose memory the engine uses.
        finish: makes the result once the engine is done; `result` is what it returns.
        release: called once when it is over, well or not.
        generation: the membership that the call is for, where collectives were called while it was prepared;
            None: that of before.
    """

    call: _native.Call | None
    result: Any
    label: Label
    keep: tuple[Any, ...] = ()
    finish: Callable[[], Any] | None = None
    release: Callable[[], None] | None = None
    generation: int | None = None


class Work:
    """One collective on its way, as a call with ``async_op=True`` returns it.

    Its tensors stay alive until it is done, whether anybody waits for it or not.

    Args:
        state: of the session.
        prepare: makes the call for the present membership.
        timeout: seconds; the session's setting by default.
        background: a thread of the engine carries it out where nobody waits.
        lazy: of one in the background: it wakes no thread, and goes out before the next that somebody waits
            for, or that is not lazy.
        begun: the engine has it already, made of this call; None: it does not.
    """

    def __init__(
        self,
        state: SessionState,
        prepare: Callable[[], Prepared],
        timeout: float | None,
        *,
        background: bool,
        lazy: bool = False,
        begun: tuple[_native.Collective, Prepared] | None = None,
    ) -> None:
        self._state = state
        self._prepare = prepare
        self._seconds = state.timeout if timeout is None else timeout
        self._background = background
        self._lazy = lazy
        self._lock = threading.Lock()
        self._finished = False
        self._error: BaseException | None = None
        self._native: _native.Collective | None
        if begun is None:
            self._submit()
        else:
            self._native, self._prepared = begun

    def _submit(self) -> None:
        """Prepares the call for the present membership and hands it to the engine.

        If the membership changes before the engine has it, nothing was sent, and it is prepared again.
        """
        state = self._state
        while True:
            state.check_open()
            generation = state.generation
            try:
                self._prepared = self._prepare()
            except Retry:
                continue
            self._native = None
            call = self._prepared.call
            if call is None:
                return
            if self._prepared.generation is not None:
                generation = self._prepared.generation
            try:
                if not self._seconds > 0:
                    raise UsageError(f"timeout is {self._seconds!r}; accepted: seconds greater than 0")
                self._native = state.submit(
                    call, self._seconds, generation, background=self._background, lazy=self._lazy,
                    keep=self._prepared, called=partial(name_of_call, self._prepared.label),
                )  # fmt: skip
            except BaseException:
                self._release()
                raise
            if self._native is not None:
                return
            self._release()

    def _release(self) -> None:
        release, self._prepared.release = self._prepared.release, None
        if release is not None:
            release()

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""
        return self._native is None or self._native.status != PENDING

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the collective is done, and returns its result.

        Args:
            timeout: seconds, counted from now; None for the timeout that the call was given.

        Returns:
            The array that holds the result.

        Raises:
            MismatchError: ranks called different things; the session can go on.
            WorkerLostError: a rank is gone, and this collective was not complete. With ``on_loss="shrink"``
                the session goes on without it; an in-place tensor is undefined.
            CollectiveTimeout: not done in time; the session is broken, an in-place tensor undefined.
            SwitchError: the switch is gone; the session is broken.
            IntegrityError: a checked sum is wrong, also after all ranks had sent it again; the same.
            SessionBrokenError: the session was broken before.
        """
        try:
            while self._native is not None and not self._finished:
                status = self._run(self._native, timeout)
                if status == DONE:
                    break
                if status != MOVED or self._background:
                    raise self._failure(self._native, status)
                self._release()
                self._submit()
        except BaseException:
            with self._lock:
                self._release()
            raise
        return self._finish()

    def _run(self, native: _native.Collective, timeout: float | None) -> int:
        """Runs the engine in this thread until the collective has ended; returns its status."""
        state = self._state
        if state.pid != os.getpid():
            state.check_open()
        status = native.status
        if status == PENDING:
            status = self._in_engine(self._wait_for_end, native, timeout)
        if status == DONE:
            if native.generation > state.generation:
                state.adopt(native.generation)
            state.forget_done()
        return status

    def _drive(self, seconds: float) -> bool:
        """Runs the engine in this thread for at most `seconds`; returns `done()`. Only `wait` raises."""
        native = self._native
        if native is not None and seconds > 0:
            self._in_engine(self._wait_at_most, native, seconds)
        return self.done()

    def _begin(self, seconds: float) -> None:
        """Runs the engine in this thread until the collective has begun or ended, for at most `seconds`."""
        limit = self._state.runtime.monotonic() + seconds
        first = int(self._state.sealed)  # the exchange of nonces has begun too, and has no number
        while not self.done() and self._state.runtime.monotonic() < limit:
            native, engine = self._native, self._state.engine
            if native is None or engine is None or engine.begun > native.call_number + first:
                return
            self._drive(0.05)

    def _wait_for_end(self, engine: _native.Engine, native: _native.Collective, timeout: float | None) -> int:
        state = self._state
        now = state.runtime.monotonic()
        limit = math.inf if timeout is None else now + timeout
        tell = now + _SLOW
        silent = 0  # slices of silence so far
        job = refused = 0  # job id, and packets that the switch's port had refused, when it began
        while True:
            status = native.status if state.closed else engine.wait(native, SLICE_NS)
            if status != PENDING:
                return status
            now = state.runtime.monotonic()
            if now >= tell:
                self._tell_late()
                tell = math.inf
            if timeout is not None and now >= limit:
                raise self._timed_out(native, timeout, f"{self.called()} was not done within {timeout} s")
            if state.monitor is None:
                continue
            present = state.monitor.member.job  # before the engine is asked, which may go to another switch
            if engine.silence_ns(0) <= _SILENCE_NS or (silent and present != job):
                silent = 0
                continue
            left = state.monitor.left
            silent += 1
            if silent == 1:
                job, refused = present, engine.stats()["refused"]
            elif engine.stats()["refused"] >= refused + (1 if left else _REFUSALS):
                state.monitor.lose_switch(job)
                continue
            if (
                left is not None
                and silent > _SLICES
                and engine.silence_ns(state.monitor.completed) > _SILENCE_NS
            ):
                # A rank has left without waiting for this collective, perhaps before its packets were there.
                # If it did so because the switch is gone, the port has refused a packet by now.
                if state.monitor.go_on_without_left():
                    silent = 0
                    continue
                error = self._damaged(left)
                state.break_off(left.text)
                raise error or state.with_record(left.error(self.called()))

    def _tell_late(self) -> None:
        """Logs the ranks that this collective waits for."""
        state = self._state
        late = state.late_ranks()
        if late and late != (state.rank,):
            logging.getLogger("switchagg").warning(
                "switchagg: %s has waited %g s on rank %d of %d for %s",
                self.called(), _SLOW, state.rank, state.world_size, _named(late),
            )  # fmt: skip

    def _wait_at_most(self, engine: _native.Engine, native: _native.Collective, seconds: float) -> None:
        clock = self._state.runtime.monotonic
        limit = clock() + seconds
        while not self._state.closed and native.status == PENDING:
            left = limit - clock()
            if left <= 0:
                break
            engine.wait(native, min(int(left * 1e9), SLICE_NS))

    def _in_engine(
        self,
        wait: Callable[[_native.Engine, _native.Collective, _L], _T],
        native: _native.Collective,
        limit: _L,
    ) -> _T:
        """Calls `wait` with the engine, in which this thread is meanwhile.

        An interruption breaks the session: the tensors of the collective may go with its caller.
        """
        state = self._state
        assert state.engine is not None
        state.enter_engine()
        try:
            return wait(state.engine, native, limit)
        except BaseException as error:
            if state.broken is None:
                state.break_off(f"{self.called()} was interrupted by {type(error).__name__}")
            raise
        finally:
            state.leave_engine()

    def _finish(self) -> Any:
        """Makes the result, once; no thread that waits returns before it is there."""
        with self._lock:
            if not self._finished:
                self._finished = True
                prepared = self._prepared
                try:
                    if prepared.finish is not None:
                        prepared.result = prepared.finish()
                except BaseException as error:
                    self._error = error
                self._release()
                prepared.keep, prepared.finish, prepared.call = (), None, None
                del self._prepare
        if self._error is not None:
            raise self._error
        return self._prepared.result

    # ------------------------------------------------------------------ messages

    def called(self) -> str:
        """The call as messages name it: "allreduce(float32, shape (10,), sum, 32 bits)"."""
        return name_of_call(self._prepared.label)

    def _failure(self, native: _native.Collective, status: int) -> Exception:
        """The error for a collective that ended otherwise than done."""
        state, name = self._state, self.called()
        monitor = state.monitor
        if status == MISMATCH:
            # A barrier has nothing else that differs; its other fields stand for what it marks.
            differing = differing_fields(native.difference) if self._prepared.label[1] else ["operation"]
            return MismatchError(
                f"ranks called different things: they disagree on "
                f"{', '.join(differing)}. Rank {state.rank} called {name}. "
                "Nothing was changed; the session can go on."
            )
        if status == MOVED:
            return Cancelled(
                f"ranks called {name} before and after another rank came back, and its result depends on how "
                "many they are. Nothing was changed; call it again."
            )
        if status == DAMAGED and state.broken is None and (damaged := self._damaged()) is not None:
            return damaged
        if status == TIMEOUT:
            return self._timed_out(native, self._seconds, f"{name} timed out")
        if status == LOST and monitor is not None:
            with monitor.lock:
                loss, left = monitor.losses.get(native.generation), monitor.left
            if loss is None and left is not None and monitor.go_on_without_left():
                loss = monitor.await_change(native.generation, self._seconds)
                if loss is None and monitor.over is not None:
                    return state.with_record(state.over_error(f"{name} on rank {state.rank}"))
            loss = loss or left
            if loss is left and state.broken is None and (damaged := self._damaged(loss)) is not None:
                return damaged
            if loss is not None:
                return state.with_record(state.loss_error(loss, f"{name} on rank {state.rank}"))
        if status == ABORTED and state.broken is None and (late := state.timed_out()) is not None:
            # Nobody has waited for that one, in the background.
            state.break_off(f"{late} timed out")
            state.leave_at_once(CollectiveTimeout(f"{late} was not done in time on rank {state.rank}"))
        if status == ABORTED and monitor is not None and monitor.over is not None:
            return state.with_record(state.over_error(f"{name} on rank {state.rank}"))
        return SessionBrokenError(
            f"{name} was abandoned: {state.broken or 'the session was closed'}. Its tensor is undefined; "
            "connect again."
        )

    def _damaged(self, left: Loss | None = None) -> SwitchAggError | None:
        """Breaks the session, and leaves the job, if a RESULT stays wrong; None if none does.

        Args:
            left: the ranks that have left meanwhile, so that it cannot be sent again.
        """
        state = self._state
        assert state.engine is not None
        assert state.monitor is not None
        unhealed = state.engine.unhealed
        if unhealed is None:
            return None
        wrong = state.monitor.wrong(unhealed)
        state.break_off(wrong)
        why = "also after they have sent it again" if left is None else f"and {left.text}"
        error = IntegrityError(
            f"{self.called()} on rank {state.rank}: {wrong}, {why}. A switch, a path or a rank's memory "
            "changes words. The result is undefined; the session is broken: connect again."
        )
        state.with_record(error)
        state.leave_at_once(error)
        return error

    def _timed_out(self, native: _native.Collective, timeout: float, why: str) -> SwitchAggError:
        """Breaks the session, and leaves the job, so that no other rank waits for its own time-out.

        Only the first time, since several collectives time out together.
        """
        state = self._state
        if state.broken is not None:
            return CollectiveTimeout(f"{self.called()} was not done: {state.broken}. Connect again.")
        state.break_off(why)
        error, answers = self._timeout_error(native, timeout)
        state.with_record(error)
        if answers:
            state.leave_at_once(error)
        return error

    def _timeout_error(self, native: _native.Collective, timeout: float) -> tuple[SwitchAggError, bool]:
        """The error, and whether the controller answers."""
        state, name = self._state, self.called()
        assert state.engine is not None
        ranks, trouble = state.lost_ranks()
        seconds = f"{timeout:g} s"
        if ranks:
            return WorkerLostError(
                f"{_named(ranks)} left the job or died; {name} could not be done within {seconds}", ranks
            ), True
        stats = state.engine.stats()
        late = None if trouble == NO_ANSWER else state.late_ranks()
        parts = [
            f"{name} was not done within {seconds} on rank {state.rank} of {state.world_size}",
            f"{native.results} of {native.packets or '?'} results so far asked for had come",
            f"{stats['retransmissions']} packets had been sent again",
        ]
        silent = not stats["results"] or state.engine.silence_ns(0) >= timeout / 2 * 1e9
        refused = any(state.engine.refused)  # by the present switches; those of `stats` by earlier ones too
        # No RESULT any more, and no sign of this rank's packets at the switch: is the path's MTU too small?
        unseen = silent and not refused and (not late or state.rank in late)
        too_large = unseen and state.small_packets_pass()
        if late == (state.rank,):
            parts.insert(1, "the switch waits for packets of this rank alone, which do not get there")
        elif late and state.engine.late:
            parts.insert(1, f"it waits for {_named(late)} in memory that the ranks share")
        elif late:
            parts.insert(1, f"the switch waits for {_named(late)}, late or unable to reach it")
        if refused:
            parts.append("the switch's port refuses packets: no switch is running there")
        elif too_large:
            parts.append(self._about_size(certain=late is not None))
        elif unseen and stats["results"] and state.monitor is not None and state.monitor.transport == "udp":
            parts.append(
                "nothing comes from the switch any more: "
                + ("has a rank not called it, or has " if late is None else "has ")
                + f"the path's MTU become smaller than words={state.monitor.member.words} needs?"
            )
        elif late:
            pass
        elif not stats["results"]:
            parts.append(
                "nothing has ever come from the switch: is there a firewall, or are the other ranks late?"
            )
        elif native.results == 0:
            parts.append("perhaps a rank has not called it")
        if trouble:
            parts.append(trouble)
        text = "; ".join(parts) + ". The session is broken: connect again."
        return CollectiveTimeout(text), trouble != NO_ANSWER

    def _about_size(self, *, certain: bool) -> str:
        """The sentence about packets that get no answer while small ones do.

        Not certain where the switch does not show its slots: then ranks that are late look the same.
        """
        monitor = self._state.monitor
        assert monitor is not None
        words = monitor.member.words
        fits = max_words(_ETHERNET_MTU, ipv6=":" in monitor.member.switch_address)
        text = (
            f"UDP packets of {HEADER_BYTES + 4 * words:,} bytes get no answer, but one of {HEADER_BYTES} does"
        )
        if not certain:
            text += ": other ranks are late, or"
        text += f"{':' if certain else ''} the path's MTU is smaller than words={words} needs"
        return f"{text} (connect(words={fits}) fits {_ETHERNET_MTU:,} bytes)" if words > fits else text


def name_of_call(label: Label) -> str:
    """A call as messages name it."""
    name, dtype, shape, how = label
    if not dtype:
        return name
    if isinstance(how, tuple) and how:
        op, width = how
        how = "or"
        if op is not ReduceOp.OR:
            bits = {EXACT: "exact", BOUNDED: "bounded"}.get(width, f"{width} bits")  # type: ignore[arg-type]
            how = f"{op.name.lower()}, {bits}"
    return f"{name}({dtype}, shape {shape}{f', {how}' if how else ''})"


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
