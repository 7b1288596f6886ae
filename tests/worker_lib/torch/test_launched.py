"""PyTorch's backend under a launcher that sets none of PyTorch's variables."""

from __future__ import annotations

import sys

from tests.worker_lib.test_launchers import SRUN, run_launched

PROGRAM = """
import sys, torch, torch.distributed as dist, worker_lib.torch
dist.init_process_group("switchagg")
x = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
sys.stdout.write(f"sum {dist.get_world_size()} {x[999].item()}\\n")
dist.destroy_process_group()
"""


def test_a_step_of_slurm() -> None:
    done = run_launched([sys.executable, "-c", SRUN, "2", "", sys.executable, "-c", PROGRAM])
    assert done.stdout.count("sum 2 3.0") == 2, (done.stdout, done.stderr)
    assert done.returncode == 0
