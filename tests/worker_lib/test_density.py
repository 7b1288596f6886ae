"""The engine's samples of a tensor's density.

One group of 1,024 elements in 131,072 is looked at before it is sent (this rank's own blocks) and again once
the sum is there; in each, blocks of 16, 32, ... 1,024 elements that are not zero are counted. All ranks look
at the same groups: a hash of the collective's number and the segment's draws them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.rules.planner import SkipPolicy
from tests.seeds import seed_of_this_run
from worker_lib import Session

from .harness import together

GROUP = 1024  # elements
STRIDE = 1 << 17  # elements for each group
SIZES = tuple(16 << i for i in range(7))  # elements a block


def native_counts(session: Session) -> tuple[int, list[int], list[int]]:
    assert session._state.engine is not None
    raw = session._state.engine.stats()
    own, total = ([raw[f"density_{which}_{size}"] for size in SIZES] for which in ("own", "sum"))
    return raw["density_groups"], own, total


def pattern(count: int, turn: int, rank: int) -> Any:
    """Integers with zeros of several sizes, the same on every machine."""
    i = np.arange(count, dtype=np.uint32) + np.uint32(1000003 * turn)
    blocks = mixed((i // 48 * 2 + rank) * np.uint32(0x9E3779B1))
    single = mixed((i * 7 + rank) * np.uint32(0x9E3779B1))
    return np.where((blocks % 100 < (3, 40, 70)[turn % 3]) & (single % 4 == 0), 1 + single % 3, 0)


def mixed(h: Any) -> Any:
    h = (h ^ h >> 15) * np.uint32(0x85EBCA6B)
    return h ^ h >> 13


# By rank: groups, its own blocks and the sum's blocks of 16, 32, ... 1,024 elements that are not zero. No two
# collectives here have as many elements, so zero blocks skipped or not, they are cut in the same segments.
# By UDP: where slots are shared segments are smaller, and other groups are drawn.
GOLDEN = (
    (11, [185, 108, 70, 41, 26, 15, 9], [273, 149, 86, 48, 28, 16, 10]),
    (11, [168, 97, 62, 39, 22, 12, 7], [273, 149, 86, 48, 28, 16, 10]),
)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int32, np.int64])
def test_counts_of_known_tensors(host: EmbeddedController, kind: Any, dense: bool) -> None:
    sizes = [700_000, 600_000, 500, 90_000, 0, 131_072, 40_000]

    def call(session: Session) -> None:
        session._set_policy(SkipPolicy(64, dense).word())
        session.barrier()
        for turn, count in enumerate(sizes):
            x = pattern(count, turn, session.rank).astype(kind)
            if np.dtype(kind).kind == "f":
                x = np.negative(x)  # so that zeros are -0
            session.allreduce(x, out=None if turn % 2 else np.empty_like(x))
        assert native_counts(session) == GOLDEN[session.rank]
        assert native_counts(session)[0] == sum(sizes) // STRIDE

    together(host.url, 2, call, transport="udp")


def test_calls_with_settings_of_their_own_are_not_sampled(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.ones(2 * STRIDE, np.float32)
        session.allreduce(x, blocks="dense")
        session.allreduce(x, blocks="sparse")
        session.broadcast(x)
        assert native_counts(session)[0] == 0
        session.allreduce(x)
        groups, own, total = native_counts(session)
        assert groups == 2
        assert own == total == [2 * GROUP // size for size in SIZES]

    together(host.url, 2, call)


def test_ranks_that_get_a_part_of_the_sums_look_there(host: EmbeddedController) -> None:
    def call(session: Session) -> None:
        x = np.zeros((2, 2 * STRIDE), np.float32)
        x[1] = session.rank  # rank 1 has something in its own part only, and all of the sum
        session.reduce_scatter(x)
        groups, own, total = native_counts(session)
        assert groups == 2
        expected = [2 * GROUP // size * session.rank for size in SIZES]
        assert (own, total) == (expected, expected)

    together(host.url, 2, call)


def test_a_sample_finds_the_density(host: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> list[float]:
        rng = np.random.default_rng((seed, session.rank))
        x = np.zeros((1 << 15, 64), np.float32)
        x[rng.random(1 << 15) < 0.2] = 1
        out = np.empty_like(x)
        for _ in range(40):
            session.allreduce(x, out=out)
        groups, own, total = native_counts(session)
        blocks = groups * GROUP / 64
        assert blocks == 40 * 16 * 16
        return [own[2] / blocks, total[2] / blocks, total[0] / (4 * blocks)]

    for own, total, finest in together(host.url, 3, call):
        assert own == pytest.approx(0.2, abs=0.04)
        assert total == pytest.approx(1 - 0.8**3, abs=0.05)
        assert finest == pytest.approx(total)
