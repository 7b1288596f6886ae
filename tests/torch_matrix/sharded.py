"""Cases of models in parts: FSDP, tensor and pipeline parallelism, DTensor, meshes, checkpoints (DCP)."""

from __future__ import annotations

import functools
import itertools
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from tests.torch_matrix.cases import (
    STEPS,
    adam,
    alone,
    batch,
    case,
    draw,
    equal,
    mlp,
    near,
    place,
    same,
    sgd,
    train,
    whole,
)


def shared_folder() -> Path:
    """A folder for the ranks of this case; it goes with the runner's."""
    return Path(os.environ["MATRIX_FOLDER"])


# ---------------------------------------------------------------------- fully sharded


@case("FSDP1 (FullyShardedDataParallel)")
def fsdp1() -> Any:
    net = FullyShardedDataParallel(mlp(), device_id=torch.device(place()))
    train(net, adam(net))
    with FullyShardedDataParallel.summon_full_params(net):
        near(net, alone(optimizer=adam))
        return whole(net)


def _fsdp2(mesh: DeviceMesh, tolerance: float = 1e-5, **settings: Any) -> Any:
    net = mlp()
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh, **settings)
    train(net, adam(net))
    found = whole(net)
    near(found, whole(alone(optimizer=adam)), tolerance)
    return found


@case("FSDP2 (fully_shard)")
def fsdp2() -> Any:
    return _fsdp2(init_device_mesh(place(), (2,)))


@case("FSDP2 over 3 ranks (uneven shards)", ranks=3)
def fsdp2_uneven() -> Any:
    return _fsdp2(init_device_mesh(place(), (3,)))


@case("FSDP2, bfloat16 parameters, float32 gradients", near=0.02)
def fsdp2_mixed() -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _fsdp2(init_device_mesh(place(), (2,)), 0.05, mp_policy=policy)


@case("FSDP2, reshard_after_forward=False")
def fsdp2_kept() -> Any:
    return _fsdp2(init_device_mesh(place(), (2,)), reshard_after_forward=False)


@case("HSDP (fully_shard on a 2 x 2 mesh)", ranks=4)
def hsdp() -> Any:
    return _fsdp2(init_device_mesh(place(), (2, 2), mesh_dim_names=("replicate", "shard")))


# ---------------------------------------------------------------------- tensor parallel


TENSOR_PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


@case("tensor parallel (ColwiseParallel, RowwiseParallel)")
def tensor_parallel() -> Any:
    net = parallelize_module(mlp(), init_device_mesh(place(), (2,)), TENSOR_PLAN)
    train(net, adam(net), ranks=[0])
    found = whole(net)
    near(found, whole(alone(optimizer=adam, ranks=[0])))
    return found


@case("FSDP2 with tensor parallel (2 x 2 mesh)", ranks=4)
def fsdp2_with_tensor_parallel() -> Any:
    mesh = init_device_mesh(place(), (2, 2), mesh_dim_names=("data", "tensor"))
    net = fully_shard(parallelize_module(mlp(), mesh["tensor"], TENSOR_PLAN), mesh=mesh["data"])
    train(net, adam(net), ranks=[mesh.get_local_rank("data")])
    found = whole(net)
    near(found, whole(alone(optimizer=adam, ranks=range(2))))
    return found


