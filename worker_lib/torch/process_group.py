"""The class that PyTorch sees: a process group over the switch, with gloo for the rest.

    torch.distributed / DDP --> SwitchGroup --> Collectives --> switch
                                     |
                                     +--where the switch does not have the operation--> gloo

Through the switch: all-reduce, reduce and reduce-scatter, sum of float32, float64, float16, bfloat16, int32,
int64 and their unsigned kin, average of the floats, int32 and int64; maximum and minimum of tensors that are
not large; broadcast, all-gather and barrier of any dense type. Through gloo, with gloo's answers and errors:
other types and operations, gather, scatter, all-to-all, send and receive. Both kinds may be in flight at
once; each keeps the order of its own calls.
A mark through the switch, for which nobody waits, tells ranks that call different ones (`gloo.py`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from switchagg.errors import SwitchAggError, SwitchError, UsageError
from worker_lib import launchers
from worker_lib.session import Session
from worker_lib.torch import device, dispatch, versions
from worker_lib.torch.collectives import Collectives
from worker_lib.torch.communicator import Change, Communicator, Handle, ReconfigureError, check_size
from worker_lib.torch.fallback import GlooFallback
from worker_lib.torch.options import Options
from worker_lib.torch.rendezvous import Controller, controllers, store_prefix
from worker_lib.torch.work import Step, SwitchWork, destroyed, flat, memberless

NAME = "switchagg"


def register() -> None:
    """Makes "switchagg" a backend for `init_process_group` and `new_group`; does nothing the second time.

    Raises `UsageError` where this PyTorch is too old, or has no distributed package, or no gloo.
    """
    versions.check()
    if not dist.is_available() or not dist.is_gloo_available():
        raise UsageError("this PyTorch has no torch.distributed with gloo, which switchagg builds on")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, extended_api=True, devices=device.kinds())
        versions.allow_monitored_barrier(SwitchGroup)


def _make(given: Any, options: Any) -> SwitchGroup:
    """Makes a group; PyTorch calls it on the members of each new one."""
    options = _checked(options, Options())
    first = given.group_size == 1 and not dist.is_initialized()
    if first and (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")) == ("0", "1"):
        launchers.read(os.environ)  # refuses a world of one where there are more
    return SwitchGroup(
        given.store, given.group_rank, given.group_size, given.timeout, given.group_id, options,
        members=not getattr(given, "enable_reconfigure", False),
    )  # fmt: skip


def _checked(options: Any, default: Options) -> Options:
    """The options that a caller gave, or the default. Raises `UsageError` for those of other backends."""
    if options is not None and not isinstance(options, Options):
        raise UsageError(f"pg_options is a {type(options).__name__}; accepted: worker_lib.torch.Options(...)")
    return options or default


@versions.untraced
@dispatch.dispatched
class SwitchGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The group that `init_process_group("switchagg")` and `new_group(backend="switchagg")` make.

    Args:
        store: the group's own.
        rank, size: of this process in it.
        timeout: of every operation that is given no other.
        name: the group's, in PyTorch.
        options: its settings.
        members: False leaves it without members until `reconfigure`.

    Raises:
        UsageError: more ranks than a switch can serve. SwitchError: there is no switch, or it is full.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str,
        options: Options,
        *,
        members: bool = True,
    ) -> None:
        check_size(size)
        if not members and not dispatch.available():
            raise UsageError("enable_reconfigure needs PyTorch 2.14 or newer; this is " + torch.__version__)
        versions.start_group(self, store, rank, size)
        self._given = store  # by the caller; a change of members brings another one
        self._store, self._rank, self._size, self._timeout, self._name = store, rank, size, timeout, name
        self._destroy_watch = versions.DestroyWatch()
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # members, by one thread at a time
        self._ends = 0  # calls of `shutdown`
        self._kept: Controller | None = None
        self._members = members
        self._communicator: Communicator | None = None
        self._handle = Handle.of_group(store)
        self._uuids: set[int] = set()
        self.settings = options
        if members:
            store = store_prefix(store, rank, size, timeout)
            self._communicator = Communicator(store, rank, size, timeout, name, options)
        try:
            self._register()
        except BaseException:
            self.shutdown()
            raise

    def _register(self) -> None:
        """Tells PyTorch where operations go that it does not find in this class."""
        if dispatch.available():
            backend: Any = dispatch.SwitchBackend(self, self._rank, self._size, self._timeout)
            number = dist.ProcessGroup.BackendType.CUSTOM
            self._set_default_backend(number)
        else:
            backend, number = self.communicator.gloo, dist.ProcessGroup.BackendType.GLOO
        for kind in device.kinds():
            self._register_backend(torch.device(kind), number, backend)

    def getBackendName(self) -> str:
        """Its name for `torch.distributed.get_backend` and messages."""
        return NAME

    name = getBackendName

    def getRank(self) -> int:
        """This process's rank among the members; without any, among the last or given ones."""
        communicator = self._communicator
        return self._rank if communicator is None else communicator.rank

    def getSize(self) -> int:
        """Number of members; without any, of the last or given ones."""
        communicator = self._communicator
        return self._size if communicator is None else communicator.size

    rank, size = getRank, getSize

    @property
    def communicator(self) -> Communicator:
        """The members' job and connections.

        Raises `SessionBrokenError` when the group is destroyed, or has no members yet.
        """
        if self._communicator is not None and self._destroy_watch.destroyed(self):
            self.shutdown()
        communicator = self._communicator
        if communicator is None:
            raise destroyed() if self._members else memberless()
        return communicator

    @property
    def collectives(self) -> Collectives:
        """The collectives that go through the switch. Raises as `communicator` does."""
        return self.communicator.collectives

    @property
    def session(self) -> Session:
        """The session beneath, for its counters. Raises as `communicator` does."""
        return self.collectives.session

    @property
    def fallback(self) -> GlooFallback | None:
        """Does the switch's work when it is lost; None without ``fallback="gloo"``, and without members."""
        return None if self._communicator is None else self._communicator.fallback

    @property
    def fallen_back(self) -> bool:
        """True if the switch is lost and gloo does its work."""
        return self._communicator is not None and self._communicator.fallen_back

    # ------------------------------------------------------------------ members

    @property
    def supports_reconfigure(self) -> bool:
        """True if members can change: from PyTorch 2.14 on."""
        return dispatch.available()

    def get_reconfigure_handle(self) -> str:
        """This group's handle, which all that are to be members with it need; the same for its life."""
        return str(self._handle)

    def reconfigure(self, opts: Any) -> SwitchWork:
        """Changes the members; `torch.distributed.distributed_c10d._reconfigure` calls it on all new ones.

        Until all have come, the old members stay. After that the group has the new ones, or, if the switch or
        gloo fails, none until the next call. Operations that are still on their way end with an error.

        Args:
            opts: PyTorch's ReconfigureOptions. `uuid`: another one each time. `handles`: the new members', in
                the order of their ranks; of a set, in the order of the strings. `timeout`: the group's unless
                given. `hints` are for other backends.

        Returns:
            A work that is complete.

        Raises:
            ReconfigureError: the uuid has been used before, this group's handle is missing.
            UsageError: PyTorch before 2.14; more ranks than a switch can serve.
            SwitchError: not all members came in time; no switch, or it is full.
        """
        if not self.supports_reconfigure:
            raise UsageError("reconfigure needs PyTorch 2.14 or newer; this is " + torch.__version__)
        timeout = self._timeout if opts.timeout is None else opts.timeout
        if timeout <= timedelta(0):
            raise ReconfigureError(f"timeout is {timeout!r}; accepted: more than 0 seconds")
        limit = time.monotonic() + timeout.total_seconds()
        ends = self._ends
        with self._changing:
            change = Change.read(opts, self._handle)
            if opts.uuid in self._uuids:
                raise ReconfigureError(f"uuid {opts.uuid} was already used; accepted: a new one each time")
            try:
                store = dist.PrefixStore(
                    change.prefix, change.first.store(self._handle, self._given, timeout)
                )
                met = store_prefix(store, change.rank, change.size, _until(limit))
                self._uuids.add(opts.uuid)
                self._members = False  # from here on, those before are over
                self._keep_controller()
                self._end()
                communicator = Communicator(
                    met, change.rank, change.size, _until(limit), self._name, self.settings, changed=True
                )
            except SwitchAggError:
                raise
            except RuntimeError as error:  # of a store or of gloo
                raise SwitchError(
                    f"the {change.size} members do not reach each other, or the store of the first: {error}"
                ) from error
            communicator.set_timeout(self._timeout)
            with self._lock:
                ended = self._ends != ends
                if not ended:
                    self._communicator = communicator
            if ended:  # by another thread
                communicator.close()
                raise destroyed()
            self._store, self._rank, self._size = store, change.rank, change.size
        return SwitchWork("reconfigure", [], [], [], self.collectives.futures)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of operations that are given no other."""
        seconds = timeout.total_seconds()
        if not seconds > 0:
            raise UsageError(f"timeout is {timeout!r}; accepted: more than 0 seconds")
        self._timeout = timeout
        if self._communicator is not None:
            self._communicator.set_timeout(timeout)

    def get_group_store(self) -> Any:
        """The store that the group was given, or in which its present members met."""
        return self._store

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Options | None = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002  (all that this group has)
    ) -> SwitchGroup | None:
        """Makes a group of some of this one's ranks; `torch.distributed.split_group` calls it.

        Args:
            ranks: of this group, in the order that they have in the new one; no rank is in two of them.
            timeout: of every operation; this group's by default.
            opts: settings; this group's by default.
            group_name: the same at all ranks, and no other group's.

        Returns:
            The group; None on a rank that is not in it.

        Raises:
            UsageError: there is no name, or options are of another backend.
        """
        if not group_name:
            raise UsageError("split_group needs a group_name, the same at all ranks of the new group")
        if self._rank not in ranks:
            return None
        timeout = timeout or self._timeout
        store = dist.PrefixStore(group_name, self.get_group_store())
        rank, options = ranks.index(self._rank), _checked(opts, self.settings)
        group = SwitchGroup(store, rank, len(ranks), timeout, group_name, options)
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or "undefined")
        return group

    def shutdown(self) -> None:
        """Leaves the job, and lets go of threads, sockets and the switch, if this process started it.

        Operations that are still on their way end with an error. Safe to call twice.
        """
        self._ends += 1
        self._end()
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            controllers.release(kept)

    def _keep_controller(self) -> None:
        """Holds a controller that this process has started until the group's end: it may be rank 0 again."""
        controller = self._communicator.controller if self._communicator else None
        if self._kept is None and controller is not None and controller.child is not None:
            controllers.hold(controller)
            self._kept = controller

    def _end(self) -> None:
        with self._lock:
            communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.close()

    def __del__(self) -> None:
        held = getattr(self, "_communicator", None) or getattr(self, "_kept", None)
        if held is not None and not sys.is_finalizing():
            self.shutdown()

    def abort(self) -> None:
        """The same as `shutdown`: nothing of this group waits for other ranks."""
        self.shutdown()

    # ------------------------------------------------------------------ operations

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Any:
        """Reduces one tensor in place. `opts` is AllreduceOptions, or the operation itself."""
        tensors, opts = _as_list(tensors), _options(c10d.AllreduceOptions, opts, timeout, op)
        work = self.collectives.reduce_on_device(tensors, opts)
        return self._run("allreduce", "allreduce", [tensors], opts) if work is None else work

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces several tensors in place, as one operation."""
        opts = _options(c10d.AllreduceCoalescedOptions, opts)
        return self._run("allreduce_coalesced", "allreduce_coalesced", [tensors], opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Reduces a list of tensors, one a rank; `outputs` holds this rank's."""
        if isinstance(outputs, torch.Tensor):  # the overload without outer lists
            outputs, inputs = [outputs], [inputs]
        opts = _options(c10d.ReduceScatterOptions, opts, timeout)
        return self._run("reduce_scatter", "reduce_scatter", [outputs, inputs], opts, fresh=True)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Reduces a tensor; rank r gets the r-th of `size` equal parts."""
        opts = _options(c10d.ReduceScatterOptions, opts)
        return self._run("reduce_scatter_single", "_reduce_scatter_base", [output, input], opts, fresh=True)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`reduce_scatter_single` of several tensors, as one operation."""
        opts = _options(c10d.ReduceScatterOptions, opts)
        name, beneath = "reduce_scatter_single_coalesced", "_reduce_scatter_base"
        return self._run(name, beneath, [outputs, inputs], opts, fresh=True, each=True)

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Any:
        """Copies the root's tensor to all ranks. `opts` is BroadcastOptions, or the root."""
        if isinstance(opts, int):
            root, opts = opts, None
        opts = _options(c10d.BroadcastOptions, opts, timeout)
        if root is not None:
            opts.rootRank = root
        return self._run("broadcast", "broadcast", [_as_list(tensors)], opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Collects every rank's tensor in a list of tensors."""
        if isinstance(inputs, torch.Tensor):  # the overload without outer lists
            outputs, inputs = [outputs], [inputs]
        opts = _options(c10d.AllgatherOptions, opts, timeout)
        return self._run("allgather", "allgather", [outputs, inputs], opts, fresh=True)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Collects every rank's tensor in one, end to end."""
        opts = _options(c10d.AllgatherOptions, opts)
        return self._run("all_gather_single", "_allgather_base", [output, input], opts, fresh=True)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`all_gather_single` of several tensors, as one operation."""
        opts = _options(c10d.AllgatherOptions, opts)
        name, beneath = "all_gather_single_coalesced", "_allgather_base"
        return self._run(name, beneath, [outputs, inputs], opts, fresh=True, each=True)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Its work is done when every rank has called it."""
        return self._run("barrier", "barrier", [], _options(c10d.BarrierOptions, opts, timeout))

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Sends each rank its part of a tensor, through gloo.

        On PyTorch's own way to gloo, a group that is a Python class keeps the interpreter's lock while it
        waits for gloo's queue; a thread of gloo may hold that, and wait for the interpreter to free a tensor.
        """
        opts = _options(c10d.AllToAllOptions, opts, timeout)

        def begin(*tensors: Any) -> Any:
            args = [*tensors, output_split_sizes, input_split_sizes]
            return _by_gloo(communicator, "all_to_all_single", "alltoall_base", args, opts, output.dtype)

        communicator = self.communicator
        return communicator.collectives.start("all_to_all_single", begin, [output, input], fresh=True)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Sends each rank a tensor of a list, of any size, through gloo, whose own needs equal sizes."""
        opts = _options(c10d.AllToAllOptions, opts)
        if not (outputs and inputs):
            return self._through_gloo("alltoall", [outputs, inputs], opts)
        communicator = self.communicator

        def begin(outputs: list[Any], inputs: list[Any]) -> Any:
            received = outputs[0].new_empty(sum(each.numel() for each in outputs))
            sent = torch.cat([each.detach().reshape(-1) for each in inputs])
            back = partial(_take_parts, outputs, received)
            args = [received.view(torch.uint8), sent.view(torch.uint8)]  # gloo does not know every type
            args += [[each.nbytes for each in tensors] for tensors in (outputs, inputs)]
            return _by_gloo(
                communicator,
                "alltoall",
                "alltoall_base",
                args,
                opts,
                *_kind(outputs)[:1],
                after=[back],
                result=outputs,
            )

        return communicator.collectives.start("alltoall", begin, [outputs, inputs], fresh=True)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces one tensor to the root."""
        return self._run("reduce", "reduce", [_as_list(tensors)], _options(c10d.ReduceOptions, opts))

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Collects every rank's tensor at the root, through gloo."""
        opts = _options(c10d.GatherOptions, opts)
        return self._through_gloo("gather", [outputs, inputs], opts, *_kind(inputs), opts.rootRank)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Sends each rank a tensor of the root's list, through gloo."""
        opts = _options(c10d.ScatterOptions, opts)
        return self._through_gloo("scatter", [outputs, inputs], opts, *_kind(outputs), opts.rootRank)

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Sends a tensor to a rank, through gloo."""
        device.refuse("send", tensors)
        return super().send(tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        """Receives a tensor from a rank, through gloo."""
        device.refuse("recv", tensors)
        return super().recv(tensors, peer, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives a tensor from any rank, through gloo."""
        device.refuse("recv", tensors)
        return super().recv_anysource(tensors, tag)

    # Other names by which PyTorch calls these.
    alltoall_base = all_to_all_single
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _run(
        self, name: str, beneath: str, args: list[Any], opts: Any, *, fresh: bool = False, each: bool = False
    ) -> Any:
        """Runs an operation of `Collectives`, or gloo's if the switch does not have it.

        Args:
            name, beneath: the operation's in `Collectives` and in gloo.
            args: tensors, or lists of them; the first gets results.
            fresh: the first is only written.
            each: as in `_by_gloo`.
        """
        communicator = self.communicator  # what begins later does so among the same members
        collectives = communicator.collectives

        def begin(*args: Any) -> Any:
            work = getattr(collectives, name)(*args, opts)
            if work is not None:
                return work
            dtypes = sorted({str(tensor.dtype) for tensor in flat(args)})
            ops = [opts.reduceOp.op] if hasattr(opts, "reduceOp") else []
            roots = [opts.rootRank] if hasattr(opts, "rootRank") else []
            return _by_gloo(communicator, name, beneath, args, opts, *dtypes, *ops, *roots, each=each)

        return collectives.start(name, begin, args, fresh=fresh)

    def _through_gloo(self, name: str, args: Any, opts: Any, *what: Any, fresh: bool = True) -> Any:
        """Runs an operation that gloo has under the same name; `what` is as in `_by_gloo`."""
        communicator = self.communicator
        return communicator.collectives.start(
            name, lambda *args: _by_gloo(communicator, name, name, args, opts, *what), args, fresh=fresh
        )


def _by_gloo(
    communicator: Communicator,
    name: str,
    beneath: str,
    args: Any,
    opts: Any,
    *what: Any,
    each: bool = False,
    after: Sequence[Step] = (),
    result: list[torch.Tensor] | None = None,
) -> Any:
    """Begins an operation of gloo's.

    Args:
        name, beneath, args: as in `SwitchGroup._run`.
        what: values that are the same at all ranks, if they call the same.
        each: one call for each item of the lists in `args`: gloo's own call for all is not in Python.
        after: functions that finish the result.
        result: tensors of the work's result, if they are not the first of `args`.
    """
    calls = list(zip(*args, strict=True)) if each else [tuple(args)]
    given, steps = opts, list(after)
    if beneath == "_reduce_scatter_base" and versions.scatters_sums_only() and opts.reduceOp != ReduceOp.SUM:
        beneath, given = "allreduce", _options(c10d.AllreduceOptions, None, opts.timeout, opts.reduceOp)
        wholes = [input.clone() for _, input in calls]
        steps = [
            partial(_take_part, output, whole, communicator.rank)
            for (output, _), whole in zip(calls, wholes, strict=True)
        ]
        calls = [([whole],) for whole in wholes]
    seconds = opts.timeout.total_seconds()
    said = ", ".join(str(each).removeprefix("torch.").removeprefix("RedOpType.") for each in what)
    communicator.gloo_calls.marked = not communicator.fallen_back
    root = getattr(opts, "rootRank", None)
    parts = [
        communicator.gloo_calls.start(
            f"{name}({said}) through gloo",
            seconds if seconds > 0 else None,
            partial(getattr(communicator.gloo, beneath), *call, given),
            of_all=name != "scatter" and (root is None or root == communicator.rank),
        )
        for call in calls
    ]
    return communicator.collectives._work(name, parts, args[0] if result is None else result, steps, opts)


def _take_parts(outputs: list[torch.Tensor], whole: torch.Tensor) -> None:
    for output, part in zip(outputs, whole.split([each.numel() for each in outputs]), strict=True):
        output.detach().copy_(part.view(output.shape))


def _take_part(output: torch.Tensor, whole: torch.Tensor, rank: int) -> None:
    output.copy_(whole.view(-1)[rank * output.numel() :][: output.numel()].view(output.shape))


def _until(limit: float) -> timedelta:
    """Time that is left, and at least a little."""
    return timedelta(seconds=max(0.1, limit - time.monotonic()))


def _kind(tensors: Any) -> tuple[Any, ...]:
    """Type and shape of the first tensor, if there is one: gloo says what it thinks of a call without."""
    return next(((tensor.dtype, tuple(tensor.shape)) for tensor in flat(tensors)), ())


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _options(kind: Any, given: Any, timeout: timedelta | None = None, op: Any = None) -> Any:
    """The options of a call: as given, or made of the arguments of PyTorch's other overloads."""
    if isinstance(given, ReduceOp | ReduceOp.RedOpType):
        given, op = None, given
    elif isinstance(given, timedelta):
        given, timeout = None, given
    options = kind() if given is None else given
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    return options
