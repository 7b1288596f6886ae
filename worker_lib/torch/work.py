"""One collective on its way, as PyTorch holds it, and the threads of a process group.

    group.allreduce(...) -> SwitchWork --wait()--> worker_lib.Work, in the caller's own thread
                                |
                                +--get_future()--> a TaskThread that waits for works in their order

The caller that waits runs the collective. A thread does it instead where a future is asked for, as DDP does,
or where results must be copied at the end whether anybody waits or not.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from switchagg.errors import SessionBrokenError
from worker_lib.work import Work

Step = Callable[[], None]
_STOP_SECONDS: Final = 5.0


def ranged(name: str) -> AbstractContextManager[Any]:
    """A range ``switchagg::name`` in torch.profiler; nothing where none runs, since a range is not free."""
    if torch.autograd._profiler_enabled():
        return record_function(f"switchagg::{name}")  # type: ignore[no-any-return]
    return nullcontext()


def flat(tensors: Any) -> list[torch.Tensor]:
    """The tensors in an argument: a tensor, or lists of them in any depth."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [t for each in tensors for t in flat(each)] if isinstance(tensors, list | tuple) else []


class TaskThread:
    """Runs tasks in the order in which they come, in a thread that starts with the first.

    Args:
        name: of the thread.

    Attributes:
        stopped: True after `stop`. Tasks that were put before still run, and may look at it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting = 0
        self.stopped = False

    def put(self, task: Step) -> None:
        """Queues a task, which must not raise.

        Raises `SessionBrokenError` after `stop`.
        """
        with self._lock:
            if self.stopped:
                raise destroyed()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting += 1
            self._queue.put(task)

    def busy(self) -> bool:
        """True if a task waits or runs, and the caller is not the task itself."""
        return self._waiting > 0 and threading.current_thread() is not self._thread

    def stop(self) -> None:
        """Ends the thread after the tasks that it has. Safe to call twice, and from a task."""
        with self._lock:
            self.stopped = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task()
            del task  # its tensors must not live until the next one comes
            with self._lock:
                self._waiting -= 1


def destroyed() -> SessionBrokenError:
    """The error of a process group that is used after its end."""
    return SessionBrokenError(
        "this process group is destroyed; torch.distributed.init_process_group makes a new one"
    )


class Running(Protocol):
    """The part of `worker_lib.Work` that a `SwitchWork` needs."""

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end; `timeout` in seconds."""


class SwitchWork(dist.Work):  # type: ignore[misc]
    """A collective through the switch, or several that count as one.

    Args:
        name: of the operation, for the profiler.
        parts: the collectives.
        result: returned by the future, and by `result()` as a flat list.
        steps: called once, when all parts are done: they copy results to where they belong.
        futures: the thread that completes futures.
    """

    def __init__(
        self, name: str, parts: Sequence[Running], result: Any, steps: Sequence[Step], futures: TaskThread
    ) -> None:
        super().__init__()
        self._name = name
        self._parts = parts
        self._result = result
        self._steps = steps
        self._futures = futures
        self._lock = threading.Lock()
        self._done = False
        self._error: BaseException | None = None
        self._ended: torch.futures.Future[None] | None = None  # completed by the thread that finishes
        self._future: torch.futures.Future[Any] | None = None  # what the caller holds

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the collective is done.

        Args:
            timeout: counted from now; zero or None for the one that the call was given.

        Returns:
            True.

        Raises:
            SwitchAggError: any that `worker_lib.Work.wait` raises.
        """
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done:
            with ranged(f"{self._name}.wait"):
                self._complete(seconds if seconds > 0 else None)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as `wait()`."""
        self.wait()

    def is_completed(self) -> bool:
        """True if `wait` would return or raise at once."""
        if not self._done and all(part.done() for part in self._parts):
            self._complete(None)
        return self._done

    def is_success(self) -> bool:
        """True if it is done, without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error with which it ended; None if it did not, or not yet."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result, once it is done."""
        self.wait()
        return flat(self._result)

    def source_rank(self) -> int:
        """Collectives have none.

        Raises `RuntimeError`.
        """
        raise RuntimeError("source_rank is for a receive from any rank; this is a collective")

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result. Its callbacks run in a thread of the process group."""
        with self._lock:
            if self._future is not None:
                return self._future
            # A future must be told of the GPUs whose tensors it holds.
            devices = {t.device for t in flat(self._result) if t.device.type == "cuda"}
            self._ended = torch.futures.Future(devices=list(devices) or None)
            self._future = self._ended.then(self._deliver)
            future, done = self._future, self._done
        if done:
            self._ended.set_result(None)
        else:
            self._futures.put(partial(self._complete, None))
        return future

    def drive(self, seconds: float) -> None:
        """Runs the collective in this thread, for at most `seconds`.

        If that was enough, a future asked for afterwards is complete. Errors are raised by the future and by
        `wait`, not here.
        """
        limit = time.monotonic() + seconds
        with ranged(f"{self._name}.drive"):
            for part in self._parts:
                if not (isinstance(part, Work) and part._drive(limit - time.monotonic())):
                    return
            self._complete(None)

    def complete_in_background(self) -> None:
        """Makes sure that results are copied to where they belong, whether anybody waits or not."""
        if self._steps and not self._done:
            self._futures.put(partial(self._complete, None))

    def forget_result(self) -> None:
        """Lets go of the result, if it is done."""
        if self._done:
            self._result = []

    def _complete(self, seconds: float | None) -> None:
        """Waits for every part, then finishes, in the first thread that takes the lock."""
        error: BaseException | None = None
        try:
            for part in self._parts:
                part.wait(seconds)
        except BaseException as caught:
            error = caught
        with self._lock:
            if self._done:
                return
            try:
                for step in self._steps if error is None else ():
                    step()
            except BaseException as caught:
                error = caught
            self._error = error
            self._done = True
            self._parts, self._steps = (), ()
            ended = self._ended
        if ended is not None:
            ended.set_result(None)

    def _deliver(self, _: object) -> Any:
        # DDP's reducer, in C++, takes an exception that was set on a future for a value; one that a callback
        # raises is raised there too.
        if self._error is not None:
            raise self._error
        return self._result
