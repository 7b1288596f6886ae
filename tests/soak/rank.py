"""A worker's process: runs a session for each line of JSON on its standard input and checks its results.

It answers by lines of JSON: `running` when it has joined, `done` for each collective (with a checksum of the
result and whether the result is right), and `end`.
"""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import worker_lib
from switchagg.errors import SwitchAggError, WorkerLostError
from worker_lib.plan import DType, ReduceOp
from worker_lib.quantize import error_bound

from .plan import Task

Array = npt.NDArray[Any]
BLOCK = 256
_TYPES = {"float32": DType.F32, "float64": DType.F64}


def contribution(task: Task, place: int, index: int) -> Array:
    """Returns the contribution of the rank at this place to collective `index`."""
    rng = np.random.default_rng((task.seed, place, index))
    if task.dtype == "int32":
        x = rng.integers(-(2**31), 2**31, task.elements, dtype=np.int32)
    else:
        x = rng.standard_normal(task.elements).astype(task.dtype)
    blocks = -(-task.elements // BLOCK)
    zero = np.repeat(rng.random(blocks) >= task.density, BLOCK)[: task.elements]
    x[zero] = 0
    return x


def is_right(task: Task, places: list[int], index: int, result: Array) -> bool:
    """Checks a sum over these places: exactly for integers, else within the proved bound."""
    inputs = [contribution(task, place, index) for place in places]
    if task.dtype == "int32":
        return bool(np.array_equal(result, np.sum(inputs, axis=0, dtype=np.int32)))
    wide = np.longdouble if task.dtype == "float64" else np.float64
    exact = np.sum([x.astype(wide) for x in inputs], axis=0)
    largest = max(float(np.abs(x).max()) for x in inputs)
    if largest == 0:
        return not result.any()
    bias = 1023 if task.dtype == "float64" else 127
    exponent = int(np.frexp(largest)[1]) - 1 + bias
    bound = float(error_bound(_TYPES[task.dtype], task.bits, len(places), exponent, ReduceOp.SUM))
    slack = float(np.abs(exact).max()) * 2.0**-50
    return bool(np.abs(result.astype(wide) - exact).max() <= bound + slack)


def say(**fields: Any) -> None:
    """Prints one line for the parent process."""
    print(json.dumps(fields), flush=True)


def serve(command: dict[str, Any]) -> None:
    """Runs one session."""
    task = Task.read(command["task"])
    with worker_lib.connect(
        controller=command["controller"],
        job=command["job"],
        rank=command["rank"],
        world_size=command["world_size"],
        on_loss=command["on_loss"],
        deadline=command["deadline"],
        timeout=30,
        join_timeout=30,
    ) as session:
        say(kind="running")
        for index in itertools.count():
            if _has_ended(session, command, index):
                break
            x = contribution(task, _own_place(session, command), index)
            try:
                session.allreduce(x, bits=task.bits)
            except WorkerLostError as error:
                if command["on_loss"] != "shrink":
                    raise
                say(kind="lost", index=index, ranks=list(error.ranks), text=str(error))
                continue
            places = list(session.places)
            say(
                kind="done",
                index=index,
                places=places,
                digest=zlib.crc32(x.tobytes()),
                # One rank checks, in turn; the others must have the same bits.
                right=index % len(places) != session.rank or is_right(task, places, index, x),
            )


def _has_ended(session: worker_lib.Session, command: dict[str, Any], index: int) -> bool:
    """Returns whether no collective follows; the answer is the same at all ranks."""
    if index < command["collectives"]:
        return False
    if not command["until"]:
        return True
    seen = np.array([Path(command["until"]).exists()], np.int32)
    session.allreduce(seen)
    return bool(seen[0])


def _own_place(session: worker_lib.Session, command: dict[str, Any]) -> int:
    return int(session.places[session.rank]) if command["on_loss"] == "shrink" else int(command["rank"])


def main() -> None:
    """Serves until standard input ends."""
    for line in sys.stdin:
        try:
            serve(json.loads(line))
        except WorkerLostError as error:
            say(kind="end", how="lost", ranks=list(error.ranks), text=str(error))
        except SwitchAggError as error:
            say(kind="end", how=type(error).__name__, text=str(error))
        else:
            say(kind="end", how="finished")


if __name__ == "__main__":
    main()
