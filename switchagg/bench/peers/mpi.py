"""Open MPI, MPICH and Intel MPI on one computer: mpi4py's `Allreduce` in place on a numpy array.

system            how messages go                     how a rank waits in a call
openmpi-shm       shared memory (sm, with CMA)        polls and yields (--oversubscribe)
openmpi-tcp       TCP on loopback                     the same
mpich             shared memory (ch4)                 polls and yields after each poll
intelmpi          shared memory (shm)                 polls and yields, as it does by default
intelmpi-sleep    the same                            sleeps between polls (I_MPI_THREAD_YIELD=3)

Their wheels hold files of the same names, `bin/mpiexec` and `lib/libmpi.so`, so each is installed in an
environment of its own, with mpi4py (`switchagg bench peers`). Where there is none, an `mpiexec` that is
installed otherwise is taken, together with this Python's mpi4py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from switchagg.bench.grid import Variant
from switchagg.bench.peers.peer import Endpoint, Peer, RankConfig, Work
from switchagg.environments import Environment


@dataclass(frozen=True, slots=True)
class Implementation:
    """An implementation of MPI.

    Attributes:
        environment: the packages of its wheel.
        mark: part of what `mpiexec --version` prints.
        library: file of its wheel, below `lib`.
        rank_variable: environment variable that tells a process its rank.
        arguments: of mpiexec.
        debian: package of Debian that has it; empty where none has.
    """

    name: str
    environment: Environment
    mark: str
    library: str
    rank_variable: str
    arguments: tuple[str, ...] = ()
    debian: str = ""


OPENMPI: Final = Implementation(
    "Open MPI", Environment("openmpi", ("openmpi", "mpi4py>=4.1")), "Open MPI", "libmpi.so.40",
    "OMPI_COMM_WORLD_RANK", ("--oversubscribe", "--bind-to", "none"), "openmpi-bin",
)  # fmt: skip
MPICH: Final = Implementation(
    "MPICH", Environment("mpich", ("mpich", "mpi4py>=4.1")), "HYDRA", "libmpi.so.12", "PMI_RANK",
    debian="mpich",
)  # fmt: skip
INTEL: Final = Implementation(
    "Intel MPI", Environment("intelmpi", ("impi-rt", "mpi4py>=4.1")), "Intel(R) MPI", "libmpi.so.12",
    "PMI_RANK",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """An implementation as it is measured: `arguments` of mpiexec and `variables` beside its own."""

    implementation: Implementation
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


def _ob1(transfer: str) -> Way:
    mca = (("pml", "ob1"), ("btl", transfer), ("btl_tcp_if_include", "lo"))
    return Way(OPENMPI, tuple(word for pair in mca for word in ("--mca", *pair)))


WAYS: Final = {
    "openmpi-tcp": _ob1("tcp,self"),
    "openmpi-shm": _ob1("vader,self"),  # the name that Open MPI 4 and 5 both know
    "mpich": Way(MPICH, variables={"MPIR_CVAR_POLLS_BEFORE_YIELD": "0"}),
    "intelmpi": Way(INTEL, variables={"I_MPI_FABRICS": "shm"}),
    "intelmpi-sleep": Way(INTEL, variables={"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "3"}),
}
"""The systems that this module measures, by name."""


@lru_cache
def identity(mpiexec: str) -> str:
    """The text of its `--version`."""
    asked = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return asked.stdout


class MpiPeer(Peer):
    """Starts all ranks by one `mpiexec`."""

    name = "mpi"

    def __init__(self, way: Way) -> None:
        self._way = way
        self._implementation = way.implementation

    def _mpiexec(self) -> Path | None:
        """Its own environment's, this Python's, or that of PATH."""
        beside = Path(sys.executable).parent / "mpiexec"
        found = shutil.which("mpiexec")
        own = self._implementation.environment.folder / "bin" / "mpiexec"
        for path in (own, beside, *([Path(found)] if found else [])):
            if path.exists() and self._implementation.mark in identity(str(path)):
                return path
        return None

    def _has_environment(self) -> bool:
        return self._implementation.environment.python.exists()

    def missing(self) -> str | None:
        implementation = self._implementation
        own = f"switchagg bench peers --install {implementation.environment.name}"
        if self._mpiexec() is None:
            debian = f"; Debian: apt install {implementation.debian}" if implementation.debian else ""
            return f"{implementation.name} is not installed ({own}{debian})"
        if not self._has_environment() and find_spec("mpi4py") is None:
            return f"mpi4py is not installed ({own}, or pip install 'switchagg[mpi]')"
        return None

    def commands(self, workers: int, rank_command: Sequence[str]) -> list[list[str]]:
        line = [str(self._mpiexec()), *self._implementation.arguments, *self._way.arguments]
        if self._implementation is OPENMPI and os.geteuid() == 0:
            line.append("--allow-run-as-root")
        rank = f'"{self._implementation.rank_variable}"'
        return [[*line, "-n", str(workers), *(part.replace("{rank}", rank) for part in rank_command)]]

    def environment(self) -> dict[str, str]:
        variables = {**super().environment(), **self._way.variables}
        if self._has_environment():
            own = self._implementation.environment
            paths = (str(own.packages), variables.get("PYTHONPATH", ""))
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            variables["MPI4PY_LIBMPI"] = str(own.folder / "lib" / self._implementation.library)
        return variables

    def refuses(self, variant: Variant, dtype: str) -> str | None:
        del variant
        if "float16" in dtype:
            return f"MPI has no {dtype}"
        return None


class MpiEndpoint(Endpoint):
    """A rank of MPI.COMM_WORLD. mpi4py takes arrays as they are."""

    def __init__(self, config: RankConfig) -> None:
        from mpi4py import MPI

        self._finalize = MPI.Finalize
        self._in_place = MPI.IN_PLACE
        self._world = MPI.COMM_WORLD
        if self._world.size != config.workers:
            library = MPI.Get_library_version().splitlines()[0]
            raise RuntimeError(
                f"mpi4py has loaded {library}, which sees {self._world.size} of {config.workers} ranks"
            )
        self._world.Barrier()

    def reduce(self, work: Work, call: int) -> None:
        self._world.Allreduce(self._in_place, work.tensors[call])

    def close(self) -> None:
        self._finalize()


open_endpoint = MpiEndpoint
