"""The rank and the number of ranks that a launcher gives its processes, in environment variables.

launcher                        rank                  ranks                  on this host
SWITCHAGG_* (your own)          SWITCHAGG_RANK        SWITCHAGG_WORLD_SIZE   SWITCHAGG_LOCAL_RANK
switchagg run, torchrun         RANK                  WORLD_SIZE             LOCAL_RANK
Open MPI                        OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE   OMPI_COMM_WORLD_LOCAL_RANK
PMI (MPICH, Intel MPI)          PMI_RANK              PMI_SIZE               MPI_LOCALRANKID
MVAPICH                         MV2_COMM_WORLD_RANK   MV2_COMM_WORLD_SIZE    MV2_COMM_WORLD_LOCAL_RANK
a step of Slurm (srun)          SLURM_PROCID          SLURM_STEP_NUM_TASKS   SLURM_LOCALID
an indexed Job of Kubernetes    JOB_COMPLETION_INDEX  WORLD_SIZE

The first of these that has set any of its variables counts, since launchers nest in that order: torchrun runs
in a step of Slurm. Variables of an allocation say nothing about ranks, nor do those of the batch script and
of the shell that salloc opens, which are steps with numbers that srun never gives. PMI_RANK and PMI_SIZE may
be srun's too (--mpi=pmi2): where they say the same as its step, the step says the rest. WORLD_SIZE without
RANK, beside an index of Kubernetes, comes from the Job's manifest and not from torchrun.
"""

from __future__ import annotations

import os
import re
import warnings
import zlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from switchagg.errors import UsageError

_MAX_DIGITS: Final = 10
_COUNT: Final = re.compile(r"([0-9]{1,10})(?:\(x([0-9]{1,10})\))?")
_PORTS: Final = range(20_000, 32_000)  # below those that Linux gives to clients


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The variables of a launcher.

    Attributes:
        marks: a process is one of its ranks if any of these is set.
        local_size: number of its ranks on this host.
        counts: more numbers that its ranks are at least, such as the number of hosts, or lists of numbers of
            ranks, such as ``2(x3),1``.
        ids: tell one job from another on the same hosts.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    marks: tuple[str, ...]
    counts: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


