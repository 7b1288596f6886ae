"""The local processes of a run: starts them, passes on what they print, and sees to it that all of them end.

                          +--> rank 0 --+  stdout, stderr: pipes, unless lines are to go out as they are
    switchagg run --------+--> rank 1 --+--> [rank] line
        |   ^             +--> ...    --+
        |   +-- signals, pidfds, pipes: one loop, one thread
        +--> guardian: kills the ranks should this process be killed

Each rank leads a process group, in a session of its own: a signal from the terminal reaches this process
alone, which passes it on, and whatever a rank has started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

KILL_AFTER: Final = 5.0  # seconds between SIGTERM and SIGKILL
DRAIN: Final = 0.5  # seconds to wait for output that somebody else still holds the pipe of
MAX_LINE: Final = 1 << 16  # bytes; a longer line is broken

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guardian:
    """Kills the process groups it knows of when this process ends in whatever way."""

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
        self._pipe = self._process.stdin.fileno()

    def watch_me(self) -> None:
        """Called in a new process that leads a group, before it becomes what it shall be."""
        os.write(self._pipe, b"+%d\n" % os.getpid())

    def forget(self, group: int) -> None:
        """The group has ended; its number may become another's."""
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._pipe, b"-%d\n" % group)

    def close(self) -> None:
        """Lets it do its work, and waits."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass(eq=False)
class _Lines:
    """Puts a prefix before every line of one stream."""

    prefix: bytes
    out: IO[bytes]
    rest: bytes = b""
    after_return: bool = False

    def feed(self, chunk: bytes) -> None:
        """Passes on the lines that are whole. A carriage return ends one too, as progress bars use it."""
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
        """Passes on what came after the last newline."""
        if self.rest:
            self.out.write(self.prefix + self.rest + b"\n")
            self.out.flush()
            self.rest = b""


@dataclass(eq=False)
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    pidfd: int
    status: int | None = None


@dataclass(eq=False)
class Workers:
    """Local ranks, from `start` to the return of `wait`.

    Args:
        command: program and arguments, the same for every rank.
        prefix: whether lines are marked with their rank; otherwise the ranks write to this process's own
            streams.
        grace: seconds that the others have to end by themselves after a rank has failed, or after a signal.
        say: takes a message for the user.
        wrap: for each rank, words in front of the command: what brings it to another namespace.
    """

    command: Sequence[str]
    prefix: bool
    grace: float
    say: Callable[[str], None]
    wrap: Sequence[Sequence[str]] = ()
    failed: int | None = None  # the rank that failed first
    _guardian: Guardian = field(default_factory=Guardian)
    _workers: list[_Worker] = field(default_factory=list)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _streams: int = 0
    _term_at: float | None = None
    _kill_at: float | None = None
    _signal: signal.Signals | None = None

    def start(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Starts a rank for each environment. Raises OSError where the command cannot be executed."""
        pipe = subprocess.PIPE if self.prefix else None
        for rank, environment in enumerate(environments):
            process = subprocess.Popen(
                [*self.wrap[rank], *self.command] if self.wrap else self.command,
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                env=environment,
                start_new_session=True,
                # In the child, so that there is no moment at which it runs and the guardian does not know.
                preexec_fn=self._guardian.watch_me,  # noqa: PLW1509  (there is one thread)
            )
            worker = _Worker(rank, process, os.pidfd_open(process.pid))
            self._workers.append(worker)
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
            for stream, out in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    lines = _Lines(b"[%d] " % rank, out)
                    self._selector.register(stream, selectors.EVENT_READ, lines)
                    self._streams += 1

    def wait(self, watched: Mapping[int, Callable[[], None]], signals: int) -> int:
        """Runs until every rank has ended.

        Args:
            watched: process file descriptors of other processes; what to do when one ends.
            signals: file descriptor that signal numbers are read from, as `signal.set_wakeup_fd` writes them.

        Returns the exit status of the first rank that failed, 128 + n where signal n ended it; 128 + n after
        signal n to this process; otherwise 0.
        """
        for descriptor, ended in watched.items():
            self._selector.register(descriptor, selectors.EVENT_READ, ended)
        self._selector.register(signals, selectors.EVENT_READ, "signals")
        while self._running():
            self._step(self._timeout())
        give_up = time.monotonic() + DRAIN
        while self._streams and time.monotonic() < give_up:
            self._step(max(0.0, give_up - time.monotonic()))
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Lines):
                key.data.end()
        if self._signal is not None:
            return 128 + self._signal
        if self.failed is None:
            return 0
        status = self._workers[self.failed].status
        assert status is not None
        return status if status > 0 else 128 - status

    def close(self) -> None:
        """Kills what still runs. Safe to call twice."""
        for worker in self._running():
            self._kill_group(worker, signal.SIGKILL)
            self._reap(worker)
        for worker in self._workers:
            for stream in (worker.process.stdout, worker.process.stderr):
                if stream is not None:
                    stream.close()
        self._selector.close()
        self._guardian.close()

    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [worker.process.pid for worker in self._workers]

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.status is None]

    def _timeout(self) -> float | None:
        now = time.monotonic()
        times = [at for at in (self._term_at, self._kill_at) if at is not None]
        return max(0.0, min(times) - now) if times else None

    def _step(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            match key.data:
                case _Worker() as worker:
                    self._reap(worker)
                    self._judge(worker)
                case _Lines() as lines:
                    self._pass_on(key.fd, key.fileobj, lines)
                case "signals":
                    for number in os.read(key.fd, 64):
                        self._signalled(signal.Signals(number))
                case ended:
                    self._selector.unregister(key.fileobj)
                    ended()
        now = time.monotonic()
        if self._term_at is not None and now >= self._term_at:
            self._term_at, self._kill_at = None, now + KILL_AFTER
            self._kill_all(signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._kill_all(signal.SIGKILL)

    def _pass_on(self, descriptor: int, stream: object, lines: _Lines) -> None:
        try:
            chunk = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        if chunk:
            lines.feed(chunk)
        else:
            lines.end()
            self._selector.unregister(stream)  # type: ignore[arg-type]
            self._streams -= 1

    def _signalled(self, number: signal.Signals) -> None:
        if number not in _SIGNALS:
            return
        if self._signal is not None:  # the second time somebody is in a hurry
            self._kill_at = time.monotonic()
            return
        self._signal = number
        self._term_at = None
        self._kill_at = time.monotonic() + self.grace
        self._kill_all(number)

    def _reap(self, worker: _Worker) -> None:
        """A rank has ended: ends its group, whose number is its own until it is reaped, and reaps it."""
        os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
        self._kill_group(worker, signal.SIGKILL)
        self._guardian.forget(worker.process.pid)
        worker.status = worker.process.wait()
        if worker.pidfd in self._selector.get_map():
            self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)

    def _judge(self, worker: _Worker) -> None:
        """What the end of a rank means for the others."""
        if worker.status is None or worker.status == 0 or self.failed is not None or self._signal is not None:
            return
        self.failed = worker.rank
        others = self._running()
        self.say(
            f"rank {worker.rank} (pid {worker.process.pid}) {ending(worker.status)}"
            + (f"; the others have {self.grace:g} seconds to end" if others else "")
        )
        if others and self._kill_at is None:
            self._term_at = time.monotonic() + self.grace

    def _kill_all(self, number: signal.Signals) -> None:
        for worker in self._running():
            self._kill_group(worker, number)

    @staticmethod
    def _kill_group(worker: _Worker, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, number)


def ending(status: int) -> str:
    """Returns in words how a process ended, from `Popen.returncode`."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
