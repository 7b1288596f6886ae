"""Parts of PyTorch that use a process group in ways of their own, beside gloo in the same processes."""

from __future__ import annotations

import logging
import math
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.seeds import seed_of_this_run
from tests.worker_lib.torch.worlds import rest, run
from worker_lib.torch import dispatch, versions

STEPS = 4


def network(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )


def trained(model: torch.nn.Module, seed: int) -> list[float]:
    """Trains a model on a batch of this rank's own; returns its losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed + 1000 * dist.get_rank()))
    losses = []
    for _ in range(STEPS):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def digest(model: torch.nn.Module) -> list[float]:
    """The sums of a model's parameters, which are the same on every rank."""
    with torch.no_grad():
        whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        return [each.double().sum().item() for each in whole]


def _beside_gloo(train: Callable[[Any, int], tuple[list[float], list[float]]], seed: int) -> list[float]:
    """Runs a training through both; returns the parameters' digest, which every rank has."""
    gloo = dist.new_group(backend="gloo")
    (losses, ours), (expected, theirs) = (train(group, seed) for group in (dist.group.WORLD, gloo))
    assert losses == pytest.approx(expected, rel=1e-3)
    assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert losses[-1] < losses[0]
    rest()
    return ours


def _alike_on_all_ranks(n: int, train: Callable[[Any, int], tuple[list[float], list[float]]]) -> None:
    digests = run(n, _beside_gloo, train, seed_of_this_run() % 2**31)
    assert all(each == digests[0] for each in digests)


# ---------------------------------------------------------------------- torch.compile


def _compiled(group: Any, seed: int) -> tuple[list[float], list[float]]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model = network(seed)
    # Its buffers are broadcast before each forward pass, by C++ code that the compiler traces through.
    ddp = DistributedDataParallel(model, process_group=group)
    losses = trained(torch.compile(ddp, backend="aot_eager"), seed)
    return losses, [*digest(model), sum(counters["graph_break"].values())]


def test_a_compiled_ddp_model_trains_with_the_graph_breaks_that_gloo_has() -> None:
    _alike_on_all_ranks(2, _compiled)


