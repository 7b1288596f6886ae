"""Operations that a process group leaves to gloo, each with a mark among the switch's collectives.

    rank 0: all_reduce(float32) ----------> switch <---- mark "reduce(...) through gloo" :rank 1
            MismatchError at once                        MismatchError at its next look

    rank 0: gloo's PRODUCT -- mark --> switch <-- mark -- gloo's BXOR :rank 1
            both end well in gloo, with nonsense; the marks differ: MismatchError

Gloo and the switch each keep an order of their own calls, and neither sees the other's. Ranks of which one
calls gloo would wait, each in its own place, until the timeout. The mark is a barrier that names the
operation. Where a rank's result depends on all ranks, its mark is done when gloo is; else it is looked at
before the group's next operation through gloo.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from switchagg.errors import MismatchError, NetworkError, SessionBrokenError, SwitchError, WorkerLostError
from worker_lib.session import Session
from worker_lib.work import Work

_LOOK: Final = 0.25  # seconds between two looks at the mark
_PARTING: Final = 10.0  # seconds for marks to be put before this rank leaves
_REASON: Final = 1.0  # seconds for the mark to say why gloo failed
_WITHOUT_SWITCH: Final = (SwitchError, NetworkError, SessionBrokenError)  # gloo works without it

_log = logging.getLogger("switchagg")


class GlooCalls:
    """The operations of one group that go through gloo.

    Args:
        session: takes the marks.

    Attributes:
        marked: False once there are no marks any more, since the switch is lost.
    """

    def __init__(self, session: Session) -> None:
        self.marked = True
        self._session = session
        self._out_of_step: MismatchError | None = None
        self._unread: list[GlooPart] = []

    def start(
        self, named: str, seconds: float | None, begin: Callable[[], Any], *, of_all: bool = True
    ) -> GlooPart:
        """Begins an operation.

        Args:
            named: it, as all ranks name it.
            seconds: timeout of the mark; None for the session's.
            of_all: its result here depends on every rank, so that none has it before all have begun.
            begin: begins it and returns gloo's Work.

        Raises:
            MismatchError: ranks called different things before, and gloo would mix up their tensors.
            WorkerLostError: another rank has failed.
        """
        self.read()
        if self._out_of_step is not None:
            raise self._out_of_step
        mark = None
        if self.marked:
            with contextlib.suppress(*_WITHOUT_SWITCH):
                mark = self._session._barrier(seconds, background=True, marks=named)
        part = GlooPart(self, mark, named, begin(), of_all)
        if mark is not None:
            self._unread.append(part)
        return part

    def read(self) -> None:
        """Raises what the marks that have ended say about operations before."""
        for part in list(self._unread):
            part.read()

    def close(self) -> None:
        """Puts the marks that others need, and logs a mismatch of which no operation was left to tell.

        A mark may wait for ranks that are late with an operation before, which gloo has ended here.
        """
        limit = time.monotonic() + _PARTING
        for part in list(self._unread):
            part.put(limit - time.monotonic())
        try:
            self.read()
        except MismatchError as error:
            _log.error("switchagg: %s", error)
        except WorkerLostError:
            pass

    def forget(self, part: GlooPart) -> None:
        """Lets go of an operation whose mark has been looked at."""
        with contextlib.suppress(ValueError):
            self._unread.remove(part)

    def mismatch(self, named: str) -> MismatchError:
        """The error where ranks called other things than this operation; from then on there are no others."""
        self._out_of_step = MismatchError(
            f"ranks called different things: rank {self._session.rank} called {named}, another rank "
            "something else. The group's gloo waits for it still, or has given a wrong result: destroy the "
            "group and make it anew"
        )
        return self._out_of_step


class GlooPart:
    """An operation through gloo; a part of a `SwitchWork`."""

    def __init__(self, calls: GlooCalls, mark: Work | None, named: str, work: Any, of_all: bool) -> None:
        self._calls, self._mark, self._named, self._work = calls, mark, named, work
        self._of_all = of_all
        self._error: MismatchError | WorkerLostError | None = None

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""
        mark = self._mark if self._of_all else None
        return bool(self._work.is_completed()) and (mark is None or mark.done())

    def put(self, seconds: float) -> None:
        """Waits until the other ranks can do without this one, for at most `seconds`."""
        if self._mark is not None:
            self._mark._begin(seconds)

    def read(self) -> None:
        """Raises what the mark says about other ranks, if it has ended."""
        self._look(0.0)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for its end; `timeout` in seconds, None for gloo's own.

        Raises:
            MismatchError: another rank called something else.
            WorkerLostError: another rank has failed.
            RuntimeError: gloo's own.
        """
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while self._mark is not None:
            left = limit - time.monotonic()
            try:
                self._work.wait(timedelta(seconds=max(0.001, min(left, _LOOK))))
                self._ended()
                return
            except RuntimeError:
                if self._work.is_completed():
                    self._outcome()
                    return
                self._read_all()
                if left <= _LOOK:
                    raise
        if self._error is not None:
            raise self._error
        left = limit - time.monotonic()
        self._work.wait(*(() if left == math.inf else (timedelta(seconds=max(0.001, left)),)))

    def _ended(self) -> None:
        """Looks at the mark of an operation that has ended well: gloo notices no other type or operation.

        Where the result depends on all ranks, all have put their marks, and this one ends in a round trip.
        """
        self._look(math.inf if self._of_all else 0.0)

    def _outcome(self) -> None:
        """Returns or raises as the operation, which has ended: perhaps well, just after a time-out."""
        try:
            self._work.wait()
        except RuntimeError:
            # If another rank is the reason, gloo knows no more than that a connection has ended. Marks end in
            # the order of calls, and what the first says is why the others are not met.
            if (mark := self._mark) is not None:
                mark._drive(_REASON)
            self._read_all()
            raise
        self._ended()

    def _read_all(self) -> None:
        """Raises what marks that have ended say, also if another thread has read this one's meanwhile."""
        self._calls.read()
        self._look(0.0)

    def _look(self, seconds: float) -> None:
        """Raises what the mark says about other ranks, within `seconds`; then nobody looks at it again."""
        mark = self._mark
        if mark is not None and (seconds == math.inf or mark._drive(seconds) or mark.done()):
            try:
                with contextlib.suppress(*_WITHOUT_SWITCH):
                    mark.wait()
            except MismatchError:
                self._error = self._calls.mismatch(self._named)
            except WorkerLostError as error:
                self._error = error
            self._mark = None
            self._calls.forget(self)
        if self._error is not None:
            raise self._error from None
