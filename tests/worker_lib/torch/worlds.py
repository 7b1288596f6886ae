"""Runs n ranks of a PyTorch world as processes, forked from one that has already imported torch.

    run(3, function, ...)     `function(...)` on each rank, inside init_process_group("switchagg")

`function` is a top-level function of a test module. What it returns or raises comes back as an `Outcome`.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.worker_lib.harness import LIMIT, Outcome

shared_controller = ""  # URL of the one that worlds use; set in conftest.py
OWN_SWITCH = {"SWITCHAGG_CONTROLLER": ""}  # an environment in which rank 0 starts one
_context = multiprocessing.get_context("forkserver")
# DDP and the optimizers import half of torch at their first use: better once than on every rank.
_context.set_forkserver_preload(
    ["worker_lib.torch", "torch._dynamo", "torch.amp.grad_scaler", "torch.nn.parallel", "torch.optim"]
)


def run(n: int, function: Callable[..., Any], *args: Any, **settings: Any) -> list[Any]:
    """`attempt` where every rank must come to its end: what it returned."""
    return [outcome.get() for outcome in attempt(n, function, *args, **settings)]


def attempt(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    backend: str = "switchagg",
    timeout: float = 60.0,
    options: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    limit: float = LIMIT,
) -> list[Outcome]:
    """Runs `function(*args)` on n ranks.

    Args:
        backend, timeout, options: of init_process_group; `options` are arguments of worker_lib.torch.Options.
        environment: variables of the processes.
        limit: seconds after which all are killed.

    Raises:
        TimeoutError: a rank was still running then.
    """
    environment = {"SWITCHAGG_CONTROLLER": shared_controller, **(environment or {})}
    with tempfile.TemporaryDirectory() as folder:
        pairs = [_context.Pipe() for _ in range(n)]
        ranks = [
            _context.Process(
                target=_rank,
                args=(
                    pairs[r][1],
                    folder,
                    r,
                    n,
                    backend,
                    timeout,
                    options,
                    environment,
                    limit,
                    function,
                    args,
                ),
            )
            for r in range(n)
        ]
        try:
            for process in ranks:
                process.start()
            for _, far in pairs:
                far.close()
            return _collect([near for near, _ in pairs], ranks, time.monotonic() + limit)
        finally:
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def rest() -> None:
    """Before groups of gloo's own are destroyed: `worker_lib.torch.versions.end_gloo` says why."""
    import torch.distributed as dist

    if not hasattr(dist.ProcessGroupGloo, "shutdown"):
        time.sleep(0.2)


def _collect(pipes: list[Connection], ranks: list[Any], deadline: float) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(ranks):
        waiting = [pipe for r, pipe in enumerate(pipes) if r not in outcomes]
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            late = [r for r in range(len(ranks)) if r not in outcomes]
            raise TimeoutError(f"ranks {late} were still running at the limit; the others: {outcomes}")
        for pipe in ready:
            r = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                value, error = pickle.loads(pipes[r].recv_bytes())
                outcomes[r] = Outcome(value, error)
            except EOFError:
                ranks[r].join(10)
                outcomes[r] = Outcome(status=ranks[r].exitcode or 0)
    return [outcomes[r] for r in range(len(ranks))]


def _rank(
    pipe: Connection,
    folder: str,
    rank: int,
    size: int,
    backend: str,
    timeout: float,
    options: dict[str, Any] | None,
    environment: dict[str, str],
    limit: float,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    faulthandler.dump_traceback_later(0.95 * limit)  # where a rank hangs that is about to be killed
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **environment})
    import torch
    import torch.distributed as dist

    import worker_lib.torch

    torch.set_num_threads(1)
    value, error = None, None
    try:
        dist.init_process_group(
            backend,
            init_method=f"file://{Path(folder) / 'store'}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
            pg_options=worker_lib.torch.Options(**options) if options else None,
        )
        value = function(*args)
    except BaseException as caught:
        caught.add_note("".join(traceback.format_tb(caught.__traceback__)))  # pickling leaves it behind
        error = caught
    finally:
        if dist.is_initialized():
            rest()
            dist.destroy_process_group()
    try:
        told = pickle.dumps((value, error))
    except Exception:
        told = pickle.dumps((None, RuntimeError(f"{value!r} {error!r}")))
    pipe.send_bytes(told)
    pipe.close()
