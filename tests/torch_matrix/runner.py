"""Runs a case on a backend: a process that leads a group of processes, and in it the ranks.

this process --forkserver--> leader, with a process group and PyTorch's store --fork--> ranks
     |                                                                                    |
     +---- results, errors; kills the process group at the limit <------------------------+
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.torch_matrix.cases import CASES, Case

BACKENDS = ("gloo", "switchagg")
MODULES = ("communication", "data_parallel", "sharded", "frameworks")
_TIMEOUT = 30.0  # of a process group, seconds
_LATER = 3.0  # seconds that other ranks have to fail after the first did

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["worker_lib.torch", "torch._dynamo", *(f"tests.torch_matrix.{name}" for name in MODULES)]
)


def load_cases() -> None:
    """Imports the modules whose cases make up the matrix."""
    for module in MODULES:
        import_module(f"tests.torch_matrix.{module}")


@dataclass
class Outcome:
    """One case on one backend.

    Attributes:
        found: of every rank, the tensors that it returned.
        error: the first line of the first error; "" if there is none.
        detail: all errors with their tracebacks, and what the ranks wrote to standard error.
        seconds: that it took.
        missing: packages that are not installed.
    """

    found: dict[int, Any] = field(default_factory=dict)
    error: str = ""
    detail: str = ""
    seconds: float = 0.0
    missing: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if it ran, without an error."""
        return not self.error and not self.missing


def run_case(name: str, backend: str, seed: int, device: str = "cpu") -> Outcome:
    """Runs a case to its end, and checks that ranks returned the same bits.

    Args:
        name: of `CASES`.
        backend: for `init_process_group`.
        seed: of data and first parameters.
        device: of models and data.
    """
    chosen = CASES[name]
    missing = tuple(package for package in chosen.needs if find_spec(package) is None)
    if missing:
        return Outcome(missing=missing)
    outcome = Outcome()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="swmatrix-", ignore_cleanup_errors=True) as folder:
        near, far = _context.Pipe()
        leader = _context.Process(target=_lead, args=(far, name, backend, seed, device, folder))
        leader.start()
        far.close()
        try:
            _collect(near, chosen, outcome, time.monotonic() + chosen.limit)
        finally:
            _kill(leader)
            near.close()
        with open(f"{folder}/stderr", errors="replace") as said:
            outcome.detail += said.read()[-20_000:]
    outcome.seconds = time.monotonic() - started
    if not outcome.error and (difference := apart(outcome.found)):
        outcome.error = difference
    return outcome


def _kill(leader: Any) -> None:
    """Ends the leader and its whole process group."""
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:  # it does not lead one yet, or all have ended
        leader.kill()
    leader.join()


def compare(name: str, ours: Outcome, gloo: Outcome) -> str:
    """Returns "" if the two backends' tensors are as near as the case demands, else the difference."""
    import torch

    tolerance = CASES[name].near
    try:
        torch.testing.assert_close(ours.found[0], gloo.found[0], rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return "not gloo's result: " + " ".join(str(error).split())[:200]
    return ""


def _collect(pipe: Connection, chosen: Case, outcome: Outcome, deadline: float) -> None:
    """Fills the outcome with what ranks send until all have, or the deadline."""
    heard = 0
    while heard < chosen.ranks:
        if not wait([pipe], max(0.0, deadline - time.monotonic())):
            if not outcome.error:
                outcome.error = f"no end within {chosen.limit:.0f} seconds"
            return
        try:
            rank, found, error, detail = pickle.loads(pipe.recv_bytes())
        except EOFError:
            outcome.error = outcome.error or "a rank ended without a word"
            return
        heard += 1
        outcome.found[rank] = found
        if error:
            outcome.error = outcome.error or error
            outcome.detail += f"rank {rank}: {detail}\n"
            deadline = min(deadline, time.monotonic() + _LATER)


def apart(found: dict[int, Any]) -> str:
    """Returns the first difference between ranks; "" if their tensors are the same to the bit."""
    import torch

    for rank, tensors in found.items():
        for i, (mine, first) in enumerate(zip(tensors or (), found[0] or (), strict=True)):
            bits = [each.contiguous().view(-1).view(torch.uint8) for each in (mine, first)]
            if mine.shape != first.shape or not torch.equal(*bits):
                return f"rank {rank} has another tensor {i} than rank 0"
    return ""


# ---------------------------------------------------------------------- in the processes


def _lead(pipe: Connection, name: str, backend: str, seed: int, device: str, folder: str) -> None:
    """Forks the ranks, serves the store, and waits until the ranks have ended."""
    os.setsid()
    import torch.distributed as dist

    load_cases()
    said = os.open(f"{folder}/stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 2)
    os.dup2(said, 1)
    chosen = CASES[name]
    lock = multiprocessing.get_context("fork").Lock()
    ports = [os.pipe() for _ in range(chosen.ranks)]
    ranks = []
    for rank in range(chosen.ranks):
        pid = os.fork()
        if pid == 0:
            try:
                _rank(pipe, lock, chosen, backend, seed, device, folder, rank, ports[rank][0])
            finally:
                sys.stderr.flush()
                os._exit(0)
        ranks.append(pid)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, end in ports:
        os.write(end, str(store.port).encode())
        os.close(end)
    pipe.close()
    for pid in ranks:
        os.waitpid(pid, 0)


def _rank(
    pipe: Connection,
    lock: Any,
    chosen: Case,
    backend: str,
    seed: int,
    device: str,
    folder: str,
    rank: int,
    port: int,
) -> None:
    """Runs one rank and sends (rank, tensors, first line of the error, traceback)."""
    faulthandler.dump_traceback_later(0.95 * chosen.limit)  # where a rank hangs that is about to be killed
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(chosen.ranks), LOCAL_RANK="0" if device == "cuda" else str(rank),
        LOCAL_WORLD_SIZE=str(chosen.ranks), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=os.read(port, 16).decode(), TORCHELASTIC_USE_AGENT_STORE="True",
        OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", MATRIX_FOLDER=folder, MATRIX_SEED=str(seed),
        MATRIX_DEVICE=device,
    )  # fmt: skip
    import torch
    import torch.distributed as dist

    from tests.torch_matrix import cases

    torch.set_num_threads(1)
    found, error, detail = None, "", ""
    try:
        cases.begin(seed, device)
        if chosen.group:
            dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT))
            found = chosen.run()
        else:
            found = chosen.run(backend)
        if found is not None:
            found = [tensor.detach().cpu().clone() for tensor in found]
    except BaseException as caught:
        frame = traceback.extract_tb(caught.__traceback__)[-1]
        lines = str(caught).strip().splitlines() or [f"in {frame.name}"]
        error = f"{type(caught).__name__}: {lines[0]}"
        detail = "".join(traceback.format_exception(caught))
    with lock:
        pipe.send_bytes(pickle.dumps((rank, found, error, detail)))
    if dist.is_initialized() and not error:
        dist.destroy_process_group()
