"""Ranks that other launchers than our own have started: the meaning of their variables, and real runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import worker_lib
from switchagg.errors import UsageError
from tests.worker_lib import fake_slurm
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
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
BATCH = ALLOCATION | {"SLURM_STEP_ID": "4294967291"}
# A batch job that a step has submitted inherits the variables of that step.
INHERITED = STEP | BATCH | {"SLURM_STEP_ID": "-5"}
SALLOC = STEP | ALLOCATION | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
PMI2 = STEP | {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "14", "PMI_JOBID": "77.0"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
INDEXED = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3"}
OWN = {"SWITCHAGG_RANK": "0", "SWITCHAGG_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (ALLOCATION, None),
        (BATCH, None),
        (INHERITED, None),
        (SALLOC, None),
        (OWN, ("SWITCHAGG_*", 0, 2, None)),
        (TORCHRUN, ("torchrun", 1, 2, 1)),
        (OPENMPI, ("Open MPI", 2, 4, 0)),
        (HYDRA, ("PMI", 1, 3, 1)),
        (MVAPICH, ("MVAPICH", 0, 2, 0)),
        (STEP, ("Slurm", 5, 8, 1)),
        (STEP | TORCHRUN, ("torchrun", 1, 2, 1)),
        (STEP | OPENMPI, ("Open MPI", 2, 4, 0)),
        (BATCH | OPENMPI, ("Open MPI", 2, 4, 0)),
        (STEP | {"PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, ("Slurm", 5, 8, 1)),
        (PMI2, ("PMI", 5, 8, 1)),
        (STEP | HYDRA, ("PMI", 1, 3, 1)),
        (STEP | TORCHRUN | OWN, ("SWITCHAGG_*", 0, 2, None)),
        (INDEXED, ("Kubernetes", 2, 3, None)),
        (INDEXED | TORCHRUN, ("torchrun", 1, 2, 1)),
        (INDEXED | OPENMPI, ("Open MPI", 2, 4, 0)),
        (INDEXED | OWN, ("SWITCHAGG_*", 0, 2, None)),
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
        ({"MPI_LOCALRANKID": "0"}, "PMI_RANK and PMI_SIZE are not set"),
        ({"JOB_COMPLETION_INDEX": "0"}, "(JOB_COMPLETION_INDEX=0), but WORLD_SIZE is not set: set it"),
        (INDEXED | {"WORLD_SIZE": "2"}, "rank is 2 in a world of 2"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0), and does not say of how many: give world_size"),
        (
            OWN | {"SWITCHAGG_WORLD_SIZE": "1", "SWITCHAGG_LOCAL_WORLD_SIZE": "2"},
            "SWITCHAGG_LOCAL_WORLD_SIZE=2",
        ),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}, "LOCAL_WORLD_SIZE=2"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "3"}, "GROUP_WORLD_SIZE=3"),
        (
            OPENMPI | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            "world_size is 1, but Open MPI has started more: OMPI_COMM_WORLD_LOCAL_SIZE=2",
        ),
        (OPENMPI | {"OMPI_APP_CTX_NUM_PROCS": "2 3"}, "OMPI_APP_CTX_NUM_PROCS=2 3"),
        (HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "MPI_LOCALNRANKS=3"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_LOCAL_SIZE": "2"}, "PMI_LOCAL_SIZE=2"),  # Cray's
        (STEP | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "SLURM_STEP_TASKS_PER_NODE=4(x2)"),
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
    assert slurm == address(PMI2)
    assert address(STEP | {"SLURM_STEP_NUM_NODES": "1"}) == ("127.0.0.1", slurm[1])
    assert address(STEP | HYDRA | {"MPI_LOCALNRANKS": "1"}) is None  # the step is that of Hydra's proxies
    elsewhere = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NODELIST"}
    assert address(elsewhere | {"SLURM_JOB_NODELIST": "node[01-09]"}) is None  # the step may be on others


def test_an_argument_makes_no_world_of_one_where_there_are_more() -> None:
    first = OPENMPI | {"OMPI_COMM_WORLD_RANK": "0"}
    with pytest.raises(
        UsageError, match="world_size is 1, but Open MPI has started more: OMPI_COMM_WORLD_SIZE=4"
    ):
        read(first, world_size=1)
    part = read(first, world_size=2)
    assert part is not None
    assert (part.rank, part.world_size) == (0, 2)
    alone = {"PMIX_RANK": "3"}
    assert read(alone, world_size=4) == Launch("PMIx", 3, 4, None, None)


@pytest.mark.parametrize("more", [OPENMPI, HYDRA, MVAPICH, STEP])
def test_a_world_of_one_inside_a_larger_one_is_told(more: dict[str, str]) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1"}
    with pytest.warns(UserWarning, match=r"runs alone, by WORLD_SIZE=1, but .* has started more: .*=[2348]$"):
        assert read(alone | more) == Launch("torchrun", 0, 1, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(alone | ALLOCATION)
        read({"RANK": "0", "WORLD_SIZE": "2"} | more)


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
    for unchanged in ({}, TORCHRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, dict(ALLOCATION)):
        before = dict(unchanged)
        export(unchanged)
        assert unchanged == before
    pod = INDEXED | {"MASTER_ADDR": "train-0.train", "MASTER_PORT": "29500"}
    export(pod)
    assert pod == INDEXED | {"RANK": "2", "MASTER_ADDR": "train-0.train", "MASTER_PORT": "29500"}
    by_hand = STEP | {"RANK": "5", "WORLD_SIZE": "8"}  # as in srun sh -c 'RANK=$SLURM_PROCID ...'
    export(by_hand)
    assert by_hand == variables


# ---------------------------------------------------------------------- real processes

PROGRAM = """
import sys
import numpy as np
import worker_lib
with worker_lib.connect(timeout=60) as session:
    total = session.allreduce(np.full(1000, session.rank + 1.0, np.float32))[999]
    sys.stdout.write(f"sum {session.world_size} {total}\\n")
