"""Collectives of tensors on a GPU: staged through pinned host memory, on a stream of their own.

    call --event--> side stream: copy to pinned memory     feeder thread: wait for the copy, then the same
                                                           collective on the host copy, in call order
    wait()  <--  side stream: copy back  <-------------------------- its result

The caller's stream is not held up: the copy waits for the kernels launched so far, the host for the copy.
All ranks must begin their collectives in the same order, so while one is queued, those of CPU tensors queue
behind it. A work is done when its results are in the GPU's memory.

Float sums in lanes of 16 or 8 bits are quantized on the GPU where that moves fewer bytes (`Staging.reduce`):
ranks OR their exponents, copy packed lanes, sum those as integers, and decode on the GPU.

Only `DeviceCopier` knows of CUDA, so the tests run the rest with CPU tensors too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from switchagg.errors import UsageError
from worker_lib.quantize import dither_key
from worker_lib.session import Session
from worker_lib.torch import lanes
from worker_lib.torch.work import Step, TaskThread, destroyed, flat


def kinds() -> list[str]:
    """The kinds of devices whose tensors a process group takes here.

    Asked at import, so it must not start CUDA: a process that has can no longer fork ones that use it.
    """
    return ["cpu", "cuda"] if torch.backends.cuda.is_built() else ["cpu"]


def needs_staging(tensor: torch.Tensor) -> bool:
    """True for a tensor on a device that reaches the switch through this process's memory."""
    return bool(tensor.is_cuda)


