"""One collective on its way, as PyTorch wants to hold it.

    group.allreduce(...) -> SwitchWork --wait()--> worker_lib.Work, in the caller's own thread
                                |
                                +--get_future()--> Completer, a thread that waits for works in their order

Whoever waits drives the collective. Only where a future is asked for (DDP does), or where something is left
to be done that nobody may ever ask for, does a thread wait in the caller's place; it starts with the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from worker_lib.torch.queued import Queued
from worker_lib.work import Work


def ranged(name: str) -> AbstractContextManager[Any]:
    """A range ``switchagg::name`` in torch.profiler; nothing where none runs, since a range is not free."""
    if torch.autograd._profiler_enabled():
        return record_function(f"switchagg::{name}")  # type: ignore[no-any-return]
    return nullcontext()


class Running(Protocol):
    """What a work waits for: a `worker_lib.Work`, or what stands for one."""

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end; `timeout` in seconds."""


class SwitchWork(dist.Work):  # type: ignore[misc]
    """A collective through the switch, or several that count as one.

    Args:
        name: of the operation, for the profiler.
        parts: what runs.
        result: what the future gives, and `result()` flattened.
        finish: called once, when all parts are done: copies results to where they belong.
        completer: whose thread completes futures.
        keep: what must live until the end.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Running],
        result: Any,
        finish: Callable[[], None] | None,
        completer: Completer,
        keep: Any = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._parts = parts
        self._result = result
        self._finish = finish
        self._completer = completer
        self._keep = keep
        self._lock = threading.Lock()
        self._done = False
        self._error: BaseException | None = None
        self._settled: torch.futures.Future[None] | None = None  # completed by whoever finishes
        self._future: torch.futures.Future[Any] | None = None  # what the caller holds

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the collective is done.

        Args:
            timeout: counted from now; zero or None for the one that the call was given.

        Returns:
            True.

        Raises:
            SwitchAggError: what `worker_lib.Work.wait` raises.
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
        """Whether `wait` would return or raise at once."""
        if not self._done and all(part.done() for part in self._parts):
            self._complete(None)
        return self._done

    def is_success(self) -> bool:
        """Whether it is done, without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error with which it ended; None if it did not, or not yet."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result, once it is done."""
        self.wait()
        return _flat(self._result)

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
            # A future that holds tensors of a GPU has to be told so.
            devices = {t.device for t in _flat(self._result) if t.device.type == "cuda"}
            self._settled = torch.futures.Future(devices=list(devices) or None)
            self._future = self._settled.then(self._deliver)
            future, done = self._future, self._done
        if done:
            self._settled.set_result(None)
        else:
            self._completer.add(self)
        return future

    def drive(self, seconds: float) -> None:
        """Runs the collective in this thread, for at most `seconds`.

        A future that is asked for after that is complete, if the time was enough; how the collective ended is
        for it, or for `wait`, to say.
        """
        limit = time.monotonic() + seconds
        with ranged(f"{self._name}.drive"):
            for part in self._parts:
                if not (isinstance(part, Work) and part._drive(limit - time.monotonic())):
                    return
            self._complete(None)

    def finish_by_itself(self) -> None:
        """Makes sure that what is left to be done is done, whether anybody waits or not."""
        if self._finish is not None and not self._done:
            self._completer.add(self)

    def forget_result(self) -> None:
        """Lets go of the result, if it is done."""
        if self._done:
            self._result = []

    # ------------------------------------------------------------------ inside

    def _complete(self, seconds: float | None) -> None:
        """Waits for every part, then finishes. Whichever thread comes last through the lock finds it done."""
        error: BaseException | None = None
        try:
            for part in self._parts:
                part.wait(seconds)
        except BaseException as caught:
            error = caught
        with self._lock:
            if self._done:
                return
            if error is None and self._finish is not None:
                try:
                    self._finish()
                except BaseException as caught:
                    error = caught
            self._error = error
            self._done = True
            self._parts, self._finish, self._keep = (), None, None
            settled = self._settled
        if settled is not None:
            settled.set_result(None)

    def _deliver(self, _: object) -> Any:
        # An exception set on a future is handed to C++ (DDP's reducer) as if it were a value; one that a
        # callback raises is raised there too.
        if self._error is not None:
            raise self._error
        return self._result


class Completer(Queued[SwitchWork]):
    """Waits for works in the order in which they came, so that their futures complete.

    Args:
        name: of the process group.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} futures")

    def add(self, work: SwitchWork) -> None:
        """Takes care of a work.

        Raises `SessionBrokenError` after `stop`.
        """
        self._put(work)

    def _take(self, work: SwitchWork) -> None:
        work._complete(None)


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for each in result for t in (each if isinstance(each, list) else [each])]
