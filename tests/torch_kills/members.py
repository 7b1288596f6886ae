"""Ranks that change members with PyTorch's `reconfigure`; the parent decides who they are."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Self

import torch
import torch.distributed as dist

from switchagg.errors import SwitchAggError
from tests.torch_kills.training import Rank, Wrong, digest, final_loss, loss_of, network, reports, train_until

_SECONDS = timedelta(seconds=20)
_CHANGE_SECONDS = (8.0, 16.0, 32.0)  # for a change, for one that is tried again, and once more
_TRIES = 6  # changes in a row, after which the run stops
_FAILED = (RuntimeError, SwitchAggError)


@dataclass(frozen=True)
class Report:
    """A member waits for a `Change`, since `why`."""

    why: str
    handle: str
    step: int
    digest: str
    loss: float


@dataclass(frozen=True)
class Change:
    """The new members, the rank whose weights all take, and the seconds in which all have to come."""

    uuid: int
    handles: list[str]
    source: int
    seconds: float

    def make(self) -> None:
        """Makes these the members, on one of them."""
        dist._reconfigure(self.uuid, self.handles, timeout=timedelta(seconds=self.seconds)).wait()


def member(pipe: Connection, steps: Any, port: int, name: str, backend: str) -> None:
    """Trains until it is killed; a message that is no `Change` asks all members to report."""
    store = dist.PrefixStore(name, dist.TCPStore("127.0.0.1", port, is_master=False))
    dist.init_process_group(
        backend, store=store, rank=0, world_size=1, timeout=_SECONDS, enable_reconfigure=True
    )
    net, step, why = network(), torch.zeros(1, dtype=torch.int64), "new"
    while True:
        pipe.send(Report(why, dist._get_reconfigure_handle(), int(step), digest(net), final_loss(net)))
        while not isinstance(change := pipe.recv(), Change):
            pass  # was asked to report, and has
        try:
            change.make()
            with torch.no_grad():
                for tensor in [step, *net.parameters()]:
                    dist.broadcast(tensor, group_src=change.source)
            why = "asked"
            while _train_one(net, step, asked=pipe.poll()):
                steps.value = int(step)
            steps.value = int(step)
        except _FAILED as error:
            why = f"{type(error).__name__}: {error}"
        if pipe.poll():
            pipe.recv()


def _train_one(net: Any, step: torch.Tensor, *, asked: bool) -> bool:
    """One step; returns False if a member has been asked to report."""
    net.zero_grad()
    loss_of(net, int(step), dist.get_rank()).backward()
    gradients = [parameter.grad.reshape(-1) for parameter in net.parameters()]
    whole = torch.cat([*gradients, torch.tensor([1.0, float(asked)])])
    dist.all_reduce(whole)
    if whole[-2] != dist.get_world_size():
        raise Wrong(f"the sum of {dist.get_world_size()} ones is {whole[-2]}")
    with torch.no_grad():
        parts = torch.split(whole[:-2] / dist.get_world_size(), [g.numel() for g in gradients])
        for parameter, gradient in zip(net.parameters(), parts, strict=True):
            parameter.sub_(0.05 * gradient.view_as(parameter))
    step += 1
    return not whole[-1]


class Members:
    """Some ranks, one of which is killed and replaced by `kill_one`. A context manager.

    Where an error ends a change, or training without a kill, members get another change, as in a program.
    """

    def __init__(self, ranks: int, backend: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._backend = backend
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._started = self._changes = self._repeated = 0
        self._ranks: list[Rank] = []
        self._step = 0
        for _ in range(ranks):
            self._start()
        self._first_loss = next(iter(self._change().values())).loss

    def kill_one(self) -> str:
        """Kills a rank, in the middle of training or of a change; the others go on, and a new one comes."""
        self._train()
        victim = self._random.choice(self._ranks)
        place = self._ranks.index(victim)
        within_change = self._random.random() < 0.25
        if within_change:
            self._ask()
            self._change()
            time.sleep(self._random.uniform(0, 0.1))
        victim.kill()
        self._ranks.remove(victim)
        start = time.monotonic()
        said = self._change(killed=True)
        seconds = time.monotonic() - start
        self._train()
        self._start()
        self._ask()
        self._change()
        why = sorted({report.why.split(":")[0] for report in said.values()})
        when = "a change" if within_change else "training"
        return (
            f"rank {place} killed in {when}; {seconds:.1f} s until the others had heard of it "
            f"({', '.join(why)}); step {self._step}"
        )

    def finish(self) -> str:
        """Trains on, and compares all ranks' weights once more."""
        found: dict[str, Report] = {}
        while {report.why for report in found.values()} != {"asked"}:
            self._train()
            self._ask()
            found = self._change()
        loss = next(iter(found.values())).loss
        if len({report.step for report in found.values()}) > 1 or not loss < self._first_loss / 2:
            raise Wrong(f"the training has not gone on everywhere: {found}")
        return (
            f"{self._step} steps; loss {self._first_loss:.3f} -> {loss:.3f}; equal weights on all ranks; "
            f"{self._changes} changes, {self._repeated} of them after an error without a kill"
        )

    def _start(self) -> None:
        name = f"member {self._started}"
        self._started += 1
        self._ranks.append(Rank(name, member, self._store.port, name, self._backend))

    def _ask(self) -> None:
        self._ranks[0].pipe.send("report")

    def _train(self) -> None:
        step = self._step + self._random.randint(1, 20)
        for tries in range(_TRIES):
            if train_until(self._ranks, step):
                return
            self._change(_CHANGE_SECONDS[min(tries + 1, len(_CHANGE_SECONDS) - 1)])
        raise Wrong(f"{_TRIES} changes in a row have not led to step {step}, but {self._step}")

    def _change(self, seconds: float = _CHANGE_SECONDS[0], *, killed: bool = False) -> dict[str, Report]:
        """Waits for everybody's report, and makes all that live members of one group."""
        found = reports(self._ranks)
        self._check(found)
        errors = {report.why for report in found.values()} - {"new", "asked"}
        if errors and not killed:
            self._repeated += 1
            print(f"without a kill, load average {os.getloadavg()[0]:.0f}: {errors}", flush=True)
        ranks = (
            self._ranks if self._random.random() < 0.5 else self._random.sample(self._ranks, len(self._ranks))
        )
        self._ranks = list(ranks)
        newest = max(ranks, key=lambda rank: found[rank.name].step)
        self._changes += 1
        handles = [found[rank.name].handle for rank in ranks]
        for rank in ranks:
            rank.pipe.send(Change(self._changes, handles, ranks.index(newest), seconds))
        return found

    def _check(self, found: dict[str, Report]) -> None:
        """Members that have done the same number of steps have the same weights, and nobody has gone back."""
        steps = {report.step for report in found.values()}
        for step in steps:
            if len({report.digest for report in found.values() if report.step == step}) > 1:
                raise Wrong(f"weights differ after step {step}: {found}")
        if max(steps) < self._step:
            raise Wrong(f"all are at step {max(steps)} or before; it was {self._step}")
        self._step = max(steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            rank.kill()
