"""The cases of the matrix, and the model, data and checks that they share.

A case is a function that every rank calls, inside ``init_process_group(backend)``. It checks what it can
against a computation in one process, and returns tensors that must be the same to the bit on all ranks, and
near those that the same case returns over gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

STEPS = 4
Tensors = Sequence[torch.Tensor]
Loss = Callable[[nn.Module, int, int], torch.Tensor]  # of a model, a step and the rank whose data it is
seed = 0  # of data and first parameters
device = "cpu"  # of models and data


@dataclass(frozen=True)
class Case:
    """A row of the matrix.

    Attributes:
        name: the feature.
        run: the program of a rank.
        ranks: that it takes.
        near: largest difference from gloo's tensors, relative and absolute.
        limit: seconds until its processes are killed.
        needs: packages without which it is not run.
        group: False if the program makes its process group itself, of the backend that it is given.
    """

    name: str
    run: Callable[..., Tensors | None]
    ranks: int = 2
    near: float = 1e-5
    limit: float = 90.0
    needs: tuple[str, ...] = ()
    group: bool = True


CASES: dict[str, Case] = {}


def case(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the decorated function to the matrix; `settings` are those of `Case`."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        CASES[name] = Case(name, run, **settings)
        return run

    return add


# ---------------------------------------------------------------------- model and data


def begin(of_data: int, where: str) -> None:
    """Sets the seed and the device of the case that this process runs."""
    global seed, device
    seed, device = of_data, where
    torch.set_default_device(where)


def place() -> str:
    """The kind of device that the case is on: "cpu" or "cuda"."""
    return device


def mlp() -> nn.Sequential:
    """Three layers, 16 values to 8, the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def draw(step: int, rank: int, *shape: int) -> torch.Tensor:
    """Normal numbers that belong to a step and a rank."""
    generator = torch.Generator("cpu").manual_seed(seed + 1000 * step + rank + 1)
    return torch.randn(*shape, generator=generator, device="cpu").to(device)


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples with their targets."""
    x = draw(step, rank, 8, 16)
    return x, x[:, :8].sin()


def mse(net: nn.Module, step: int, rank: int) -> torch.Tensor:
    """The loss of one rank's batch."""
    x, y = batch(step, rank)
    return functional.mse_loss(net(x).to(y.dtype), y)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of most cases."""
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def adam(net: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state a parameter."""
    return torch.optim.Adam(net.parameters(), lr=0.01)


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss = mse,
    *,
    ranks: Iterable[int] | None = None,
    steps: int = STEPS,
) -> list[float]:
    """Trains on batches of `ranks`, this one by default, whose losses are averaged. Returns the losses."""
    mine = [dist.get_rank()] if ranks is None else [*ranks]
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        mean = sum((loss(net, step, rank) for rank in mine), torch.zeros(())) / len(mine)
        mean.backward()
        optimizer.step()
        losses.append(mean.item())
    return losses


def alone(
    make: Callable[[], nn.Module] = mlp,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    loss: Loss = mse,
    *,
    ranks: Iterable[int] | None = None,
) -> nn.Module:
    """A model that one process trains on the batches of all ranks, or of `ranks`."""
    net = make()
    train(net, optimizer(net), loss, ranks=range(dist.get_world_size()) if ranks is None else ranks)
    return net


# ---------------------------------------------------------------------- checks


def whole(tensors: nn.Module | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a model or a list, detached, those that are sharded in full."""
    from torch.distributed.tensor import DTensor

    given = tensors.parameters() if isinstance(tensors, nn.Module) else tensors
    return [(t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for t in given]


def near(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Raises AssertionError unless tensors (or models, lists, numbers) are close."""
    if isinstance(found, nn.Module) or isinstance(expected, nn.Module):
        found, expected = whole(found), whole(expected)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def same(found: Any, expected: Any) -> None:
    """Raises AssertionError unless tensors (or lists, numbers) are equal to the bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def equal(found: object, expected: object) -> None:
    """Raises AssertionError unless two plain values are equal."""
    if found != expected:
        raise AssertionError(f"{found!r}; expected {expected!r}")
