"""An image classifier under DistributedDataParallel, its gradients summed by a switch.

pip install 'switchagg[torch,examples]'
torchrun --standalone --nproc-per-node 4 examples/ddp_digits.py

The only lines that know of switchagg are the import and the backend's name. Rank 0 starts a switch, since no
SWITCHAGG_CONTROLLER says where one is. `--backend gloo` trains without it, for comparison.
"""

from __future__ import annotations

import argparse

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10),
        )
    )  # fmt: skip
    train, test = digits()
    sampler = DistributedSampler(train)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(train, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        # The same number on every rank: an average over ranks, through the switch as well.
        average = loss.detach().clone()
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {average.item():.3f}", flush=True)
    with torch.no_grad():
        images, labels = test.tensors
        accuracy = (model.module(images).argmax(1) == labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"accuracy on {len(labels)} test images: {accuracy:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
