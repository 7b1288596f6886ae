"""Training that survives a killed worker: torchrun starts all ranks again, from the last checkpoint.

torchrun --standalone --nproc-per-node 3 --max-restarts 3 examples/elastic.py checkpoint.pt
kill -9 one of its workers, and watch

The other ranks do not hang: their next collective raises WorkerLostError, which names the rank. Their slots
on the switch are free as soon as they are gone. `--die-at STEP` makes rank 1 kill itself, once.
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import worker_lib.torch  # noqa: F401  (makes "switchagg" a backend)


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replaces the checkpoint in one go: whoever is killed in the middle leaves the old one."""
    state: dict[str, Any] = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--die-at", type=int, help="rank 1 kills itself before this step, in its first life")
    args = parser.parse_args()

    dist.init_process_group("switchagg", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if args.checkpoint.exists():
        state = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    if rank == 0:
        print(f"life {life + 1}: from step {first}", flush=True)
    parallel = DistributedDataParallel(model)

    for step in range(first, args.steps):
        if life == 0 and step == args.die_at and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        draw = torch.Generator().manual_seed(1000 * step + rank)  # by step: the same after a restart
        x = torch.randn(32, 20, generator=draw)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(x), x[:, :3].sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % args.every == 0:
            save(args.checkpoint, step + 1, model, optimizer)
    if rank == 0:
        print(f"done: {args.steps} steps, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
