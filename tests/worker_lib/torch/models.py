"""Three small models with their data, as the DDP tests train them: dense, a transformer, an embedding."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 10)
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, x: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.block(self.embedding(x), src_mask=mask, is_causal=True))


class Recommender(nn.Module):
    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.users = nn.Embedding(5000, 16, sparse=sparse)
        self.items = nn.EmbeddingBag(3000, 16, mode="sum", sparse=sparse)
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.users(x[:, 0]) * self.items(x[:, 1:] % 3000)).squeeze(1)


def batches(name: str, rank: int, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(17 * rank + 5)
    for _ in range(steps):
        if name == "classifier":
            x = torch.randn(16, 1, 8, 8, generator=generator)
            yield x, (x.mean((1, 2, 3)) * 40).long().clamp(-5, 4) + 5
        elif name == "transformer":
            x = torch.randint(0, 64, (4, 17), generator=generator).cumsum(1) % 64
            yield x[:, :-1], x[:, 1:]
        else:
            x = torch.randint(0, 5000, (32, 5), generator=generator)
            yield x, (x.sum(1) % 2).float()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "classifier": Classifier,
    "transformer": Transformer,
    "recommender": Recommender,
    "recommender-sparse": lambda: Recommender(sparse=True),
}


def loss_of(name: str, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if name == "transformer":
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())
    if name == "classifier":
        return functional.cross_entropy(output, target)
    return functional.binary_cross_entropy_with_logits(output, target)


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "recommender-sparse":
        return torch.optim.SGD(model.parameters(), lr=0.5)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def digest(model: nn.Module) -> str:
    """Of every parameter's bytes."""
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def train(name: str, model: nn.Module, steps: int, *, check: Any = None) -> list[float]:
    """Trains under DDP; with `check`, a gloo group, that ranks are the same to the bit after every step."""
    optimizer = optimizer_of(name, model)
    losses = []
    for x, y in batches(name, dist.get_rank(), steps):
        optimizer.zero_grad()
        loss = loss_of(name, model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if check is not None:
            digests: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(digests, digest(model), group=check)
            assert len(set(digests)) == 1, f"{name}: ranks differ after step {len(losses)}"
    return losses