"""


def launcher_command(name: str, ranks: int = 4) -> list[str]:
    """Returns the command that starts ranks, or skips the test."""
    if name.startswith("srun"):
        return [*name.split(), "-n", str(ranks)]
    wanted = {"Open MPI": "open-mpi.org", "Hydra": "HYDRA"}[name]
    for command in ("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra", "mpiexec.mpich"):
        path = shutil.which(command) or shutil.which(command, path=str(Path(sys.executable).parent))
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if wanted in version.stdout + version.stderr:
            as_root = ["--allow-run-as-root", "--oversubscribe"] if name == "Open MPI" else []
            return [path, *as_root, "-n", str(ranks)]
    pytest.skip(f"there is no mpirun of {name}")


@pytest.fixture
def run_launched(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command without variables of any launcher but those given, and with a Slurm of one host."""

    def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        mine = (
            "SWITCHAGG_",
            "SLURM_",
            "OMPI_COMM_",
            "PMI",
            "MASTER_",
            "RANK",
            "WORLD_SIZE",
            "LOCAL_",
            "JOB_",
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        environment |= fake_slurm.install(tmp_path) | variables
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, check=False
        )

    return run


Run = Callable[..., subprocess.CompletedProcess[str]]
LAUNCHERS = ["Open MPI", "Hydra", "srun", "srun --mpi=pmi2"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_rank_sees_the_whole_world(launcher: str, run_launched: Run) -> None:
    # The shell stays between launcher and rank, as scripts do that choose a rank's cores.
    done = run_launched(
        *launcher_command(launcher), "sh", "-c", '"$@"; exit $?', "", sys.executable, "-c", PROGRAM
    )
    assert done.stdout.count("sum 4 10.0") == 4, (done.stdout, done.stderr)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("launcher", "change", "said"),
    [
        ("Open MPI", "-u OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK is not set"),
        ("Open MPI", "-u OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE is not set"),
        ("Open MPI", "OMPI_COMM_WORLD_SIZE=1", "Open MPI has started more: OMPI_COMM_WORLD_LOCAL_SIZE=4"),
        ("Open MPI", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "MASTER_ADDR"),
        ("Hydra", "-u PMI_RANK", "PMI_RANK is not set"),
        ("Hydra", "-u PMI_SIZE", "PMI_SIZE is not set"),
        ("Hydra", "-u PMI_RANK -u PMI_SIZE", "PMI_RANK and PMI_SIZE are not set"),
        ("Hydra", "PMI_SIZE=1", "PMI has started more: MPI_LOCALNRANKS=4"),
        ("srun", "-u SLURM_PROCID", "SLURM_PROCID is not set"),
        ("srun", "-u SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS is not set"),
        ("srun", "SLURM_STEP_NUM_TASKS=1", "Slurm has started more: SLURM_STEP_TASKS_PER_NODE=4"),
        ("srun", "-u SLURM_STEP_NODELIST -u SLURM_STEP_NUM_NODES", "MASTER_ADDR"),
    ],
)
def test_variables_that_are_missing_or_contradict_each_other(
    launcher: str, change: str, said: str, run_launched: Run
) -> None:
    done = run_launched(*launcher_command(launcher), "env", *change.split(), sys.executable, "-c", PROGRAM)
    assert done.returncode != 0
    assert "sum" not in done.stdout
    # The launcher ends the others with the first rank that fails; of a world of one, ranks from 1 on say so.
    assert said in done.stderr or (change.endswith("=1") and "in a world of 1" in done.stderr), done.stderr


@pytest.mark.parametrize("variables", [ALLOCATION, BATCH, SALLOC])
def test_alone_in_an_allocation(variables: dict[str, str], run_launched: Run) -> None:
    done = run_launched(sys.executable, "-c", PROGRAM, **variables)
    assert "sum 1 1.0" in done.stdout
    assert "runs alone in an allocation for 8" in done.stderr
