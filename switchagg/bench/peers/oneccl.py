"""oneCCL on the processor, with the messages of Intel MPI through shared memory.

2021.16.2 is the newest release whose wheel for processors holds all libraries that it loads. Its interface is
C++, so `switchagg bench peers --install oneccl` compiles `oneccl.cpp` against its headers. Every rank has a
thread of oneCCL's that polls all the time.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

from switchagg.bench.grid import Variant
from switchagg.bench.peers.mpi import INTEL, MpiEndpoint, MpiPeer, Way
from switchagg.bench.peers.peer import RankConfig, Work
from switchagg.environments import Environment
from switchagg.errors import SwitchAggError

_RELEASE: Final = ("oneccl-cpu==2021.16.2", "oneccl-cpu-devel==2021.16.2", "impi-rt==2021.16.1")
ENVIRONMENT: Final = Environment("oneccl", (*_RELEASE, "mpi4py>=4.1"))
_ADDRESS_BYTES: Final = 256
_DATATYPES: Final = {"int32": 4, "int64": 6, "float16": 8, "float32": 9, "float64": 10, "bfloat16": 11}


def _library() -> Path:
    return ENVIRONMENT.folder / "lib" / "switchagg_oneccl.so"


def build() -> None:
    """Compiles the C interface in oneCCL's environment.

    Raises:
        SwitchAggError: there is no C++ compiler, or it fails.
    """
    compiler = shutil.which("c++")
    if compiler is None:
        raise SwitchAggError("oneccl needs a C++ compiler, c++, which is not installed")
    lib = ENVIRONMENT.folder / "lib"
    line = [compiler, "-O2", "-std=c++17", "-shared", "-fPIC", str(Path(__file__).with_suffix(".cpp"))]
    line += [f"-I{ENVIRONMENT.folder / 'include'}", f"-L{lib}", "-l:libccl.so.1", f"-Wl,-rpath,{lib}"]
    built = subprocess.run([*line, "-o", str(_library())], capture_output=True, text=True, check=False)
    if built.returncode:
        raise SwitchAggError(f"oneccl.cpp does not compile: {built.stderr.strip().splitlines()[-1]}")


class OneCclPeer(MpiPeer):
    """Ranks as Intel MPI starts them."""

    name = "oneccl"

    def __init__(self) -> None:
        variables = {"I_MPI_FABRICS": "shm", "CCL_ATL_TRANSPORT": "mpi", "CCL_ROOT": str(ENVIRONMENT.folder)}
        super().__init__(Way(replace(INTEL, environment=ENVIRONMENT), variables=variables))

    def missing(self) -> str | None:
        if not _library().exists():
            return "oneCCL is not installed (switchagg bench peers --install oneccl)"
        return super().missing()

    def refuses(self, variant: Variant, dtype: str) -> str | None:
        del variant, dtype
        return None


class OneCclEndpoint(MpiEndpoint):
    """A rank of one communicator."""

    def __init__(self, config: RankConfig) -> None:
        super().__init__(config)
        library = self._library = ctypes.CDLL(str(_library()))
        for function in (library.oneccl_address, library.oneccl_join, library.oneccl_sum):
            function.restype = ctypes.c_char_p
        library.oneccl_sum.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        address = ctypes.create_string_buffer(_ADDRESS_BYTES)
        if config.rank == 0:
            self._check(library.oneccl_address(address))
        self._check(library.oneccl_join(config.rank, config.workers, self._world.bcast(address.raw)))

    def prepare(self, work: Work) -> None:
        work.prepared = [(x.ctypes.data, x.size, _DATATYPES[x.dtype.name]) for x in work.tensors]

    def reduce(self, work: Work, call: int) -> None:
        self._check(self._library.oneccl_sum(*work.prepared[call]))

    def close(self) -> None:
        self._library.oneccl_leave()
        super().close()

    @staticmethod
    def _check(problem: bytes | None) -> None:
        if problem is not None:
            raise RuntimeError(f"oneCCL: {problem.decode(errors='replace')}")


open_endpoint = OneCclEndpoint
