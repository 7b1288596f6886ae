"""A rank of `switchagg bench fsdp`: `python -m switchagg.bench.fsdp_rank CONFIG`, CONFIG being JSON.

Trains the model under every system, in turns and in the same process, on the same batches. Rank 0 prints a
line of JSON for each system.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from switchagg.bench.ddp_rank import joined, left
from switchagg.bench.fsdp import FsdpSettings
from worker_lib.torch import Options

_LAYERS: Final = 8
# Offset of tcpi_bytes_acked in Linux's struct tcp_info; tcpi_bytes_received follows.
_ACKNOWLEDGED: Final = 120


class Layer(nn.Module):  # type: ignore[misc]
    """The feed-forward half of a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        return x + self.layers(x)


class Nothing:
    """The all-gather and the reduce-scatter of "none": a rank's own part stands for everybody's."""

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, **_: Any) -> None:
        n, rank = group.size(), group.rank()
        if output_tensor.numel() > input_tensor.numel():
            output_tensor.view(n, -1).copy_(input_tensor.clone().expand(n, -1))
        else:
            output_tensor.copy_(input_tensor.view(n, -1)[rank])


class Session(Nothing):
    """Those of "switchagg-hooks": calls of the group's session, with nothing of torch.distributed between."""

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, op: Any = None, **_: Any) -> None:
        if output_tensor.numel() > input_tensor.numel():
            group.session.allgather(input_tensor, output_tensor.view(group.size(), -1))
        else:
            how = "avg" if op == dist.ReduceOp.AVG else "sum"
            group.session.reduce_scatter(input_tensor, output_tensor, how)


_CUSTOM: Final = {"none": Nothing, "switchagg-hooks": Session}


def hybrid(replicas: int, make: Callable[..., Any]) -> tuple[DeviceMesh, DeviceMesh]:
    """The mesh of replicas and the shards of each, and of it this rank's row: the shards of its replica.

    Args:
        make: `dist.new_group` with all arguments but the ranks.
    """
    ranks = torch.arange(dist.get_world_size()).view(replicas, -1)
    groups = [[make(line.tolist()) for line in lines] for lines in (ranks.T, ranks)]
    replica, shard = divmod(dist.get_rank(), ranks.shape[1])
    own = [groups[0][shard], groups[1][replica]]
    names = ("replicate", "shard")
    mesh = DeviceMesh.from_group(own, "cpu", ranks, mesh_dim_names=names)
    return mesh, mesh["shard"]


class Trainer:
    """One system."""

    def __init__(self, system: str, settings: FsdpSettings) -> None:
        self.system, self.settings = system, settings
        backend, _, bits = system.partition("-")
        switch = backend == "switchagg"
        make = partial(
            dist.new_group,
            backend=backend if switch else "gloo",
            pg_options=Options(bits=int(bits) if bits.isdigit() else None) if switch else None,
            timeout=timedelta(seconds=settings.timeout),
        )
        torch.manual_seed(1)
        self.width = max(16, math.isqrt(settings.parameters // (8 * _LAYERS)))
        self.model = nn.Sequential(*(Layer(self.width) for _ in range(_LAYERS)))
        if settings.replicas == 1:
            mesh = shards = DeviceMesh.from_group(make(), "cpu")
        else:
            mesh, shards = hybrid(settings.replicas, make)
        self.groups: list[Any] = mesh.get_all_groups()
        mesh = shards if system in _CUSTOM else mesh
        for layer in (*self.model, self.model):
            fully_shard(layer, mesh=mesh)
        for module in self.model.modules() if system in _CUSTOM else ():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(_CUSTOM[system]())
                module.set_custom_reduce_scatter(_CUSTOM[system]())
                if system == "switchagg-hooks" and settings.replicas > 1:
                    module.set_all_reduce_hook(partial(self.groups[0].session.allreduce, op="avg"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.first = self.shard()
        self.draw = torch.Generator().manual_seed(100 + dist.get_rank())
        self.rates: list[float] = []
        self.bytes = torch.zeros(2, dtype=torch.float64)
        self.loss = torch.zeros(())

    def shard(self) -> Any:
        """A copy of this rank's parameters, in one tensor."""
        return torch.cat([p.detach().to_local().reshape(-1) for p in self.model.parameters()])

    def round(self, *, count: bool) -> None:
        """Some steps, timed from a common start."""
        s = self.settings
        batches = [torch.randn(s.batch, self.width, generator=self.draw) for _ in range(s.steps)]
        dist.barrier()
        before, started = self._traffic(), time.perf_counter()
        for x in batches:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), x.roll(1, 1))
            loss.backward()
            self.optimizer.step()
        slowest = torch.tensor(time.perf_counter() - started)
        traffic = self._traffic() - before
        self.loss = loss.detach()
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if count:
            self.rates.append(s.steps / slowest.item())
            self.bytes += traffic / (s.steps * s.repeat)

    def figures(self, gloo: Trainer | None) -> dict[str, Any]:
        """The figures of all rounds; all ranks call it."""
        sums = torch.tensor([*self.bytes, self.loss], dtype=torch.float64) / dist.get_world_size()
        dist.all_reduce(sums)
        apart = None
        if gloo is not None and self.system != "none":
            theirs = gloo.shard()
            farthest = [(self.shard() - theirs).abs().max(), (theirs - self.first).abs().max()]
            largest = torch.stack(farthest).nan_to_num(nan=math.inf)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            apart = (largest[0] / largest[1]).item()
        return {
            "workers": dist.get_world_size(), "system": self.system, "steps_per_second": self.rates,
            "bytes_sent": sums[0].item(), "bytes_received": sums[1].item(), "loss": sums[2].item(),
            "apart": apart,
        }  # fmt: skip

    def _traffic(self) -> Any:
        """Bytes that this process sent and received so far, of TCP and through its groups' sessions."""
        sent, received = tcp_bytes()
        if self.system.startswith("switchagg"):
            for group in self.groups:
                stats = group.session.stats()
                sent, received = sent + stats["bytes_sent"], received + stats["bytes_received"]
        return torch.tensor([sent, received], dtype=torch.float64)


def tcp_bytes() -> tuple[int, int]:
    """Bytes that the open TCP connections of this process have sent (as acknowledged) and received."""
    sent = received = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, or not TCP
            if not os.readlink(file).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(file.name))) as each:
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(info) >= _ACKNOWLEDGED + 16:
                out, back = struct.unpack_from("=QQ", info, _ACKNOWLEDGED)
                sent, received = sent + out, received + back
    return sent, received


def main(text: str) -> None:
    """Runs a rank to its end."""
    settings = joined(text, FsdpSettings)
    trainers = [Trainer(system, settings) for system in settings.systems]
    for round_ in range(settings.warmup + settings.repeat):
        for trainer in trainers:
            trainer.round(count=round_ >= settings.warmup)
    gloo = next((trainer for trainer in trainers if trainer.system == "gloo"), None)
    for trainer in trainers:
        figures = trainer.figures(gloo)
        if dist.get_rank() == 0:
            print(json.dumps(figures), flush=True)
    left()


if __name__ == "__main__":
    main(sys.argv[1])
