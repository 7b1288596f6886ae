"""Measures how copies between a GPU and the host overlap with the exchange, in all-reduces of CUDA tensors.

    python -m scripts.gpu_copies [--workers 2] [--tensors 8] [--size 16M] [--rounds 9]

All ranks share one GPU. "alone" is one tensor after another: copy to the host, exchange, copy back.
"together" is what the process group does with all of them begun at once. "exchange" is the same with CPU
tensors, begun at once; "copies" is the two copies of all tensors by themselves. Bits are those of a lane: at
32 the tensor is copied as it is, at 16 and 8 lanes are made on the GPU. Medians, of the slowest rank.
"""

from __future__ import annotations

import os
import statistics
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from switchagg.bench.grid import parse_size
from worker_lib.embedded import start_embedded
from worker_lib.torch import Options
from worker_lib.torch.device import DeviceCopier


def _seconds(run: Callable[[], None]) -> float:
    """Seconds that it takes the slowest rank."""
    torch.cuda.synchronize()
    dist.barrier()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    slowest = torch.tensor([time.perf_counter() - started])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _rank(rank: int, args: Namespace, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=args.workers,
        timeout=timedelta(seconds=60),
    )
    groups: dict[str, Any] = {"gloo": dist.group.WORLD}
    for bits in (32, 16, 8):
        groups[f"{bits} bits"] = dist.new_group(backend="switchagg", pg_options=Options(bits=bits))
    count = parse_size(args.size) // 4
    tensors = [torch.randn(count, device="cuda") for _ in range(args.tensors)]
    hosts = [tensor.cpu() for tensor in tensors]
    copier = DeviceCopier(torch.device("cuda"))

    def together(xs: list[torch.Tensor], group: Any) -> None:
        for work in [dist.all_reduce(x, group=group, async_op=True) for x in xs]:
            work.wait()

    def alone(group: Any) -> None:
        for x in tensors:
            dist.all_reduce(x, group=group)

    def copies() -> None:
        staged = [copier.to_host(x) for x in tensors]
        for (host, wait), x in zip(staged, tensors, strict=True):
            wait()
            copier.to_device(host, x)

    cases: dict[str, Callable[[], None]] = {"copies": copies}
    for name, group in groups.items():
        cases[f"{name}, alone"] = lambda group=group: alone(group)
        cases[f"{name}, together"] = lambda group=group: together(tensors, group)
        cases[f"{name}, exchange"] = lambda group=group: together(hosts, group)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for round_ in range(args.rounds + 1):
        for name, run in cases.items():
            for x in (*tensors, *hosts):
                x.fill_(rank + 1.0)
            seconds = _seconds(run)
            if round_:  # the first makes pinned memory
                found[name].append(seconds)
            if name == "copies":
                continue
            touched = hosts if name.endswith("exchange") else tensors
            expected = torch.full((args.tensors,), args.workers * (args.workers + 1) / 2)
            if not torch.allclose(torch.stack([x.mean().cpu() for x in touched]), expected, rtol=0.05):
                raise SystemExit(f"{name}: a sum is wrong")
    if rank == 0:
        print(f"{args.workers} ranks, {args.tensors} tensors of {args.size}, {torch.cuda.get_device_name()}")
        for name, values in found.items():
            print(f"{name:20} {1000 * statistics.median(values):9.1f} ms", flush=True)
    dist.barrier()
    for name, group in groups.items():
        if name != "gloo":
            dist.destroy_process_group(group)
    dist.barrier()
    os._exit(0)


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tensors", type=int, default=8)
    parser.add_argument("--size", default="16M")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this PyTorch finds no GPU")
    with TemporaryDirectory() as folder, start_embedded(quiet=True) as host:
        os.environ["SWITCHAGG_CONTROLLER"] = host.controller
        mp.start_processes(_rank, (args, f"{folder}/store"), nprocs=args.workers, start_method="spawn")


if __name__ == "__main__":
    main()
