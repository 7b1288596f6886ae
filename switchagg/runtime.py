"""Time, waiting, threads and random numbers, as an object that is handed in.

    shell: a command, a server, connect()  --SYSTEM-->  controller, agents, journal, monitor, session
    a simulation                        --its own-->    the same

Only shells use what lies beneath it: `scripts/check_sources.py` lists them, and checks all other modules.
Locks are no part of it, since nothing waits while it holds one.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final


class WakeUp:
    """An eventfd: any thread, or native code, ends the wait of one thread.

    Attributes:
        descriptor: of the eventfd.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC)

    def set(self) -> None:
        """Ends the present wait, or the next."""
        os.eventfd_write(self.descriptor, 1)

    def wait(self) -> None:
        """Waits until it was set since the last wait."""
        os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Closes the descriptor. Nothing else may be called afterwards."""
        os.close(self.descriptor)


class Runtime:
    """The operating system's. Others have the same methods."""

    def monotonic(self) -> float:
        """Returns seconds since a fixed moment."""
        return time.monotonic()

    def unix(self) -> float:
        """Returns seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Waits so long."""
        time.sleep(seconds)

    def thread(self, program: Callable[[], None], name: str) -> threading.Thread:
        """Returns a daemon thread that is not started yet."""
        return threading.Thread(target=program, name=name, daemon=True)

    def current_thread(self) -> threading.Thread:
        """Returns the thread that calls."""
        return threading.current_thread()

    def event(self) -> threading.Event:
        """Returns an event that is not set."""
        return threading.Event()

    def condition(self, lock: threading.Lock | None = None) -> threading.Condition:
        """Returns a condition on a lock, or on one of its own."""
        return threading.Condition(lock)

    def wake_up(self) -> WakeUp:
        """Returns a wake-up that native code can use too."""
        return WakeUp()

    def random_bits(self, bits: int) -> int:
        """Returns a random number below 2 ** bits that nobody can guess."""
        return secrets.randbits(bits)

    def random_bytes(self, count: int) -> bytes:
        """Returns random bytes that nobody can guess."""
        return secrets.token_bytes(count)


SYSTEM: Final = Runtime()
