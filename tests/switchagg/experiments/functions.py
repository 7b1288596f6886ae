"""Functions that the tests of the runner run in ranks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

from switchagg.errors import UsageError
from switchagg.experiments.rank import say, switch_cpu_seconds


def add(session: Any, given: dict[str, Any]) -> dict[str, Any]:
    x = np.full(1000, session.rank + given["from"], np.float32)
    session.allreduce(x)
    if session.rank == 0:
        say("added")
    return {"sum": x[:3], "rank": session.rank, "switch": switch_cpu_seconds() > 0}


def die(session: Any, given: dict[str, Any]) -> None:
    if session.rank == given["who"]:
        os.kill(os.getpid(), signal.SIGKILL)
    session.barrier()


def misuse(_session: Any, given: dict[str, Any]) -> None:
    raise UsageError(f"{given['what']} is not accepted")


def stumble(_session: Any, given: dict[str, Any]) -> float:
    return 1 / given["zero"]


def sleep(_session: Any, given: dict[str, Any]) -> None:
    time.sleep(given["seconds"])
