"""An image classifier under DistributedDataParallel, its gradients summed by a switch.

pip install 'switchagg[torch,examples]'
torchrun --standalone --nproc-per-node 4 examples/ddp_digits.py

The only lines that know of switchagg are the import and the backend's name. Rank 0 starts a switch, since no
SWITCHAGG_CONTROLLER says where one is. `--backend gloo` trains without it, for comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count, islice

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import worker_lib.torch  # noqa: F401  (makes "switchagg" a backend)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """8 x 8 pixels, ten classes; every fifth image is for testing."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def model() -> nn.Module:
    """Two convolutions and a linear layer; the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer of the example."""
    return torch.optim.Adam(parameters, lr=3e-3)


def batches(rank: int, size: int) -> Iterator[list[torch.Tensor]]:
    """This rank's images and labels, epoch after epoch, in an order that is the same in every run."""
    train, _ = digits()
    sampler = DistributedSampler(train, num_replicas=size, rank=rank)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from DataLoader(train, batch_size=32, sampler=sampler)


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Cross entropy of the labels."""
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    network = DistributedDataParallel(model())
    adam = optimizer(network.parameters())
    draw = batches(dist.get_rank(), dist.get_world_size())
    train, test = digits()
    steps = -(-len(train) // (32 * dist.get_world_size()))  # an epoch
    for epoch in range(args.epochs):
        for batch in islice(draw, steps):
            adam.zero_grad()
            found = loss(network, batch)
            found.backward()
            adam.step()
        # The same number on every rank: an average over ranks, through the switch as well.
        average = found.detach().clone()
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {average.item():.3f}", flush=True)
    with torch.no_grad():
        images, labels = test.tensors
        accuracy = (network.module(images).argmax(1) == labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"accuracy on {len(labels)} test images: {accuracy:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
