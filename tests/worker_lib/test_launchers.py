"""Ranks that other launchers than our own have started: the meaning of their variables, and real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import worker_lib
from switchagg.errors import UsageError
from worker_lib.launchers import Launch, export, first_host, read

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "prterun-a-17@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
MVAPICH = {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK": "0"}
ALLOCATION = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {
    **ALLOCATION,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OWN = {"SWITCHAGG_RANK": "0", "SWITCHAGG_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (ALLOCATION, None),
        (OWN, ("SWITCHAGG_*", 0, 2, None)),
        (TORCHRUN, ("torchrun", 1, 2, 1)),
        (OPENMPI, ("Open MPI", 2, 4, 0)),
        (HYDRA, ("PMI", 1, 3, 1)),
        (MVAPICH, ("MVAPICH", 0, 2, 0)),
        (STEP, ("Slurm", 5, 8, 1)),
        (STEP | TORCHRUN, ("torchrun", 1, 2, 1)),
        (STEP | OPENMPI, ("Open MPI", 2, 4, 0)),
        (STEP | {"PMIX_RANK": "5"}, ("Slurm", 5, 8, 1)),
        (STEP | TORCHRUN | OWN, ("SWITCHAGG_*", 0, 2, None)),
    ],
)
def test_the_innermost_launcher_counts(
    variables: dict[str, str], expected: tuple[str, int, int, int | None] | None
) -> None:
    found = read(variables)
    assert expected == (found and (found.launcher, found.rank, found.world_size, found.local_rank))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        *(
            ({name: value for name, value in all_of_them.items() if name != missing}, missing)
            for all_of_them, missing in (
                (OWN, "SWITCHAGG_RANK"),
                (OWN, "SWITCHAGG_WORLD_SIZE"),
                (TORCHRUN, "RANK"),
                (TORCHRUN, "WORLD_SIZE"),
                (OPENMPI, "OMPI_COMM_WORLD_RANK"),
                (OPENMPI, "OMPI_COMM_WORLD_SIZE"),
                (HYDRA, "PMI_RANK"),
                (HYDRA, "PMI_SIZE"),
                (MVAPICH, "MV2_COMM_WORLD_RANK"),
                (MVAPICH, "MV2_COMM_WORLD_SIZE"),
                (STEP, "SLURM_PROCID"),
                (STEP, "SLURM_STEP_NUM_TASKS"),
            )
        ),
        ({"PMIX_RANK": "0"}, "WORLD_SIZE"),
        (OPENMPI | {"OMPI_COMM_WORLD_RANK": "4"}, "rank is 4 in a world of 4"),
        (OPENMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "4"}, "OMPI_COMM_WORLD_LOCAL_RANK is 4"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "2"}, "rank is 5 in a world of 2"),
        (HYDRA | {"PMI_SIZE": "many"}, "PMI_SIZE is 'many'"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1'"),
    ],
)
def test_too_little_and_contradictions_are_refused(variables: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(variables)
    assert said in str(caught.value)


def test_the_place_to_meet() -> None:
    def address(variables: dict[str, str]) -> tuple[str, int] | None:
        launch = read(variables)
        assert launch is not None
        return launch.address

    here = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert address(OPENMPI) is None  # two of four are elsewhere
    local = address(OPENMPI | here)
    assert local is not None
    assert local == address(OPENMPI | here | {"OMPI_COMM_WORLD_RANK": "3"})
    assert local != address(OPENMPI | here | {"PMIX_NAMESPACE": "prterun-a-18@1"})
    assert local[0] == "127.0.0.1"
    slurm = address(STEP)
    assert slurm is not None
    assert slurm[0] == "node03"
    assert slurm == address(STEP | {"SLURM_PROCID": "0"})
    assert slurm != address(STEP | {"SLURM_STEP_ID": "1"})
    elsewhere = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NODELIST"}
    assert address(elsewhere | {"SLURM_JOB_NODELIST": "node[01-09]"}) is None  # the step may be on others


def test_arguments_that_say_all_need_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "x", "LOCAL_RANK": ""}.items():
        monkeypatch.setenv(name, value)
    with worker_lib.connect(rank=0, world_size=1) as session:
        assert session.world_size == 1


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("a,b", "a"),
        ("node[003-006,9],login", "node003"),
        ("login,node[1-2]", "login"),
        ("rack[1-2]-node[4-5]", "rack1-node4"),
        ("gpu[2,5]", "gpu2"),
    ],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_pytorchs_variables() -> None:
    variables = dict(STEP)
    export(variables)
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"]) == ("5", "8", "1")
    assert variables["MASTER_ADDR"] == "node03"
    assert 20_000 <= int(variables["MASTER_PORT"]) < 32_000
    kept = STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7"}
    export(kept)
    assert (kept["MASTER_ADDR"], kept["MASTER_PORT"]) == ("10.0.0.1", "7")
    for unchanged in ({}, dict(TORCHRUN), dict(ALLOCATION)):
        before = dict(unchanged)
        export(unchanged)
        assert unchanged == before
    assert read(variables) == Launch("torchrun", 5, 8, 1, None)


# ---------------------------------------------------------------------- real processes

PROGRAM = """
import sys
import numpy as np
import worker_lib
with worker_lib.connect(timeout=60) as session:
    total = session.allreduce(np.full(1000, session.rank + 1.0, np.float32))[999]
    sys.stdout.write(f"sum {session.world_size} {total}\\n")
"""
SRUN = """
import os, subprocess, sys
n = int(sys.argv[1])
step = {
    "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(n),
    "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(n),
}
for name in sys.argv[2].split(","):
    step.pop(name, None)
ranks = [
    subprocess.Popen(sys.argv[3:], env=os.environ | step | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)})
    for r in range(n)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def _launcher(name: str) -> list[str]:
    """Returns the command that starts four processes, or skips the test."""
    if name == "srun":
        return [sys.executable, "-c", SRUN, "4", ""]
    wanted = {"Open MPI": "Open MPI", "Hydra": "HYDRA"}[name]
    for command in ("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra", "mpiexec.mpich"):
        path = shutil.which(command) or shutil.which(command, path=str(Path(sys.executable).parent))
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if wanted in version.stdout + version.stderr:
            as_root = ["--allow-run-as-root", "--oversubscribe"] if name == "Open MPI" else []
            return [path, *as_root, "-n", "4"]
    pytest.skip(f"there is no mpirun of {name}")


def run_launched(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    mine = ("SWITCHAGG_", "SLURM_", "OMPI_", "PMI", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    return subprocess.run(
        command, env={**environment, **variables}, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("launcher", ["Open MPI", "Hydra", "srun"])
def test_every_rank_sees_the_whole_world(launcher: str) -> None:
    done = run_launched([*_launcher(launcher), sys.executable, "-c", PROGRAM])
    assert done.stdout.count("sum 4 10.0") == 4, (done.stdout, done.stderr)
    assert done.returncode == 0


@pytest.mark.parametrize("missing", ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"])
def test_a_step_of_which_something_is_missing(missing: str) -> None:
    done = run_launched([sys.executable, "-c", SRUN, "4", missing, sys.executable, "-c", PROGRAM])
    assert done.returncode != 0
    assert "sum" not in done.stdout
    assert ("SLURM_STEP_NUM_TASKS is not set" if "TASKS" in missing else "MASTER_ADDR") in done.stderr


def test_alone_in_an_allocation() -> None:
    done = run_launched([sys.executable, "-c", PROGRAM], **ALLOCATION)
    assert "sum 1 1.0" in done.stdout
    assert "runs alone in an allocation for 8" in done.stderr
