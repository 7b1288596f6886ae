"""OpenMPI, over TCP on loopback or through shared memory: mpi4py's `Allreduce` in place on a numpy array.

Every rank polls while it is in a call. `--oversubscribe` lets more ranks than cores run and makes them
yield between polls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from switchagg.bench.grid import Variant
from switchagg.bench.peers.peer import Endpoint, Peer, RankConfig, Work


class OpenMpiPeer(Peer):
    """Starts all ranks by one `mpirun`. `way`: "tcp" or "shm"."""

    name = "openmpi"

    def __init__(self, way: str = "tcp") -> None:
        self._transfer = {"tcp": "tcp,self", "shm": "vader,self"}[way]

    def missing(self) -> str | None:
        mpirun = shutil.which("mpirun")
        if mpirun is None:
            return "mpirun is not installed (Debian: apt install openmpi-bin)"
        if find_spec("mpi4py") is None:
            return "mpi4py is not installed (pip install 'switchagg[mpi]')"
        asked = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=30, check=False)
        if "Open MPI" not in asked.stdout:
            return f"{mpirun} is not OpenMPI's"
        return None

    def commands(self, workers: int, rank_command: Sequence[str]) -> list[list[str]]:
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(workers)]
        for key, value in (("pml", "ob1"), ("btl", self._transfer), ("btl_tcp_if_include", "lo")):
            mpirun += ["--mca", key, value]
        if os.geteuid() == 0:
            mpirun.append("--allow-run-as-root")
        return [[*mpirun, *(part.replace("{rank}", "-1") for part in rank_command)]]

    def refuses(self, variant: Variant, dtype: str) -> str | None:
        del variant
        if "float16" in dtype:
            return f"MPI has no {dtype}"
        return None


class OpenMpiEndpoint(Endpoint):
    """A rank of MPI.COMM_WORLD. mpi4py takes arrays as they are, and finalizes MPI when the process ends."""

    def __init__(self, config: RankConfig) -> None:
        del config
        from mpi4py import MPI

        self._in_place = MPI.IN_PLACE
        self._world = MPI.COMM_WORLD
        self._world.Barrier()

    def reduce(self, work: Work) -> None:
        for tensor in work.tensors:
            self._world.Allreduce(self._in_place, tensor)


open_endpoint = OpenMpiEndpoint
