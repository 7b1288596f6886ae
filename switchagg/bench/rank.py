"""The process of one rank: `python -m switchagg.bench.rank CONFIG`, CONFIG being JSON that `group.py` writes.

It does as the parent says over a Unix socket, one message at a time:

    cell   make room for the tensors of a cell                      -> done
    fill   write the tensors of a round, outside any timing         -> done
    run    sleep until an agreed instant, reduce, say how long      -> measured
    show   look at the results, when no rank is reducing any more   -> digest
    quit   leave the group and end
    (end of the connection)  leave at once, whatever it is doing

The common start is an instant on the machine's monotonic clock that the parent picks some milliseconds
ahead. Nobody spins while waiting for it, so it costs the other ranks no processor time.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from switchagg.bench.data import fill
from switchagg.bench.grid import Cell, numpy_dtype
from switchagg.bench.messages import Digest, Fill, Measured, Run, Show
from switchagg.bench.peers.base import Endpoint, Place, Work
from switchagg.launch.control import CommandedRank
from switchagg.processor_time import own_seconds

_PR_SET_TIMERSLACK = 29


class RankProcess:
    """Carries out the parent's commands on one endpoint."""

    def __init__(self, rank: int, endpoint: Endpoint) -> None:
        self._rank = rank
        self._endpoint = endpoint
        self._cell: Cell | None = None
        self._tensors: list[NDArray[Any]] = []
        self._work: Work | None = None

    def carry_out(self, command: object) -> object:
        """Do one command and return the reply."""
        if isinstance(command, Cell):
            self._work = None
            self._tensors.clear()
            # Not zeros(): NumPy asks for huge pages only for what empty() returns, as for most arrays.
            self._tensors = [
                np.empty(command.elements, numpy_dtype(command.dtype)) for _ in range(command.calls)
            ]
            for tensor in self._tensors:
                tensor.fill(0)
            self._cell = command
            return None
        if isinstance(command, Fill):
            self._fill(command)
            return None
        if isinstance(command, Run):
            return self._run(command)
        if isinstance(command, Show):
            return self._show(command)
        raise TypeError(f"no such command: {command!r}")

    def _fill(self, command: Fill) -> None:
        assert self._cell is not None
        masks = [
            fill(self._cell, draw, self._rank, x)
            for draw, x in zip(command.draws, self._tensors, strict=True)
        ]
        self._work = Work(
            command.system,
            command.bits,
            self._tensors,
            masks if command.pass_masks else None,
            self._cell.block_size,
            command.union_bytes,
        )
        self._endpoint.prepare(self._work)
        # By hand and here: with a framework loaded a collection takes longer than many a call.
        gc.collect()

    def _run(self, command: Run) -> Measured:
        work = self._work
        assert work is not None
        before = self._endpoint.counters()
        cpu = own_seconds()
        time.sleep(max(0.0, command.start - time.monotonic()))
        woke = time.monotonic()
        self._endpoint.reduce(work)
        end = time.monotonic()
        cpu = own_seconds() - cpu
        after = self._endpoint.counters()
        growth = {key: value - before.get(key, 0.0) for key, value in after.items()}
        return Measured(end - command.start, woke - command.start, growth, cpu)

    def _show(self, command: Show) -> Digest:
        if command.result is not None:
            self._write_result(command.result)
        return Digest.of(self._tensors)

    def _write_result(self, path: str) -> None:
        rows = np.memmap(path, np.uint8, "r+", shape=(len(self._tensors), self._tensors[0].nbytes or 1))
        for row, tensor in zip(rows, self._tensors, strict=True):
            row[:] = tensor.view(np.uint8)


class Servant(Protocol):
    """Carries out commands."""

    def carry_out(self, command: object) -> object:
        """Do one command and return the reply."""


def serve(config_text: str, make: Callable[[int, Endpoint], Servant]) -> None:
    """Run one rank until the parent closes the connection; `make` gets the rank and its endpoint."""
    config = json.loads(config_text)
    rank = config["rank"] if config["rank"] >= 0 else int(os.environ["OMPI_COMM_WORLD_RANK"])
    # The default slack of 50 microseconds would be a good part of a short call.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    place = Place(rank, config["workers"], Path(config["directory"]), config["timeout"], config["options"])
    with CommandedRank(config["socket"], rank) as parent:
        endpoint = importlib.import_module(f"switchagg.bench.peers.{config['peer']}").open_endpoint(place)
        process = make(rank, endpoint)
        gc.disable()
        gc.freeze()
        parent.serve(process.carry_out)
        endpoint.close()


if __name__ == "__main__":
    serve(sys.argv[1], RankProcess)
