"""Child processes of the demo: started, listened to, and never left behind.

Each child leads a session of its own, so Ctrl-C in the terminal reaches the parent alone, which then ends its
children in order. Two threads a child read its output; it comes to the parent as one stream of events:

    child's stdout ─ lines ─┐
    child's stderr ─ kept ──┼─> events(): Line(child, text) ... Ended(child)
    child's end ────────────┘
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Self

from switchagg.errors import SwitchAggError

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 3.0


class ChildError(SwitchAggError):
    """A child process ended early, failed, or fell silent. The message names it."""


@dataclass(eq=False)
class Child:
    """One child process; `name` is what the user reads, such as ``worker 2``."""

    name: str
    process: subprocess.Popen[str]
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=12))
    threads: list[threading.Thread] = field(default_factory=list)

    def ending(self) -> str:
        """How it ended, with the last line that it wrote to stderr."""
        status = self.process.returncode
        if status is None:
            how = "is still running"
        elif status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        else:
            how = f"ended with exit status {status}"
        words = next((line for line in reversed(self.last_words) if line.strip()), "")
        return f"{self.name} (process {self.process.pid}) {how}" + (
            f": {words.strip()[:300]}" if words else ""
        )


@dataclass(frozen=True)
class Line:
    """A line that a child wrote to stdout."""

    child: Child
    text: str


@dataclass(frozen=True)
class Ended:
    """A child's output is closed and it has ended."""

    child: Child


class Processes:
    """A group of children. A context manager; leaving it ends all of them."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._events: queue.SimpleQueue[Line | Ended] = queue.SimpleQueue()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> Child:
        """Start a child that inherits `descriptors`.

        Raises:
            ChildError: the operating system refused.
        """
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, **(environment or {})},
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            raise ChildError(f"could not start {name}: {error}") from None
        child = Child(name, process)
        self._children.append(child)
        assert process.stdout is not None
        assert process.stderr is not None
        errors = threading.Thread(target=_keep, args=(process.stderr, child.last_words), daemon=True)
        lines = threading.Thread(target=self._read, args=(child, process.stdout, errors), daemon=True)
        child.threads = [errors, lines]
        for thread in child.threads:
            thread.start()
        return child

    def _read(self, child: Child, stream: IO[str], errors: threading.Thread) -> None:
        for line in stream:
            self._events.put(Line(child, line.rstrip("\n")))
        child.process.wait()
        errors.join(1.0)
        self._events.put(Ended(child))

    def events(self, silence: float) -> Iterator[Line | Ended]:
        """What happens, in order of arrival, for ever.

        Args:
            silence: seconds without any event after which to give up.

        Raises:
            ChildError: nothing happened for that long.
        """
        while True:
            try:
                yield self._events.get(timeout=silence)
            except queue.Empty:
                names = ", ".join(child.name for child in self._children if child.process.poll() is None)
                raise ChildError(
                    f"no word for {silence:g} s from {names or 'any process'}; stopped waiting"
                ) from None

    def first_cause(self, patience: float = 1.0) -> Child | None:
        """The child that failed without saying why, if there is one: killed, or crashed.

        When one process dies, others fail because of it, and may be faster to say so. Waits up to `patience`
        seconds for the one that died.
        """
        deadline = time.monotonic() + patience
        while True:
            for child in self._children:
                if (child.process.poll() or 0) < 0:
                    return child
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)

    def close(self) -> None:
        """End every child: SIGTERM, then SIGKILL where 3 seconds were not enough. Safe to call twice."""
        for child in self._children:
            _signal_group(child.process, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal_group(child.process, signal.SIGKILL)
                child.process.wait()
        for child in self._children:
            for thread in child.threads:
                thread.join(1.0)
            for stream in (child.process.stdout, child.process.stderr):
                if stream is not None:
                    stream.close()
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _keep(stream: IO[str], last_words: deque[str]) -> None:
    for line in stream:
        last_words.append(line)


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    # A child that is not reaped yet still owns its process group's number, so no stranger can be hit.
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def end_with_parent(parent: int) -> None:
    """In a child: ask the kernel to end this process when its parent is gone, however that went.

    Args:
        parent: the parent's process id; if it is gone already, this process exits now.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)
"""Environment that keeps numpy's matrix products to one thread, so that workers do not fight for cores."""
