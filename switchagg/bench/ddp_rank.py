"""A rank of `switchagg bench ddp`: `python -m switchagg.bench.ddp_rank CONFIG`, CONFIG being JSON.

Trains every model under every system, in turns and in the same process, on the same batches. Rank 0 prints
a line of JSON for each system on each model.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from switchagg.bench.ddp import APART, DdpSettings

_S = TypeVar("_S")
_WIDTH = 32  # of an embedding's row


class Dense(nn.Module):  # type: ignore[misc]
    """Four equal layers; every gradient is full."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.width = max(16, math.isqrt(parameters // 4))
        layers = [layer for _ in range(4) for layer in (nn.Linear(self.width, self.width), nn.ReLU())]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(self.width, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)).squeeze(1)

    def batch(self, count: int, draw: Any) -> tuple[Any, Any]:
        x = torch.randn(count, self.width, generator=draw)
        return x, (x[:, 0] > 0).float()


class Embedding(nn.Module):  # type: ignore[misc]
    """A table of which a step needs four rows a sample, and a small head."""

    def __init__(self, parameters: int, *, sparse: bool) -> None:
        super().__init__()
        self.rows = parameters // _WIDTH
        self.table = nn.Embedding(self.rows, _WIDTH, sparse=sparse)
        self.head = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1))

    def forward(self, x: Any) -> Any:
        return self.head(self.table(x).sum(1)).squeeze(1)

    def batch(self, count: int, draw: Any) -> tuple[Any, Any]:
        x = (self.rows * torch.rand(count, 4, generator=draw) ** 3).long()  # some rows are popular
        return x, (x.sum(1) % 2).float()


def make_model(name: str, parameters: int) -> Any:
    """A model by its name, with the same first parameters on every rank."""
    torch.manual_seed(1)
    if name == "dense":
        return Dense(parameters)
    return Embedding(parameters, sparse=name == "sparse")


