"""Hugging Face Accelerate over a switch: it takes over the process group that is there.

pip install 'switchagg[accelerate,examples]'
torchrun --standalone --nproc-per-node 2 examples/accelerate_digits.py

On CPUs Accelerate has no setting for the backend, but uses a process group that is there. `accelerate launch`
starts the script as well.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker_lib.torch  # noqa: F401  (makes "switchagg" a backend)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group(args.backend)  # the line that is new
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    training = DataLoader(TensorDataset(images[~test], labels[~test]), batch_size=32, shuffle=True)
    testing = DataLoader(TensorDataset(images[test], labels[test]), batch_size=64)
    model, optimizer, training, testing = accelerator.prepare(model, optimizer, training, testing)
    for _ in range(args.epochs):
        for batch, wanted in training:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), wanted)
            accelerator.backward(loss)
            optimizer.step()
    right, seen = 0, 0
    with torch.no_grad():
        for batch, wanted in testing:
            guesses, truth = accelerator.gather_for_metrics((model(batch).argmax(1), wanted))
            right += int((guesses == truth).sum())
            seen += len(truth)
    accelerator.print(f"over {dist.get_backend()}: {right / seen:.3f} of {seen} test images right")
    accelerator.end_training()  # destroys the process group


if __name__ == "__main__":
    main()
