"""The launcher: starts child processes, hands on what they write, and ends all of them.

                        +--> child 0 --+  stdout: lines as events, marked or passed on, kept, or inherited
    this process -------+--> child 1 --+  stderr: kept for error messages, marked and passed on, or inherited
        |    ^          +--> ...     --+
        |    +-- process and pipe descriptors: one selector, one thread
        +--> guardian: kills the children if this process is killed

    with Processes() as processes:
        ranks = [processes.start(f"rank {rank}", command, environment=...) for rank in range(4)]
        for event in processes.events(silence=60.0):
            match event:
                case Line(child, text): ...
                case Ended(child) if child.status: raise ProcessError(child.ending())

Each child leads a process group of its own: a signal from the terminal reaches this process alone, and what a
child has started ends with the child. The session is this process's: Linux schedules sessions as groups
(`sched_autogroup_enabled`), and a rank that polls could not yield its core to one of another session. A child
has no terminal of its own to ask at.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

from switchagg.errors import SwitchAggError
from switchagg.launch.cores import bind

ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)
"""Environment that keeps NumPy's matrix products to one thread, so that ranks do not compete for cores."""

CONTROL: Final = b"\x1eswitchagg "
"""Begins a control line: what a remote launcher says, among the output of its ranks."""

STOP_SECONDS: Final = 3.0  # between SIGTERM and SIGKILL
MAX_LINE: Final = 1 << 16  # bytes; a longer line is broken
_CHUNK: Final = 1 << 16  # bytes; the capacity of a pipe
_TAIL: Final = 1 << 14  # bytes of kept output that error messages look at


class ProcessError(SwitchAggError):
    """A child process ended early, failed, or fell silent. The message names it."""


class CannotExecute(ProcessError):
    """The operating system refused to execute a command."""


class Output(Enum):
    """The destination of a child's stdout and stderr."""

    LINES = auto()  # stdout comes as `Line` events; stderr is kept for `Child.last_lines`
    KEPT = auto()  # both are kept for `Child.last_lines`
    MARKED = auto()  # both are passed on to this process's streams, each line behind a prefix
    INHERITED = auto()  # both are this process's own streams
    CONTROLLED = auto()  # both are passed on; control lines (`CONTROL`) on stdout come as `Line` events


def raise_descriptor_limit() -> None:
    """Raises the limit of open descriptors, usually 1024, as far as this process may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def ending(status: int) -> str:
    """Returns in words how a process ended, from `Popen.returncode`."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


@dataclass(eq=False)
class Child:
    """A child process.

    Attributes:
        name: as the user reads it, such as ``worker 2``.
        status: None while it runs; then its exit status, or -n where signal n killed it.
    """

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int
    kept: IO[bytes] | None
    status: int | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def keep(self, text: str) -> None:
        """Adds a line to the kept output: one on stdout that was no message, say."""
        if self.kept is not None:
            os.write(self.kept.fileno(), text.encode() + b"\n")

    def last_lines(self, count: int = 1, characters: int = 300) -> str:
        """Returns the last lines of the kept output that are not blank, up to so many characters."""
        if self.kept is None:
            return ""
        descriptor = self.kept.fileno()
        # pread: the child writes where the descriptor's offset is.
        tail = os.pread(descriptor, _TAIL, max(0, os.fstat(descriptor).st_size - _TAIL))
        lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()][-count:]
        return "\n".join(lines).strip()[:characters] if count == 1 else "\n".join(lines)[-characters:]

    def ending(self, lines: int = 1, characters: int = 300) -> str:
        """Returns in words how it ended, with the last lines of its kept output."""
        how = "is still running" if self.status is None else ending(self.status)
        words = self.last_lines(lines, characters)
        return f"{self.name} (process {self.pid}) {how}" + (f": {words}" if words else "")


@dataclass(frozen=True)
class Line:
    """A child wrote a line to its stdout; `text` is without the line break."""

    child: Child
    text: str


@dataclass(frozen=True)
class Ended:
    """A child has ended and all its lines have come."""

    child: Child


@dataclass(frozen=True)
class Readable:
    """A descriptor that was given to `Processes.watch` is readable."""

    descriptor: int


Event = Line | Ended | Readable


class _EventLines:
    """Takes the bytes of a pipe and makes a `Line` event of each line."""

    def __init__(self, child: Child, events: deque[Event]) -> None:
        self.child, self.events, self.rest = child, events, b""

    def feed(self, chunk: bytes) -> None:
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.events.extend(Line(self.child, line.decode(errors="replace")) for line in lines)

    def end(self) -> None:
        if self.rest:
            self.feed(b"\n")


