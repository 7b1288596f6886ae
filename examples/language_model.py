"""A small transformer that learns to write Python, from the standard library's source.

torchrun --standalone --nproc-per-node 4 examples/language_model.py --bits 16

The process group is gloo's; only the gradients go through the switch, by a communication hook, in lanes of
16 bits with error feedback. `--bits 32` sends them in full; `--no-hook` leaves them to gloo.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_lib.torch import State, allreduce_hook

CONTEXT = 64


class LanguageModel(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        out: torch.Tensor = self.head(self.body(hidden, mask=mask, is_causal=True))
        return out


def source() -> torch.Tensor:
    """The standard library's modules, one after the other, as bytes."""
    folder = Path(argparse.__file__).parent
    text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def model(width: int = 64, layers: int = 2) -> LanguageModel:
    """The same on every rank."""
    torch.manual_seed(0)
    return LanguageModel(width, layers)


def optimizer(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer of the example."""
    return torch.optim.AdamW(parameters, lr=2e-3)


def batches(rank: int, _size: int) -> Iterator[torch.Tensor]:
    """This rank's lines, drawn anywhere in the text, without end."""
    text = source()
    draw = torch.Generator().manual_seed(1 + rank)
    while True:
        starts = torch.randint(len(text) - CONTEXT - 1, (16, 1), generator=draw)
        yield text[starts + torch.arange(CONTEXT + 1)].long()


def loss(model: nn.Module, lines: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each line's next bytes."""
    return nn.functional.cross_entropy(model(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--bits", type=int, default=16, choices=(32, 16, 8))
    parser.add_argument("--no-hook", action="store_true", help="leave the gradients to gloo")
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    network = DistributedDataParallel(model(args.width, args.layers))
    state = None
    if not args.no_hook:
        state = State(network, bits=args.bits)
        network.register_comm_hook(state, allreduce_hook)

    adam = optimizer(network.parameters())
    draw = batches(rank, dist.get_world_size())
    started = time.monotonic()
    for step in range(1, args.steps + 1):
        adam.zero_grad()
        found = loss(network, next(draw))
        found.backward()
        adam.step()
        if rank == 0 and (step % 50 == 0 or step == args.steps):
            rate = step / (time.monotonic() - started)
            print(f"step {step}: loss {found.item():.3f}, {rate:.1f} steps a second", flush=True)
    if state is not None:
        if rank == 0:
            counters = state.session.stats()
            print(f"through the switch: {counters['bytes_sent'] / 1e6:.1f} MB sent by rank 0", flush=True)
        state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
