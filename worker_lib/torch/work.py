"""One collective on its way, as PyTorch holds it, and the threads of a process group.

    group.allreduce(...) -> SwitchWork --wait()--> worker_lib.Work, in the caller's own thread
                                |
                                +--get_future()--> a TaskThread that waits for works in their order

    a hook of DDP --> Completion, the part of a SwitchWork that waits, and completes the future

The caller that waits runs the collective. A thread does it instead where a future is asked for, as DDP does,
or where results must be copied at the end whether anybody waits or not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from switchagg.errors import MismatchError, SessionBrokenError
from worker_lib.torch.versions import untraced
from worker_lib.work import Work

Step = Callable[[], None]
_STOP_SECONDS: Final = 5.0
_PATIENCE: Final = 0.5  # seconds for a callback before another thread runs what comes after it
_LATER: Final = 0.05  # seconds until a task that is for later is queued
_LOOKS: Final = 20  # for tasks, _LATER apart, before a thread that has none sleeps until one comes
_NOTHING: Final = nullcontext()
_log = logging.getLogger("switchagg")
_local = threading.local()  # .calling: a _Calling or None; .running, .within: levels of a TaskThread


def ranged(name: str) -> AbstractContextManager[Any]:
    """A range ``switchagg::name`` in torch.profiler; nothing where none runs, since a range is not free."""
    if torch.autograd._profiler_enabled():
        return record_function(f"switchagg::{name}")  # type: ignore[no-any-return]
    return _NOTHING


def flat(tensors: Any) -> list[torch.Tensor]:
    """The tensors in an argument: a tensor, or lists of them in any depth."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [t for each in tensors for t in flat(each)] if isinstance(tensors, list | tuple) else []


class TaskThread:
    """Runs tasks one after another, in the order in which they come, in a thread that starts with the first.

    A task runs code of others within `callbacks()`. What that puts here runs beside it, in a thread of a
    level below, so that it can wait for that. If it waits for a task of its own level, another thread goes on
    after a while.

    Args:
        name: of its threads.
        root: the uppermost level; None for that one.

    Attributes:
        stopped: True after `stop`. Tasks that were put before still run, and may look at it.
    """

    def __init__(self, name: str, root: TaskThread | None = None) -> None:
        self._name = name
        self._root = root or self
        self._below: TaskThread | None = None
        self._tasks: deque[Step] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._leader: threading.Thread | None = None  # runs a task, and takes the next
        self._turn = 0  # counts beginnings and ends of callbacks
        self._calling = False  # the leader is in callbacks
        self._watched = False  # a thread looks whether it stays there
        self._idle = 0  # threads that wait to lead
        self._unfinished = 0
        self._later = Later(self.put, f"{name} later")
        self.stopped = False

    def put(self, task: Step) -> None:
        """Queues a task, which must not raise.

        Raises `SessionBrokenError` after `stop`.
        """
        level = self._level("within")
        if level is not None:
            level._lower()._queue(task)
        else:
            self._queue(task)

    def put_later(self, task: Step, is_done: Callable[[], bool]) -> None:
        """Queues a task after a while, unless it is done by then. Mostly wakes no thread.

        Raises `SessionBrokenError` after `stop`.
        """
        self._later.add(task, is_done)

    def busy(self) -> bool:
        """True if a task waits or runs, and the caller is not the task itself."""
        return self._unfinished > 0 and not self.runs_caller()

    def runs_caller(self) -> bool:
        """True if the caller is a task."""
        return threading.current_thread() in self._threads

    def callbacks(self, calling: _Calling | None = None) -> AbstractContextManager[None]:
        """A context for code that may wait for tasks: callbacks of a collective, if `calling` names one."""
        return _Callbacks(self, self._level("running"), calling)

    def stop(self) -> None:
        """Ends the threads after the tasks that they have. Safe to call twice, and from a task."""
        self._later.stop()  # from here on it takes nothing; the tasks that it has are put
        with self._changed:
            self.stopped = True
            self._changed.notify_all()
            threads, below = self._threads - {threading.current_thread()}, self._below
        if below is not None:
            below.stop()
        limit = time.monotonic() + _STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, limit - time.monotonic()))

    def _level(self, which: str) -> TaskThread | None:
        """The level of this object whose callbacks the caller is within, or in whose thread it is running."""
        level: TaskThread | None = getattr(_local, which, None)
        return level if level is not None and level._root is self._root else None

    def _lower(self) -> TaskThread:
        with self._changed:
            if self._below is None:
                self._below = TaskThread(self._name, self._root)
                self._below.stopped = self.stopped
            return self._below

    def _queue(self, task: Step) -> None:
        with self._changed:
            if self.stopped:
                raise destroyed()
            self._tasks.append(task)
            self._unfinished += 1
            self._wake()

    def _turned(self, *, calling: bool) -> None:
        with self._changed:
            if self._leader is threading.current_thread():
                self._turn += 1
                self._calling = calling
                self._wake()

    def _wake(self) -> None:
        """Wakes or starts a thread if tasks wait for one; with the lock."""
        if not self._tasks or (self._leader is not None and (not self._calling or self._watched)):
            return
        if self._idle:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        _local.running = self
        with self._changed:
            while self._wait_to_lead():
                self._leader, self._calling = me, False
                self._idle -= 1
                task = self._tasks.popleft()
                self._changed.release()
                try:
                    task()
                    del task  # its tensors must not live until the next one comes
                finally:
                    self._changed.acquire()
                self._unfinished -= 1
                self._idle += 1
                if self._leader is me:
                    self._leader = None
            self._threads.discard(me)
            self._changed.notify_all()

    def _wait_to_lead(self) -> bool:
        """Waits, with the lock, until the caller has a task to run; returns False if there will be none."""
        while self._leader is not None or not self._tasks:
            if self.stopped and not self._tasks:
                return False
            if not (self._tasks and self._calling and not self._watched):
                self._changed.wait()
                continue
            turn, self._watched = self._turn, True
            goes_on = self._changed.wait_for(partial(self._goes_on, turn), _PATIENCE)
            self._watched = False
            if not goes_on:
                break
        return True

    def _goes_on(self, turn: int) -> bool:
        """True if the leader has left the callbacks that it was in at that turn, or no task waits."""
        return self._turn != turn or not (self._calling and self._tasks)