class _MarkedLines:
    """Takes the bytes of a pipe and writes each line behind a prefix.

    A carriage return ends a line too, as progress bars use it.
    """

    def __init__(self, prefix: bytes, out: IO[bytes]) -> None:
        self.prefix, self.out, self.rest = prefix, out, b""
        self.after_return = False

    def feed(self, chunk: bytes) -> None:
        if self.after_return and chunk.startswith(b"\n"):  # the two ends of one line came apart
            self.out.write(b"\n")
            chunk = chunk[1:]
        self.after_return = chunk.endswith(b"\r")
        pieces = (self.rest + chunk).replace(b"\r\n", b"\n").splitlines(keepends=True)
        self.rest = pieces.pop() if pieces and not pieces[-1].endswith((b"\n", b"\r")) else b""
        while len(self.rest) > MAX_LINE:
            cut = MAX_LINE
            while self.rest[cut] & 0xC0 == 0x80 and cut > MAX_LINE - 4:  # inside a UTF-8 character
                cut -= 1
            pieces.append(self.rest[:cut] + b"\n")
            self.rest = self.rest[cut:]
        if pieces:
            self.out.write(b"".join(self.prefix + piece for piece in pieces))
        self.out.flush()

    def end(self) -> None:
        if self.rest:
            self.out.write(self.prefix + self.rest + b"\n")
            self.out.flush()
            self.rest = b""


class _ControlledOutput:
    """Takes the bytes of a pipe, makes an event of each control line, and writes what is between them.

    Whole lines only, so that those of several children do not mix.
    """

    _LINE: Final = re.compile(re.escape(CONTROL) + rb"([^\n]*)\n")

    def __init__(self, child: Child, events: deque[Event], out: IO[bytes]) -> None:
        self.child, self.events, self.out, self.rest = child, events, out, b""

    def feed(self, chunk: bytes) -> None:
        chunk = self.rest + chunk
        cut = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        self.rest = chunk[cut:]
        pieces = self._LINE.split(chunk[:cut])
        self.out.write(b"".join(pieces[::2]))
        self.out.flush()
        self.events.extend(Line(self.child, line.decode(errors="replace")) for line in pieces[1::2])

    def end(self) -> None:
        self.out.write(self.rest)
        self.out.flush()
        self.rest = b""


_Sink = _EventLines | _MarkedLines | _ControlledOutput


