"""What the engine samples of a tensor's density, against its twin, count for count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.rules.planner import SkipPolicy, segment_elements
from tests.seeds import seed_of_this_run
from worker_lib import Session
from worker_lib.density import GROUP, SIZES, STRIDE, DensityProbe

from .harness import together


def native_counts(session: Session) -> tuple[int, list[int], list[int]]:
    assert session._engine is not None
    raw = session._engine.stats()
    own, total = ([raw[f"density_{which}_{size}"] for size in SIZES] for which in ("own", "sum"))
    return raw["density_groups"], own, total


def drawn(rng: np.random.Generator, count: int, kind: Any) -> Any:
    keep = np.repeat(rng.random(-(-count // 48)) < rng.random(), 48)[:count]
    x = np.where(keep & (rng.random(count) < 0.3), rng.integers(1, 5, count), 0).astype(kind)
    return np.negative(x) if np.dtype(kind).kind == "f" else x  # so that zeros are -0


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int32, np.int64])
def test_native_counts_are_those_of_the_twin(host: EmbeddedController, kind: Any, dense: bool) -> None:
    seed = seed_of_this_run()
    sizes = [700_000, 50_000, 500, 90_000, 0, 131_072, 40_000]

    def call(session: Session) -> None:
        session._set_policy(SkipPolicy(64, dense).word())
        session.barrier()
        probe = DensityProbe()
        sparse_before = False
        for turn, count in enumerate(sizes):
            inputs = [drawn(np.random.default_rng((seed, turn, r)), count, kind) for r in range(2)]
            total = inputs[0] + inputs[1]
            each = segment_elements(64, sparse=sparse_before)
            for segment, at in enumerate(range(0, count, each)):
                part = slice(at, min(at + each, count))
                places = probe.places(1 + turn, segment, part.stop - at)
                probe.look(inputs[session.rank][part], places)
                probe.look_again(total[part], places)
            if count:
                blocks = np.add.reduceat(total != 0, np.arange(0, count, 64)) > 0
                sparse_before = not dense and int(blocks.sum()) * 8 < blocks.size
            x = inputs[session.rank].copy()
            session.allreduce(x, out=None if turn % 2 else np.empty_like(x))
        assert native_counts(session) == (probe.groups, probe.own, probe.sum)
        assert probe.groups == sum(sizes) // STRIDE

    together(host.url, 2, call)


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
