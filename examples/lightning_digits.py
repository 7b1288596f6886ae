"""PyTorch Lightning over a switch, by configuration alone: the strategy names the backend.

pip install 'switchagg[lightning,examples]'
torchrun --standalone --nproc-per-node 2 examples/lightning_digits.py

Nothing else in a LightningModule or in the training loop changes. `--backend gloo` trains without the switch.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import worker_lib.torch  # noqa: F401  (makes "switchagg" a backend)


class Digits(lightning.LightningModule):
    """A small classifier of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)  # the mean of all ranks
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="switchagg")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    data = load_digits()
    images, labels = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(labels)) % 5 == 0
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy=DDPStrategy(process_group_backend=args.backend),
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Digits(),
        DataLoader(TensorDataset(images[~test], labels[~test]), batch_size=32, shuffle=True),
        DataLoader(TensorDataset(images[test], labels[test]), batch_size=360),
    )
    if trainer.is_global_zero:
        found = {name: round(float(value), 3) for name, value in trainer.callback_metrics.items()}
        print(f"over {torch.distributed.get_backend()}: {found}", flush=True)


if __name__ == "__main__":
    main()