class _Callbacks:
    """The context of `TaskThread.callbacks`; a class, as a generator takes four times as long."""

    __slots__ = ("_calling", "_outer", "_running", "_within")

    def __init__(self, tasks: TaskThread, running: TaskThread | None, calling: _Calling | None) -> None:
        self._within, self._running = running or tasks, running
        self._outer = getattr(_local, "within", None), getattr(_local, "calling", None)
        self._calling = calling if calling is not None else self._outer[1]

    def __enter__(self) -> None:
        _local.within, _local.calling = self._within, self._calling
        if self._running is not None:  # otherwise this thread leads no level
            self._running._turned(calling=True)

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running._turned(calling=False)
        _local.within, _local.calling = self._outer


class Later:
    """Puts tasks in a queue that are not done after a while.

    Its thread sleeps while tasks come and are done, and looks at them now and then: that costs less than to
    wake a thread for each.

    Args:
        put: does it.
        name: of the thread.
    """

    def __init__(self, put: Callable[[Step], None], name: str) -> None:
        self._put, self._name = put, name
        self._changed = threading.Condition()
        self._tasks: deque[tuple[float, Step, Callable[[], bool]]] = deque()
        self._thread: threading.Thread | None = None
        self._idle = False  # the thread waits for a task
        self._stopped = False

    def add(self, task: Step, is_done: Callable[[], bool]) -> None:
        """Takes a task. Raises `SessionBrokenError` after `stop`."""
        with self._changed:
            if self._stopped:
                raise destroyed()
            self._tasks.append((time.monotonic() + _LATER, task, is_done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._idle:
                self._changed.notify()

    def stop(self) -> None:
        """Puts the tasks at once that are not done, and ends the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        looks = 0  # at no tasks, since the last one
        with self._changed:
            while self._tasks or not self._stopped:
                if not self._tasks:
                    self._idle = looks >= _LOOKS
                    self._changed.wait(None if self._idle else _LATER)
                    self._idle = False
                    looks += 1
                elif self._tasks[0][2]():
                    self._tasks.popleft()
                    looks = 0
                elif not self._stopped and (left := self._tasks[0][0] - time.monotonic()) > 0:
                    self._changed.wait(left)
                else:
                    self._put(self._tasks.popleft()[1])


class StartOrder:
    """Notices a collective that a callback starts after others, started elsewhere; says so once, in the log.

    All ranks must start a group's collectives in one order, and between a callback and the rest of a program
    there is none.
    """

    def __init__(self) -> None:
        self._started = 0  # outside of callbacks
        self._told = False

    def next(self, name: str) -> int:
        """Takes note of a collective that starts; returns its number, in a callback that of its work."""
        order, number, caller = getattr(_local, "calling", None) or (None, 0, "")
        if order is not self:
            self._started += 1
            return self._started
        if number != self._started and not self._told:
            self._told = True
            _log.warning(
                "switchagg: a callback of %s has started %s after other collectives: if ranks start them in "
                "different orders, tensors are added up that do not belong together. With a hook of DDP that "
                "starts collectives in callbacks, give the model one bucket (bucket_cap_mb)", caller, name,
            )  # fmt: skip
        return int(number)


_Calling = tuple[StartOrder, int, str]  # the order of a group's collectives, and one's number and name there


def destroyed() -> SessionBrokenError:
    """The error of a process group that is used after its end."""
    return SessionBrokenError(
        "this process group is destroyed; torch.distributed.init_process_group makes a new one"
    )


def memberless() -> SessionBrokenError:
    """The error of a process group that was made without members, and has none yet or no longer."""
    return SessionBrokenError(
        "this process group has no members: it is destroyed, or waits for torch.distributed._reconfigure on "
        "all that are to be members"
    )


class Running(Protocol):
    """The part of `worker_lib.Work` that a `SwitchWork` needs."""

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end; `timeout` in seconds."""


class Completion:
    """The end of several collectives that count as one: waits for them, and completes a future.

    It makes few calls, since in the steps of small models each of them counts.

    Args:
        parts: the collectives.
        result: of the future.
        steps: called once, when all parts are done: they copy results to where they belong.
        futures: the thread that completes the future.
        calling: in callbacks of the future, what `StartOrder` is to know of them; None: nothing.
        lazy: the collectives are, and somebody is about to wait for a later one; the thread comes in if not.

    Attributes:
        result: as given.
        done: all parts are, and steps too.
        error: with which it ended.
    """

    __slots__ = (
        "_calling", "_ended", "_future", "_futures", "_lazy", "_lock", "_parts", "_steps", "done", "error",
        "result",
    )  # fmt: skip

    def __init__(
        self,
        parts: Sequence[Running],
        result: Any,
        steps: Sequence[Step],
        futures: TaskThread,
        *,
        calling: _Calling | None = None,
        lazy: bool = False,
    ) -> None:
        self._parts, self.result, self._steps = parts, result, steps
        self._futures, self._calling, self._lazy = futures, calling, lazy
        self._lock = threading.Lock()
        self.done = not (parts or steps)
        self.error: BaseException | None = None
        self._ended: torch.futures.Future[None] | None = None  # completed by the thread that finishes
        self._future: torch.futures.Future[Any] | None = None  # what the caller holds

    def future(self) -> torch.futures.Future[Any]:
        """The future of the result, always the same one.

        A thread completes it, a lazy one's only after a while, if the caller does not before.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            devices, done = _gpus(self.result), self.done
            if done and self.error is None:
                self._future = future = torch.futures.Future(devices=devices)
                future.set_result(self.result)
                return future
            ended = torch._C.Future(devices)  # its class in Python costs half as much again
            self._future = future = ended.then(self._deliver)
            self._ended = None if done else ended
        if done:
            ended.set_result(None)
        elif self._lazy:
            self._futures.put_later(self.complete, self._is_done)
        else:
            self._futures.put(self.complete)
        return future

    def drive(self, seconds: float) -> None:
        """Runs the collectives in this thread, for at most `seconds`. Only the future raises."""
        if self.done:
            return
        limit = time.monotonic() + seconds
        for part in self._parts:
            if not (isinstance(part, Work) and part._drive(limit - time.monotonic())):
                return
        self.complete()

    def settle(self) -> None:
        """Completes the future if the collectives are done; else a thread does, also if they are lazy."""
        if not self.is_completed() and self._lazy:
            self._futures.put(self.complete)

    def complete_in_background(self) -> None:
        """Lets a thread call the steps, if there are any, whether anybody waits or not."""
        if self._steps and not self.done:
            self._futures.put(self.complete)

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits until it is done. Raises as `SwitchWork.wait`."""
        if not self.done:
            self.complete(None if timeout is None else timeout.total_seconds())
        if self.error is not None:
            raise self.error

    def is_completed(self) -> bool:
        """True if `wait` would return or raise at once."""
        if not self.done and all(part.done() for part in self._parts):
            self.complete()
        return self.done

    def _is_done(self) -> bool:
        return self.done

    def complete(self, seconds: float | None = None) -> None:
        """Waits for every part, then finishes, in the first thread that takes the lock."""
        error: BaseException | None = None
        try:
            for part in self._parts:
                part.wait(seconds)
        except BaseException as caught:
            error = _noted(caught)
        with self._lock:
            if self.done:
                return
            try:
                for step in self._steps if error is None else ():
                    step()
            except BaseException as caught:
                error = caught
            self.error, self.done = error, True
            self._parts = self._steps = ()
            ended = self._ended
        if ended is not None:
            with self._futures.callbacks(self._calling):
                ended.set_result(None)
            self._ended = None

    def forget_result(self) -> None:
        """Lets go of the result, if it is done and its future, if any, complete."""
        if self.done and self._ended is None:
            self.result = []

    def _deliver(self, _: object) -> Any:
        # DDP's reducer, in C++, takes an exception that was set on a future for a value; one that a callback
        # raises is raised there too.
        if self.error is not None:
            raise self.error
        return self.result


@untraced
class SwitchWork(dist.Work):  # type: ignore[misc]
    """A collective through the switch, or several that count as one.

    Args:
        name: of the operation, for the profiler.
        parts, steps, futures: as in `Completion`.
        result: returned by the future, and by `result()` as a flat list.
        order: of the group's collectives; None for those of a hook.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Running],
        result: Any,
        steps: Sequence[Step],
        futures: TaskThread,
        order: StartOrder | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        calling = None if order is None else (order, order.next(name), name)
        self._end = Completion(parts, result, steps, futures, calling=calling)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until the collective is done.

        Args:
            timeout: counted from now; zero or None for the one that the call was given.

        Returns:
            True.

        Raises:
            SwitchAggError: any that `worker_lib.Work.wait` raises.
        """
        with _NOTHING if self._end.done else ranged(f"{self._name}.wait"):
            self._end.wait(timeout if timeout is not None and timeout > timedelta(0) else None)
        return True

    def synchronize(self) -> None:
        """The same as `wait()`."""
        self.wait()

    def is_completed(self) -> bool:
        """True if `wait` would return or raise at once."""
        return self._end.is_completed()

    def is_success(self) -> bool:
        """True if it is done, without an error."""
        return self._end.is_completed() and self._end.error is None

    def exception(self) -> BaseException | None:
        """The error with which it ended; None if it did not, or not yet."""
        return self._end.error if self._end.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result, once it is done."""
        self.wait()
        return flat(self._end.result)

    def source_rank(self) -> int:
        """Collectives have none.

        Raises `RuntimeError`.
        """
        raise RuntimeError("source_rank is for a receive from any rank; this is a collective")

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result.

        Its callbacks run in a thread of the process group, or in the one that waits for this work. They may
        wait for other collectives.
        """
        return self._end.future()

    def complete_in_background(self) -> None:
        """Makes sure that results are copied to where they belong, whether anybody waits or not."""
        self._end.complete_in_background()

    def forget_result(self) -> None:
        """Lets go of the result, if it is done."""
        self._end.forget_result()


def _gpus(result: Any) -> list[torch.device]:
    """The GPUs that have a result's tensors; a future must be told of them."""
    if isinstance(result, torch.Tensor):
        return [result.device] if result.is_cuda else []
    return list({t.device for t in flat(result) if t.is_cuda})


def _noted(error: BaseException) -> BaseException:
    """The error of a collective, for those who have called an operation of a process group."""
    if isinstance(error, MismatchError):
        error.add_note("the process group can too, unless another rank's operation goes through gloo")
    return error
