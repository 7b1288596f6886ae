"""Ray programs for two nodes: python -m tests.worker_lib.ray.program ADDRESS SEED groups|train."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.util import collective

RANKS = 4
SHAPE = (3, 20_000)


def data(seed: int, rank: int) -> Any:
    return np.random.default_rng((seed, rank)).standard_normal(SHAPE).astype(np.float32)


@ray.remote(num_cpus=1)
class Worker:
    """One rank of a collective group."""

    def begin(self, rank: int, group: str) -> str:
        import worker_lib.ray  # noqa: F401

        self.rank, self.group = rank, group
        collective.init_collective_group(RANKS, rank, backend="switchagg", group_name=group)
        return str(ray.get_runtime_context().get_node_id())

    def reductions(self, seed: int) -> dict[str, str]:
        from ray.util.collective import types

        mine = data(seed, self.rank)
        session = collective.get_group_handle(self.group).session
        wanted = session.allreduce(mine.copy())
        for op in (types.ReduceOp.SUM, types.ReduceOp.MAX, types.ReduceOp.MIN):
            x = mine.copy()
            collective.allreduce(x, self.group, op)
            same = session.allreduce(mine.copy(), op={"SUM": "sum", "MAX": "max", "MIN": "min"}[op.name])
            assert x.tobytes() == same.tobytes(), op
        part, own = np.empty(SHAPE[1], np.float32), np.repeat(mine[:1], RANKS, axis=0)
        collective.reducescatter(part, list(own), self.group)
        assert part.tobytes() == session.reduce_scatter(own.copy())[0].tobytes()
        at_root = mine.copy()
        collective.reduce(at_root, 2, self.group)
        assert at_root.tobytes() == (wanted if self.rank == 2 else mine).tobytes()
        parts = [np.empty(SHAPE, np.float32) for _ in range(RANKS)]
        collective.allgather(parts, mine, self.group)
        assert all((each == data(seed, rank)).all() for rank, each in enumerate(parts))
        root = mine.copy()
        collective.broadcast(root, 1, self.group)
        assert (root == data(seed, 1)).all()
        collective.barrier(self.group)
        try:
            collective.allreduce(mine, self.group, types.ReduceOp.PRODUCT)
        except ValueError as error:
            refused = str(error)
        return {"sum": wanted.tobytes().hex()[:64], "refused": refused, "transport": session.transport}

    def end(self) -> None:
        collective.destroy_collective_group(self.group)


def groups(seed: int) -> Any:
    workers = [Worker.options(scheduling_strategy="SPREAD").remote() for _ in range(RANKS)]  # type: ignore[attr-defined]
    for _ in range(2):  # a name may come again
        nodes = ray.get([worker.begin.remote(rank, "sums") for rank, worker in enumerate(workers)])
        results = ray.get([worker.reductions.remote(seed) for worker in workers])
        ray.get([worker.end.remote() for worker in workers])
    return {"nodes": len(set(nodes)), "results": results}


def train(config: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist
    from ray import train as ray_train
    from ray.train.torch import prepare_model

    rank = dist.get_rank()
    x = torch.from_numpy(data(config["seed"], rank))
    group = dist.group.WORLD
    wanted = group.session.allreduce(x.clone()) if hasattr(group, "session") else None
    dist.all_reduce(x)
    torch.manual_seed(config["seed"])
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(rank + 1))).square().mean().backward()
        optimizer.step()
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    every = [torch.empty_like(weights) for _ in range(RANKS)]
    dist.all_gather(every, weights)
    report = {
        "backend": dist.get_backend(),
        "sum": x.numpy().tobytes().hex()[:64],
        "alike": all(torch.equal(each, weights) for each in every),
        "same": wanted is None or torch.equal(wanted, x),
        "nodes": ray_train.get_context().get_node_rank(),
    }
    sums: list[Any] = [None] * RANKS
    dist.all_gather_object(sums, report)
    if rank == 0:
        Path(config["answer"]).write_text(json.dumps(sums))


def trainer(seed: int) -> Any:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    from worker_lib.torch.ray import TorchConfig

    with tempfile.TemporaryDirectory() as folder:  # both nodes see it
        answer = Path(folder) / "answer.json"
        TorchTrainer(
            train,
            train_loop_config={"seed": seed, "answer": str(answer)},
            torch_config=TorchConfig(backend="switchagg"),
            scaling_config=ScalingConfig(num_workers=RANKS, placement_strategy="SPREAD"),
            run_config=RunConfig(storage_path=folder),
        ).fit()
        return json.loads(answer.read_text())


if __name__ == "__main__":
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    address, number, what = sys.argv[1:]
    ray.init(address=address, log_to_driver=True)
    answer = groups(int(number)) if what == "groups" else trainer(int(number))
    print("ANSWER " + json.dumps(answer), flush=True)
    ray.shutdown()
