"""`fallback="gloo"`: the switch is killed in the middle, and nobody can tell from the results."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import worker_lib
from tests.seeds import seed_of_this_run
from tests.worker_lib.torch.models import train
from tests.worker_lib.torch.test_ddp import wrapped
from tests.worker_lib.torch.worlds import OWN_SWITCH, run

GLOO = {"fallback": "gloo"}
# Ranks that share slots add up without the switch.
PACKETS = {**OWN_SWITCH, "SWITCHAGG_TRANSPORT": "shm"}


def kill_the_switch() -> None:
    """On rank 0, which has started it."""
    controller = dist.group.WORLD.communicator.controller
    if controller is not None and controller.child is not None:
        os.kill(controller.child.pid, signal.SIGKILL)


def _sums(seed: int) -> tuple[bool, list[float]]:
    """Collectives of all kinds in a random order, some in flight together; ranks are late at random."""
    n, r = dist.get_world_size(), dist.get_rank()
    plan, late = random.Random(seed), random.Random(seed + r + 1)
    dies_at = plan.randrange(10, 40)
    digests = []
    under_way: list[tuple[Any, Any]] = []
    for i in range(60):
        if i == dies_at and r == 0:
            kill_the_switch()
        if late.random() < 0.1:
            time.sleep(late.random() * 0.05)
        size = plan.choice([1, 7, 1000, 300_001])
        kind = plan.choice(["sum", "sum", "avg", "broadcast", "gather", "scatter", "barrier", "max"])
        root = plan.randrange(n)
        if kind in ("sum", "avg"):
            x = torch.full((size,), float(i + r))
            op = dist.ReduceOp.AVG if kind == "avg" else dist.ReduceOp.SUM
            total = n * i + n * (n - 1) / 2
            work = dist.all_reduce(x, op=op, async_op=True)
            under_way.append((work, (x, torch.full((size,), total / n if kind == "avg" else total))))
        elif kind == "broadcast":
            x = torch.full((size,), 10 * i + r, dtype=torch.int16)  # no whole number of words
            work = dist.broadcast(x, root, async_op=True)
            under_way.append((work, (x, torch.full((size,), 10 * i + root, dtype=torch.int16))))
        elif kind == "gather":
            x = torch.empty(n * size)
            work = dist.all_gather_into_tensor(x, torch.full((size,), float(r)), async_op=True)
            under_way.append((work, (x, torch.arange(float(n)).repeat_interleave(size))))
        elif kind == "scatter":
            x = torch.empty(size)
            every = torch.arange(float(n)).repeat_interleave(size)
            work = dist.reduce_scatter_tensor(x, every, async_op=True)
            under_way.append((work, (x, torch.full((size,), float(n * r)))))
        elif kind == "barrier":
            dist.barrier()
        else:  # of gloo's own, which waits for ranks that may wait for the switch
            top = torch.tensor([r])
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
            assert top.item() == n - 1
        while under_way and (len(under_way) > 6 or plan.random() < 0.5):
            work, (got, wanted) = under_way.pop(0)
            work.wait()
            assert torch.equal(got, wanted), f"collective {i} after a death at {dies_at}"
    for work, (got, wanted) in under_way:
        work.wait()
        assert torch.equal(got, wanted)
    # Inexact sums are at least the same everywhere.
    x = torch.randn(1000, generator=torch.Generator().manual_seed(r))
    dist.all_reduce(x)
    digests.append(x.double().sum().item())
    return dist.group.WORLD.fallen_back, digests


@pytest.mark.parametrize("turn", range(3))
def test_random_collectives_while_the_switch_dies(turn: int) -> None:
    seed = seed_of_this_run() % 2**31 + turn
    outcomes = run(3, _sums, seed, options=GLOO, environment=PACKETS, timeout=40)
    assert [fallen for fallen, _ in outcomes] == [True] * 3
    assert len({tuple(digests) for _, digests in outcomes}) == 1


def test_ranks_that_share_slots_agree_on_falling_back() -> None:
    """They add without the switch, but one that waits for the others meanwhile finds it gone."""
    outcomes = run(3, _sums, seed_of_this_run() % 2**31, options=GLOO, environment=OWN_SWITCH, timeout=40)
    assert len({fallen for fallen, _ in outcomes}) == 1
    assert len({tuple(digests) for _, digests in outcomes}) == 1


def _last_result() -> bool:
    """A rank that has all its results leaves; the others get theirs from it."""
    x = torch.ones(200_000)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        kill_the_switch()
    else:
        time.sleep(0.3)
    assert (x == 2).all()
    return True


def test_a_switch_that_dies_at_the_end() -> None:
    assert run(2, _last_result, options=GLOO, environment=PACKETS) == [True, True]


def _trained() -> list[float]:
    model = wrapped("transformer")
    losses = train("transformer", model, 4)
    if dist.get_rank() == 0:
        kill_the_switch()
    losses += train("transformer", model, 4, check=dist.new_group(backend="gloo"))
    assert dist.group.WORLD.fallen_back
    return losses


def test_ddp_goes_on() -> None:
    for losses in run(2, _trained, options=GLOO, environment=PACKETS):
        assert all(loss < 5 for loss in losses)


def _without() -> None:
    dist.all_reduce(torch.ones(3))
    dist.barrier(dist.new_group(backend="gloo"))  # both have the result
    if dist.get_rank() == 0:
        kill_the_switch()
    time.sleep(0.2)
    with pytest.raises(worker_lib.SwitchError, match="gone"):
        dist.all_reduce(torch.ones(3))


def test_without_it_there_is_an_error() -> None:
    run(2, _without, environment=PACKETS)


def _mismatch() -> None:
    """A mismatch is an end like any other, and everything works with the switch there."""
    with pytest.raises(worker_lib.MismatchError):
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    for i in range(30):
        x = torch.full((1000,), float(i))
        dist.all_reduce(x)
        assert (x == 2 * i).all()
    sparse = torch.sparse_coo_tensor([[dist.get_rank(), 5]], torch.ones(2, 3), (9, 3))
    dist.all_reduce(sparse)
    assert sparse.to_dense().sum() == 12
    assert not dist.group.WORLD.fallen_back


def test_with_a_switch_it_is_as_without() -> None:
    run(2, _mismatch, options=GLOO)
