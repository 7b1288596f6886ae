"""One collective on its way, as the caller holds it, and what calls again when the membership changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from switchagg.errors import MismatchError
from worker_lib import _native
from worker_lib.messages import Label

if TYPE_CHECKING:
    from worker_lib.place import Place

_P = ParamSpec("_P")
_S = TypeVar("_S", bound="Place")
PENDING, DONE, MISMATCH, TIMEOUT, ABORTED, LOST, MOVED = range(7)  # of the engine's statuses


class Stale(Exception):
    """The membership changed while a call was made, and nothing has been sent: it has to be made again."""


class Withdrawn(MismatchError):
    """A rank had called this for another number of ranks, and all ranks left it undone."""


def current(call: Callable[Concatenate[_S, _P], Work]) -> Callable[Concatenate[_S, _P], Work]:
    """For the methods that make a collective: they are called for the membership of now.

    A call that the membership overtook is made again: at once where nothing had been sent, and by `Work.wait`
    where all ranks left it undone, unless it is in the background: what was called after it keeps its place.
    """

    @wraps(call)
    def made(place: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> Work:
        while True:
            try:
                work = call(place, *args, **kwargs)
                break
            except Stale:
                continue
        if not kwargs["background"]:
            work._again = lambda: made(place, *args, **kwargs)
        return work

    return made


class Work:
    """One collective on its way, as `allreduce_async` returns it.

    Its tensors stay alive until it is done, whether anybody waits for it or not.
    """

    def __init__(
        self,
        place: Place,
        native: _native.Collective | None,
        result: Any,
        label: Label,
        keep: tuple[Any, ...],
        seconds: float = 0.0,
    ) -> None:
        self._place = place
        self._native = native
        self._result = result
        self._label = label
        self._keep = keep
        self._seconds = seconds  # that the call was given
        self._after: Callable[[], None] | None = None
        self._again: Callable[[], Work] | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._native is None or self._native.status != PENDING

    def _drive(self, seconds: float) -> bool:
        """Runs the engine in this thread until it is done, for at most `seconds`; returns `done()`."""
        if self._native is not None and seconds > 0:
            self._place._drive(self._native, self._label, seconds)
        return self.done()

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
            SessionBrokenError: the session was broken before.
        """
        if self._native is not None:
            try:
                self._place._wait(self._native, self._label, timeout, self._seconds)
            except Withdrawn:
                if self._again is None:
                    raise
                return self._again().wait(timeout)
        with self._lock:  # also while it copies: another thread that waits may not return before that
            after, self._after = self._after, None
            if after is not None:
                after()
            self._keep = ()
            self._again = None
        return self._result
