"""Outer steps against the formulas in NumPy, through a bad network; when ranks have the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from switchagg.control.embedded import EmbeddedController
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session, UsageError
from worker_lib.compress import Dithering, ErrorFeedback, TopBlocks, chain
from worker_lib.outer import OuterSteps

Array = npt.NDArray[np.float32]
SIZES = (300, 500, 40, 7)
RANKS = 3


def start(rank: int) -> list[Array]:
    rng = np.random.default_rng(rank)
    return [rng.standard_normal(size).astype(np.float32) for size in SIZES]


def local(x: list[Array], seed: int, rank: int, step: int) -> None:
    """A step towards this rank's own point, in place."""
    rng = np.random.default_rng((seed, rank))
    for each in x:
        goal = rng.standard_normal(each.size).astype(np.float32)
        each[:] -= np.float32(0.1) * (each - goal) * np.float32(1 + step % 3)


def expected(seed: int, steps: int, every: int, rate: float, momentum: float, nesterov: bool) -> Array:
    """All ranks in one process, without a network."""
    anchor = np.concatenate(start(0)).astype(np.float64)
    velocity = np.zeros_like(anchor)
    for first in range(0, steps, every):
        moved = []
        for rank in range(RANKS):
            parts = np.split(anchor.astype(np.float32), np.cumsum(SIZES)[:-1])
            for step in range(first, first + every):
                local(parts, seed, rank, step)
            moved.append(anchor - np.concatenate(parts))
        mean = np.mean(moved, axis=0)
        velocity = momentum * velocity + mean
        anchor = anchor - rate * (mean + momentum * velocity if nesterov else velocity)
    return anchor.astype(np.float32)


@pytest.mark.parametrize(
    ("rate", "momentum", "nesterov"), [(1.0, 0.0, False), (0.7, 0.9, True), (0.5, 0.5, False)]
)
def test_it_is_the_formulas(lossy: EmbeddedController, rate: float, momentum: float, nesterov: bool) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[list[Array], bytes]:
        x = start(session.rank)
        outer = OuterSteps(session, x, every=4, rate=rate, momentum=momentum, nesterov=nesterov)
        for step in range(12):
            local(x, seed, session.rank, step)
            outer.step()
            if step % 4 != 3:
                assert session.stats()["collectives"] == 1 + step // 4  # the broadcast, and one in four steps
        digest = np.concatenate(x).tobytes()
        outer.finish()  # nothing was learned since
        assert np.concatenate(x).tobytes() == digest
        return x, np.concatenate(x).tobytes()

    found = together(lossy.url, RANKS, call)
    assert len({digest for _, digest in found}) == 1
    assert np.allclose(
        np.concatenate(found[0][0]), expected(seed, 12, 4, rate, momentum, nesterov), atol=1e-4
    )


def test_fragments_and_overlap(lossy: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def call(session: Session) -> tuple[bytes, bytes, float]:
        x = start(session.rank)
        outer = OuterSteps(session, x, every=6, fragments=2, overlap=2, rate=1.0, momentum=0.0)
        for step in range(30):
            local(x, seed, session.rank, step)
            outer.step()
        before = np.concatenate(x).tobytes()
        with pytest.raises(UsageError, match="a fragment is on its way"):
            outer.state_dict()
        outer.finish()
        goals = []
        for rank in range(RANKS):
            rng = np.random.default_rng((seed, rank))
            goals.append(np.concatenate([rng.standard_normal(size) for size in SIZES]))
        off = float(np.linalg.norm(np.concatenate(x) - np.mean(goals, axis=0)))
        outer.state_dict()
        return before, np.concatenate(x).tobytes(), off / float(np.linalg.norm(np.mean(goals, axis=0)))

    found = together(lossy.url, RANKS, call)
    assert len({before for before, _, _ in found}) == RANKS  # each with its own steps since
    assert len({after for _, after, _ in found}) == 1
    assert found[0][2] < 0.05


def test_compressed_pseudo_gradients_and_a_checkpoint(lossy: EmbeddedController) -> None:
    seed = seed_of_this_run()

    def made(session: Session, x: list[Array]) -> OuterSteps:
        sparse = ErrorFeedback(chain(TopBlocks(tau=0.3, block=8), Dithering(bits=8)))
        return OuterSteps(session, x, every=2, momentum=0.0, rate=1.0, compressor=sparse, fragments=2)

    def call(session: Session) -> tuple[bytes, bytes, bool]:
        x = start(session.rank)
        outer = made(session, x)
        for step in range(6):
            local(x, seed, session.rank, step)
            outer.step()
        saved = outer.state_dict()
        outer.load_state_dict(saved)
        y = start(session.rank)
        other = made(session, y)
        other.load_state_dict(saved)
        for each, run in ((x, outer), (y, other)):
            for step in range(6, 10):
                local(each, seed, session.rank, step)
                run.step()
        learned = np.linalg.norm(np.concatenate(x) - np.concatenate(start(0))) > 1
        with pytest.raises(UsageError, match=r"state has fragments of \[847\] elements; here: \[300, 547\]"):
            outer.load_state_dict({**saved, "anchors": [np.zeros(847, np.float32)]})
        return np.concatenate(x).tobytes(), np.concatenate(y).tobytes(), bool(learned)

    for mine, again, learned in together(lossy.url, RANKS, call):
        assert mine == again
        assert learned


def test_tensors(lossy: EmbeddedController) -> None:
    torch = pytest.importorskip("torch")

    def call(session: Session) -> list[float]:
        model = torch.nn.Linear(3, 2)
        outer = OuterSteps(session, model.parameters(), every=1, rate=1.0, momentum=0.0)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(session.rank)
        before = [p.detach().clone() for p in model.parameters()]
        outer.step()
        return [float((p - b).detach().mean()) for p, b in zip(model.parameters(), before, strict=True)]

    for rank, moved in enumerate(together(lossy.url, RANKS, call)):
        assert moved == pytest.approx([1 - rank] * 2, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": 0}, "every is 0; accepted: a whole number from 1"),
        ({"fragments": 5}, "fragments is 5; accepted: a whole number from 1 to 4"),
        ({"overlap": 8}, "overlap is 8; accepted: a whole number from 0 to 7"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"mixing": 1.0}, "mixing is 1.0"),
        ({"bits": 8, "compressor": Dithering(bits=8)}, "bits is 8 beside a compressor"),
        ({"parameters": []}, "there are no parameters"),
        ({"parameters": [np.zeros(3)]}, "parameter 0 has type float64; accepted: float32"),
    ],
)
def test_what_is_refused(lossy: EmbeddedController, arguments: dict[str, Any], words: str) -> None:
    def call(session: Session) -> None:
        with pytest.raises(UsageError, match=words):
            OuterSteps(session, **{"parameters": start(0), "every": 8, **arguments})

    together(lossy.url, 1, call)
