"""Stop signals: as a file descriptor, for commands that serve; as an exit, for commands that work."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT: Final = 0.5  # seconds until a signal that ended nothing is repeated


@contextlib.contextmanager
def stop_signals(numbers: Iterable[int] = STOP_SIGNALS, *, keep_ignored: bool = True) -> Iterator[int]:
    """Yields a file descriptor from which the numbers of these signals can be read as they come.

    It stays readable until they are read. Handlers and Python's wake-up descriptor, not a signal mask: masked
    in this thread, a signal goes to another one, such as those of numpy's linear algebra, and kills there.

    Args:
        keep_ignored: a signal that is ignored already, as under nohup, stays ignored.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with _handled(numbers, lambda *_: None, keep_ignored=keep_ignored):
            wakeup = signal.set_wakeup_fd(writer)
            try:
                yield reader
            finally:
                signal.set_wakeup_fd(wakeup)
    finally:
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def stop_signals_exit() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise SystemExit, so that every child process is ended. For the main thread.

    A signal that is ignored already, as under nohup, stays ignored. If the exception is raised where Python
    ignores exceptions, as in a finalizer or a callback of fork, it is raised again.
    """
    came: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    main = threading.get_ident()

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        came.put(number)
        if not _leaving():
            raise SystemExit(128 + number)

    def repeat() -> None:
        number = came.get()
        while number is not None:
            latest = number
            try:
                number = came.get(timeout=_REPEAT)
            except queue.Empty:
                signal.pthread_kill(main, latest)

    thread = threading.Thread(target=repeat, name="switchagg-signals", daemon=True)
    thread.start()
    with _handled((signal.SIGTERM, signal.SIGHUP), leave, keep_ignored=True):
        try:
            yield
        finally:
            came.put(None)
            thread.join()


def _leaving() -> bool:
    """Returns True while a SystemExit is on its way."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, SystemExit):
            return True
        error = error.__context__
    return False


@contextlib.contextmanager
def _handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None], *, keep_ignored: bool
) -> Iterator[None]:
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        if not keep_ignored or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
