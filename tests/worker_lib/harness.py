"""Runs n ranks of a job for the tests: as threads of this process, or as processes of their own; never
without a limit.

    together(host.url, 3, function, ...)       n sessions in n threads; `function(session, ...)` in each
    Processes(host.url, 3, function, ...)      n fresh interpreters; `function` is a top-level function of a
    test module

The engine releases the GIL, so threads are as good as processes wherever the process itself is not the
point. Either way an `Outcome` a rank comes back: what `function` returned, or what it raised.

`python -m tests.worker_lib.harness` is what a process runs: pickled instructions come on its standard input,
and on its standard output go the lines that `function` says and, last, the pickled outcome.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import itertools
import json
import os
import pickle
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

import worker_lib
from worker_lib.join import MemberStream

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 150.0  # seconds for anything
_names = itertools.count()


def several_sums(session: worker_lib.Session, seed: int) -> list[bytes]:
    """The bits of sums of several sizes and widths, and of a broadcast."""
    rng = np.random.default_rng([seed, session.rank])
    results = []
    for size, bits in ((1, 32), (1000, 8), (300_000, 32), (100_000, 16)):
        x = rng.standard_normal(size).astype(np.float32)
        x[rng.random(size) < 0.5] = 0
        results.append(session.allreduce(x, bits=bits).tobytes())
    results.append(session.broadcast(np.arange(5000) * (session.rank + 1), root=1).tobytes())
    return results


def ended(stream: MemberStream) -> bool:
    """True if the controller has ended a member's connection, or this side has. Does not block."""
    if stream._closed:
        return True
    poll = select.poll()
    poll.register(stream._sock, select.POLLRDHUP)
    return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one rank.

    Attributes:
        value: what its function returned.
        error: what it raised, or None.
        status: exit status of its process (negative: the signal that ended it); 0 for a thread.
    """

    value: Any = None
    error: BaseException | None = None
    status: int = 0

    def get(self) -> Any:
        """The value, or the exception raised again."""
        if self.error is not None:
            raise self.error
        assert self.status == 0, f"exit status {self.status}"
        return self.value


def job_name() -> str:
    """A name that no other job of this process has."""
    return f"test-{os.getpid()}-{next(_names)}"


# ---------------------------------------------------------------------- threads


def try_together(
    url: str,
    n: int,
    function: Callable[..., Any],
    *args: Any,
    job: str | None = None,
    limit: float = LIMIT,
    **settings: Any,
) -> list[Outcome]:
    """Runs `function(session, *args)` at n ranks in n threads; `settings` go to `connect`.

    Raises:
        TimeoutError: not all of them ended within `limit` seconds.
    """
    name = job or job_name()
    settings = {"timeout": 60.0, **settings}

    def rank(r: int) -> Any:
        with worker_lib.connect(url, name, r, n, **settings) as session:
            return function(session, *args)

    return in_threads([lambda r=r: rank(r) for r in range(n)], limit)


def together(url: str, n: int, function: Callable[..., Any], *args: Any, **settings: Any) -> list[Any]:
    """`try_together` where every rank must come to its end."""
    return [outcome.get() for outcome in try_together(url, n, function, *args, **settings)]


def in_threads(calls: Sequence[Callable[[], Any]], limit: float = LIMIT) -> list[Outcome]:
    """Calls each in a thread of its own."""
    outcomes = [Outcome(error=TimeoutError("still running"))] * len(calls)

    def run(i: int) -> None:
        try:
            outcomes[i] = Outcome(calls[i]())
        except BaseException as error:
            outcomes[i] = Outcome(error=error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = [i for i, thread in enumerate(threads) if thread.is_alive()]
    if late:
        raise TimeoutError(f"ranks {late} were still running after {limit:g} s")
    return outcomes


# ---------------------------------------------------------------------- processes


class Process:
    """A fresh interpreter that runs `function(*args)`, a top-level function of an importable module."""

    def __init__(
        self, function: Callable[..., Any], *args: Any, environment: dict[str, str] | None = None
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed in finish)
        self._buffer = b""
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.worker_lib.harness"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        assert self._popen.stdin is not None
        self._popen.stdin.write(pickle.dumps((function.__module__, function.__qualname__, args)))
        self._popen.stdin.close()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def hear(self, limit: float = LIMIT) -> Any:
        """The next thing that the function says with `say`."""
        line = self._line(time.monotonic() + limit)
        if line is None or not line.startswith(b"{"):
            raise AssertionError(f"process {self.pid} said {line!r} and {self.stderr()!r}")
        return json.loads(line)["said"]

    def finish(self, limit: float = LIMIT) -> Outcome:
        """Waits for its end, and kills it at the limit."""
        deadline = time.monotonic() + limit
        try:
            last = None
            while (line := self._line(deadline)) is not None:
                last = line
            status = self._popen.wait(max(0.01, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            self.kill()
            raise TimeoutError(f"process {self.pid} still ran after {limit:g} s: {self.stderr()}") from None
        if last is None or not last.startswith(b"="):
            return Outcome(status=status, error=ProcessEnded(status, self.stderr()))
        value, error = pickle.loads(base64.b64decode(last[1:]))
        return Outcome(value, error, status)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)
            self._popen.kill()
        self._popen.wait()
        assert self._popen.stdout is not None
        self._popen.stdout.close()

    def stderr(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._said.close()

    def _line(self, deadline: float) -> bytes | None:
        """The next line of its output; None at the end."""
        assert self._popen.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"process {self.pid} said nothing more: {self.stderr()}")
                chunk = os.read(self._popen.stdout.fileno(), 1 << 16)
                if not chunk:
                    return None
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class ProcessEnded(Exception):
    """A process ended without an outcome."""

    def __init__(self, status: int, stderr: str) -> None:
        super().__init__(f"exit status {status}: {stderr}")
        self.status = status


@contextlib.contextmanager
def processes(
    url: str, n: int, function: Callable[..., Any], *args: Any, **settings: Any
) -> Iterator[list[Process]]:
    """n processes that each connect to a job and run `function(session, *args)`; none outlives the block."""
    name = job_name()
    settings = {"timeout": 60.0, **settings}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Process(_connect_and_run, url, name, r, n, settings, _reference(function), args)
            )
            for r in range(n)
        ]


def say(thing: Any) -> None:
    """In a process: tells the test something (JSON)."""
    print(json.dumps({"said": thing}), file=_out, flush=True)


def _reference(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def _resolve(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _connect_and_run(
    url: str,
    name: str,
    rank: int,
    n: int,
    settings: dict[str, Any],
    function: tuple[str, str],
    args: tuple[Any, ...],
) -> Any:
    with worker_lib.connect(url, name, rank, n, **settings) as session:
        return _resolve(*function)(session, *args)


_out = sys.stdout


def _main() -> None:
    # This module is `__main__` here and `tests.worker_lib.harness` for the functions that it runs.
    harness = importlib.import_module("tests.worker_lib.harness")

    harness._out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not for the test
    module, name, args = pickle.loads(sys.stdin.buffer.read())
    value, error = None, None
    try:
        value = _resolve(module, name)(*args)
    except BaseException as caught:
        error = caught
    try:
        told = pickle.dumps((value, error))
    except Exception:
        told = pickle.dumps((None, RuntimeError(f"{value!r} {error!r}")))
    print(f"={base64.b64encode(told).decode()}", file=harness._out, flush=True)
    harness._out.close()


if __name__ == "__main__":
    _main()
