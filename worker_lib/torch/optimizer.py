"""An optimizer whose gradients are averaged over all ranks, for programs that were written for Horovod.

from worker_lib.torch import optimizer as switch

session = worker_lib.connect()                                   # was: hvd.init()
switch.broadcast_parameters(session, model.state_dict())
optimizer = switch.DistributedOptimizer(optimizer, session)
...
loss.backward()                                                  # buckets go out while it runs
optimizer.step()                                                 # waits for them

backward pass: last layer's gradients --> bucket 0 --> all-reduce 0
                                 ...  --> bucket 1 --> all-reduce 1      the same order at every rank
step:          which parameters any rank used (an OR), then the waits, then the optimizer's own step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from switchagg.errors import UsageError
from worker_lib.arguments import SUMMABLE, torch_name
from worker_lib.session import Session
from worker_lib.tree import require_alike
from worker_lib.work import Work

BUCKET_BYTES: Final = 4 << 20
"""A bucket is closed at this size: a model of many small parameters then needs few round trips."""


class _Bucket:
    """Parameters of one type whose gradients travel as one tensor."""

    def __init__(self, parameters: list[Any]) -> None:
        self.parameters = parameters
        count, dtype = sum(p.numel() for p in parameters), parameters[0].dtype
        self.flat = torch.zeros(count, dtype=dtype, device="cpu")
        self.missing = set(map(id, parameters))
        self.work: Work | None = None

    def parts(self) -> list[tuple[Any, Any]]:
        """Returns each parameter with its part of the tensor, in the parameter's shape."""
        pieces = self.flat.split([p.numel() for p in self.parameters])
        return [(p, piece.view(p.shape)) for p, piece in zip(self.parameters, pieces, strict=True)]