class Processes:
    """Child processes that end together. A context manager; leaving it ends all of them."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self._events: deque[Event] = deque()
        self._selector = selectors.DefaultSelector()
        self._guardian = _Guardian()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: Output = Output.LINES,
        prefix: str = "",
        descriptors: Sequence[int] = (),
        to_stderr: bool = False,
        stdin: int = subprocess.DEVNULL,
        cores: Collection[int] = (),
    ) -> Child:
        """Starts a child.

        Args:
            name: for messages.
            environment: all of it; None for this process's own.
            prefix: in front of each line of `Output.MARKED`.
            descriptors: file descriptors that the child inherits.
            to_stderr: pass on to standard error also what the child writes to its standard output.
            stdin: its standard input: empty, or ``subprocess.PIPE``.
            cores: that it is bound to (`switchagg.launch.cores`); if none, those of this process.

        Raises:
            CannotExecute: the operating system refused.
        """
        keeps = output in (Output.LINES, Output.KEPT)
        kept = tempfile.TemporaryFile() if keeps else None  # noqa: SIM115  (as long as the child)
        pipe = subprocess.PIPE
        own = sys.stderr if to_stderr else sys.stdout
        stdout = own.fileno() if output is Output.INHERITED and to_stderr else kept
        passes = output in (Output.MARKED, Output.CONTROLLED)
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=pipe if passes or output is Output.LINES else stdout,
                stderr=pipe if passes else kept,
                env=environment,
                pass_fds=descriptors,
                process_group=0,
                preexec_fn=partial(self._begin, cores),  # noqa: PLW1509
            )
        except OSError as error:
            if kept is not None:
                kept.close()
            raise CannotExecute(f"cannot execute {command[0]!r}: {error.strerror}") from None
        child = Child(name, process, os.pidfd_open(process.pid), kept)
        # A signal's exception may come between any two steps. What is in `children` can be reaped; a process
        # that is not yet there is the guardian's to end.
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        self.children.append(child)
        for stream, out in ((process.stdout, own.buffer), (process.stderr, sys.stderr.buffer)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                sink: _Sink = _MarkedLines(prefix.encode(), out)
                if output is Output.LINES:
                    sink = _EventLines(child, self._events)
                elif output is Output.CONTROLLED and stream is process.stdout:
                    sink = _ControlledOutput(child, self._events, out)
                self._selector.register(stream, selectors.EVENT_READ, sink)
        return child

    def forget(self, child: Child) -> None:
        """Lets go of a child that has ended, for those who start many; its kept output is gone then."""
        self.children.remove(child)
        for stream in (child.process.stdin, child.process.stdout, child.process.stderr, child.kept):
            if stream is not None:
                stream.close()
        child.kept = None

    def running(self) -> list[Child]:
        """Returns the children that have not ended, as far as events tell."""
        return [child for child in self.children if child.status is None]

    def watch(self, descriptor: int) -> None:
        """Makes `poll` return `Readable` while a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def unwatch(self, descriptor: int) -> None:
        """Undoes `watch`."""
        self._selector.unregister(descriptor)

    def poll(self, timeout: float | None) -> list[Event]:
        """Returns the events since the last call, after at most `timeout` seconds; None waits for one."""
        self._step(0.0 if self._events else timeout)
        events = list(self._events)
        self._events.clear()
        return events

    def events(self, silence: float | None = None) -> Iterator[Event]:
        """Yields events in order of arrival, for ever.

        Args:
            silence: seconds without any event after which to give up; None for never.

        Raises:
            ProcessError: nothing happened for that long.
        """
        while True:
            deadline = None if silence is None else time.monotonic() + silence
            while not self._events:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    names = ", ".join(child.name for child in self.running()) or "any process"
                    raise ProcessError(f"no word for {silence:g} s from {names}; stopped waiting")
                self._step(left)
            yield self._events.popleft()

    def wait(self, seconds: float) -> bool:
        """Returns True once all children have ended, False after so many seconds. Keeps events for later."""
        return self._step_until(lambda: not self.running(), seconds)

    def first_cause(self, patience: float = 1.0) -> Child | None:
        """Returns the first child that a signal killed, if there is one within `patience` seconds.

        When a process dies, others fail because of it and may be faster to say so than the kernel.
        """
        killed: list[Child] = []

        def found() -> bool:
            killed.extend(child for child in self.children if (child.status or 0) < 0)
            return bool(killed)

        return killed[0] if self._step_until(found, patience) else None

    def signal(self, number: int) -> None:
        """Sends a signal to the process groups of the children that run."""
        for child in self.running():
            _kill_group(child, number)

    def drain(self, seconds: float) -> None:
        """Passes on marked output until all pipes are closed, which other processes may hold open."""
        self._step_until(lambda: not self._sinks(), seconds)
        for key in self._sinks():
            key.data.end()

    def close(self, patience: float = STOP_SECONDS) -> None:
        """Ends every child: SIGTERM, then SIGKILL after `patience` seconds. Safe to call twice."""
        if patience:
            self.signal(signal.SIGTERM)
            self.wait(patience)
        for child in self.running():
            _kill_group(child, signal.SIGKILL)
            self._reap(child)
        for child in self.children:
            for stream in (child.process.stdin, child.process.stdout, child.process.stderr, child.kept):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):  # of what was not sent to its input
                        stream.close()
            child.kept = None
        self.children.clear()
        self._selector.close()
        self._guardian.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sinks(self) -> list[selectors.SelectorKey]:
        return [key for key in self._selector.get_map().values() if isinstance(key.data, _Sink)]

    def _step_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Steps until `done()`, for at most so many seconds; returns `done()`."""
        deadline = time.monotonic() + seconds
        while not (finished := done()) and (left := deadline - time.monotonic()) > 0:
            self._step(left)
        return finished

    def _step(self, timeout: float | None) -> None:
        """Turns what is ready into events, or passes it on."""
        for key, _ in self._selector.select(timeout):
            if key.fileobj not in self._selector.get_map():
                continue  # closed by an earlier one of this batch
            match key.data:
                case Child() as child:
                    self._reap(child)
                case None:
                    self._events.append(Readable(key.fd))
                case _:
                    self._read(key)

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Reads from a pipe once. Returns False where there is nothing more for now."""
        try:
            chunk = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return False
        if chunk:
            key.data.feed(chunk)
        else:
            key.data.end()
            self._selector.unregister(key.fileobj)
        return bool(chunk)

    def _begin(self, cores: Collection[int]) -> None:
        """Called in a child before it executes its command."""
        if cores:
            bind(cores)
        self._guardian.add_this_process()  # it never runs without the guardian knowing
        # A terminal stops background groups that read it. Without one, asking for a password fails at once.
        with contextlib.suppress(OSError):  # there is none
            terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
            fcntl.ioctl(terminal, termios.TIOCNOTTY)
            os.close(terminal)

    def _reap(self, child: Child) -> None:
        """Ends the group of a child that has ended, reaps the child, and reads what it left in its pipes."""
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(child, signal.SIGKILL)  # before it is reaped: until then the number is the group's own
        self._guardian.forget(child.pid)
        child.status = child.process.wait()
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        for stream in (child.process.stdout, child.process.stderr):
            key = self._selector.get_map().get(stream) if stream is not None else None
            if key is None:
                continue
            for _ in range(_CHUNK >> 10):  # not for ever: others may write to the pipe
                if not self._read(key):
                    break
            if isinstance(key.data, _EventLines) and key.fileobj in self._selector.get_map():
                key.data.end()
                self._selector.unregister(key.fileobj)
        self._events.append(Ended(child))


def _kill_group(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


class _Guardian:
    """Kills the process groups that it knows of when this process ends, in whatever way."""

    def __init__(self) -> None:
        # -I -S: nothing of the user's is imported. Its own session: Ctrl-C is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def add_this_process(self) -> None:
        """Called in a new process that leads a group, before it executes its command."""
        os.write(self._pipe.fileno(), b"+%d\n" % os.getpid())

    def forget(self, group: int) -> None:
        """Removes a group that has ended; its number may become another's."""
        with contextlib.suppress(BrokenPipeError):  # somebody has killed the guardian
            os.write(self._pipe.fileno(), b"-%d\n" % group)

    def close(self) -> None:
        """Lets it kill what is left and waits for its end. Safe to call twice."""
        self._pipe.close()
        self._process.wait()
