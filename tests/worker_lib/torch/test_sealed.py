"""Sealed process groups: the backend, and DDP's hook on gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from switchagg.errors import UsageError
from tests.worker_lib.torch.models import MODELS, train
from tests.worker_lib.torch.worlds import attempt, run
from worker_lib.torch.hooks import State, allreduce_hook

STEPS = 3


def _results() -> list[Any]:
    """Sums and moves, and the losses of a training; the same numbers whether sealed or not."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(rank))
    parts = torch.empty(7)
    rows = [torch.empty(5) for _ in range(world)]
    summed, mean, sent = x.clone(), x[:100].clone(), x[:9].clone()
    dist.all_reduce(summed)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    dist.broadcast(sent, src=1)
    dist.all_gather(rows, x[:5].clone())
    dist.reduce_scatter_tensor(parts, x[: 7 * world].clone())
    torch.manual_seed(3)
    model = DistributedDataParallel(MODELS["classifier"](), bucket_cap_mb=0.01)
    losses = train("classifier", model, STEPS)
    return [each.tolist() for each in (summed, mean, sent, *rows, parts)] + [losses]


def test_the_backend_gives_the_same_bits(tmp_path: Path) -> None:
    plain = run(3, _results)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    environment = {"SWITCHAGG_SEAL": str(secret)}
    assert run(3, _results, options={"seal": True}, environment=environment) == plain


def test_without_a_secret_a_sealed_group_is_refused() -> None:
    outcomes = attempt(2, _results, options={"seal": True}, environment={"SWITCHAGG_SEAL": ""})
    assert all("SWITCHAGG_SEAL is not set" in str(each.error) for each in outcomes)


def _shared() -> str:
    with pytest.raises(UsageError) as caught:
        State(None, seal=True)
    dist.barrier()
    return str(caught.value)


def test_a_hook_does_not_seal_a_group_that_is_not_sealed() -> None:
    assert all("those of init_process_group" in told for told in run(2, _shared))


def _hooked(seal: bool) -> list[float]:
    torch.manual_seed(3)
    model = DistributedDataParallel(MODELS["classifier"](), bucket_cap_mb=0.01)
    with State(model, seal=seal) as state:
        model.register_comm_hook(state, allreduce_hook)
        losses = train("classifier", model, STEPS)
        assert state.session._state.sealed == seal
    return [float(each) for each in losses]


def test_gradients_through_the_hook(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    environment = {"SWITCHAGG_SEAL": str(secret)}
    plain = run(2, _hooked, False, backend="gloo", environment=environment)
    assert run(2, _hooked, True, backend="gloo", environment=environment) == plain
