"""Ranks agree on a prefix of a store that has the keys of former lives."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from tests.worker_lib.harness import in_threads
from worker_lib import SwitchError
from worker_lib.torch.rendezvous import store_prefix

SECONDS = timedelta(seconds=10)


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
