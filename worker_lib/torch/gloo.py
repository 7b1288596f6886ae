"""Operations that a process group leaves to gloo, each with a mark among the switch's collectives.

    rank 0: all_reduce(float32) ----------> switch <---- mark "reduce(...) through gloo" :rank 1
            MismatchError at once                        MismatchError at its next look

Gloo and the switch each keep an order of their own calls, and neither sees the other's. Ranks of which one
calls gloo would wait, each in its own place, until the timeout. The mark is a barrier that names the
operation and that nobody waits for.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from switchagg.errors import MismatchError, NetworkError, SessionBrokenError, SwitchError, WorkerLostError
from worker_lib.session import Session
from worker_lib.work import Work

_LOOK: Final = 0.25  # seconds between two looks at the mark
_REASON: Final = 1.0  # seconds for the mark to say why gloo failed
_WITHOUT_SWITCH: Final = (SwitchError, NetworkError, SessionBrokenError)  # gloo works without it


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

    def start(self, named: str, seconds: float | None, begin: Callable[[], Any]) -> GlooPart:
        """Begins an operation.

        Args:
            named: it, as all ranks name it.
            seconds: timeout of the mark; None for the session's.
            begin: begins it and returns gloo's Work.

        Raises:
            MismatchError: ranks called different things before, and gloo would mix up their tensors.
            WorkerLostError: another rank has failed.
        """
        if self._out_of_step is not None:
            raise self._out_of_step
        mark = None
        if self.marked:
            with contextlib.suppress(*_WITHOUT_SWITCH):
                mark = self._session._barrier(seconds, background=True, marks=named)
        return GlooPart(self, mark, named, begin())

    def mismatch(self, named: str) -> MismatchError:
        """The error where ranks called other things than this operation; from then on there are no others."""
        self._out_of_step = MismatchError(
            f"ranks called different things: rank {self._session.rank} called {named}, another rank "
            "something else. The group's gloo waits for it still: destroy the group and make it anew"
        )
        return self._out_of_step


class GlooPart:
    """An operation through gloo; a part of a `SwitchWork`."""

    def __init__(self, calls: GlooCalls, mark: Work | None, named: str, work: Any) -> None:
        self._calls, self._mark, self._named, self._work = calls, mark, named, work

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""
        return bool(self._work.is_completed())

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
                return
            except RuntimeError:
                if self._work.is_completed():
                    self._outcome(self._mark)
                    return
                self._look(self._mark, 0.0)
                if left <= _LOOK:
                    raise
        left = limit - time.monotonic()
        self._work.wait(*(() if left == math.inf else (timedelta(seconds=max(0.001, left)),)))

    def _outcome(self, mark: Work) -> None:
        """Returns or raises as the operation, which has ended: perhaps well, just after a time-out."""
        try:
            self._work.wait()
        except RuntimeError:
            # If another rank is the reason, gloo knows no more than that a connection has ended.
            self._look(mark, _REASON)
            raise

    def _look(self, mark: Work, seconds: float) -> None:
        """Raises what the mark says about other ranks, within `seconds`; then nobody looks at it again."""
        if not mark._drive(seconds) and not mark.done():
            return
        self._mark = None
        try:
            with contextlib.suppress(*_WITHOUT_SWITCH):
                mark.wait()
        except MismatchError:
            raise self._calls.mismatch(self._named) from None
        except WorkerLostError as error:
            raise error from None
