"""The programs and `sbatch` files of docs/launchers.md, run on two hosts under a Slurm of these tests."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.worker_lib.slurm_hosts import has_namespaces, in_namespace
from tests.worker_lib.test_launchers import launcher_command

pytestmark = [
    pytest.mark.skipif(
        not has_namespaces(), reason="no network namespaces with bridges here (unshare, nsenter, ip, mount)"
    ),
    pytest.mark.timeout(300),
]

PAGE = (Path(__file__).parents[2] / "docs" / "launchers.md").read_text()
NUMPY, TORCH, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SRUN, TORCHRUN, MPIRUN, STEPS = re.findall(r"^```sh\n(#!/bin/bash\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

(ONE_HOST,) = re.findall(r"^```sh\n(mpirun .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(HYDRA,) = re.findall(r"`(mpirun -n \"\$SLURM_NTASKS\" [^`]*)`", PAGE)


def run_on_two_hosts(
    folder: Path, script: str, program: str, own_name: str = "network", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs an `sbatch` file; `variables` are those of the user's shell."""
    (folder / "job.sh").write_text(script)
    (folder / "train.py").write_text(program)
    mine = ("SWITCHAGG_", "SLURM_", "OMPI_", "PMI", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "JOB_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return in_namespace(folder, own_name, "sbatch", "job.sh", environment=environment | variables)


def _are_four(done: subprocess.CompletedProcess[str], steps: int = 1) -> bool:
    lines = [f"rank {rank} of 4: 10.0" for rank in range(4)]
    return sorted(done.stdout.split("\n")[:-1]) == sorted(steps * lines)


@pytest.mark.parametrize(
    "program", [pytest.param(NUMPY, marks=pytest.mark.long), TORCH], ids=["numpy", "torch"]
)
@pytest.mark.parametrize(
    "name",
    [
        "srun",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("torchrun", "Open MPI", "Hydra", "Open MPI on one host")
        ),
    ],
)
def test_a_batch_file(name: str, program: str, tmp_path: Path) -> None:
    if name == "torchrun" or program is TORCH:
        pytest.importorskip("torch")
    script = {"srun": SRUN, "torchrun": TORCHRUN}.get(name, MPIRUN)
    if script is MPIRUN:
        mpirun = launcher_command(name.removesuffix(" on one host"))[0]
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "mpirun").write_text(f'#!/bin/sh\nexec {mpirun} "$@"\n')
        (tmp_path / "bin" / "mpirun").chmod(0o755)
    if name == "Hydra":
        script = re.sub("^mpirun.*", HYDRA, MPIRUN, flags=re.MULTILINE)
    elif name == "Open MPI on one host":
        script = f"#!/bin/bash\n#SBATCH --ntasks-per-node=4\n{ONE_HOST}"
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    allowed["PRTE_MCA_hwloc_default_binding_policy"] = "none"  # there may be more ranks than cores
    done = run_on_two_hosts(tmp_path, script, program, **allowed)
    assert _are_four(done), (done.stdout, done.stderr)
    assert done.returncode == 0


def test_a_switch_for_several_steps(tmp_path: Path) -> None:
    done = run_on_two_hosts(tmp_path, STEPS, NUMPY)
    assert _are_four(done, 2), (done.stdout, done.stderr)
    assert done.returncode == 0


def test_hosts_that_find_themselves_on_loopback(tmp_path: Path) -> None:
    done = run_on_two_hosts(tmp_path, SRUN, NUMPY, "loopback", SWITCHAGG_TIMEOUT="3")
    assert done.returncode != 0
    assert "rank" not in done.stdout
    assert "are to meet at node1, which is 127.0.1.1 on this one: set MASTER_ADDR" in done.stderr


def test_the_address_that_the_message_asks_for(tmp_path: Path) -> None:
    meeting = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    done = run_on_two_hosts(tmp_path, SRUN, NUMPY, "loopback", **meeting)
    assert _are_four(done), (done.stdout, done.stderr)


def test_one_host_that_finds_itself_on_loopback(tmp_path: Path) -> None:
    script = SRUN.replace("--nodes=2", "--nodes=1").replace("per-node=2", "per-node=4")
    meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    done = run_on_two_hosts(tmp_path, script, NUMPY, "loopback", **meeting)
    assert _are_four(done), (done.stdout, done.stderr)


def test_plain_python_in_a_batch_file(tmp_path: Path) -> None:
    done = run_on_two_hosts(tmp_path, SRUN.replace("srun python", "python"), NUMPY)
    assert done.stdout == "rank 0 of 1: 1.0\n"
    assert "runs alone in an allocation for 4: `srun` starts them all" in done.stderr


def test_torchrun_that_knows_of_its_own_host_only(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = re.sub(
        "srun torchrun .*", "srun torchrun --nproc-per-node=1 train.py", TORCHRUN, flags=re.DOTALL
    )
    done = run_on_two_hosts(tmp_path, script, NUMPY)
    assert done.stdout == 2 * "rank 0 of 1: 1.0\n"
    told = "runs alone, by WORLD_SIZE=1, but Slurm has started more: SLURM_STEP_NUM_TASKS=2"
    assert done.stderr.count(told) == 2
