"""Stop signals: as something to select on, for commands that serve; as an exit, for those that work."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def stop_signals() -> Iterator[int]:
    """A file descriptor from which the numbers of SIGINT, SIGTERM and SIGHUP can be read as they come.

    It stays readable until they are read. A signal that is ignored already, as under nohup, stays ignored.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as nohup leaves it
    }
    wakeup = signal.set_wakeup_fd(writer)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """SIGTERM unwinds like an exit, so that every child process is ended. For the main thread."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