class Block(nn.Module):
    """A norm and two layers, for sequences."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(torch.tanh(self.up(self.norm(x))))


@case("sequence parallel (SequenceParallel)")
def sequence_parallel() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    net = parallelize_module(Block(), init_device_mesh(place(), (size,)), plan)

    def loss(net: nn.Module, step: int, part: int | None) -> torch.Tensor:
        x, y = draw(step, 0, 4, 2 * size, 16), draw(step, 1, 4, 2 * size, 16)
        if part is not None:  # this rank's part of each sequence, and of the mean over all parts
            return functional.mse_loss(net(x.chunk(size, 1)[part]), y.chunk(size, 1)[part]) / size
        return functional.mse_loss(net(x), y)

    optimizer, reference = sgd(net), Block()
    theirs = sgd(reference)
    for step in range(STEPS):
        for model, how, part in ((net, optimizer, rank), (reference, theirs, None)):
            how.zero_grad()
            loss(model, step, part).backward()
            how.step()
    found = whole(net)
    near(found, whole(reference))
    return found


# ---------------------------------------------------------------------- DTensor, meshes


@case("DTensor: redistribute between Shard, Replicate and Partial", ranks=3)
def dtensor() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(place(), (size,))
    for x in (draw(0, 0, 6, 9), draw(0, 0, 7, 5)):  # parts of the same size, and not
        layouts = (Shard(0), Shard(1), Replicate())
        for source, target in itertools.product(layouts, layouts):
            y = distribute_tensor(x, mesh, [source]).redistribute(mesh, [target])
            equal(y.placements, (target,))
            same(y.full_tensor(), x)
    locals_of = [(8 * draw(1, r, 7, 5)).round() for r in range(size)]
    stacked = torch.stack(locals_of)
    for op, right in (("sum", stacked.sum(0)), ("avg", stacked.mean(0)), ("max", stacked.amax(0))):
        for target in layouts:
            y = DTensor.from_local(locals_of[rank], mesh, [Partial(op)]).redistribute(mesh, [target])
            near(y.full_tensor(), right)
    a, b = draw(2, 0, 6, 9), draw(2, 1, 9, 4)
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    near(product.full_tensor(), a @ b)
    return [product.full_tensor()]


@case("DeviceMesh: slices, groups, flattening", ranks=4)
def device_mesh() -> Any:
    rank = dist.get_rank()
    mesh = init_device_mesh(place(), (2, 2), mesh_dim_names=("row", "column"))
    for name, expected in (("row", [rank % 2, rank % 2 + 2]), ("column", [rank // 2 * 2, rank // 2 * 2 + 1])):
        equal(mesh[name].mesh.tolist(), expected)
        x = torch.tensor([10.0**rank])
        dist.all_reduce(x, group=mesh.get_group(name))
        equal(x.item(), float(sum(10.0**r for r in expected)))
        equal(mesh.get_local_rank(name), expected.index(rank))
    x = torch.tensor([10.0**rank])
    dist.all_reduce(x, group=mesh["row", "column"]._flatten("all").get_group())
    equal(x.item(), 1111.0)
    again = DeviceMesh.from_group(mesh.get_group("row"), place())
    same(distribute_tensor(torch.arange(6.0), again, [Shard(0)]).full_tensor(), torch.arange(6.0))
    return [x]


# ---------------------------------------------------------------------- pipelines


def _pipeline(schedule: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [0, 2, 4, 5] if size == 3 else [0, 2, 5]
    part = mlp()[cuts[rank] : cuts[rank + 1]]
    stage = PipelineStage(part, rank, size, torch.device(place()))
    run = schedule(stage, 4, loss_fn=functional.mse_loss)
    optimizer = sgd(part)
    for step in range(STEPS):
        x, y = batch(step, 0)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            run.step(x)
        elif rank == size - 1:
            run.step(target=y, losses=losses)
            equal(len(losses), 4)
        else:
            run.step()
        optimizer.step()
    near(part, alone(ranks=[0])[cuts[rank] : cuts[rank + 1]])


case("pipeline, GPipe", ranks=3)(functools.partial(_pipeline, ScheduleGPipe))
case("pipeline, 1F1B", ranks=3)(functools.partial(_pipeline, Schedule1F1B))


# ---------------------------------------------------------------------- checkpoints


def _state(placement: Any, *, values: bool) -> dict[str, Any]:
    """A state with sharded and plain tensors and other values; all zeros for one that will be loaded."""
    mesh = init_device_mesh(place(), (dist.get_world_size(),))
    sharded = distribute_tensor(draw(0, 0, 10, 6), mesh, [placement])
    state = {"weight": sharded, "bias": draw(1, 0, 6), "step": 7, "nested": {"rate": 0.5}}
    if values:
        return state
    return {"weight": sharded * 0, "bias": torch.zeros(6), "step": 0, "nested": {"rate": 0.0}}


def _check_loaded(state: dict[str, Any]) -> list[torch.Tensor]:
    weight = state["weight"].full_tensor()
    same([weight, state["bias"]], [draw(0, 0, 10, 6), draw(1, 0, 6)])
    equal((state["step"], state["nested"]), (7, {"rate": 0.5}))
    return [weight, state["bias"]]


@case("checkpoint (DCP): save, load", ranks=3)
def checkpoint() -> Any:
    dcp.save(_state(Shard(0), values=True), checkpoint_id=shared_folder() / "state")
    state = _state(Shard(0), values=False)
    dcp.load(state, checkpoint_id=shared_folder() / "state")
    return _check_loaded(state)


@case("checkpoint (DCP): load into other shards", ranks=3)
def checkpoint_resharded() -> Any:
    dcp.save(_state(Shard(0), values=True), checkpoint_id=shared_folder() / "state")
    for placement in (Shard(1), Replicate()):
        state = _state(placement, values=False)
        dcp.load(state, checkpoint_id=shared_folder() / "state")
        found = _check_loaded(state)
    return found


@case("checkpoint (DCP): async_save")
def checkpoint_async() -> Any:
    given = _state(Shard(0), values=True)
    own = dist.new_group()  # DCP's thread and this one would start collectives of one group in any order
    saved = dcp.async_save(given, checkpoint_id=shared_folder() / "state", process_group=own)
    x = torch.ones(5)
    for _ in range(20):
        dist.all_reduce(x)  # training goes on
    saved.result()
    same(x, torch.full((5,), 2.0**20))
    state = _state(Shard(0), values=False)
    dcp.load(state, checkpoint_id=shared_folder() / "state")
    return [x, *_check_loaded(state)]


@case("checkpoint (DCP) of a model and its optimizer under FSDP2")
def checkpoint_fsdp2() -> Any:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = fully_shard(mlp(), mesh=init_device_mesh(place(), (2,)))
        return net, adam(net)

    net, optimizer = make()
    train(net, optimizer, steps=2)
    parts = get_state_dict(net, optimizer)
    dcp.save({"model": parts[0], "optimizer": parts[1]}, checkpoint_id=shared_folder() / "state")
    again, theirs = make()
    parts = get_state_dict(again, theirs)
    loaded = {"model": parts[0], "optimizer": parts[1]}
    dcp.load(loaded, checkpoint_id=shared_folder() / "state")
    set_state_dict(again, theirs, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for each, how in ((net, optimizer), (again, theirs)):
        train(each, how, steps=2)
    same(whole(again), whole(net))
    return whole(again)
