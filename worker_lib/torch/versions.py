"""The differences between releases of PyTorch, from OLDEST on: the only file that asks which one it is."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from switchagg.errors import UsageError

if TYPE_CHECKING:
    from worker_lib.torch.work import SwitchWork

_T = TypeVar("_T")
OLDEST: Final = (2, 4)
_NEWEST: Final = (2, 13)  # has none of the defects of 2.4; releases in between are taken to have them all
_FREE_BARRIER: Final = (2, 15)  # takes a monitored barrier of any backend
_REST_SECONDS: Final = 0.05
_WORKS: Final = 4096  # that an older release may still ask about
_RESULTS: Final = 16  # of them, with their results
_OWN_REFERENCES: Final = 3  # to a work that nobody else holds: the deque's, a variable's, an argument's


def release(version: str = str(torch.__version__)) -> tuple[int, int]:
    """The two first numbers of a version; (0, 0) for what does not look like a release."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def check(version: str = str(torch.__version__)) -> None:
    """Raises `UsageError` for a release before `OLDEST`.

    Args:
        version: as ``torch.__version__`` has it, such as ``2.13.0+cpu``.
    """
    if release(version) < OLDEST:
        raise UsageError(
            f"this is PyTorch {version}; worker_lib.torch needs {'.'.join(map(str, OLDEST))} or newer "
            "(worker_lib itself takes tensors of any release)"
        )


def start_group(group: Any, store: Any, rank: int, size: int) -> None:
    """Initialises the C++ part of a process group whose operations go to gloo unless the subclass has them.

    Before 2.6 a group was told its default backend when it was made; since then, by a call.
    """
    if hasattr(dist.ProcessGroup, "_set_default_backend"):
        dist.ProcessGroup.__init__(group, rank, size)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    else:
        dist.ProcessGroup.__init__(group, store, rank, size, dist.ProcessGroup.Options(backend="gloo"))


def end_gloo(gloo: Any) -> None:
    """Shuts a gloo backend down; before 2.8 it ends with its last reference.

    There, its destructor joins its threads while it holds the interpreter's lock, and hangs if one that has
    just finished an operation wants the lock for a tensor or a callback. So the threads get time first.
    """
    if hasattr(gloo, "shutdown"):
        gloo.shutdown()
    else:
        time.sleep(_REST_SECONDS)


def scatters_sums_only() -> bool:
    """True where gloo's reduce-scatter of one tensor adds, whatever it is asked for, and says nothing."""
    return release() < _NEWEST


def allow_monitored_barrier(kind: type[Any]) -> None:
    """Lets `torch.distributed.monitored_barrier` take groups of a class, beside those named "gloo".

    Releases before 2.15 ask for that name before they call the group, which has one.
    """
    if release() >= _FREE_BARRIER:
        return
    theirs = c10d.monitored_barrier

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        own = c10d._get_default_group() if group is None else group
        if not isinstance(own, kind):
            theirs(group, timeout, wait_all_ranks)
            return
        if timeout is None:
            timeout = own._timeout
        elif isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        c10d._check_valid_timeout(timeout)
        own.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = c10d.monitored_barrier = functools.wraps(theirs)(monitored_barrier)


def untraced(kind: type[_T]) -> type[_T]:
    """Keeps torch.compile out of the methods of a class, and of all that they call.

    A compiled model calls them from C++, as DDP's broadcast of buffers, and the compiler would look at their
    frames. `torch.compiler.disable` does the same, but imports the whole compiler, which takes seconds.
    """
    frames = torch._C._dynamo.eval_frame

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            traced = frames.set_eval_frame(None)
            try:
                return method(*args, **kwargs)
            finally:
                frames.set_eval_frame(traced)

        if hasattr(frames, "skip_code"):
            frames.skip_code(call.__code__)
        else:
            skip = frames._FrameAction.SKIP
            frames.set_code_exec_strategy(call.__code__, frames._FrameExecStrategy(skip, skip))
        return functools.wraps(method)(call)

    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("__"):
            setattr(kind, name, wrapped(method))
    return kind


def asynchronous(options: Any) -> bool:
    """True if the caller may wait later. Releases before 2.9 do not say: there it is always true."""
    return bool(getattr(options, "asyncOp", True))


class DestroyWatch:
    """Notices that PyTorch has destroyed a group; older releases do not tell the group."""

    def __init__(self) -> None:
        self._needed = release() < _NEWEST
        self._known = False

    def destroyed(self, group: Any) -> bool:
        """True if PyTorch knew the group at an earlier call, and no longer does."""
        if not self._needed:
            return False
        known = group in c10d._world.pg_map
        destroyed = self._known and not known
        self._known = known
        return destroyed


class KeepAlive:
    """Keeps works that C++ code may wait for.

    When DDP's C++ code calls a process group written in Python, older releases keep the C++ half of the work
    that it returns, let its Python half go, and then wait for ever in the half that never completes.
    """

    def __init__(self) -> None:
        self._works: deque[SwitchWork] | None = None if release() >= _NEWEST else deque(maxlen=_WORKS)

    def add(self, work: SwitchWork) -> None:
        """Keeps a work for a while, and its result for a shorter one."""
        if self._works is not None:
            self._works.append(work)
            if len(self._works) > _RESULTS:
                older = self._works[-_RESULTS - 1]
                if sys.getrefcount(older) == _OWN_REFERENCES:  # C++ asks for its future at once, if at all
                    older.forget_result()
