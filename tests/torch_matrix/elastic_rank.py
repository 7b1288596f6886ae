"""The ranks of the case about torchrun: `torchrun -m tests.torch_matrix.elastic_rank BACKEND FOLDER`.

Rank 1 kills itself in its first life, in the middle; rank 0 writes a checkpoint after every step.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import worker_lib.torch  # noqa: F401  (makes "switchagg" a backend)
from tests.torch_matrix import cases


def main(backend: str, folder: Path) -> None:
    """Trains from the last checkpoint on, and writes this rank's parameters at the end."""
    cases.begin(int(os.environ["MATRIX_SEED"]), os.environ["MATRIX_DEVICE"])
    dist.init_process_group(backend, timeout=timedelta(seconds=20))
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    net, checkpoint = cases.mlp(), folder / "checkpoint.pt"
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        net.load_state_dict(state["model"])
        first = state["step"]
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(first, 2 * cases.STEPS):
        if (life, rank, step) == (0, 1, cases.STEPS):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        cases.mse(parallel, step, rank).backward()
        optimizer.step()
        if rank == 0:
            torch.save({"step": step + 1, "model": net.state_dict()}, folder / "partial.pt")
            (folder / "partial.pt").replace(checkpoint)
    torch.save({"life": life, "model": cases.whole(net)}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