class _Reducer:
    """Averages the gradients of one optimizer's parameters, in buckets whose order is fixed."""

    def __init__(self, session: Session, parameters: list[Any], passes: int, options: dict[str, Any]) -> None:
        self._session, self._passes, self._options = session, passes, options
        self._parameters = parameters
        self._buckets: list[_Bucket] = []
        # The last parameters' gradients are usually the first that a backward pass has.
        open_: list[Any] = []
        for p in reversed(parameters):
            size = sum(each.numel() for each in open_) * p.element_size()
            if open_ and (open_[0].dtype != p.dtype or size >= BUCKET_BYTES):
                self._buckets.append(_Bucket(open_))
                open_ = []
            open_.append(p)
        self._buckets.append(_Bucket(open_))
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        self._seen = dict.fromkeys(self._bucket_of, 0)
        self._begun = 0  # buckets on their way
        self.done = False  # since the last step
        for p in parameters:
            p.register_post_accumulate_grad_hook(self._ready)

    def _ready(self, p: Any) -> None:
        """Counts a gradient, and sends the buckets that are complete as far as their order allows."""
        if self.done or self._seen[id(p)] == self._passes:
            raise UsageError(
                f"a gradient came after {self._passes} backward passes and before step(); accepted: as many "
                "as backward_passes_per_step says"
            )
        self._seen[id(p)] += 1
        if self._seen[id(p)] == self._passes:
            self._bucket_of[id(p)].missing.discard(id(p))
        while self._begun < len(self._buckets) and not self._buckets[self._begun].missing:
            self._begin(self._buckets[self._begun])

    def _begin(self, bucket: _Bucket) -> None:
        with torch.no_grad():
            for p, part in bucket.parts():
                if p.grad is None:
                    part.zero_()
                elif p.grad.layout is not torch.strided:
                    raise UsageError(f"a gradient has layout {p.grad.layout}; accepted: dense gradients")
                else:
                    part.copy_(p.grad)
        bucket.work = self._session.allreduce_async(bucket.flat, **self._options)
        self._begun += 1

    def synchronize(self) -> None:
        """Sends what is left, waits for all buckets and writes the averages into the gradients."""
        if self.done:
            return
        while self._begun < len(self._buckets):
            self._begin(self._buckets[self._begun])
        used = torch.tensor([p.grad is not None for p in self._parameters], device="cpu")
        self._session.allreduce(used, op="or")
        used_by_any = {id(p) for p, flag in zip(self._parameters, used.tolist(), strict=True) if flag}
        with torch.no_grad():
            for bucket in self._buckets:
                assert bucket.work is not None
                bucket.work.wait()
                for p, part in bucket.parts():
                    if p.grad is not None:
                        p.grad.copy_(part)
                    elif id(p) in used_by_any:
                        p.grad = part.clone()
        self.done = True

    def restart(self) -> None:
        """Begins the next step."""
        for bucket in self._buckets:
            bucket.missing = set(map(id, bucket.parameters))
            bucket.work = None
        self._seen = dict.fromkeys(self._seen, 0)
        self._begun, self.done = 0, False


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    session: Session,
    *,
    op: str = "avg",
    backward_passes_per_step: int = 1,
    **options: Any,
) -> torch.optim.Optimizer:
    """Makes an optimizer average the gradients of all ranks before it steps.

    All ranks call it, with parameters of the same shapes and types in the same order. A parameter that no
    rank used keeps the gradient None; one that only some used counts as zero at the others. To clip averages,
    call `optimizer.synchronize()` before clipping: `step()` then does not average again.

    Args:
        optimizer: any of PyTorch's that steps without a closure; its parameters are dense, on the CPU.
        session: the ranks; its other collectives are called between a step and the next backward pass.
        op: ``"avg"`` or ``"sum"``.
        backward_passes_per_step: how many passes add to the gradients before they are reduced.
        options: as `Session.allreduce` takes them: bits, min_bits, accuracy, blocks, block_size, timeout.

    Returns:
        `optimizer` itself, with a method `synchronize` more, so that schedulers keep working.

    Raises:
        UsageError: an argument cannot work; nothing was changed.
        MismatchError: ranks have other parameters.
        `step`, `synchronize` and the backward pass raise what `Work.wait` does.
    """
    if hasattr(optimizer, "synchronize"):
        raise UsageError("optimizer has a method synchronize: it is distributed already")
    if op not in ("avg", "sum"):
        raise UsageError(f"op is {op!r}; accepted: 'avg' and 'sum'")
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise UsageError(f"backward_passes_per_step is {backward_passes_per_step!r}; accepted: 1, 2, ...")
    if unknown := set(options) - {"bits", "min_bits", "accuracy", "blocks", "block_size", "timeout"}:
        raise UsageError(
            f"{min(unknown)} is not accepted; accepted: bits, min_bits, accuracy, blocks, block_size, timeout"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not parameters:
        raise UsageError("optimizer has no parameters that require gradients")
    for p in parameters:
        kind = torch_name(p.dtype)
        if p.device.type != "cpu" or kind not in SUMMABLE:
            raise UsageError(f"a parameter is {kind} on {p.device}; accepted: floats on the CPU")
    require_alike(session, [(str(p.dtype), tuple(p.shape)) for p in parameters])
    reducer = _Reducer(session, parameters, backward_passes_per_step, options | {"op": op})

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if args[1:] or named.get("closure") is not None:  # args[0] is the optimizer
            raise UsageError("step() has a closure, whose gradients would not be averaged; accepted: none")
        reducer.synchronize()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: reducer.restart())
    optimizer.synchronize = reducer.synchronize
    return optimizer


def broadcast_parameters(session: Session, parameters: Mapping[str, Any], root: int = 0) -> None:
    """Copies rank `root`'s parameters to all ranks, in place.

    Args:
        parameters: a state_dict, or dict(model.named_parameters()): tensors on the CPU, by name.
        root: rank whose values win.

    Raises:
        UsageError: something in it is no tensor.
        MismatchError: ranks have other names, shapes or types.
    """
    for name, each in parameters.items():
        if not isinstance(each, torch.Tensor):
            raise UsageError(f"{name} is a {type(each).__name__}; accepted: tensors")
    named = [(name, parameters[name].detach()) for name in sorted(parameters)]
    require_alike(session, [(name, str(each.dtype), tuple(each.shape)) for name, each in named])
    tensors = [each for _, each in named]
    copies = [each.contiguous() for each in tensors]
    for work in [session.broadcast_async(copy, root=root) for copy in copies]:
        work.wait()
    for each, copy in zip(tensors, copies, strict=True):
        if not each.is_contiguous():
            each.copy_(copy)


def broadcast_optimizer_state(session: Session, optimizer: torch.optim.Optimizer, root: int = 0) -> None:
    """Gives all ranks the settings and state of rank `root`'s optimizer. Pickled: ranks trust each other."""
    state = session.broadcast_object(optimizer.state_dict(), root=root)
    if session.rank != root:
        optimizer.load_state_dict(state)
