"""Ranks that are replicas under torchft's Manager, which finds out by itself who they are."""

from __future__ import annotations

import logging
import os
import random
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Self

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.coordination import LighthouseServer

from tests.torch_kills.training import PATIENCE, Rank, Wrong, digest, final_loss, loss_of, network, reports

_SECONDS = timedelta(seconds=20)
_REST = 0.005  # seconds, or a replica that is alone keeps a core busy with the lighthouse
_LOOKS = 100  # steps in which one has to be that all have done
_HEARTBEAT = 1000  # milliseconds of silence after which the lighthouse takes a replica for dead


def replica(pipe: Connection, steps: Any, lighthouse: str, name: str, backend: str) -> None:
    """Trains until it is killed; reports each step's digest and losses, from a step that it is told."""
    logging.disable(logging.WARNING)  # torchft tells every change
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group(
        backend, store=store, rank=0, world_size=1, timeout=_SECONDS, enable_reconfigure=True
    )
    net = network()
    manager = Manager(
        pg=dist.group.WORLD, min_replica_size=1, load_state_dict=net.load_state_dict,
        state_dict=net.state_dict,
        replica_id=name, store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
        lighthouse_addr=lighthouse, timeout=_SECONDS, hostname="127.0.0.1",
    )  # fmt: skip
    wrapped = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, torch.optim.SGD(net.parameters(), lr=0.05))
    first, told, step = final_loss(net), None, 0
    while True:
        optimizer.zero_grad()
        loss_of(wrapped, manager.current_step(), manager.participating_rank() or 0).backward()
        ones = torch.ones(1)
        manager.allreduce(ones).wait()  # their average
        # At step 0 torchft zeroes what all but one replica give, and divides by all.
        if ones != 1 and manager.current_step() > 0 and not manager.errored():
            who = f"{name}, step {manager.current_step()}, participating as {manager.participating_rank()}"
            raise Wrong(f"{who}: the average of {manager.num_participants()} ones is {ones}")
        optimizer.step()
        steps.value = manager.current_step()
        if told is not None and told <= steps.value != step:
            step = steps.value
            pipe.send((step, digest(net), first, final_loss(net)))
        time.sleep(_REST)
        if told is None and pipe.poll():
            told = pipe.recv()


class Replicas:
    """Some ranks, one of which is killed and replaced by `kill_one`. A context manager."""

    def __init__(self, ranks: int, backend: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._backend = backend
        os.environ["TORCHFT_LIGHTHOUSE"] = ""
        self._lighthouse = LighthouseServer(
            "127.0.0.1:0", 1, join_timeout_ms=200, heartbeat_timeout_ms=_HEARTBEAT
        )
        self._address = "http://127.0.0.1:" + self._lighthouse.address().rsplit(":", 1)[1]
        self._started = 0
        self._ranks: list[Rank] = []
        for _ in range(ranks):
            self._start()
        self._train_together()

    def kill_one(self) -> str:
        """Kills a rank in the middle of training; the others go on, and a new one catches up."""
        self._train_together()
        victim = self._random.choice(self._ranks)
        step = victim.steps.value
        victim.kill()
        self._ranks.remove(victim)
        start = time.monotonic()
        self._wait(lambda: min(rank.steps.value for rank in self._ranks) > step + 2)
        seconds = time.monotonic() - start
        self._start()
        self._train_together()
        return f"{victim.name} killed at step {step}; {seconds:.1f} s until the others had done 3 more"

    def finish(self) -> str:
        """Trains on, and compares all ranks' weights after a step that all have done.

        None may stop at a step that it was told: one that is behind, alone, finds no quorum any more.
        """
        told = max(rank.steps.value for rank in self._ranks) + 20
        for rank in self._ranks:
            rank.pipe.send(told)
        seen: dict[int, list[Any]] = {}
        while not (found := [each for each in seen.values() if len(each) == len(self._ranks)]):
            if len(seen) > _LOOKS:
                raise Wrong(f"no step of {sorted(seen)} has been done by all")
            for step, *report in reports(self._ranks).values():
                seen.setdefault(step, []).append(report)
        if len({bits for bits, *_ in found[0]}) > 1:
            raise Wrong(f"ranks differ: {seen}")
        first, now = max(each[1] for each in found[0]), found[0][0][2]
        if not now < first / 2:
            raise Wrong(f"the loss was {first:.3f} and is {now:.3f}")
        return f"{told} steps; loss {first:.3f} -> {now:.3f}; equal weights on all ranks"

    def _start(self) -> None:
        name = f"replica{self._started}"
        self._started += 1
        self._ranks.append(Rank(name, replica, self._address, name, self._backend))

    def _train_together(self) -> None:
        """Waits until all ranks take part, at the same step or one beside it."""
        self._wait(lambda: min(rank.steps.value for rank in self._ranks) > 0)
        self._wait(lambda: max(all_now := [r.steps.value for r in self._ranks]) - min(all_now) <= 1)
        step = max(rank.steps.value for rank in self._ranks) + self._random.randint(1, 20)
        self._wait(lambda: min(rank.steps.value for rank in self._ranks) >= step)

    def _wait(self, done: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            for rank in self._ranks:
                if rank.pipe.poll():
                    reports([rank])  # raises what it has found, or that it has ended
                    raise Wrong(f"{rank.name} has ended before it was told to")
            if time.monotonic() > deadline:
                raise Wrong(f"no progress in {PATIENCE:g} s: steps {[r.steps.value for r in self._ranks]}")
            time.sleep(0.005)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            rank.kill()
        self._lighthouse.shutdown()
