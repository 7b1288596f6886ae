"""The models that are trained, and the data of a rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

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


def make(name: str, parameters: int) -> Any:
    """A model by its name, with the same first parameters on every rank."""
    torch.manual_seed(1)
    if name == "dense":
        return Dense(parameters)
    return Embedding(parameters, sparse=name == "sparse")