class Clock:
    """Sums the seconds while at least one bucket is under way. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._since = 0.0
        self.seconds = 0.0

    def start(self) -> None:
        """A bucket is handed over."""
        with self._lock:
            if self._active == 0:
                self._since = time.perf_counter()
            self._active += 1

    def stop(self) -> None:
        """One is reduced."""
        with self._lock:
            self._active -= 1
            if self._active == 0:
                self.seconds += time.perf_counter() - self._since


class Barrier:
    """A barrier of the C library between all ranks, in memory that they share. All of them make it."""

    def __init__(self) -> None:
        memory = os.memfd_create("barrier") if dist.get_rank() == 0 else -1
        where = [f"/proc/{os.getpid()}/fd/{memory}"]
        if memory >= 0:
            os.ftruncate(memory, mmap.PAGESIZE)
        dist.broadcast_object_list(where)
        with open(where[0], "r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._at = ctypes.byref(ctypes.c_char.from_buffer(self._mapped))
        self._library = ctypes.CDLL(None)
        if memory >= 0:
            kind, process_shared = ctypes.c_long(), 1
            self._library.pthread_barrierattr_init(ctypes.byref(kind))
            self._library.pthread_barrierattr_setpshared(ctypes.byref(kind), process_shared)
            self._library.pthread_barrier_init(self._at, ctypes.byref(kind), dist.get_world_size())
        dist.barrier()
        if memory >= 0:
            os.close(memory)

    def wait(self) -> None:
        """Waits for all ranks."""
        self._library.pthread_barrier_wait(self._at)

    def hook(self, state: Any, bucket: Any) -> Any:
        """A communication hook that waits for all ranks once a step, and exchanges nothing."""
        if bucket.is_last():
            self.wait()
        return _exchange_nothing(state, bucket)


def _exchange_nothing(_state: Any, bucket: Any) -> Any:
    """A communication hook that leaves every rank its own gradients."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class Trainer:
    """One system on one model."""

    def __init__(self, system: str, model: str, settings: DdpSettings) -> None:
        self.system, self.settings = system, settings
        self.module = make_model(model, settings.parameters).to(settings.device)
        self.model = DistributedDataParallel(self.module, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        self.draw = torch.Generator().manual_seed(100 + dist.get_rank())
        self.clock = Clock()
        self.state: Any = None
        hook: Callable[[Any, Any], Any]
        if system.startswith("switchagg"):
            from worker_lib.torch import State, allreduce_hook

            hook = allreduce_hook
            _, *how = system.split("-")
            self.state = State(
                self.model,
                bits=int(how[0]) if how else None,
                error_feedback="ef" in how,
                timeout=timedelta(seconds=settings.timeout),
            )
        elif system == "barrier":
            hook = Barrier().hook
        elif system == "none":
            hook = _exchange_nothing
        elif system == "gloo-fp16" and model != "sparse":
            hook = default_hooks.fp16_compress_hook
        else:
            hook = default_hooks.allreduce_hook
        self.model.register_comm_hook(self.state, self._timed(hook))
        self.rates: list[float] = []
        self.communication: list[float] = []
        self.loss = 0.0

    def _timed(self, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        clock = self.clock

        def timed(state: Any, bucket: Any) -> Any:
            clock.start()

            def done(future: Any) -> Any:
                clock.stop()
                return future.value()

            return hook(state, bucket).then(done)

        timed.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        return timed

    def round(self, *, count: bool) -> None:
        """Some steps, timed from a common start."""
        drawn = [self.module.batch(self.settings.batch, self.draw) for _ in range(self.settings.steps)]
        batches = [(x.to(self.settings.device), y.to(self.settings.device)) for x, y in drawn]
        dist.barrier()
        self.clock.seconds = 0.0
        started = time.perf_counter()
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        self.loss = loss.item()  # waits for a GPU
        seconds = time.perf_counter() - started
        both = torch.tensor([seconds, self.clock.seconds / dist.get_world_size()])
        slowest, total = both.clone(), both.clone()
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        dist.all_reduce(total)
        if count:
            self.rates.append(self.settings.steps / slowest[0].item())
            self.communication.append(total[1].item() / self.settings.steps)

    def figures(self, model: str) -> dict[str, Any]:
        """The figures of all rounds; all ranks call it."""
        digest = 0
        for parameter in self.module.parameters():
            digest = zlib.crc32(parameter.detach().cpu().view(torch.uint8).numpy(), digest)
        digests: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, digest)
        steps = self.settings.steps * (self.settings.repeat + self.settings.warmup)
        sent = self.state.session.stats()["bytes_sent"] / steps if self.state is not None else 0.0
        return {
            "workers": dist.get_world_size(), "model": model, "system": self.system,
            "steps_per_second": self.rates, "communication_seconds": self.communication,
            "bytes_sent": sent, "loss": self.loss,
            "same": None if self.system in APART else len(set(digests)) == 1,
        }  # fmt: skip

    def close(self) -> None:
        """Leaves the switch."""
        if self.state is not None:
            self.state.close()


def joined(text: str, kind: Callable[..., _S]) -> _S:
    """Joins the ranks' gloo group, as a rank's argument says; returns its settings, made by `kind`."""
    config = json.loads(text)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config["settings"].items()}
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{config['store']}",
        rank=config["rank"],
        world_size=config["workers"],
        timeout=timedelta(seconds=given["timeout"]),
    )
    return kind(**given)


def main(text: str) -> None:
    """Runs a rank to its end."""
    settings = joined(text, DdpSettings)
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: this PyTorch finds no GPU; accepted here: cpu")
    for model in settings.models:
        trainers = [Trainer(system, model, settings) for system in settings.systems]
        for round_ in range(settings.warmup + settings.repeat):
            for trainer in trainers:
                trainer.round(count=round_ >= settings.warmup)
        for trainer in trainers:
            figures = trainer.figures(model)
            trainer.close()
            if dist.get_rank() == 0:
                print(json.dumps(figures), flush=True)
        del trainers, trainer
    left()


def left() -> NoReturn:
    """Leaves gloo and ends the process, without Python's own end.

    gloo's threads outlive `destroy_process_group`. One that lets go of a collective's tensors while the
    interpreter ends is ended by Python within a destructor, and std::terminate() kills a rank that is done.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
