"""PyTorch's backend under launchers that set none of PyTorch's variables."""

from __future__ import annotations

import sys

import pytest

from tests.worker_lib.test_launchers import Run, launcher_command, run_launched

__all__ = ["run_launched"]

PROGRAM = """
import sys, torch, torch.distributed as dist, worker_lib.torch
dist.init_process_group("switchagg")
x = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(x)
sys.stdout.write(f"sum {dist.get_world_size()} {x[999].item()}\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["Open MPI", "Hydra", "srun"])
def test_every_rank_is_in_the_group(launcher: str, run_launched: Run) -> None:
    done = run_launched(*launcher_command(launcher, 2), sys.executable, "-c", PROGRAM)
    assert done.stdout.count("sum 2 3.0") == 2, (done.stdout, done.stderr)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("launcher", "change", "said"),
    [
        ("Open MPI", "-u OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE is not set"),
        ("Hydra", "PMI_SIZE=1", "PMI has started more: MPI_LOCALNRANKS=2"),
        ("srun", "-u SLURM_PROCID", "SLURM_PROCID is not set"),
    ],
)
def test_no_group_of_one(launcher: str, change: str, said: str, run_launched: Run) -> None:
    done = run_launched(*launcher_command(launcher, 2), "env", *change.split(), sys.executable, "-c", PROGRAM)
    assert done.returncode != 0
    assert "sum" not in done.stdout
    assert said in done.stderr


def test_a_group_of_one_by_variables_that_contradict_each_other(run_launched: Run) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = run_launched(sys.executable, "-c", PROGRAM, **variables, **meeting)
    assert done.returncode != 0
    assert "torchrun has started more: LOCAL_WORLD_SIZE=2" in done.stderr.splitlines()[-1]
    given = PROGRAM.replace('"switchagg"', '"switchagg", rank=0, world_size=1')
    variables["WORLD_SIZE"] = "2"  # not asked, since all is given
    done = run_launched(sys.executable, "-c", given, **variables, **meeting)
    assert "sum 1 1.0" in done.stdout, done.stderr