def _functional(seed: int) -> None:
    import torch.distributed._functional_collectives as functional

    world, n = dist.group.WORLD, dist.get_world_size()

    def both(x: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(x * 2, "sum", world)
        rows = functional.all_gather_tensor(total + 1, 0, world)
        return functional.reduce_scatter_tensor(rows, "sum", 0, world)

    x = torch.arange(4.0) + dist.get_rank() + seed % 7
    expected = both(x)
    result = torch.compile(both, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(torch.as_tensor(result), torch.as_tensor(expected))
    total = sum(2 * (torch.arange(4.0) + r + seed % 7) for r in range(n))
    assert torch.equal(torch.as_tensor(result), n * (total + 1))


@pytest.mark.skipif(versions.release() < (2, 5), reason="2.4's compiler cannot read a Python group's name")
def test_functional_collectives_are_compiled_into_one_graph() -> None:
    run(2, _functional, seed_of_this_run() % 2**31)


# ---------------------------------------------------------------------- callbacks


def _power_sgd(group: Any, seed: int) -> tuple[list[float], list[float]]:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = network(seed)
    # One bucket: the hook calls collectives in callbacks, so those of several would have no order.
    ddp = DistributedDataParallel(model, process_group=group)
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5, random_seed=seed
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = trained(ddp, seed)
    assert state.compression_stats()[0] > 1
    return losses, digest(model)


def test_powersgd_waits_for_further_collectives_in_its_callbacks() -> None:
    _alike_on_all_ranks(3, _power_sgd)


def _nested(depth: int) -> None:
    n = dist.get_world_size()

    def after(x: torch.Tensor, left: int) -> torch.futures.Future[torch.Tensor]:
        future = dist.all_reduce(x, async_op=True).get_future()
        if left == 0:
            return future.then(lambda done: done.value()[0])
        return future.then(lambda done: after(done.value()[0] / n + 1, left - 1).wait())

    assert torch.equal(after(torch.ones(3), depth).wait(), torch.full((3,), n * (depth + 1.0)))
    first, second = (dist.all_reduce(torch.ones(70_000), async_op=True).get_future() for _ in range(2))
    assert first.then(lambda _: second.wait()[0].sum()).wait() == 70_000 * n  # of one that came later


def test_callbacks_wait_for_collectives_to_any_depth() -> None:
    run(2, _nested, 40)


def _warned() -> list[str]:
    """Rank 1 takes part once rank 0 has its callbacks: `then` of a future that is done calls at once."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    told: list[str] = []
    x = torch.ones(3)
    if rank == 1:
        for ready, sizes in (("first", (3, 2)), ("second", (3, 3, 2))):
            store.wait([ready], timedelta(seconds=100))
            for size in sizes:
                dist.all_reduce(torch.ones(size))
        return []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("switchagg").addHandler(handler)
    # In step: the callback's collective is the last.
    in_step = dist.all_reduce(x, async_op=True).get_future().then(lambda _: dist.all_reduce(torch.ones(2)))
    store.set("first", "")
    in_step.wait()
    assert told == []
    late = torch.futures.Future[None]()
    held = dist.all_reduce(x, async_op=True).get_future().then(lambda _: late.wait())
    later = held.then(lambda _: dist.all_reduce(torch.ones(2)))
    store.set("second", "")
    dist.all_reduce(x)
    late.set_result(None)
    later.wait()
    return told


def test_a_callback_that_starts_a_collective_out_of_step_is_told_of() -> None:
    told, _ = run(2, _warned)
    assert len(told) == 1
    assert "a callback of allreduce has started allreduce after other collectives" in told[0]


# ---------------------------------------------------------------------- sharded parameters


def _sharded(seed: int, mesh_shape: tuple[int, ...], reshard: bool) -> tuple[list[float], list[float]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    model = network(seed)
    model[1] = torch.nn.Tanh()  # a batch norm's statistics are each rank's own
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    losses = trained(model, seed)
    return losses, digest(model)


@pytest.mark.skipif(versions.scatters_sums_only(), reason="this torch's gloo gives sums for FSDP2's averages")
@pytest.mark.parametrize(
    ("mesh", "reshard"), [((2,), True), ((2,), False), ((2, 2), True)], ids=["fsdp2", "kept", "hsdp"]
)
def test_fully_shard_trains_as_through_gloo(mesh: tuple[int, ...], reshard: bool) -> None:
    pytest.importorskip("torch.distributed.fsdp._fully_shard", reason="this torch has no fully_shard")
    n, seed = math.prod(mesh), seed_of_this_run() % 2**31
    ours = run(n, _sharded, seed, mesh, reshard)
    theirs = run(n, _sharded, seed, mesh, reshard, backend="gloo")
    for (losses, parameters), (expected, their_parameters) in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(expected, rel=1e-3)
        assert losses[-1] < losses[0]
        assert parameters == pytest.approx(their_parameters, rel=1e-3, abs=1e-5)
        assert parameters == ours[0][1]
    assert ours == run(n, _sharded, seed, mesh, reshard)  # to the bit


# ---------------------------------------------------------------------- FlightRecorder


def _recorded() -> tuple[str, list[dict[str, Any]]]:
    from torch._C import _distributed_c10d as native

    n, r = dist.get_world_size(), dist.get_rank()
    model = DistributedDataParallel(network(1))
    trained(model, 1)
    x = torch.ones(6)
    dist.all_reduce(x)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    rows = [torch.empty(6) for _ in range(n)]
    dist.all_gather(rows, x)
    dist.all_to_all_single(torch.empty(n), torch.ones(n))
    dist.gather(x, rows if r == 0 else None, 0)
    dist.scatter(x, rows if r == 0 else None, 0)
    dist.barrier()
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():  # PyTorch's own wrapper of a Python work would never say so
        time.sleep(0.001)
    assert torch.equal(work.result()[0], x)
    name = dist.get_backend()
    arguments = (True, False, False) if name == "gloo" else (True, False, False, name)
    return name, pickle.loads(native._dump_fr_trace(*arguments))["entries"]


def test_flight_recorder_has_the_entries_that_it_has_of_gloo() -> None:
    if not hasattr(dist.distributed_c10d, "_maybe_attach_flight_recorder"):
        pytest.skip("this torch records only what its own backends do (2.15 records Python ones)")
    assert dispatch.available()
    (_, ours), _ = run(2, _recorded, environment={"TORCH_FR_BUFFER_SIZE": "2000"})
    (_, theirs), _ = run(2, _recorded, backend="gloo", environment={"TORCH_FR_BUFFER_SIZE": "2000"})

    def kinds(entries: list[dict[str, Any]]) -> list[str]:
        return [entry["profiling_name"].partition(":")[2].removesuffix("_single") for entry in entries]

    assert kinds(ours) == kinds(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert {*our} | {"frames"} == {*their} | {"frames"}
        assert {*our["input_dtypes"]} == {*their["input_dtypes"]}
        for field in ("process_group", "is_p2p", "retired"):
            assert our[field] == their[field], (field, our, their)
        elements = [sum(map(math.prod, entry["input_sizes"])) for entry in (our, their)]
        assert elements[0] == elements[1]  # a list of tensors is one of gloo's


def _missing_at_a_monitored_barrier() -> str:
    """Errors at rank 0 of barriers that ranks 1 and 2 do not reach, after barriers that all do."""
    rank, pair = dist.get_rank(), dist.new_group([0, 2])
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=60.0, wait_all_ranks=True)
    dist.monitored_barrier(pair)
    with pytest.raises(TypeError, match="timedelta"):
        dist.monitored_barrier(timeout=5)
    said = []
    for wait_all_ranks in (False, True):
        group = dist.new_group()  # gloo closes its connections to who is missing
        if rank == 0:
            with pytest.raises(RuntimeError) as caught:
                dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks)
            said.append(str(caught.value))
    x = torch.ones(3)
    dist.all_reduce(x)
    assert (x == dist.get_world_size()).all()
    rest()
    return "\n".join(said)


@pytest.mark.parametrize("backend", ["gloo", "switchagg"])
def test_a_monitored_barrier_names_who_is_missing(backend: str) -> None:
    first, *others = run(3, _missing_at_a_monitored_barrier, backend=backend)
    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in first
    assert "Ranks 1, 2 failed to pass monitoredBarrier in 1000 ms" in first
    assert others == ["", ""]
