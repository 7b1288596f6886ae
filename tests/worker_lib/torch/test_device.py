"""Tensors of a GPU, staged. Without one, CPU tensors take the same way, but for pinned memory and streams."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Ddp

import worker_lib
from tests.waiting import eventually
from tests.worker_lib.torch.models import train
from tests.worker_lib.torch.test_ddp import STEPS, wrapped
from tests.worker_lib.torch.worlds import attempt, run
from worker_lib.torch import State, allreduce_hook, device

GPU = torch.cuda.is_available()


def away(tensor: torch.Tensor) -> torch.Tensor:
    """On a GPU where there is one; else marked as if it were."""
    if GPU:
        return tensor.cuda()
    tensor._away = True  # type: ignore[attr-defined]
    return tensor


def pretend() -> None:
    """Lets marked tensors count as being elsewhere."""
    if not GPU:
        device.needs_staging = lambda tensor: getattr(tensor, "_away", False)


def _every_operation() -> None:
    pretend()
    n, r = dist.get_world_size(), dist.get_rank()
    works = []
    sums = [away(torch.full((1000 * k + 1,), float(r))) for k in range(6)]
    for x in sums:
        works.append(dist.all_reduce(x, async_op=True))
        on_the_host = torch.full((5,), float(r))  # begun in the same order by all, whoever has to wait
        works.append(dist.all_reduce(on_the_host, async_op=True))
        sums = [*sums, on_the_host]
    top = away(torch.tensor([r]))
    works.append(dist.all_reduce(top, op=dist.ReduceOp.MAX, async_op=True))  # through gloo
    mean = away(torch.full((7,), float(r)).to(torch.bfloat16))
    works.append(dist.all_reduce(mean, op=dist.ReduceOp.AVG, async_op=True))
    copied = away(torch.full((3, 4), r, dtype=torch.int16).t())
    works.append(dist.broadcast(copied, src=1, async_op=True))
    rows = [away(torch.zeros(4)) for _ in range(n)]
    works.append(dist.all_gather(rows, away(torch.full((4,), float(r))), async_op=True))
    whole = away(torch.zeros(2 * n))
    works.append(dist.all_gather_into_tensor(whole, away(torch.full((2,), float(r))), async_op=True))
    part = away(torch.zeros(3))
    works.append(dist.reduce_scatter_tensor(part, away(torch.ones(3 * n)), async_op=True))
    future = dist.all_reduce(away(torch.ones(3)), async_op=True).get_future()
    for work in works:
        work.wait()
    assert all((x == n * (n - 1) / 2).all() for x in sums)
    assert top.item() == n - 1
    assert (mean == (n - 1) / 2).all()
    assert (copied == 1).all()
    assert [row[0].item() for row in rows] == list(range(n))
    assert whole.tolist() == [float(k) for k in range(n) for _ in range(2)]
    assert (part == n).all()
    assert (future.wait()[0] == n).all()
    dist.barrier()
    sparse = torch.sparse_coo_tensor([[r, 5]], torch.ones(2, 3), (9, 3))
    sparse = away(sparse)
    dist.all_reduce(sparse)
    assert sparse.to_dense().sum().item() == 3 * 2 * n
    for call in (dist.send, dist.recv):
        with pytest.raises(worker_lib.UsageError, match="accepted: CPU tensors"):
            call(away(torch.ones(3)), (r + 1) % n)
    with pytest.raises(worker_lib.UsageError, match="meta"):
        dist.all_reduce(torch.ones(3, device="meta"))


def test_every_operation() -> None:
    run(3, _every_operation)


def _narrow() -> list[float]:
    pretend()
    r = dist.get_rank()
    rounds = []
    for _ in range(3):
        x = torch.linspace(-1, 1, 5000) * (r + 1)
        x[:1100] = 0
        x = away(x.clone())
        dist.all_reduce(x)
        expected = torch.linspace(-1, 1, 5000) * 6
        expected[:1100] = 0
        assert (x.cpu() - expected).abs().max() < 3 * 4 / 10_000
        assert not x[:1024].any()
        rounds.append(x.double().sum().item())
    odd = away(torch.ones(3000))
    odd[1500] = torch.inf if r == 1 else 1
    dist.all_reduce(away(odd), op=dist.ReduceOp.AVG)
    assert odd[1500] == torch.inf
    odd[1500] = 1
    assert (odd - 1).abs().max() < 0.001
    return rounds


def test_narrow_lanes_are_made_where_the_tensor_is() -> None:
    ranks = run(3, _narrow, options={"bits": 16})
    assert all(each == ranks[0] for each in ranks)


def _different_places() -> None:
    pretend()
    x = torch.ones(100)
    dist.all_reduce(away(x) if dist.get_rank() == 0 else x)


def test_ranks_that_differ_in_where_lanes_are_made() -> None:
    for outcome in attempt(2, _different_places, options={"bits": 16}):
        assert isinstance(outcome.error, worker_lib.MismatchError)


def _destroyed() -> None:
    pretend()
    work = dist.all_reduce(away(torch.ones(10)), async_op=True)
    work.wait()
    group = dist.group.WORLD
    dist.destroy_process_group()
    with pytest.raises(worker_lib.SessionBrokenError):
        group.allreduce([away(torch.ones(3))]).wait()
    eventually(lambda: [t.name for t in threading.enumerate()] == ["MainThread"])


def test_destroy_leaves_no_feeder() -> None:
    run(2, _destroyed)


def _hooked(options: dict[str, Any]) -> None:
    if not GPU:  # a bucket's buffer is a new object each time: all but the feeder's own are elsewhere
        device.needs_staging = lambda _: "feeder" not in threading.current_thread().name
    for name in ("transformer", "recommender-sparse"):
        model = wrapped(name)
        with State(model, **options) as state:
            model.register_comm_hook(state, allreduce_hook)
            ours = train(name, model, STEPS, check=dist.group.WORLD)
            if options.get("bits", 32) != 32 and name == "transformer":
                assert all(left.any() for left in state.state_dict()["residuals"].values())
        theirs = train(name, wrapped(name), STEPS)
        assert ours == pytest.approx(theirs, rel=1e-3 if not options else 0.05), name


@pytest.mark.parametrize("options", [{}, {"bits": 16}, {"bits": 16, "density": 0.5, "block_size": 32}])
def test_hooks(options: dict[str, Any]) -> None:
    run(2, _hooked, options, backend="gloo")


def _another_default_device() -> None:
    pretend()
    n, r = dist.get_world_size(), dist.get_rank()
    x, ours = away(torch.full((5,), float(r))), torch.full((5,), float(r))
    table = nn.Embedding(9, 3, sparse=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    with torch.device("meta"):  # a tensor without a device of its own would have no contents
        dist.all_reduce(x)
        dist.all_reduce(ours)
        rows = [away(torch.zeros(3, device="cpu")) for _ in range(n)]
        dist.all_gather(rows, away(torch.full((3,), float(r), device="cpu")))
        table(torch.tensor([r, 5], device="cpu")).sum().backward()
        dist.all_reduce(table.weight.grad)
        with State(model, bits=16, density=0.5, block_size=2, error_feedback=True) as state:
            model = Ddp(model)
            model.register_comm_hook(state, allreduce_hook)
            model(torch.ones(2, 4, device="cpu")).sum().backward()
    assert (x == n * (n - 1) / 2).all()
    assert ours.tolist() == x.tolist()
    assert [row.tolist() for row in rows] == [[float(k)] * 3 for k in range(n)]
    assert table.weight.grad.to_dense().sum().item() == 3 * 2 * n


def test_another_default_device() -> None:
    run(2, _another_default_device)


on_a_gpu = pytest.mark.skipif(not GPU, reason="no GPU is here: pinned memory and streams are not tried")
_LONG = 10**9  # cycles of a GPU: half a second or more


@on_a_gpu
def test_copies_of_a_gpu() -> None:
    copier = device.DeviceCopier(torch.device("cuda"))
    x = torch.arange(1_000_000, device="cuda", dtype=torch.float32)
    x.mul_(2)  # still running, perhaps
    host, wait = copier.to_host(x)
    wait()
    assert host.is_pinned()
    assert torch.equal(host, 2 * torch.arange(1_000_000, dtype=torch.float32))
    copier.to_device(host + 1, x)
    assert torch.equal(x.cpu(), host + 1)


@on_a_gpu
def test_an_input_may_be_dropped_before_it_is_copied() -> None:
    copier = device.DeviceCopier(torch.device("cuda"))
    x = torch.ones(1_000_000, device="cuda")
    torch.cuda.synchronize()
    with copier.side_stream():
        torch.cuda._sleep(_LONG)
    host, wait = copier.to_host(x)
    del x
    torch.full((1_000_000,), 7.0, device="cuda")  # in its memory, if that is free
    wait()
    assert (host == 1).all()


def _launched_before() -> None:
    r = dist.get_rank()
    x, rows = torch.full((1_000_000,), r + 1.0, device="cuda"), torch.empty(2, 1_000_000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # not the one that x is on
        torch.cuda._sleep(_LONG)
        rows.fill_(-1)
        dist.all_gather_into_tensor(rows, x)
    torch.cuda.synchronize()
    assert rows[:, 0].tolist() == [1.0, 2.0]


@on_a_gpu
def test_a_result_comes_after_the_kernels_that_were_launched_before() -> None:
    run(2, _launched_before)


@on_a_gpu
def test_a_process_that_imported_it_can_fork_ones_that_use_the_gpu() -> None:
    program = """
import os, torch, worker_lib.torch
child = os.fork()
if child == 0:
    os._exit(int(torch.ones(3, device="cuda").sum().item()) - 3)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
