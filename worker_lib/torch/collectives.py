"""The collectives of a process group that go through the switch: tensors in, a `SwitchWork` out.

    SwitchGroup --tensors, c10d's options--> Collectives --contiguous tensors--> worker_lib.Session --> switch
        |                                         |
        +--gloo, where the answer is None         +--or GlooFallback, which outlives the switch

Nothing here depends on the class that PyTorch sees. A method returns None where the switch does not have the
operation for these tensors; that depends on types, shapes and options, so it is the same at all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from typing import Any, Final

import torch
from torch.distributed import ReduceOp

from worker_lib.arguments import SUMMABLE, SumOptions, torch_name
from worker_lib.extrema import COMPARABLE
from worker_lib.plan import Kind
from worker_lib.session import Session
from worker_lib.torch import sparse, versions
from worker_lib.torch.device import Staging, reduces_on_device
from worker_lib.torch.fallback import GlooFallback
from worker_lib.torch.options import Options
from worker_lib.torch.work import Running, StartOrder, Step, SwitchWork, TaskThread, flat, ranged

_GATHERED_BYTES: Final = 1 << 20  # of all ranks together; a ring moves fewer, in more steps
_DIVIDED: Final = (torch.int32, torch.int64)  # integers whose average is the quotient of the exact sum


class Collectives:
    """Sums, broadcasts, gathers and barriers of one process group.

    Lists of tensors and options (`opts`) are those of c10d's calls. Tensors are on the CPU but for those of
    `start` and `reduce_on_device`.

    Args:
        session: the group's.
        settings: the group's.
        name: for its threads.

    Attributes:
        switch: the session, or the fallback that is used in its place.
        futures: thread that completes futures.
        staging: begins the collectives of tensors on a GPU.
    """

    def __init__(self, session: Session, settings: Options, name: str) -> None:
        self.session = session
        self.switch: Session | GlooFallback = session
        self.futures = TaskThread(f"{name} futures")
        self.staging = Staging(name)
        self._settings = settings
        self._size = session.world_size
        self._keep_alive = versions.KeepAlive()
        self._kinds = sparse.Kinds(settings)
        self._order = StartOrder()

    def close(self) -> None:
        """Closes the session and ends the threads. Operations on their way end with an error."""
        if isinstance(self.switch, GlooFallback):
            self.switch.close()
        self.session.close()
        self.staging.feeder.stop()
        self.futures.stop()

    def start(self, name: str, begin: Callable[..., Any], args: Sequence[Any], *, fresh: bool) -> Any:
        """Calls ``begin(*args)``, which returns a work; in the feeder with host copies for tensors on a GPU.

        Arguments are those of `Staging.defer`.
        """
        deferred = self.staging.defer(begin, args, fresh=fresh)
        if deferred is None:
            return begin(*args)
        part, backs = deferred
        return self._work(name, [part], flat(args[:1]), backs)

    # ------------------------------------------------------------------ sums

    def allreduce(self, tensors: Sequence[Any], opts: Any) -> SwitchWork | None:
        """Reduces one tensor in place, dense or sparse."""
        if len(tensors) == 1 and _summable(tensors[0], opts.reduceOp):
            return self._sum("allreduce", tensors, opts)
        if len(tensors) == 1 and self._summable_sparse(tensors[0], opts.reduceOp):
            return self._sum_sparse(tensors[0], opts)
        if len(tensors) == 1 and self._extremum(tensors[0], opts.reduceOp):
            with ranged("allreduce"):
                x, back = contiguous(tensors[0], write=True)
                work = self.session._allreduce(x, _op(x, opts), **_waiting(opts))
                return self._work("allreduce", [work], tensors, back, opts)
        return None

    def reduce(self, tensors: Sequence[Any], opts: Any) -> SwitchWork | None:
        """Reduces one tensor, in place at the root; elsewhere it is left as it is."""
        if not (len(tensors) == 1 and opts.rootTensor == 0 and self.switch is self.session):
            return None
        tensor, here = tensors[0], self.session.rank == opts.rootRank
        if not (_summable(tensor, opts.reduceOp) or self._extremum(tensor, opts.reduceOp)):
            return None
        with ranged("reduce"):
            x, back = contiguous(tensor, write=here)
            bits, min_bits = self._settings.lanes(x) if _summable(x, opts.reduceOp) else (None, None)
            options = SumOptions(_op(x, opts), bits, min_bits, kind=Kind.REDUCE, root=opts.rootRank)
            work = self.session._reduction(x, None, options, **_waiting(opts))
            steps = back + _divider(tensor, opts, self._size) if here else []
            return self._work("reduce", [work], tensors, steps, opts)

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any) -> SwitchWork | None:
        """Reduces several tensors in place, as one operation."""
        if not tensors or not all(_summable(each, opts.reduceOp) for each in tensors):
            return None
        return self._sum("allreduce_coalesced", tensors, opts)

    def reduce_on_device(self, tensors: Sequence[torch.Tensor], opts: Any) -> SwitchWork | None:
        """Reduces one tensor in place, in narrow lanes that its GPU makes, if that moves fewer bytes."""
        if len(tensors) != 1 or self.switch is not self.session or self._size == 1:
            return None
        tensor = tensors[0]
        bits = self._settings.lanes(tensor)[0]
        if not (reduces_on_device(tensor, bits) and _reduces(tensor, opts.reduceOp)):
            return None
        part = self.staging.reduce(
            self.session, tensor, bits=int(bits or 0), average=_op(tensor, opts) == "avg",
            seconds=_seconds(opts),
        )  # fmt: skip
        return self._work("allreduce", [part], [tensor], [])

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> SwitchWork | None:
        """Reduces a list of tensors, one a rank; `outputs` holds this rank's."""
        if not (len(outputs) == len(inputs) == 1 and len(inputs[0]) == self._size):
            return None
        if not _alike([*inputs[0], outputs[0]]) or not _summable(outputs[0], opts.reduceOp):
            return None
        return self._scatter("reduce_scatter", outputs[0], torch.stack(inputs[0]), opts)

    def _sum(self, name: str, tensors: Sequence[torch.Tensor], opts: Any) -> SwitchWork:
        with ranged(name):
            works, steps = [], []
            for tensor, (x, back) in zip(tensors, _each_once(tensors), strict=True):
                bits, min_bits = self._settings.lanes(x)
                work = self.switch._allreduce(
                    x, _op(x, opts), bits=bits, min_bits=min_bits, blocks=self._settings.blocks,
                    block_size=self._settings.block_size, **_waiting(opts),
                )  # fmt: skip
                works.append(work)
                steps += back + _divider(tensor, opts, self._size)
            return self._work(name, works, list(tensors), steps, opts)

    def _sum_sparse(self, tensor: torch.Tensor, opts: Any) -> SwitchWork:
        with ranged("allreduce_sparse"):
            kind = self._kinds.of(tensor, _op(tensor, opts))
            assert kind is not None
            works, finish = sparse.start(self.session, tensor, kind, **_waiting(opts))
            return self._work("allreduce_sparse", works, [tensor], [finish], opts)

    def _scatter(self, name: str, outputs: Any, inputs: Any, opts: Any) -> SwitchWork | None:
        """Reduces a tensor, or several as one operation; rank r gets the r-th of equal parts, one a rank."""
        pairs = _pairs(inputs, outputs)
        if not pairs or not all(
            _parts(input, output, self._size) and _summable(input, opts.reduceOp) for input, output in pairs
        ):
            return None
        with ranged(name):
            works, steps = [], []
            for input, output in pairs:
                x, _ = contiguous(input)
                o, back = contiguous(output, write=True)
                bits, min_bits = self._settings.lanes(x)
                work = self.switch._reduce_scatter(
                    x.view(self._size, o.numel()), o.view(1, o.numel()), _op(x, opts), bits,
                    min_bits=min_bits, **_waiting(opts),
                )  # fmt: skip
                works.append(work)
                steps += back + _divider(output, opts, self._size)
            return self._work(name, works, [output for _, output in pairs], steps, opts)

    reduce_scatter_single = partialmethod(_scatter, "reduce_scatter_single")
    reduce_scatter_single_coalesced = partialmethod(_scatter, "reduce_scatter_single_coalesced")

    # ------------------------------------------------------------------ copies

    def broadcast(self, tensors: Sequence[Any], opts: Any) -> SwitchWork | None:
        """Copies the root's tensor to all ranks."""
        if not (len(tensors) == 1 and opts.rootTensor == 0 and dense(tensors[0])):
            return None
        with ranged("broadcast"):
            x, back = contiguous(tensors[0], write=True)
            work = self.switch._broadcast(x, opts.rootRank, **_waiting(opts))
            steps = back if self.session.rank != opts.rootRank else []
            return self._work("broadcast", [work], [tensors[0]], steps, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> SwitchWork | None:
        """Collects every rank's tensor in a list of tensors."""
        if not (len(outputs) == len(inputs) == 1 and len(outputs[0]) == self._size):
            return None
        rows = list(outputs[0])
        if not _alike([*rows, inputs[0]]):
            return None
        with ranged("allgather"):
            x, _ = contiguous(inputs[0])
            whole = x.new_empty((self._size, *x.shape))
            work = self.switch._allgather(x, whole, **_waiting(opts))
            steps = [partial(_copy, row, source) for row, source in zip(rows, whole, strict=True)]
            return self._work("allgather", [work], rows, steps, opts)

    def _gather(self, name: str, outputs: Any, inputs: Any, opts: Any) -> SwitchWork | None:
        """Collects every rank's tensor in one, end to end; or several, as one operation."""
        pairs = _pairs(inputs, outputs)
        if not pairs or not all(_parts(output, input, self._size) for input, output in pairs):
            return None
        with ranged(name):
            works, steps = [], []
            for input, output in pairs:
                x, _ = contiguous(input)
                o, back = contiguous(output, write=True)
                works.append(self.switch._allgather(x, o.view(self._size, *x.shape), **_waiting(opts)))
                steps += back
            return self._work(name, works, [output for _, output in pairs], steps, opts)

    all_gather_single = partialmethod(_gather, "all_gather_single")
    all_gather_single_coalesced = partialmethod(_gather, "all_gather_single_coalesced")

    def barrier(self, opts: Any) -> SwitchWork:
        """Its work is done when every rank has called it."""
        with ranged("barrier"):
            return self._work("barrier", [self.switch._barrier(**_waiting(opts))], [], [], opts)

    def _work(
        self, name: str, parts: Sequence[Running], result: Any, steps: Sequence[Step], opts: Any = None
    ) -> SwitchWork:
        # The feeder's works are those that it was given, which have their place.
        order = None if self.staging.feeder.runs_caller() else self._order
        work = SwitchWork(name, parts, result, steps, self.futures, order)
        self._keep_alive.add(work)
        if versions.asynchronous(opts):
            work.complete_in_background()
        return work

    def _extremum(self, tensor: Any, op: Any) -> bool:
        """True if the switch finds this maximum or minimum. It gathers, so tensors must not be large."""
        if not _is_extremum(op) or self.switch is not self.session or not dense(tensor):
            return False
        if torch_name(tensor.dtype) not in COMPARABLE:
            return False
        return bool(tensor.numel() * tensor.element_size() * self._size <= _GATHERED_BYTES)

    def _summable_sparse(self, tensor: Any, op: Any) -> bool:
        # The fallback keeps results, and a sparse one has no size that all ranks know: gloo does it.
        if self.switch is not self.session or not sparse.fits(tensor):
            return False
        return bool(op == ReduceOp.SUM or (op == ReduceOp.AVG and tensor.is_floating_point()))


# ---------------------------------------------------------------------- operations


def _reduces(tensor: torch.Tensor, op: Any) -> bool:
    """True if the switch has this operation for the tensor's type."""
    if op == ReduceOp.AVG:
        return tensor.is_floating_point() or tensor.dtype in _DIVIDED
    return bool(op == ReduceOp.SUM)


def _summable(tensor: Any, op: Any) -> bool:
    """True if the switch reduces this exactly as asked."""
    if not dense(tensor) or torch_name(tensor.dtype) not in SUMMABLE:
        return False
    return _reduces(tensor, op)


def _is_extremum(op: Any) -> bool:
    return any(op == kind for kind in (ReduceOp.MAX, ReduceOp.MIN))  # a kind does not equal its ReduceOp


def _op(tensor: torch.Tensor, opts: Any) -> str:
    if _is_extremum(opts.reduceOp):
        return "max" if opts.reduceOp == ReduceOp.MAX else "min"
    return "avg" if opts.reduceOp == ReduceOp.AVG and tensor.is_floating_point() else "sum"


def _divider(tensor: torch.Tensor, opts: Any, size: int) -> list[Step]:
    """The step that makes an average of a sum of integers: rounded towards zero, as NCCL does it."""
    if opts.reduceOp != ReduceOp.AVG or tensor.is_floating_point():
        return []

    def divide() -> None:
        with torch.no_grad():
            tensor.detach().div_(size, rounding_mode="trunc")

    return [divide]


def _seconds(opts: Any) -> float | None:
    seconds: float = opts.timeout.total_seconds()
    return seconds if seconds > 0 else None


def _waiting(opts: Any) -> dict[str, Any]:
    """The arguments of a session's call about waiting."""
    return {"timeout": _seconds(opts), "background": versions.asynchronous(opts)}


# ---------------------------------------------------------------------- tensors as the engine wants them


def dense(tensor: object) -> bool:
    """True for a tensor whose elements lie in this process's memory."""
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"


def contiguous(
    tensor: torch.Tensor, *, write: bool = False, copied: bool = False
) -> tuple[torch.Tensor, list[Step]]:
    """The tensor itself, detached, if it lies in memory as it looks; else a copy.

    Args:
        write: a result will be written to it.
        copied: a copy in any case.

    Returns:
        The tensor for the engine, and steps that copy the result back.
    """
    own = tensor.detach()
    if own.is_contiguous() and not own.is_conj() and not own.is_neg():
        if not copied:
            return own, []
        copy = own.clone()
    else:
        copy = own.resolve_conj().resolve_neg().contiguous()
    return copy, [partial(_copy, own, copy)] if write else []


def _each_once(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, list[Step]]]:
    """`contiguous` of each. A tensor that is given again gets a copy, so that it is summed once."""
    seen: set[int] = set()
    apart = []
    for tensor in tensors:
        apart.append(contiguous(tensor, write=True, copied=tensor.data_ptr() in seen))
        seen.add(tensor.data_ptr())
    return apart


def _alike(tensors: Sequence[torch.Tensor]) -> bool:
    first = tensors[0]
    return all(dense(t) and t.shape == first.shape and t.dtype == first.dtype for t in tensors)


def _pairs(inputs: Any, outputs: Any) -> list[tuple[Any, Any]]:
    """The tensors of a call: one input with its output, or lists of them."""
    return [(inputs, outputs)] if isinstance(inputs, torch.Tensor) else [*zip(inputs, outputs, strict=True)]


def _parts(whole: torch.Tensor, part: torch.Tensor, size: int) -> bool:
    """True if `whole` is as large as one `part` a rank."""
    same = dense(whole) and dense(part) and whole.dtype == part.dtype
    return same and whole.numel() == part.numel() * size


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.detach().copy_(source)
