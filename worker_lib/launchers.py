"""The rank and the number of ranks that a launcher gives its processes, in environment variables.

launcher                        rank                  ranks                  on this host
SWITCHAGG_* (your own)          SWITCHAGG_RANK        SWITCHAGG_WORLD_SIZE   SWITCHAGG_LOCAL_RANK
switchagg run, torchrun         RANK                  WORLD_SIZE             LOCAL_RANK
Open MPI                        OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE   OMPI_COMM_WORLD_LOCAL_RANK
PMI (MPICH, Intel MPI)          PMI_RANK              PMI_SIZE               MPI_LOCALRANKID
MVAPICH                         MV2_COMM_WORLD_RANK   MV2_COMM_WORLD_SIZE    MV2_COMM_WORLD_LOCAL_RANK
a step of Slurm (srun)          SLURM_PROCID          SLURM_STEP_NUM_TASKS   SLURM_LOCALID

The first of these that has set any of its variables counts, since launchers nest in that order: torchrun runs
in a step of Slurm. Variables of an allocation without a step, as in a batch script, say nothing about ranks.
"""

from __future__ import annotations

import os
import re
import warnings
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Final

from switchagg.errors import UsageError

_PORTS: Final = range(20_000, 32_000)  # below those that Linux gives to clients


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The variables of a launcher.

    Attributes:
        marks: a process is one of its ranks if any of these is set.
        local_size: number of its ranks on this host.
        ids: tell one job from another on the same hosts.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    marks: tuple[str, ...]
    ids: tuple[str, ...] = ()


_OMPI, _MV2 = "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_"
_LAUNCHERS: Final = (
    _Launcher(
        "SWITCHAGG_*", "SWITCHAGG_RANK", "SWITCHAGG_WORLD_SIZE", "SWITCHAGG_LOCAL_RANK",
        "SWITCHAGG_LOCAL_WORLD_SIZE", ("SWITCHAGG_RANK", "SWITCHAGG_WORLD_SIZE"),
    ),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("RANK", "WORLD_SIZE")),
    _Launcher(
        "Open MPI", f"{_OMPI}RANK", f"{_OMPI}SIZE", f"{_OMPI}LOCAL_RANK", f"{_OMPI}LOCAL_SIZE",
        (f"{_OMPI}RANK", f"{_OMPI}SIZE", f"{_OMPI}LOCAL_RANK"), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_RANK", "PMI_SIZE")),
    _Launcher(
        "MVAPICH", f"{_MV2}RANK", f"{_MV2}SIZE", f"{_MV2}LOCAL_RANK", f"{_MV2}LOCAL_SIZE",
        (f"{_MV2}RANK", f"{_MV2}SIZE", f"{_MV2}LOCAL_RANK"),
    ),
    _Launcher(
        "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "",
        ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"), ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    # Beside PMIx, Open MPI and Slurm set variables of their own; alone, it does not say how many there are.
    _Launcher("PMIx", "PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "", ("PMIX_RANK",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that a launcher started.

    Attributes:
        launcher: its name.
        rank, world_size: of this process, and of how many.
        local_rank: among those on this host; None where the launcher does not say.
        address: host and port at which the ranks can meet; None where the launcher does not say.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None
    address: tuple[str, int] | None


def read(
    environment: Mapping[str, str], rank: int | None = None, world_size: int | None = None
) -> Launch | None:
    """Returns what the innermost launcher says; None where there is none.

    Args:
        rank, world_size: given by the caller, in place of the launcher's.

    Raises:
        UsageError: it says too little, or contradicts itself.
    """
    for each in _LAUNCHERS:
        if any(name in environment for name in each.marks):
            return _read(each, environment, rank, world_size)
    return None


def _read(launcher: _Launcher, environment: Mapping[str, str], rank: int | None, size: int | None) -> Launch:
    names = [name for name, given in ((launcher.rank, rank), (launcher.size, size)) if given is None]
    if missing := [name for name in names if name not in environment]:
        there = ", ".join(f"{name}={environment[name]}" for name in launcher.marks if name in environment)
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise UsageError(
            f"{launcher.name} started this process ({there}), but {' and '.join(missing)} {verb} not set: "
            f"set {them}, or give rank and world_size"
        )
    rank = _number(launcher.rank, environment) if rank is None else rank
    size = _number(launcher.size, environment) if size is None else size
    if not 0 <= rank < size:
        raise UsageError(
            f"rank is {rank} in a world of {size}, by {' and '.join(names)} of {launcher.name}; accepted: a "
            "rank less than the world's size"
        )
    local = _number(launcher.local_rank, environment) if launcher.local_rank in environment else None
    if local is not None and local >= size:
        raise UsageError(f"{launcher.local_rank} is {local} in a world of {size}")
    return Launch(launcher.name, rank, size, local, _address(launcher, size, environment))


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name} is {text!r}; accepted: an integer")
    return int(text)


def _address(launcher: _Launcher, size: int, environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The place where ranks meet for which nobody has set MASTER_ADDR: the same for all of them."""
    if launcher.name == "Slurm":
        nodes = environment.get("SLURM_STEP_NODELIST")
        host = first_host(nodes) if nodes else None
        job = [environment.get(name, "") for name in launcher.ids]
    else:  # a launcher that starts all ranks on one host is their parent there
        host = "127.0.0.1" if environment.get(launcher.local_size) == str(size) else None
        job = [environment[name] for name in launcher.ids if environment.get(name)] or [str(os.getppid())]
    if host is None:
        return None
    return host, _PORTS[zlib.crc32(" ".join(job).encode()) % len(_PORTS)]


def first_host(nodes: str) -> str:
    """Returns the first host of a Slurm list such as ``node[003-006,9],login``."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", nodes).split(",")[0]


def warn_in_allocation(environment: Mapping[str, str]) -> None:
    """Warns of a world of one in a Slurm allocation for several tasks, of which no step was started."""
    tasks = environment.get("SLURM_NTASKS") or environment.get("SLURM_JOB_NUM_NODES") or "1"
    if environment.get("SLURM_JOB_ID") and tasks != "1":
        warnings.warn(
            f"this process runs alone in an allocation for {tasks}: `srun` starts them all", stacklevel=3
        )


def export(environment: MutableMapping[str, str]) -> None:
    """Sets the variables that PyTorch's ``env://`` reads from another launcher's, where they are missing.

    These are RANK, WORLD_SIZE, LOCAL_RANK, and MASTER_ADDR with MASTER_PORT.

    Raises:
        UsageError: see `read`.
    """
    launch = read(environment)
    if launch is None or launch.launcher == "torchrun":
        return
    environment["RANK"], environment["WORLD_SIZE"] = str(launch.rank), str(launch.world_size)
    if launch.local_rank is not None:
        environment.setdefault("LOCAL_RANK", str(launch.local_rank))
    if launch.address is not None and "MASTER_ADDR" not in environment:
        environment["MASTER_ADDR"] = launch.address[0]
        environment.setdefault("MASTER_PORT", str(launch.address[1]))
