"""Collectives of tensors on a GPU: staged through pinned host memory, on a stream of their own.

    call --event--> side stream: copy to pinned memory     feeder thread: wait for the copy, then the same
                                                           collective on the host twin, in call order
    wait()  <--  side stream: copy back  <-------------------------- its result

The caller's stream is not held up: the copy waits for what has been launched, the host for the copy alone.
Every rank must begin its collectives in the same order, so once one has been queued those of CPU tensors
queue behind it. A work is done when its results lie in the GPU's memory: whatever is launched then sees them.

Float sums in lanes of 16 or 8 bits are quantized on the GPU where that moves fewer bytes (`reduce_lanes`):
ranks OR their exponents, copy packed lanes, sum those as integers, and decode on the GPU.

Nothing here but `Bus` knows of CUDA, so the tests drive all of it with CPU tensors too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from worker_lib.plan import NARROW_CHUNK
from worker_lib.quantize import dither_key
from worker_lib.session import Session
from worker_lib.torch import lanes
from worker_lib.torch.queued import Queued, destroyed


class Bus:
    """Copies between a device and the host: pinned memory and a side stream for CUDA, plain copies else."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None

    def to_host(self, tensor: torch.Tensor, *, copy: bool = True) -> tuple[torch.Tensor, Callable[[], None]]:
        """A host tensor of the same shape, and what waits until the contents are in it."""
        own = tensor.detach()
        if own.layout != torch.strided:
            return own.cpu(), _nothing
        host = torch.empty(own.shape, dtype=own.dtype, pin_memory=self._cuda)
        if not copy:
            return host, _nothing
        if not self._cuda:
            host.copy_(own)
            return host, _nothing
        self._stream.wait_stream(torch.cuda.current_stream(own.device))
        with torch.cuda.stream(self._stream):
            host.copy_(own, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return host, event.synchronize

    def to_device(self, host: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copies back; the contents are there when it returns."""
        with torch.no_grad():
            if not self._cuda or host.layout != torch.strided:
                tensor.copy_(host)  # not detached: a sparse result replaces what it has
                return
            with torch.cuda.stream(self._stream):
                tensor.detach().copy_(host, non_blocking=True)
            self._stream.synchronize()

    def aside(self) -> Any:
        """Kernels launched inside run on the side stream, after what the caller has launched so far."""
        if not self._cuda:
            return _Here()
        return torch.cuda.stream(self._stream)

    def after(self, tensor: torch.Tensor) -> None:
        """Lets the side stream wait for what has been launched."""
        if self._cuda:
            self._stream.wait_stream(torch.cuda.current_stream(tensor.device))

    def settle(self) -> None:
        """Waits for the side stream."""
        if self._cuda:
            self._stream.synchronize()


class _Here:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _nothing() -> None:
    """There is nothing to wait for."""


class Deferred:
    """A collective that the feeder has yet to begin; looks like what `SwitchWork` waits for."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._begun = threading.Event()
        self._inner: Any = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """What the feeder does."""
        try:
            self._inner = self._start()
        except BaseException as caught:
            self._error = caught
        self._begun.set()

    def refuse(self, error: BaseException) -> None:
        """It will not be begun."""
        self._error = error
        self._begun.set()

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        if not self._begun.is_set():
            return False
        return self._error is not None or self._inner is None or bool(self._inner.is_completed())

    def wait(self, timeout: float | None = None) -> None:
        """Waits for its end; `timeout` in seconds, counted from when it is begun."""
        self._begun.wait()
        if self._error is not None:
            raise self._error
        if self._inner is not None:
            self._inner.wait(*([] if timeout is None else [timedelta(seconds=timeout)]))


class Feeder(Queued[Deferred]):
    """Begins queued collectives one after the other; what it has not begun by `stop` is refused.

    Args:
        name: of the process group.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} feeder")

    def add(self, start: Callable[[], Any]) -> Deferred:
        """Queues a collective; `start` begins it and returns its Work.

        Raises `SessionBrokenError` after `stop`.
        """
        deferred = Deferred(start)
        self._put(deferred)
        return deferred

    def _take(self, deferred: Deferred) -> None:
        if self._stopped:
            deferred.refuse(destroyed())
        else:
            deferred.begin()


def moves_less(tensor: torch.Tensor, bits: object) -> bool:
    """Whether lanes of this width are fewer bytes than the tensor's elements."""
    return (
        bits in (8, 16)
        and tensor.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and bits < 8 * tensor.element_size()
        and 0 < tensor.numel() < 2**31
    )


def reduce_lanes(
    session: Session,
    bus: Bus,
    tensor: torch.Tensor,
    *,
    bits: int,
    average: bool,
    turn: int,
    seconds: float | None,
    memory: torch.Tensor | None = None,
) -> None:
    """Sums or averages a tensor in place, in lanes that its own device makes. Returns when it is done.

    Args:
        bits: 16 or 8.
        turn: number of the call, for the stochastic rounding.
        memory: error feedback: float32 on the same device; is added first, and gets what does not travel.
    """
    n = session.world_size
    with bus.aside(), torch.no_grad():
        own = tensor.detach()
        x = own.reshape(-1).to(torch.float32)
        if memory is not None:
            x = x + memory
        words, ready = bus.to_host(lanes.one_hot(lanes.exponents(x)))
        ready()
        session._allreduce(words, "or", None, "auto", None, None, seconds, background=False).wait()
        exponent = lanes.agreed(words.to(x.device))
        q = lanes.quantize(x, exponent, bits=bits, workers=n, key=dither_key(turn, session.rank))
        if memory is not None:
            sent = lanes.dequantize(q, exponent, bits=bits, workers=n, average=False)
            finite = (exponent != lanes.NOT_FINITE).repeat_interleave(NARROW_CHUNK)[: x.numel()]
            memory.copy_(torch.where(finite, x - sent, 0.0))
        packed, ready = bus.to_host(lanes.pack(q, bits))
        ready()
        session._allreduce(packed, "sum", None, "auto", None, None, seconds, background=False).wait()
        total = lanes.peel(packed.to(x.device), bits, x.numel())
        y = lanes.dequantize(total, exponent, bits=bits, workers=n, average=average)
        own.copy_(y.view(own.shape))
    bus.settle()
