"""One rank of the comparison: every system trains its own copy of a model on the same batches.

gloo    DDP over gloo, which adds float32 in the order of its ring
float64 the same gradients added in float64 by gloo and rounded once: how far rounding alone leads away
default `allreduce_hook`; exact: with accuracy="exact"
32, 16, 8, and with error feedback 16-ef, 8-ef: in lanes of that width

After every step each rank's parameters are digested, and the digests are compared across ranks.
"""

from __future__ import annotations

import importlib.util
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from worker_lib.torch import State, allreduce_hook

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
MODELS: Final = {"classifier": "ddp_digits", "language model": "language_model", "recommender": "recommender"}
SYSTEMS: Final = ("gloo", "float64", "default", "exact", "32", "16", "16-ef", "8", "8-ef")


@dataclass(frozen=True)
class Trained:
    """One system's training of one model.

    Attributes:
        losses: of every step, the mean of the ranks' losses.
        differ: steps (from 1) after which ranks had different parameters.
    """

    losses: tuple[float, ...]
    differ: tuple[int, ...]


def example(name: str) -> Any:
    """The module of an example, by the file's name."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Student:
    """A copy of the model, and how its gradients are averaged."""

    def __init__(self, system: str, task: Any) -> None:
        self.task = task
        # Small buckets: several reductions are on their way during a backward pass.
        self.model = DistributedDataParallel(task.model(), bucket_cap_mb=0.05)
        self.optimizer = task.optimizer(self.model.parameters())
        self.state: State | None = None
        if system == "float64":
            self.model.register_comm_hook(None, float64_hook)
        elif system != "gloo":
            if system in ("default", "exact"):
                self.state = State(self.model, accuracy="exact" if system == "exact" else None)
            else:
                bits, *how = system.split("-")
                self.state = State(self.model, bits=int(bits), error_feedback=how == ["ef"])
            self.model.register_comm_hook(self.state, allreduce_hook)

    def step(self, batch: Any) -> float:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def digest(self) -> int:
        whole = 0
        for parameter in self.model.parameters():
            whole = zlib.crc32(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy(), whole)
        return whole

    def close(self) -> None:
        if self.state is not None:
            self.state.close()


def float64_hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    """The average, summed in float64."""
    buffer = bucket.buffer()
    wide = buffer.double()
    size = dist.get_world_size()

    def narrow(future: Any) -> torch.Tensor:
        return (future.value()[0] / size).to(buffer.dtype)

    return dist.all_reduce(wide, async_op=True).get_future().then(narrow)


def compare(name: str, steps: int, systems: tuple[str, ...] = SYSTEMS) -> dict[str, Trained]:
    """Trains; all ranks of a gloo world call it, with the same arguments.

    Args:
        name: of `MODELS`.
        steps: of each system.
        systems: of `SYSTEMS`.
    """
    task = example(MODELS[name])
    rank, size = dist.get_rank(), dist.get_world_size()
    students = [Student(system, task) for system in systems]
    losses = torch.zeros(steps, len(systems), dtype=torch.float64)
    differ: list[list[int]] = [[] for _ in systems]
    for step, batch in enumerate(islice(task.batches(rank, size), steps)):
        losses[step] = torch.tensor([student.step(batch) for student in students])
        digests = torch.tensor([student.digest() for student in students])
        low, high = digests.clone(), digests
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        for i in (low != high).nonzero().flatten().tolist():
            differ[i].append(step + 1)
    for student in students:
        student.close()
    dist.all_reduce(losses)
    losses /= size
    return {
        system: Trained(tuple(losses[:, i].tolist()), tuple(differ[i])) for i, system in enumerate(systems)
    }
