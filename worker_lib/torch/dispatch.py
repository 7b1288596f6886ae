"""Operations by way of PyTorch's dispatcher: its hooks (from 2.14 on) and FlightRecorder (2.15) see them.

    caller, DDP --> SwitchGroup.allreduce --> ProcessGroup.allreduce --> SwitchBackend.allreduce
                          |                   hooks, FlightRecorder               |
                          +<---------- the group's own operation <----------------+

A group that is a Python class answers calls itself, and what PyTorch does around an operation is left out.
So its methods call PyTorch's, which come back by way of a `Backend`, which earlier releases do not let Python
derive from. PyTorch wraps the `Work` that a backend returns in one that knows neither `is_completed` nor
`result`; the group returns the one inside.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch.distributed as dist
from torch._C import _distributed_c10d as native

from worker_lib.torch import device
from worker_lib.torch.work import destroyed, flat

_T = TypeVar("_T")
_BEGUN: Final = (  # by a method of the group's
    "allreduce", "allreduce_coalesced", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "broadcast", "allgather", "all_gather_single",
    "all_gather_single_coalesced", "barrier", "all_to_all_single", "alltoall", "reduce", "gather", "scatter",
)  # fmt: skip
_GLOOS: Final = ("allgather_coalesced", "send", "recv", "recv_anysource", "monitored_barrier")
_MESSAGES: Final = {"send": "send", "recv": "recv", "recv_anysource": "recv"}
_ALIASES: Final = (  # other names of some of these
    "alltoall_base", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "_allgather_base",
    "allgather_into_tensor_coalesced",
)  # fmt: skip


class _Works(threading.local):
    """The works of the operations that a thread is beginning, one a call that is under way."""

    def __init__(self) -> None:
        self.begun: list[Any] = []


_works = _Works()


class SwitchBackend(native.Backend):
    """The backend of one `SwitchGroup`; its operations are the group's.

    Args:
        group: it.
        rank, size, timeout: the group's.

    Raises:
        TypeError: this release lets no Python class derive from `Backend`.
    """

    allreduce_sparse: Any  # called so where a tensor is sparse

    # All that PyTorch asks about: its own answers would ask this class again.
    supports_splitting = supports_reconfigure = True
    supports_coalescing = supports_shrinking = False
    supports_window = _supports_time_estimate = False

    def __init__(self, group: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._group = weakref.ref(group)  # which owns it
        self._options = native.Backend.Options(group.getBackendName(), timeout)

    def getBackendName(self) -> str:
        """Its name for `torch.distributed.get_backend` and messages."""
        return str(self._options.backend)

    @property
    def options(self) -> Any:
        """Name and timeout, for PyTorch's hooks."""
        return self._options

    def rank(self) -> int:
        """The group's rank of this process."""
        return int(self._owner.rank())

    def size(self) -> int:
        """The group's number of members."""
        return int(self._owner.size())

    def get_error(self) -> Any:
        """REMOTE_ERROR where a rank's end, the switch or the network has broken the members' session."""
        communicator = self._owner._communicator
        broken = communicator is not None and communicator.broken
        return native.ErrorType.REMOTE_ERROR if broken else native.ErrorType.SUCCESS

    def get_reconfigure_handle(self) -> str:
        """The group's handle."""
        return str(self._owner.get_reconfigure_handle())

    def reconfigure(self, opts: Any) -> Any:
        """`SwitchGroup.reconfigure`."""
        return self._owner.reconfigure(opts)

    def set_timeout(self, timeout: timedelta) -> None:
        """`SwitchGroup.set_timeout`."""
        self._owner.set_timeout(timeout)

    def abort(self) -> None:
        """`SwitchGroup.abort`."""
        self._owner.abort()

    shutdown = abort

    @property
    def _owner(self) -> Any:
        group = self._group()
        if group is None:
            raise destroyed()
        return group


def available() -> bool:
    """True if this release lets a Python class derive from `Backend`."""
    try:
        return native.Backend(0, 1) is not None
    except TypeError:
        return False


def dispatched(kind: type[_T]) -> type[_T]:
    """Lets a group's operations take the dispatcher, where `available`; a decorator of its class."""
    if available():
        for name in (*_BEGUN, *_GLOOS):
            own = vars(kind)[name] if name in _BEGUN else _gloos(name)
            setattr(SwitchBackend, name, _begun(own))
            setattr(kind, name, _calling(name, own))
        SwitchBackend.allreduce_sparse = vars(SwitchBackend)["allreduce"]
        for alias in _ALIASES:
            delattr(kind, alias)  # PyTorch's call these; and pybind11 would take them for what is called here
    return kind


def _gloos(name: str) -> Callable[..., Any]:
    def own(group: Any, *args: Any) -> Any:
        # A backend is given options where gloo's method in Python takes a timeout.
        args = tuple(each.timeout if isinstance(each, native.BarrierOptions) else each for each in args)
        if name in _MESSAGES:
            device.refuse(_MESSAGES[name], flat(args))
        return getattr(group.communicator.gloo, name)(*args)

    return own


def _begun(own: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the backend: begins the operation, and leaves its work for the group's method."""

    def begin(self: SwitchBackend, *args: Any) -> Any:
        work = own(self._owner, *args)
        if _works.begun:
            _works.begun[-1] = work
        return work

    return begin


def _calling(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the group: calls PyTorch's, and returns the work that the backend has begun."""
    beneath = getattr(dist.ProcessGroup, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The dispatcher would copy the result back before it is there, or take a meta tensor for a trace's.
        if any(tensor.is_neg() or tensor.is_conj() or tensor.is_meta for tensor in flat(args)):
            return own(self, *args, **kwargs)
        _works.begun.append(None)  # a hook of PyTorch's may call an operation within
        try:
            beneath(self, *args, **kwargs)
        finally:
            work = _works.begun.pop()
        return work

    # pybind11 calls the method of a derived class unless a frame of that name calls the base's.
    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(own)(call)
