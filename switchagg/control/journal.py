"""Writes the controller's steps to its store in a thread of its own; then has their effects carried out."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from switchagg.control.event_log import EventLog
from switchagg.control.jobs.effects import Effect
from switchagg.control.store import IN_STORE, Changes, Store
from switchagg.errors import SwitchError
from switchagg.runtime import Runtime

PATIENCE: Final = 3.0  # seconds that a step's effects wait for the store
RETRY: Final = 0.1  # seconds until changes that could not be written are written again

_log = logging.getLogger(__name__)


class _Step(NamedTuple):
    number: int
    effects: Sequence[Effect]
    since: float


class Journal:
    """The steps of a controller that the store has not taken yet, and the event log.

    The effects of a step are carried out once it is kept, in order; all at once where nothing is kept over
    restarts. A store that fails, or does not answer for `PATIENCE` seconds, holds nobody up: effects are
    carried out without it, and what it lacks is written again until it takes it. Bounded.

    Args:
        lock: guards the controller's state, and this object's.
        carry_out: carries out effects, with the lock held.

    Attributes:
        error: of the store, while changes are not written.
        last: number of the latest step.
    """

    def __init__(
        self,
        store: Store,
        lock: threading.Lock,
        carry_out: Callable[[Sequence[Effect]], None],
        runtime: Runtime,
    ) -> None:
        self.store = store
        self._runtime = runtime
        self.events = EventLog()
        self.error = ""
        self.last = 0
        self._carry_out = carry_out
        self._changed = runtime.condition(lock)
        self._unwritten: Changes | None = None
        self._waiting: deque[_Step] = deque()  # effects that are not carried out yet
        self._tried = self._kept = 0  # steps, by number, that the store has answered for, and has taken
        self._stopping = self._over = False
        self._thread = runtime.thread(self._run, "switchagg-journal")

    # Without the lock.

    def start(self) -> Changes:
        """Returns the state of an earlier controller, goes on with its event log, and starts the thread."""
        kept = self.store.load()
        self.events = EventLog(kept.events)
        self._thread.start()
        return kept

    def stop(self, patience: float) -> None:
        """Ends the thread after the last changes, or `patience` seconds, and carries out all effects.

        Later steps are written at once, but for a thread that still waits for the store.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(patience)
        with self._changed:
            self._over = True
            self._release()

    def wait(self, number: int) -> None:
        """Waits until a step is kept. Raises `SwitchError` if the store fails, or does not answer in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._tried >= number, PATIENCE)
            if self._kept < number:
                raise SwitchError(self.error or self._slow())

    # With the lock held.

    def add(self, changes: Changes, effects: Sequence[Effect]) -> None:
        """Adds a step: changes for the store, and the effects to carry out once they are kept."""
        self.last += 1
        if not self.store.persistent:
            self._tried = self._kept = self.last
            self._carry_out(effects)
            return
        self._unwritten = changes if self._unwritten is None else _merged(self._unwritten, changes)
        self._waiting.append(_Step(self.last, effects, self._runtime.monotonic()))
        if self._over and not self._thread.is_alive():
            changes, self._unwritten = self._unwritten, None
            self._write(changes)
        if self.error or self._over:
            self._release()
        self._changed.notify_all()

    def tick(self, now: float) -> None:
        """Stops waiting for a store that does not answer."""
        if self._waiting and now - self._waiting[0].since > PATIENCE:
            self._fails(self._slow())

    def _slow(self) -> str:
        return f"{self.store.where}: it has not taken a change within {PATIENCE:g} seconds"

    def _fails(self, error: str) -> None:
        if not self.error:
            _log.error("%s", error)
        self.error = error
        self._release()

    def _release(self, number: int | None = None) -> None:
        """Carries out the effects of all steps up to `number`."""
        while self._waiting and (number is None or self._waiting[0].number <= number):
            try:
                self._carry_out(self._waiting.popleft().effects)
            except Exception:
                # An error in one step: those of the others are carried out.
                _log.exception("effects were not carried out")

    def _write(self, changes: Changes) -> str:
        """Writes changes; returns what the store says against it, empty if nothing."""
        try:
            self.store.write(changes)
        except Exception as failure:
            if not isinstance(failure, SwitchError):
                _log.exception("changes were not written")
            return str(failure) or repr(failure)
        return ""

    # In the thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._unwritten is None:
                    if self._stopping:
                        return
                    self._changed.wait()
                changes, self._unwritten, number = self._unwritten, None, self.last
            error = self._write(changes)
            with self._changed:
                self._tried = number
                if error:
                    later = self._unwritten
                    self._unwritten = changes if later is None else _merged(changes, later)
                    self._fails(error)
                else:
                    self._kept, self.error = number, ""
                    self._release(number)
                self._changed.notify_all()
                if error and self._stopping:
                    return
            if error:
                self._runtime.sleep(RETRY)


def _merged(earlier: Changes, later: Changes) -> Changes:
    return Changes(
        {**earlier.jobs, **later.jobs},
        [*earlier.events, *later.events][-IN_STORE:],
        {**earlier.switches, **later.switches},
        later.last_id,
        later.last_number,
    )
