"""Stop signals: as a file descriptor, for commands that serve; as an exit, for commands that work."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN: Final = 0.02  # seconds until a signal that ended nothing is sent again


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

    A signal that is ignored already, as under nohup, stays ignored. If the exception, or KeyboardInterrupt,
    is raised where Python ignores exceptions, as in a finalizer or a callback of fork, it is sent again.
    """
    main = threading.get_ident()
    report = sys.unraisablehook
    repeats: list[threading.Timer] = []

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        if not _leaving():
            raise SystemExit(128 + number)

    def lost(what: sys.UnraisableHookArgs) -> None:
        error, number = what.exc_value, 0
        if isinstance(error, KeyboardInterrupt):
            number = signal.SIGINT
        elif isinstance(error, SystemExit) and error.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP):
            number = int(error.code) - 128
        if not number or threading.get_ident() != main:
            report(what)
            return
        repeats.append(threading.Timer(_AGAIN, signal.pthread_kill, (main, number)))
        repeats[-1].start()

    with _handled((signal.SIGTERM, signal.SIGHUP), leave, keep_ignored=True):
        sys.unraisablehook = lost
        try:
            yield
        finally:
            sys.unraisablehook = report
            for repeat in repeats:
                repeat.cancel()
                repeat.join()


def _leaving() -> bool:
    """Returns True while a SystemExit is on its way: another signal does not disturb the clean-up."""
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
