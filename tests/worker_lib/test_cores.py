"""Ranks that share cores and poll: none waits on a core where another has at least two fewer."""

from __future__ import annotations

import os

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from tests.cores import needs_two_cores
from worker_lib import Session

from .harness import processes


def placed(session: Session, cores: tuple[int, ...], beside: int, free: bool) -> tuple[int, bool]:
    """Ranks begin on the first core or on the second. Returns moves, and whether the mask is as it was.

    Args:
        beside: so many begin on the first core.
        free: the ranks may use all cores, else only that on which they begin.
    """
    own = {cores[0] if session.rank < beside else cores[1]}
    mask = set(cores) if free else own
    x = np.ones(1000, np.float32)
    for _ in range(40 if free else 4):
        os.sched_setaffinity(0, own)
        session.allreduce(x, out=np.empty_like(x))
        os.sched_setaffinity(0, mask)
        for _ in range(100):
            session.allreduce(x, out=np.empty_like(x))
        moves = np.array([session.stats()["core_moves"]])
        if session.allreduce(moves)[0]:
            break
    return int(moves[0]), os.sched_getaffinity(0) == mask


@needs_two_cores
@pytest.mark.parametrize(("n", "beside"), [(4, 3), (2, 2)])
@pytest.mark.parametrize("free", [True, False])
def test_a_rank_moves_to_a_core_with_fewer_if_it_may(
    host: EmbeddedController, free: bool, n: int, beside: int
) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:2]
    with processes(host.url, n, placed, cores, beside, free, transport="slots") as ranks:
        found = [rank.finish().value for rank in ranks]
    assert all(same for _, same in found)
    assert {moves > 0 for moves, _ in found} == {free}