_OMPI, _MV2 = "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_"
_SLURM: Final = _Launcher(
    "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "",
    ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"),
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_NODES"), ("SLURM_JOB_ID", "SLURM_STEP_ID"),
)  # fmt: skip
# Beside PMIx, Open MPI and Slurm set variables of their own; alone, it does not say how many there are.
_PMIX: Final = _Launcher("PMIx", "PMIX_RANK", "", "", "", ("PMIX_RANK",))
# It does not count the pods: the manifest of the Job sets WORLD_SIZE.
_KUBERNETES: Final = _Launcher(
    "Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "", "", ("JOB_COMPLETION_INDEX",)
)
_LAUNCHERS: Final = (
    _Launcher(
        "SWITCHAGG_*", "SWITCHAGG_RANK", "SWITCHAGG_WORLD_SIZE", "SWITCHAGG_LOCAL_RANK",
        "SWITCHAGG_LOCAL_WORLD_SIZE", ("SWITCHAGG_RANK", "SWITCHAGG_WORLD_SIZE"),
    ),
    _Launcher(
        "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ("RANK", "WORLD_SIZE"),
        ("GROUP_WORLD_SIZE",),
    ),
    _Launcher(
        "Open MPI", f"{_OMPI}RANK", f"{_OMPI}SIZE", f"{_OMPI}LOCAL_RANK", f"{_OMPI}LOCAL_SIZE",
        (f"{_OMPI}RANK", f"{_OMPI}SIZE", f"{_OMPI}LOCAL_RANK"),
        ("OMPI_APP_CTX_NUM_PROCS", "OMPI_WORLD_SIZE"), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher(
        "PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("PMI_LOCAL_SIZE",),
    ),
    _Launcher(
        "MVAPICH", f"{_MV2}RANK", f"{_MV2}SIZE", f"{_MV2}LOCAL_RANK", f"{_MV2}LOCAL_SIZE",
        (f"{_MV2}RANK", f"{_MV2}SIZE", f"{_MV2}LOCAL_RANK"),
    ),
    _SLURM,
    _PMIX,
    _KUBERNETES,
)  # fmt: skip
_NOT_BY_SRUN: Final = range(0xFFFFFFFA, 0x1_0000_0000)  # steps of Slurm: salloc's shell, the batch script ...


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that a launcher started.

    Attributes:
        launcher: its name.
        rank, world_size: of this process, and of how many.
        local_rank: among those on this host; None where the launcher does not say.
        address: host and port at which the ranks can meet; None where the launcher does not say.
        several_hosts: True if it says that the ranks are on more than one.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int | None
    address: tuple[str, int] | None
    several_hosts: bool = False


def read(
    environment: Mapping[str, str], rank: int | None = None, world_size: int | None = None
) -> Launch | None:
    """Returns what the innermost launcher says; None where there is none.

    Args:
        rank, world_size: given by the caller, in place of the launcher's.

    Raises:
        UsageError: it says too little, or contradicts itself.
    """
    started = [each for each in _LAUNCHERS if _has_started(each, environment)]
    if not started:
        return None
    launch = _read(started[0], environment, rank, world_size)
    more = [each for each in started if _sum(environment.get(each.size, "")) > 1]
    if launch.world_size == 1 and world_size is None and more:
        alone, others = (_shown(environment, each.size) for each in (started[0], more[0]))
        warnings.warn(
            f"this process runs alone, by {alone}, but {more[0].name} has started more: {others}",
            stacklevel=3,
        )
    return launch


def _has_started(launcher: _Launcher, environment: Mapping[str, str]) -> bool:
    if launcher is _SLURM:
        step = environment.get("SLURM_STEP_ID", "")
        # Slurm writes these numbers with a sign here, and without one there.
        if re.fullmatch(r"-?[0-9]{1,10}", step) and int(step) % 0x1_0000_0000 in _NOT_BY_SRUN:
            return False
    marks = set(launcher.marks)
    if _KUBERNETES.rank in environment and "RANK" not in environment:
        marks -= {_KUBERNETES.size}
    return any(name in environment for name in marks)


def _read(launcher: _Launcher, environment: Mapping[str, str], rank: int | None, size: int | None) -> Launch:
    names = [name for name, given in ((launcher.rank, rank), (launcher.size, size)) if given is None]
    started = f"{launcher.name} started this process ({_shown(environment, *launcher.marks)})"
    if "" in names:
        raise UsageError(
            f"{started}, and does not say of how many: give world_size, or set RANK and WORLD_SIZE"
        )
    if missing := [name for name in names if name not in environment]:
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise UsageError(
            f"{started}, but {' and '.join(missing)} {verb} not set: set {them}, or give rank and world_size"
        )
    counts = [launcher.local_size, *launcher.counts]
    if size is not None:  # a part of the launcher's ranks is a world too, but not this one alone
        counts = [launcher.size, *counts] if size == 1 else []
    rank = _number(launcher.rank, environment) if rank is None else rank
    size = _number(launcher.size, environment) if size is None else size
    by = f"by {' and '.join(names)} of {launcher.name}"
    if not 0 <= rank < size:
        raise UsageError(
            f"rank is {rank} in a world of {size}, {by}; accepted: a rank less than the world's size"
        )
    if more := [name for name in counts if _sum(environment.get(name, "")) > size]:
        raise UsageError(
            f"world_size is {size}, but {launcher.name} has started more: {_shown(environment, *more)}; "
            "accepted: the same number, or both rank and world_size given"
        )
    local = _number(launcher.local_rank, environment) if launcher.local_rank in environment else None
    if local is not None and local >= size:
        raise UsageError(f"{launcher.local_rank} is {local} in a world of {size}")
    address = _address(launcher, size, environment)
    if launcher is not _SLURM and _is_step(environment, rank, size):
        if local is None and "SLURM_LOCALID" in environment:
            local = _number("SLURM_LOCALID", environment)
        address = address or _address(_SLURM, size, environment)
    several = 0 < _sum(environment.get(launcher.local_size, "")) < size
    if launcher is _SLURM:
        several = _sum(environment.get("SLURM_STEP_NUM_NODES", "")) > 1
    return Launch(launcher.name, rank, size, local, address, several)


def _is_step(environment: Mapping[str, str], rank: int, size: int) -> bool:
    """True if a step of Slurm has the same ranks."""
    said = tuple(environment.get(name) for name in (_SLURM.rank, _SLURM.size))
    return _has_started(_SLURM, environment) and said == (str(rank), str(size))


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise UsageError(f"{name} is {text[:40]!r}; accepted: an integer")
    return int(text)


def _sum(counts: str) -> int:
    """The sum of a number or a list, such as ``2(x3),1``; 0 for what has no numbers."""
    return sum(int(each) * int(times or 1) for each, times in _COUNT.findall(counts))


def _shown(environment: Mapping[str, str], *names: str) -> str:
    return ", ".join(f"{name}={environment[name]}" for name in names if name in environment)


def _address(launcher: _Launcher, size: int, environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The place where ranks meet for which nobody has set MASTER_ADDR: the same for all of them."""
    job = [environment[name] for name in launcher.ids if environment.get(name)]
    if launcher is _SLURM:
        nodes = environment.get("SLURM_STEP_NODELIST")
        one = environment.get("SLURM_STEP_NUM_NODES") == "1"
        host = "127.0.0.1" if one else first_host(nodes) if nodes else None
    else:
        host = "127.0.0.1" if environment.get(launcher.local_size) == str(size) else None
    if host is None:
        return None
    job = job or [str(_launcher_pid(launcher.rank))]
    return host, _PORTS[zlib.crc32(" ".join(job).encode()) % len(_PORTS)]


def _launcher_pid(variable: str) -> int:
    """Returns the nearest ancestor without a variable of ranks: it has started all that are on this host.

    The parent may be a script round one rank.
    """
    pid = os.getppid()
    while pid > 1:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # another user's
            break
        if not any(each.startswith(f"{variable}=".encode()) for each in variables):
            break
        pid = parent
    return pid


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
    if launch is None:
        return
    environment["RANK"], environment["WORLD_SIZE"] = str(launch.rank), str(launch.world_size)
    if launch.local_rank is not None:
        environment.setdefault("LOCAL_RANK", str(launch.local_rank))
    if launch.address is not None and "MASTER_ADDR" not in environment:
        environment["MASTER_ADDR"] = launch.address[0]
        environment.setdefault("MASTER_PORT", str(launch.address[1]))