def refuse(name: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raises `UsageError` if one of the tensors is on a GPU, and the operation takes none there."""
    for tensor in tensors:
        if needs_staging(tensor):
            raise UsageError(
                f"{name} of a tensor on {tensor.device}; accepted: CPU tensors, such as its .cpu(). "
                "Collectives take both"
            )


class DeviceCopier:
    """Copies between a device and the host: pinned memory and side streams for CUDA, plain copies else.

    Copies to the device have a stream of their own: the bus carries both directions at once, and a result
    need not wait for the inputs of later collectives.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None
        self._back: Any = torch.cuda.Stream(device) if self._cuda else None

    def to_host(self, tensor: torch.Tensor, *, copy: bool = True) -> tuple[torch.Tensor, Step]:
        """Begins a copy to the host.

        Args:
            copy: False leaves the contents undefined.

        Returns:
            A host tensor of the same shape, and a function that waits for its contents, or, without them,
            until what the caller has launched no longer writes to `tensor`.
        """
        own = tensor.detach()
        if own.layout != torch.strided:
            return own.cpu(), _nothing
        host = torch.empty(own.shape, dtype=own.dtype, device="cpu", pin_memory=self._cuda)
        if copy and not self._cuda:
            host.copy_(own)
        if not self._cuda:
            return host, _nothing
        if not copy:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(own.device))  # or what fills it now comes last
            return host, event.synchronize
        self.follow(own)
        with torch.cuda.stream(self._stream):
            host.copy_(own, non_blocking=True)
            own.record_stream(self._stream)  # the caller may drop it before it is copied
            event = torch.cuda.Event()
            event.record(self._stream)
        return host, event.synchronize

    def to_device(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copies back; the contents are there when it returns."""
        with torch.no_grad():
            if not self._cuda or host.layout != torch.strided:
                tensor.copy_(host)  # not detached: a sparse result replaces the tensor's contents
                return
            with torch.cuda.stream(self._back):
                tensor.detach().copy_(host, non_blocking=True)
            self._back.synchronize()

    def side_stream(self) -> Any:
        """A context in which kernels are launched on the side stream."""
        return torch.cuda.stream(self._stream) if self._cuda else nullcontext()

    def follow(self, tensor: torch.Tensor) -> None:
        """Lets the side stream wait for the kernels that the caller has launched on the tensor's device."""
        if self._cuda:
            self._stream.wait_stream(torch.cuda.current_stream(tensor.device))

    def synchronize(self) -> None:
        """Waits for the side stream."""
        if self._cuda:
            self._stream.synchronize()


def _nothing() -> None:
    """There is nothing to wait for."""


class Deferred:
    """A collective that the feeder thread begins; a part of a `SwitchWork`.

    Args:
        feeder: its thread. A collective not begun when it is stopped fails as destroyed.
        start: begins the collective and returns PyTorch's Work for it; None if it is done by then.
    """

    def __init__(self, feeder: TaskThread, start: Callable[[], Any]) -> None:
        self._begun: Future[Any] = Future()

        def begin() -> None:
            try:
                if feeder.stopped:
                    raise destroyed()
                self._begun.set_result(start())
            except BaseException as error:
                self._begun.set_exception(error)

        feeder.put(begin)

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""
        if not self._begun.done():
            return False
        if self._begun.exception() is not None:
            return True
        inner = self._begun.result()
        return inner is None or bool(inner.is_completed())

    def wait(self, timeout: float | None = None) -> None:
        """Waits for its end; `timeout` in seconds, counted from when it is begun."""
        inner = self._begun.result()
        if inner is not None:
            inner.wait(*([] if timeout is None else [timedelta(seconds=timeout)]))


class Staging:
    """Begins the collectives of tensors on a GPU, in call order.

    Args:
        name: of the process group.
    """

    def __init__(self, name: str) -> None:
        self.feeder = TaskThread(f"{name} feeder")
        self._copiers: dict[torch.device, DeviceCopier] = {}
        self._calls = itertools.count()

    def _copier(self, device: torch.device) -> DeviceCopier:
        if device not in self._copiers:
            self._copiers[device] = DeviceCopier(device)
        return self._copiers[device]

    def reaches(self, tensor: torch.Tensor) -> bool:
        """True if the collective of a tensor can start at once: it is on the CPU, and nothing is queued."""
        return tensor.is_cpu and not self.feeder.busy() and not needs_staging(tensor)

    def defer(
        self, start: Callable[..., Any], args: Sequence[Any], *, fresh: bool = False
    ) -> tuple[Deferred, list[Step]] | None:
        """Lets the feeder call `start` with host copies of tensors on a GPU.

        Args:
            start: begins the collective and returns PyTorch's Work for it.
            args: tensors, or lists of them; the first gets results, the others are only read.
            fresh: the first is only written; otherwise it is an input too.

        Returns:
            The collective, and functions that copy results back after it; None if the caller can start at
            once: all tensors are on the CPU, and nothing is queued.

        Raises:
            UsageError: a tensor is on another kind of device.
        """
        tensors = flat(args)
        if not self.feeder.busy() and all(t.is_cpu and not needs_staging(t) for t in tensors):
            return None
        for tensor in tensors:
            if tensor.device.type != "cpu" and not needs_staging(tensor):
                raise UsageError(
                    f"a tensor is on {tensor.device}; accepted: tensors on the CPU or a CUDA device"
                )
        waits: list[Step] = []
        backs: list[Step] = []

        def host_copy(tensor: torch.Tensor, *, result: bool) -> torch.Tensor:
            if not needs_staging(tensor):
                return tensor
            copier = self._copier(tensor.device)
            host, wait = copier.to_host(tensor, copy=not (result and fresh))
            waits.append(wait)
            if result:
                backs.append(partial(copier.to_device, host, tensor))
            return host

        hosts = [_mapped(arg, partial(host_copy, result=i == 0)) for i, arg in enumerate(args)]

        def begin() -> Any:
            for wait in waits:
                wait()
            return start(*hosts)

        return Deferred(self.feeder, begin), backs

    def reduce(
        self,
        session: Session,
        tensor: torch.Tensor,
        *,
        bits: int,
        average: bool,
        seconds: float | None,
        memory: torch.Tensor | None = None,
    ) -> Deferred:
        """Sums or averages a tensor in place, in lanes that its own device makes.

        Args:
            bits: 16 or 8; see `reduces_on_device`.
            seconds: timeout; None for the session's.
            memory: error feedback: float32 on the same device; is added first, and gets the part that is not
                sent.
        """
        copier, n = self._copier(tensor.device), session.world_size
        copier.follow(tensor)
        key = dither_key(next(self._calls), session.rank)

        def over_all_ranks(words: torch.Tensor, op: str) -> torch.Tensor:
            host, wait = copier.to_host(words)
            wait()
            session._allreduce(host, op, timeout=seconds, background=False).wait()
            return host.to(words.device)

        def run() -> None:
            with copier.side_stream(), torch.no_grad():
                own = tensor.detach()
                x = own.reshape(-1).to(torch.float32)
                if memory is not None:
                    x = x + memory
                exponent, special = lanes.agreed(over_all_ranks(lanes.one_hot(x), "or"))
                if special.numel():
                    specials = over_all_ranks(lanes.special_words(x, special), "or")
                    x = torch.where(x.isfinite(), x, 0.0)
                q = lanes.quantize(x, exponent, bits=bits, workers=n, key=key)
                if memory is not None:
                    sent = lanes.dequantize(q, exponent, bits=bits, workers=n, average=False)
                    memory.copy_(x - sent)
                total = lanes.unpack(over_all_ranks(lanes.pack(q, bits), "sum"), bits, x.numel())
                y = lanes.dequantize(total, exponent, bits=bits, workers=n, average=average)
                if special.numel():
                    lanes.write_specials(y, special, specials)
                own.copy_(y.view(own.shape))
            copier.synchronize()

        return Deferred(self.feeder, run)


def reduces_on_device(tensor: torch.Tensor, bits: object) -> bool:
    """True for a tensor on a GPU that is more bytes than lanes of this width; see `Staging.reduce`."""
    return (
        needs_staging(tensor)
        and bits in (8, 16)
        and tensor.layout == torch.strided
        and tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and bits < 8 * tensor.element_size()
        and 0 < tensor.numel() < 2**31
    )


def _mapped(arg: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(arg, torch.Tensor):
        return change(arg)
    return [_mapped(each, change) for each in arg]
