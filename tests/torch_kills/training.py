"""The network that ranks train, on data drawn from step and rank, and the processes that they are."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import nn

PATIENCE = 60.0  # seconds in which anything has to happen
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["worker_lib.torch", "torch._dynamo", "torch.nn.parallel", "torch.optim", "torchft"]
)


class Wrong(AssertionError):
    """A sum, or a rank's weights, are not what they should be."""


def network() -> nn.Module:
    """The same at all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 1))


def loss_of(net: Any, step: int, rank: int) -> torch.Tensor:
    """The loss of a batch."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 64, generator=generator)
    loss: torch.Tensor = (net(x) - x.sum(1, keepdim=True) / 8).square().mean()
    return loss


def digest(net: nn.Module) -> str:
    """Of all weights' bits."""
    whole = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    return hashlib.sha256(whole.numpy().tobytes()).hexdigest()[:16]


def final_loss(net: nn.Module) -> float:
    """On a batch that nobody trains with."""
    with torch.no_grad():
        return float(loss_of(net, -1, 0))


class Rank:
    """A process, with a pipe to it. `code(pipe, steps, *args)` is what it runs; `steps` counts those done."""

    def __init__(self, name: str, code: Callable[..., None], *args: Any) -> None:
        self.name = name
        self.pipe, far = _context.Pipe()
        self.steps = _context.Value("q", 0)
        self.process = _context.Process(target=_run, args=(code, far, self.steps, args), daemon=True)
        self.process.start()
        far.close()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def reports(ranks: list[Rank], patience: float = PATIENCE) -> dict[str, Any]:
    """The next report of each, by name.

    Raises:
        Wrong: one reports so, or says nothing, or has ended.
    """
    missing: dict[Connection, Rank] = {rank.pipe: rank for rank in ranks}
    found = {}
    while missing:
        ready = wait(list(missing), patience)
        if not ready:
            raise Wrong(f"{[rank.name for rank in missing.values()]} said nothing within {patience:g} s")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = missing.pop(pipe)
            try:
                found[rank.name] = pipe.recv()
            except EOFError:
                raise Wrong(f"{rank.name} has ended by itself") from None
            if isinstance(found[rank.name], Wrong):
                raise found[rank.name]
    return found


def train_until(ranks: list[Rank], step: int) -> bool:
    """Waits until all have done so many steps; returns False as soon as one has a report instead.

    Raises:
        Wrong: they do not go on.
    """
    deadline = time.monotonic() + PATIENCE
    while min(rank.steps.value for rank in ranks) < step:
        if any(rank.pipe.poll() for rank in ranks):
            return False
        if time.monotonic() > deadline:
            steps = [rank.steps.value for rank in ranks]
            raise Wrong(f"not at step {step} in {PATIENCE:g} s, but {steps}; ranks say nothing")
        time.sleep(0.005)
    return True


def _run(code: Callable[..., None], pipe: Connection, steps: Any, args: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    import worker_lib.torch  # noqa: F401  (registers the backend)

    try:
        code(pipe, steps, *args)
    except Wrong as error:
        pipe.send(error)
    except Exception:
        pipe.send(Wrong(f"a rank has ended by itself: {traceback.format_exc()}"))
