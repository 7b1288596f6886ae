"""A thread that takes things in the order in which they came. It starts with the first."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar

from switchagg.errors import SessionBrokenError

STOP_SECONDS: Final = 5.0

T = TypeVar("T")


def destroyed() -> SessionBrokenError:
    """What a process group says when it is used after its end."""
    return SessionBrokenError("this process group is destroyed")


class Queued(ABC, Generic[T]):
    """What such threads have in common.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self._stopped = False

    @abstractmethod
    def _take(self, item: T) -> None:
        """Does what there is to do; in the thread, also for what it still finds after `stop`."""

    def _put(self, item: T) -> None:
        with self._lock:
            if self._stopped:
                raise destroyed()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting += 1
            self._queue.put(item)

    def busy(self) -> bool:
        """Whether something is waiting or being done, and this is not the thread that does it."""
        return self._waiting > 0 and threading.current_thread() is not self._thread

    def stop(self) -> None:
        """Ends the thread behind what it was given. Safe to call twice, and from the thread itself."""
        with self._lock:
            self._stopped = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._take(item)
            del item  # its tensors must not live until the next one comes
            with self._lock:
                self._waiting -= 1
