"""A process group of torch.distributed whose sums, broadcasts, gathers and barriers go through the switch.

    torch.distributed / DDP --> SwitchGroup --what the switch does exactly--> worker_lib.Session --> switch
                                     |
                                     +--everything else--> gloo

Through the switch: all-reduce and reduce-scatter, sum of float32, float64, float16, bfloat16, int32, int64
and their unsigned kin, average of the floats, int32 and int64; broadcast, all-gather and barrier of anything
dense. Through gloo, with gloo's own answers and errors: other types and operations, reduce, gather, scatter,
all-to-all, send and receive. Both kinds may be in flight at once; each keeps the order in which its own were
called.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from switchagg.errors import SessionBrokenError, UsageError
from switchagg.wire.header import MAX_TREE_WORKERS
from worker_lib.arguments import SUMMABLE
from worker_lib.session import Session
from worker_lib.torch import device, sparse, staging, versions
from worker_lib.torch.fallback import Part, Relieved, gloo_backend
from worker_lib.torch.meeting import fresh
from worker_lib.torch.options import Options
from worker_lib.torch.rendezvous import controllers, join
from worker_lib.torch.staged import staged
from worker_lib.torch.staging import devices
from worker_lib.torch.work import Completer, SwitchWork, ranged
from worker_lib.work import Work

_DIVIDED: Final = (torch.int32, torch.int64)  # integers whose average is the quotient of the exact sum


class SwitchGroup(dist.ProcessGroup):  # type: ignore[misc]
    """What `init_process_group("switchagg")` and `new_group(backend="switchagg")` make.

    Args:
        store: the group's own.
        rank, size: this process's place in it.
        timeout: of every operation that is given no other.
        name: the group's, in PyTorch.
        options: its settings.

    Raises:
        UsageError: more ranks than a switch can serve. SwitchError: there is no switch, or it is full.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, name: str, options: Options
    ) -> None:
        if size > MAX_TREE_WORKERS:
            raise UsageError(
                f"the group has {size} ranks; accepted: 1 to {MAX_TREE_WORKERS} on a tree of switches, fewer "
                "on one. Reduce within smaller groups first, or use gloo"
            )
        versions.start_group(self, store, rank, size)
        self._life = versions.Life()
        self.settings = options
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._gloo: Any = None
        self._relieved: Relieved | None = None
        self._held = versions.Held()
        self.completer = Completer(f"switchagg {name}")
        self.feeder = device.Feeder(f"switchagg {name}")
        self._buses: dict[torch.device, device.Bus] = {}
        self._turns = itertools.count()
        self.tables = sparse.Tables()
        store = fresh(store, rank, size, timeout)
        # First the switch, which may have no room: gloo connects every rank with every other.
        self._session, self._controller = join(store, name, rank, size, timeout, options)
        try:
            self._connect_gloo(store, rank, size, timeout, name)
        except BaseException:
            self.shutdown()
            raise

    def _connect_gloo(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        self._gloo = gloo_backend(store, rank, size, timeout)
        for kind in devices():
            self._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        if self.settings.fallback == "gloo" and size > 1:
            assert self._session is not None
            relief = dist.PrefixStore("relief", store)
            self._relieved = Relieved(self._session, gloo_backend(relief, rank, size, timeout), relief, name)

    # ------------------------------------------------------------------ what PyTorch asks about a group

    def getBackendName(self) -> str:
        """Its name for `torch.distributed.get_backend` and messages."""
        return "switchagg"

    name = getBackendName

    @property
    def session(self) -> Session:
        """The session beneath, for its counters.

        Raises `SessionBrokenError` when the group is destroyed.
        """
        session = self._session
        if session is not None and self._life.over(self):
            self.shutdown()
            session = None
        if session is None:
            raise SessionBrokenError("this process group is destroyed; init_process_group makes a new one")
        return session

    @property
    def fallen_back(self) -> bool:
        """Whether the switch is lost and gloo does its work."""
        return self._relieved is not None and self._relieved.lost.is_set()

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of operations that are given no other."""
        seconds = timeout.total_seconds()
        if not seconds > 0:
            raise UsageError(f"timeout is {timeout!r}; accepted: more than 0 seconds")
        self.session.timeout = seconds
        self._gloo._set_default_timeout(timeout)

    def shutdown(self) -> None:
        """Leaves the job, and lets go of threads, sockets and the switch, if this process started it.

        Operations that are still on their way end with an error. Safe to call twice.
        """
        with self._lock:
            session, self._session = self._session, None
            gloo, self._gloo = self._gloo, None
        if session is None:
            return
        if self._relieved is not None:
            self._relieved.close()
        session.close()
        self.feeder.stop()
        self.completer.stop()
        if gloo is not None:
            versions.end(gloo)
        if self._controller is not None:
            controllers.release(self._controller)

    def __del__(self) -> None:
        if getattr(self, "_session", None) is not None and not sys.is_finalizing():
            self.shutdown()

    def abort(self) -> None:
        """The same as `shutdown`: nothing of this group waits for other ranks."""
        self.shutdown()

    # ------------------------------------------------------------------ sums

    @staged()
    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Any:
        """Reduces one tensor in place. `opts` is AllreduceOptions, or the operation itself."""
        tensors, opts = _as_list(tensors), _options(c10d.AllreduceOptions, opts, timeout, op)
        if len(tensors) == 1 and self._sums(tensors[0], opts.reduceOp):
            return self._allreduce("allreduce", tensors, opts)
        if len(tensors) == 1 and self._sparse_too(tensors[0], opts.reduceOp):
            return self._sparse(tensors[0], opts)
        return self._beneath().allreduce(tensors, opts)

    @staged()
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces several tensors in place, as one operation."""
        opts = _options(c10d.AllreduceCoalescedOptions, opts)
        if tensors and all(self._sums(each, opts.reduceOp) for each in tensors):
            return self._allreduce("allreduce_coalesced", tensors, opts)
        return self._beneath().allreduce_coalesced(tensors, opts)

    @staged(fresh=True)
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Reduces a list of tensors, one a rank; `outputs` holds this rank's."""
        if isinstance(outputs, torch.Tensor):  # the overload without outer lists
            outputs, inputs = [outputs], [inputs]
        opts = _options(c10d.ReduceScatterOptions, opts, timeout)
        if len(outputs) == len(inputs) == 1 and staging.alike([*inputs[0], outputs[0]]):
            out, parts = outputs[0], inputs[0]
            if len(parts) == self.size() and self._sums(out, opts.reduceOp):
                return self._scatter("reduce_scatter", [(torch.stack(parts), out)], opts)
        return self._beneath().reduce_scatter(outputs, inputs, opts)

    @staged(fresh=True)
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Reduces a tensor; rank r gets the r-th of `size` equal parts."""
        opts = _options(c10d.ReduceScatterOptions, opts)
        if self._scatters(output, input, opts):
            return self._scatter("reduce_scatter_single", [(input, output)], opts)
        return self._beneath()._reduce_scatter_base(output, input, opts)

    @staged(fresh=True)
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`reduce_scatter_single` of several tensors, as one operation."""
        opts = _options(c10d.ReduceScatterOptions, opts)
        pairs = list(zip(inputs, outputs, strict=True))
        if pairs and all(self._scatters(output, input, opts) for input, output in pairs):
            return self._scatter("reduce_scatter_single_coalesced", pairs, opts)
        return self._beneath().reduce_scatter_tensor_coalesced(outputs, inputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ------------------------------------------------------------------ moves

    @staged()
    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Any:
        """Copies the root's tensor to all ranks. `opts` is BroadcastOptions, or the root."""
        tensors = _as_list(tensors)
        if isinstance(opts, int):
            root, opts = opts, None
        opts = _options(c10d.BroadcastOptions, opts, timeout)
        if root is not None:
            opts.rootRank = root
        if not (len(tensors) == 1 and opts.rootTensor == 0 and staging.dense(tensors[0])):
            return self._beneath().broadcast(tensors, opts)
        with self._ready("broadcast") as session:
            tensor = tensors[0]
            x, back = staging.contiguous(tensor, write=True)
            work = session._broadcast(
                x, opts.rootRank, _seconds(opts), background=versions.asynchronous(opts)
            )
            finish = back if self.rank() != opts.rootRank else None
            return self._work("broadcast", [work], [tensor], finish, opts)

    @staged(fresh=True)
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Collects every rank's tensor in a list of tensors."""
        if isinstance(inputs, torch.Tensor):  # the overload without outer lists
            outputs, inputs = [outputs], [inputs]
        opts = _options(c10d.AllgatherOptions, opts, timeout)
        if not (len(outputs) == len(inputs) == 1 and len(outputs[0]) == self.size()) or not (
            staging.alike([*outputs[0], inputs[0]]) and staging.dense(inputs[0])
        ):
            return self._beneath().allgather(outputs, inputs, opts)
        with self._ready("allgather") as session:
            rows, (x, _) = outputs[0], staging.contiguous(inputs[0])
            whole = x.new_empty((self.size(), *x.shape))
            work = session._allgather(x, whole, _seconds(opts), background=versions.asynchronous(opts))
            return self._work("allgather", [work], list(rows), staging.copy_rows(rows, whole), opts)

    @staged(fresh=True)
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Collects every rank's tensor in one, end to end."""
        opts = _options(c10d.AllgatherOptions, opts)
        if not self._gathers(output, input):
            return self._beneath()._allgather_base(output, input, opts)
        return self._gather("all_gather_single", [(input, output)], opts)

    @staged(fresh=True)
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`all_gather_single` of several tensors, as one operation."""
        opts = _options(c10d.AllgatherOptions, opts)
        pairs = list(zip(inputs, outputs, strict=True))
        if pairs and all(self._gathers(output, input) for input, output in pairs):
            return self._gather("all_gather_single_coalesced", pairs, opts)
        return self._beneath().allgather_into_tensor_coalesced(outputs, inputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @staged()
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Its work is done when every rank has called it."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        opts = _options(c10d.BarrierOptions, opts, timeout)
        with self._ready("barrier") as session:
            work = session._barrier(_seconds(opts), background=versions.asynchronous(opts))
            return self._work("barrier", [work], [], None, opts)

    # ------------------------------------------------------------------ tensors on a GPU

    def bus(self, place: torch.device) -> device.Bus:
        """What copies to and from a device."""
        if place not in self._buses:
            self._buses[place] = device.Bus(place)
        return self._buses[place]

    def follow(
        self, name: str, part: device.Deferred, result: Any, finish: Callable[[], None] | None
    ) -> SwitchWork:
        """The work of a collective that the feeder begins."""
        work = SwitchWork(name, [part], result, finish, self.completer)
        self._held.add(work)
        work.finish_by_itself()
        return work

    def lanes_elsewhere(
        self, name: str, bus: device.Bus, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], None] | None:
        """How a device makes narrow lanes of an all-reduce by itself; None where it should not."""
        if name != "allreduce" or self._relieved is not None or self.size() == 1:
            return None
        given, timeout = (*args[1:3], None, None)[:2]
        opts = _options(
            c10d.AllreduceOptions,
            kwargs.get("opts", given),
            kwargs.get("timeout", timeout),
            kwargs.get("op"),
        )
        tensors = _as_list(args[0])
        tensor = tensors[0]
        bits = self.settings.lanes(tensor)[0]
        if len(tensors) > 1 or tensor.layout != torch.strided or not device.moves_less(tensor, bits):
            return None
        if not _reduces(tensor, opts.reduceOp):
            return None
        turn, session = next(self._turns), self.session
        bus.after(tensor)
        return lambda: device.reduce_lanes(
            session, bus, tensor, bits=int(bits or 0), average=_op(tensor, opts) == "avg", turn=turn,
            seconds=_seconds(opts),
        )  # fmt: skip

    # ------------------------------------------------------------------ inside

    @contextmanager
    def _ready(self, name: str) -> Iterator[Session | Relieved]:
        """The session, inside a range of the profiler that covers the start of an operation."""
        session = self.session
        with ranged(name):
            yield self._relieved or session

    def _beneath(self) -> Any:
        _ = self.session  # says so if it is destroyed
        return self._gloo

    def _work(
        self,
        name: str,
        works: Sequence[Work | Part],
        result: list[Any],
        finish: Callable[[], None] | None,
        opts: Any,
    ) -> SwitchWork:
        work = SwitchWork(name, works, result, finish, self.completer)
        self._held.add(work)
        if versions.asynchronous(opts):
            work.finish_by_itself()
        return work

    def _sums(self, tensor: Any, op: Any) -> bool:
        """Whether the switch reduces this exactly as asked."""
        if not staging.dense(tensor) or str(tensor.dtype).removeprefix("torch.") not in SUMMABLE:
            return False
        return _reduces(tensor, op)

    def _sparse_too(self, tensor: Any, op: Any) -> bool:
        # Who falls back keeps results, and a sparse one has no size that all ranks know: gloo does it.
        if self._relieved is not None or not sparse.fits(tensor):
            return False
        return bool(op == ReduceOp.SUM or (op == ReduceOp.AVG and tensor.is_floating_point()))

    def _scatters(self, output: Any, input: Any, opts: Any) -> bool:
        return (
            staging.dense(output)
            and output.dtype == input.dtype
            and input.numel() == output.numel() * self.size()
            and self._sums(input, opts.reduceOp)
        )

    def _gathers(self, output: Any, input: Any) -> bool:
        return (
            staging.dense(input)
            and staging.dense(output)
            and output.dtype == input.dtype
            and output.numel() == input.numel() * self.size()
        )

    def _allreduce(self, name: str, tensors: Sequence[torch.Tensor], opts: Any) -> SwitchWork:
        with self._ready(name) as session:
            works, backs = [], []
            for tensor, (x, back) in zip(tensors, _once(tensors), strict=True):
                bits, min_bits = self.settings.lanes(x)
                work = session._allreduce(
                    x,
                    _op(x, opts),
                    bits,
                    self.settings.blocks,
                    None,
                    self.settings.block_size,
                    _seconds(opts),
                    min_bits=min_bits,
                    background=versions.asynchronous(opts),
                )
                works.append(work)
                backs += [back, _divider(tensor, opts, self.size())]
            return self._work(name, works, list(tensors), staging.both(backs), opts)

    def _sparse(self, tensor: torch.Tensor, opts: Any) -> SwitchWork:
        session = self.session
        with ranged("allreduce_sparse"):
            bits, min_bits = self.settings.lanes(tensor)
            works, finish = sparse.start(
                session, tensor, _op(tensor, opts), bits, _seconds(opts), self.tables, min_bits=min_bits,
                background=versions.asynchronous(opts),
            )  # fmt: skip
            return self._work("allreduce_sparse", works, [tensor], finish, opts)

    def _scatter(self, name: str, pairs: Sequence[tuple[Any, Any]], opts: Any) -> SwitchWork:
        with self._ready(name) as session:
            works, backs = [], []
            for input, output in pairs:
                x, _ = staging.contiguous(input)
                o, back = staging.contiguous(output, write=True)
                bits, min_bits = self.settings.lanes(x)
                work = session._reduce_scatter(
                    x.view(self.size(), o.numel()),
                    o.view(1, o.numel()),
                    _op(x, opts),
                    bits,
                    _seconds(opts),
                    min_bits=min_bits,
                    background=versions.asynchronous(opts),
                )
                works.append(work)
                backs += [back, _divider(output, opts, self.size())]
            outputs = [output for _, output in pairs]
            return self._work(name, works, outputs, staging.both(backs), opts)

    def _gather(self, name: str, pairs: Sequence[tuple[Any, Any]], opts: Any) -> SwitchWork:
        with self._ready(name) as session:
            works, backs = [], []
            for input, output in pairs:
                x, _ = staging.contiguous(input)
                o, back = staging.contiguous(output, write=True)
                whole = o.view(self.size(), *x.shape)
                works.append(
                    session._allgather(x, whole, _seconds(opts), background=versions.asynchronous(opts))
                )
                backs.append(back)
            outputs = [output for _, output in pairs]
            return self._work(name, works, outputs, staging.both(backs), opts)


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _once(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, Callable[[], None] | None]]:
    """`staging.contiguous` of each, with a copy of what is given again: it is to be summed once."""
    seen: set[int] = set()
    apart = []
    for tensor in tensors:
        apart.append(staging.contiguous(tensor, write=True, copied=tensor.data_ptr() in seen))
        seen.add(tensor.data_ptr())
    return apart


def _reduces(tensor: torch.Tensor, op: Any) -> bool:
    """Whether the switch has this operation for the tensor's type."""
    if op == ReduceOp.AVG:
        return tensor.is_floating_point() or tensor.dtype in _DIVIDED
    return bool(op == ReduceOp.SUM)


def _op(tensor: torch.Tensor, opts: Any) -> str:
    return "avg" if opts.reduceOp == ReduceOp.AVG and tensor.is_floating_point() else "sum"


def _divider(tensor: torch.Tensor, opts: Any, size: int) -> Callable[[], None] | None:
    """What makes an average of a sum of integers: rounded towards zero, as NCCL does it."""
    if opts.reduceOp != ReduceOp.AVG or tensor.is_floating_point():
        return None

    def divide() -> None:
        with torch.no_grad():
            tensor.detach().div_(size, rounding_mode="trunc")

    return divide


def _seconds(opts: Any) -> float | None:
    seconds: float = opts.timeout.total_seconds()
    return seconds if seconds > 0 else None


def _options(kind: Any, given: Any, timeout: timedelta | None = None, op: Any = None) -> Any:
    """The options of a call: as given, or made of what PyTorch's other overloads take."""
    if isinstance(given, ReduceOp | ReduceOp.RedOpType):
        given, op = None, given
    options = kind() if given is None else given
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    return options
