"""Ranks agree on a prefix of a store that has the keys of former lives."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.worker_lib.harness import LIMIT, ROOT, in_threads
from worker_lib import SwitchError
from worker_lib.torch.rendezvous import store_prefix

SECONDS = timedelta(seconds=60)


def meet(store: Any, size: int, order: list[int]) -> None:
    """Ranks arrive in this order; each must find the others, and nothing that was there before."""

    def rank(r: int) -> None:
        mine = store_prefix(store, r, size, SECONDS)
        key = f"said by {r}"
        assert not mine.check([key])
        mine.set(key, "x")
        mine.wait([f"said by {other}" for other in range(size)])  # all have the same

    for outcome in in_threads([lambda r=r: rank(r) for r in order]):
        outcome.get()


def test_every_life_has_its_own_part() -> None:
    store = dist.HashStore()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        meet(store, 3, order)


def test_a_life_that_ended_while_its_ranks_met() -> None:
    store = dist.HashStore()
    with pytest.raises(SwitchError, match=r"ranks \[1, 2\] of 3"):
        store_prefix(store, 0, 3, timedelta(seconds=0.1))
    with pytest.raises(SwitchError, match="not all ranks"):
        store_prefix(store, 1, 3, timedelta(seconds=0.1))
    meet(store, 3, [1, 2, 0])


def test_nobody_leads() -> None:
    with pytest.raises(SwitchError, match="rank 0 did not come"):
        store_prefix(dist.HashStore(), 1, 2, timedelta(seconds=0.1))


def test_one_rank_waits_for_nobody() -> None:
    store_prefix(dist.HashStore(), 0, 1, SECONDS).set("key", "value")


FAILS = """
import sys, torch, torch.distributed as dist, worker_lib.torch
rank = int(sys.argv[1])
dist.init_process_group("switchagg", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
dist.all_reduce(torch.ones(3))
if rank == 0:
    raise ValueError("bad batch")
dist.all_reduce(torch.ones(3))
"""


def test_an_exception_that_ends_the_rank_with_the_switch_is_told_to_the_others(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SWITCHAGG_CONTROLLER"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FAILS, str(r), str(tmp_path / "store")],
            cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=LIMIT)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert "ValueError: bad batch" in said[0]
    assert "worker_lib.WorkerLostError: rank 0 has failed: it ended with ValueError: bad batch" in said[1]
