"""Cases of data parallelism: DDP with its options and hooks, ZeRO, mixed precision, compiled models."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as Ddp

from tests.torch_matrix.cases import (
    STEPS,
    adam,
    alone,
    batch,
    case,
    draw,
    equal,
    mlp,
    mse,
    near,
    place,
    same,
    sgd,
    train,
    whole,
)
from worker_lib.torch import State, allreduce_hook


class Branches(nn.Module):
    """Two branches of which a step of a rank uses one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.branches = nn.Linear(16, 16), nn.ModuleList(nn.Linear(16, 8) for _ in range(2))
        self.which = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.branches[self.which](self.first(x))


def branch_loss(net: Any, step: int, rank: int) -> torch.Tensor:
    """A loss in which ranks of one step use different branches."""
    getattr(net, "module", net).which = (step + rank) % 2
    return mse(net, step, rank)


class Twice(nn.Module):
    """A layer that is used twice, and one that is never used, as DDP allows it for static graphs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer, self.head, self.unused = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.layer(torch.tanh(self.layer(x))))


@case("DDP")
def ddp() -> Any:
    net = Ddp(mlp(), bucket_cap_mb=0.004)
    train(net, sgd(net))
    near(net, alone())
    return whole(net)


@case("DDP, static_graph")
def ddp_static_graph() -> Any:
    net = Ddp(Twice(), static_graph=True)
    train(net, sgd(net))
    near(net, alone(Twice))
    return whole(net)


@case("DDP, find_unused_parameters")
def ddp_unused() -> Any:
    net = Ddp(Branches(), find_unused_parameters=True)
    train(net, sgd(net), branch_loss)
    near(net, alone(Branches, loss=branch_loss))
    return whole(net)


@case("DDP, gradient accumulation (no_sync)")
def ddp_no_sync() -> Any:
    net, reference = Ddp(mlp()), mlp()
    for model, ranks in ((net, [dist.get_rank()]), (reference, range(dist.get_world_size()))):
        optimizer = sgd(model)
        for step in range(0, 2 * STEPS, 2):
            if isinstance(model, Ddp):
                with model.no_sync():
                    mse(model, step, ranks[0]).backward()
            else:
                sum(mse(model, step, rank) / len(ranks) for rank in ranks).backward()
            sum(mse(model, step + 1, rank) / len(ranks) for rank in ranks).backward()
            optimizer.step()
            optimizer.zero_grad()
    near(net, reference)
    return whole(net)


@case("DDP, join with uneven inputs", ranks=3)
def ddp_join() -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    net, reference = Ddp(mlp()), mlp()
    optimizer = sgd(net)
    with Join([net]):
        for step in range(STEPS + rank):
            optimizer.zero_grad()
            mse(net, step, rank).backward()
            optimizer.step()
    optimizer = sgd(reference)
    for step in range(STEPS + size - 1):
        optimizer.zero_grad()
        sum(mse(reference, step, r) / size for r in range(size) if step < STEPS + r).backward()
        optimizer.step()
    near(net, reference)
    return whole(net)


@case("DDP, gradient_as_bucket_view")
def ddp_bucket_view() -> Any:
    net = Ddp(mlp(), gradient_as_bucket_view=True)
    train(net, sgd(net))
    near(net, alone())
    return whole(net)


@case("DDP, sparse gradients (nn.Embedding)")
def ddp_sparse() -> Any:
    def make() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.EmbeddingBag(1000, 16, mode="sum", sparse=True), nn.Linear(16, 8))

    def loss(net: nn.Module, step: int, rank: int) -> torch.Tensor:
        rows = (draw(step, rank, 8, 5).abs() * 100).long() % 1000
        return functional.mse_loss(net(rows), batch(step, rank)[1])

    def plain(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), lr=0.1)

    net = Ddp(make())
    train(net, plain(net), loss)
    near(net, alone(make, plain, loss))
    return whole(net)


@case("SyncBatchNorm")
def sync_batch_norm() -> Any:
    def make() -> nn.Module:
        torch.manual_seed(6)
        return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 8))

    size = dist.get_world_size()
    net, reference = Ddp(nn.SyncBatchNorm.convert_sync_batchnorm(make())), make()
    train(net, sgd(net))
    optimizer = sgd(reference)
    for step in range(STEPS):  # one batch of all ranks: the statistics are of all samples
        x, y = (torch.cat(parts) for parts in zip(*(batch(step, r) for r in range(size)), strict=True))
        optimizer.zero_grad()
        functional.mse_loss(reference(x), y).backward()
        optimizer.step()
    near(net, reference)
    return [*whole(net), net.module[1].running_mean]


@case("ZeroRedundancyOptimizer")
def zero() -> Any:
    net = Ddp(mlp())
    optimizer = ZeroRedundancyOptimizer(
        net.parameters(), optimizer_class=torch.optim.Adam, parameters_as_bucket_view=True, lr=0.01
    )
    train(net, optimizer)
    near(net, alone(optimizer=adam))
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        equal(len(optimizer.state_dict()["state"]), 6)
    return whole(net)


# ---------------------------------------------------------------------- precision


@case("autocast in bfloat16, GradScaler", near=0.02)
def amp() -> Any:
    net, rank = Ddp(mlp()), dist.get_rank()
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler(place(), init_scale=1024.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(place(), torch.bfloat16):
            loss = mse(net, step, rank)
        if step == 1 and rank == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        before = whole(net)
        scaler.step(optimizer)
        scaler.update()
        if step == 1:  # an infinite gradient of one rank makes all skip the step
            same(whole(net), before)
    equal(scaler.get_scale(), 512.0)
    reference = mlp()
    optimizer = sgd(reference)
    for step in (0, 2, 3):
        optimizer.zero_grad()
        sum(mse(reference, step, r) / dist.get_world_size() for r in range(dist.get_world_size())).backward()
        optimizer.step()
    near(net, reference, 0.05)
    return whole(net)


@case("bfloat16 model", near=0.02)
def bfloat16_model() -> Any:
    def loss(net: nn.Module, step: int, rank: int) -> torch.Tensor:
        x, y = batch(step, rank)
        return functional.mse_loss(net(x.bfloat16()), y.bfloat16())

    net = Ddp(mlp().bfloat16())
    train(net, sgd(net), loss)
    near([p.float() for p in whole(net)], whole(alone()), 0.05)
    return [p.float() for p in whole(net)]


# ---------------------------------------------------------------------- compiled


@case("torch.compile(DDP(model))", limit=150.0)
def compiled_ddp() -> Any:
    net = torch.compile(Ddp(mlp()))
    train(net, sgd(net))
    near(net, alone())
    return whole(net)


@case("DDP(torch.compile(model))", limit=150.0)
def ddp_of_compiled() -> Any:
    net = Ddp(torch.compile(mlp()))
    train(net, sgd(net))
    near(net, alone())
    return whole(net)


# ---------------------------------------------------------------------- communication hooks


def hooked(
    hook: Any, state: Any = None, *, tolerance: float | None = None, bucket_cap_mb: float = 0.004
) -> Any:
    """Trains with a hook; with `tolerance`, compares parameters with those of one process without it."""
    net = Ddp(mlp(), bucket_cap_mb=bucket_cap_mb)
    net.register_comm_hook(state, hook)
    losses = train(net, sgd(net), steps=STEPS if tolerance else 5 * STEPS)
    if tolerance:
        near(net, alone(), tolerance)
    else:
        assert sum(losses[-STEPS:]) < sum(losses[:STEPS]), losses
    return whole(net)


@case("hook fp16_compress", near=1e-3)
def fp16_hook() -> Any:
    return hooked(default_hooks.fp16_compress_hook, tolerance=1e-3)


@case("hook bf16_compress", near=1e-2)
def bf16_hook() -> Any:
    return hooked(default_hooks.bf16_compress_hook, tolerance=1e-2)


@case("hook powerSGD", near=1e-3)
def power_sgd_hook() -> Any:
    state = power_sgd.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1
    )
    # One bucket: its callbacks begin collectives while the backward pass begins those of other buckets.
    found = hooked(power_sgd.powerSGD_hook, state, bucket_cap_mb=25)
    assert state.compression_stats()[0] > 1, state.compression_stats()  # it did compress
    return found


@case("hook batched powerSGD", near=1e-3)
def batched_power_sgd_hook() -> Any:
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return hooked(power_sgd.batched_powerSGD_hook, state)


@case("hook post_localSGD, PeriodicModelAverager", ranks=4)
def post_local_sgd() -> Any:
    mine, _ = dist.new_subgroups(2)
    state = local_sgd.PostLocalSGDState(None, mine, start_localSGD_iter=2)
    net = Ddp(mlp())
    net.register_comm_hook(state, local_sgd.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(optim=torch.optim.SGD(net.parameters(), lr=0.1), averager=averager)
    train(net, optimizer, steps=7)
    # Steps 0 and 1 average gradients of all; from 2 on those of a pair, and models in steps 2, 4 and 6.
    pairs = [mlp(), mlp()]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in pairs]
    for step in range(7):
        for i, (reference, theirs) in enumerate(zip(pairs, optimizers, strict=True)):
            ranks = range(4) if step < 2 else (2 * i, 2 * i + 1)
            theirs.zero_grad()
            sum(mse(reference, step, rank) / len(ranks) for rank in ranks).backward()
            theirs.step()
        if step >= 2 and step % 2 == 0:
            with torch.no_grad():
                for a, b in zip(pairs[0].parameters(), pairs[1].parameters(), strict=True):
                    a.copy_((a + b) / 2)
                    b.copy_(a)
    near(net, pairs[0])
    return whole(net)


def _switchagg_hook(bits: int | None) -> Any:
    net = Ddp(mlp())
    state = State(net, bits=bits)
    net.register_comm_hook(state, allreduce_hook)
    train(net, sgd(net))
    near(net, alone(), 1e-5 if bits is None else 1e-3)
    found = whole(net)
    state.close()
    return found


case("hook worker_lib.torch.allreduce_hook")(functools.partial(_switchagg_hook, None))
case("hook worker_lib.torch.allreduce_hook, 16 bits", near=1e-3)(functools.partial(_switchagg_hook, 16))
