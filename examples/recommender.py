"""A recommender with large embedding tables and sparse gradients: only the rows that were used travel.

torchrun --standalone --nproc-per-node 4 examples/recommender.py

Users and items have a vector each; a click is likely where they point the same way. A batch touches a few
hundred rows of the tables, and no rank ever sends the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_lib.torch import SwitchGroup


class Recommender(nn.Module):
    """The logit of a click, from the vectors of user and item."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=True)
        self.items = nn.Embedding(items, width, sparse=True)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (self.users(users) * self.items(items)).sum(1) + self.bias
        return out


def clicks(count: int, users: int, items: int, draw: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Users, items, and whether they clicked. A few users and items are much more active than the rest."""
    user = (users * torch.rand(count, generator=draw) ** 3).long()
    item = (items * torch.rand(count, generator=draw) ** 3).long()
    return user, item, ((user * 7 + item * 13) % 10 < 3).float()


def model(users: int = 20_000, items: int = 4_000, width: int = 32) -> Recommender:
    """The same on every rank."""
    torch.manual_seed(0)
    return Recommender(users, items, width)


def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer of the example."""
    return torch.optim.SGD(parameters, lr=5.0)


def batches(
    rank: int, _size: int, users: int = 20_000, items: int = 4_000
) -> Iterator[tuple[torch.Tensor, ...]]:
    """This rank's clicks, without end."""
    draw = torch.Generator().manual_seed(1 + rank)
    while True:
        yield clicks(256, users, items, draw)


def loss(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Cross entropy of who clicked."""
    users, items, clicked = batch
    return nn.functional.binary_cross_entropy_with_logits(model(users, items), clicked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    rank = dist.get_rank()
    network = DistributedDataParallel(model(args.users, args.items, args.width))
    sgd = optimizer(network.parameters())
    draw = batches(rank, dist.get_world_size(), args.users, args.items)
    started = time.monotonic()
    for step in range(1, args.steps + 1):
        sgd.zero_grad()
        found = loss(network, next(draw))
        found.backward()
        sgd.step()
        if rank == 0 and (step % 50 == 0 or step == args.steps):
            rate = step / (time.monotonic() - started)
            print(f"step {step}: loss {found.item():.3f}, {rate:.1f} steps a second", flush=True)
    group = dist.group.WORLD
    if rank == 0 and isinstance(group, SwitchGroup):
        tables = sum(p.numel() * 4 for p in network.parameters())
        sent = group.session.stats()["bytes_sent"] / args.steps
        print(f"{sent / 1e3:.0f} KB sent a step; the tables are {tables / 1e6:.1f} MB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
